"""`pfge cascade`: members that answer one after another, until one is sure."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pfge.cli.ensemble_arguments import WHERE_FROM, add_ensemble_arguments, open_bench_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from pfge.cascade import Cascade
    from pfge.cli.compare import SubParsers
    from pfge.ensemble import Ensemble
    from pfge.lab.data import Batch

    Predict = Callable[[], Tensor]

ROUNDS = 3


def add_parser(commands: "SubParsers") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "cascade",
        help="ask fewer members: stop where the answer is sure",
        description="Find on validation data how sure an answer has to be so that no other member is asked, "
        "write that down for `pfge predict --cascade`, and print what it is worth on the test set and what "
        f"it costs. {WHERE_FROM}",
    )
    add_ensemble_arguments(parser)
    parser.add_argument(
        "--max-accuracy-loss",
        type=float,
        default=0.001,
        metavar="SHARE",
        help="of validation images that only all members together get right (default: 0.001)",
    )
    parser.add_argument(
        "--max-nll-increase", type=float, metavar="X", help="above the NLL of all members, on validation data"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the JSON (default: ENSEMBLE/cascade.json)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Fit the cascade, write it, and print what it is worth."""
    from pfge.cascade_fit import fit_cascade
    from pfge.cli.tables import print_cascade
    from pfge.scores import score_examples

    bench = open_bench_of(options)
    validation = bench.validation_for("fitting a cascade")
    ensemble = bench.load_ensemble(options.ensemble)
    cascade = fit_cascade(
        ensemble,
        bench.in_batches(validation),
        validation.labels.cpu(),
        max_accuracy_loss=options.max_accuracy_loss,
        max_nll_increase=options.max_nll_increase,
    )
    out = options.out or options.ensemble / "cascade.json"
    bench.engine.first_does(lambda: cascade.save(out))
    batches, labels = bench.in_batches(bench.splits.test), bench.splits.test.labels.cpu()
    asked = cascade.predict_batches(ensemble, batches).asked
    ways: dict[str, Predict] = {
        "one member": lambda: _predict_by_one(ensemble, cascade.order[0], batches),
        "cascade": lambda: cascade.predict_batches(ensemble, batches).probabilities,
        "all members": lambda: ensemble.predict_batches(batches),
    }
    members = [(1.0, 1), (asked.double().mean().item(), int(asked.max())), (len(ensemble), len(ensemble))]
    scores = [score_examples(predict().cpu(), labels) for predict in ways.values()]
    seconds = _take_turns(ways)
    if bench.engine.is_first:
        print_cascade(
            dict(zip(ways, zip(members, scores, seconds, strict=True), strict=True)),
            f"{ensemble.method or 'ensemble'}, {len(ensemble)} members: test set, {len(labels):,} images",
        )
        print(f"{_describe(cascade)}: {out}")
    return 0


def _predict_by_one(ensemble: "Ensemble", member: int, batches: "Iterable[Batch]") -> "Tensor":
    import torch

    predict = ensemble.predictor(member)
    return torch.cat([predict(batch) for batch in batches])


def _take_turns(ways: "dict[str, Predict]") -> list[list[float]]:
    """Return the seconds of each way in each round."""
    from time import perf_counter

    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(ROUNDS):
        for times, predict in zip(seconds, ways.values(), strict=True):
            start = perf_counter()
            predict()
            times.append(perf_counter() - start)
    return seconds


def _describe(cascade: "Cascade") -> str:
    """Say in words when a cascade stops."""
    order = "Members answer in the order " + ", ".join(map(str, cascade.order))
    if not cascade.thresholds:
        return order
    first, last = (f"{threshold:.4f}" for threshold in (cascade.thresholds[0], cascade.thresholds[-1]))
    falling = f", falling to {last}" if last != first else ""
    agreeing = ", if all agree," if cascade.rule == "agreement" else ""
    return f"{order}, until one is sure{agreeing} from {first} on{falling}"

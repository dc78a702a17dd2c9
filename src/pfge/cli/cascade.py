"""`pfge cascade`: evaluate members one after another, until the prediction is confident."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pfge.cli.ensemble_arguments import WHERE_FROM, add_ensemble_arguments, open_session_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pfge.cascade.cascade import Cascade, CascadePrediction
    from pfge.ensemble import Ensemble
    from pfge.lab.data import Batch

    Predict = Callable[[], CascadePrediction]

ROUNDS = 3


HELP = "evaluate fewer members: stop where the prediction is confident"
DESCRIPTION = (
    "Fit on validation data how confident a prediction must be to stop, write the cascade "
    "for `pfge predict --cascade`, and print its quality, members and time on the test set. "
    f"{WHERE_FROM}"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_ensemble_arguments(parser)
    parser.add_argument(
        "--max-accuracy-loss",
        type=float,
        default=0.001,
        metavar="SHARE",
        help="largest share of validation images that all members classify correctly and the cascade does "
        "not (default: 0.001)",
    )
    parser.add_argument(
        "--max-nll-increase",
        type=float,
        metavar="X",
        help="largest increase of the NLL over that of all members, on validation data",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON file (default: ENSEMBLE/cascade.json)")


def run(options: argparse.Namespace) -> int:
    """Fit the cascade, write it, and print its quality and cost."""
    from pfge.cascade.fitting import fit_cascade
    from pfge.cli.tables import print_cascade
    from pfge.metrics.scores import score_examples
    from pfge.reports.tables.cascade import MeasuredWay

    session = open_session_of(options)
    session.require_one_class("a cascade")
    validation = session.validation_for("fitting a cascade")
    ensemble = session.load_ensemble(options.ensemble)
    cascade = fit_cascade(
        ensemble,
        session.in_batches(validation),
        validation.labels.cpu(),
        max_accuracy_loss=options.max_accuracy_loss,
        max_nll_increase=options.max_nll_increase,
    )
    out = options.out or options.ensemble / "cascade.json"
    session.engine.first_does(lambda: cascade.save(out))
    batches, labels = session.in_batches(session.splits.test), session.splits.test.labels.cpu()
    first = _member(ensemble, cascade.order[0])
    ways: dict[str, Predict] = {
        "one member": lambda: _by_all(first, batches),
        "cascade": lambda: cascade.predict_batches(ensemble, batches),
        "all members": lambda: _by_all(ensemble, batches),
    }
    predictions, seconds = _take_turns(ways)
    measured = [
        MeasuredWay(
            name,
            found.evaluated.double().mean().item(),
            int(found.evaluated.max()),
            score_examples(found.probabilities.cpu(), labels),
            times,
        )
        for name, found, times in zip(ways, predictions, seconds, strict=True)
    ]
    if session.engine.is_first:
        print_cascade(
            measured,
            session.task,
            f"{ensemble.method or 'ensemble'}, {len(ensemble)} members: test set, {len(labels):,} images",
        )
        print(f"{_describe(cascade)}: {out}")
    return 0


def _member(ensemble: "Ensemble", number: int) -> "Ensemble":
    """Return the ensemble of one member alone, at its own temperature."""
    from pfge.calibration import Temperatures

    return ensemble.with_members(
        ensemble.members[number : number + 1],
        iterations=ensemble.iterations[number : number + 1],
        temperatures=Temperatures(members=(ensemble.temperatures.of_member(number),)),
    )


def _by_all(ensemble: "Ensemble", batches: "Iterable[Batch]") -> "CascadePrediction":
    import torch

    from pfge.cascade.cascade import CascadePrediction

    probabilities = ensemble.predict_batches(batches)
    return CascadePrediction(probabilities, torch.full((len(probabilities),), len(ensemble)))


def _take_turns(ways: "dict[str, Predict]") -> "tuple[list[CascadePrediction], list[list[float]]]":
    """Return the predictions of each way, and its seconds in each round.

    The ways alternate, so that a change of the machine's speed affects all of them.
    """
    from time import perf_counter

    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(ROUNDS):
        predictions = []
        for times, predict in zip(seconds, ways.values(), strict=True):
            start = perf_counter()
            predictions.append(predict())
            times.append(perf_counter() - start)
    return predictions, seconds


def _describe(cascade: "Cascade") -> str:
    """Describe in words when a cascade stops."""
    order = "Members are evaluated in the order " + ", ".join(map(str, cascade.order))
    if not cascade.thresholds:
        return order
    first, last = (f"{threshold:.4f}" for threshold in (cascade.thresholds[0], cascade.thresholds[-1]))
    falling = f", falling to {last}" if last != first else ""
    agreeing = " and all agree" if cascade.rule == "agreement" else ""
    return f"{order}, until the confidence is at least {first}{falling}{agreeing}"

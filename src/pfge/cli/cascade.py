"""`pfge cascade`: evaluate members one after another, until the prediction is confident."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pfge.cli.arguments import (
    WHERE_FROM,
    add_ensemble_arguments,
    load_saved_ensemble,
    open_session_of,
    written_file,
)

if TYPE_CHECKING:
    from torch import Tensor

    from pfge.cascade import Cascade
    from pfge.ensemble import Ensemble
    from pfge.lab.data import DataPart
    from pfge.lab.session import Session
    from pfge.reports.tables.ensembles import MeasuredWay

HELP = "evaluate fewer members: stop where the prediction is confident"
DESCRIPTION = f"""
Fit on validation data how confident a prediction must be to stop, write the cascade for `pfge predict
--cascade`, and print its quality, members and time on the test set. {WHERE_FROM}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_ensemble_arguments(parser)
    parser.add_argument(
        "--max-accuracy-loss",
        type=float,
        default=0.001,
        metavar="SHARE",
        help="largest share of validation examples that all members classify correctly and the cascade does "
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
    from pfge.calibration import UNSCALED, fit_temperature, log_probabilities
    from pfge.cascade import bind_to, fit_to_answers, require_a_loss
    from pfge.cli.tables import print_cascade

    losses = {
        "max_accuracy_loss": options.max_accuracy_loss,
        "max_nll_increase": options.max_nll_increase,
    }
    require_a_loss(**losses)  # before any prediction
    out = written_file(options, "cascade.json")
    session = open_session_of(options)
    session.require_one_class("a cascade")
    validation, test = session.validation_for("fitting a cascade"), session.splits.test
    ensemble = load_saved_ensemble(session, options.ensemble)
    answers, _ = _predict(session, ensemble, validation, "validation data")
    targets = validation.labels.cpu()
    cascade = bind_to(fit_to_answers(answers, targets, ensemble.temperatures, **losses), ensemble)
    is_calibrated = ensemble.temperatures != UNSCALED
    own = 1.0
    if is_calibrated:  # so is the one member, at the temperature that it has alone
        own = fit_temperature(log_probabilities(answers[cascade.order[0]]), targets).value
    session.engine.on_rank_zero(lambda: cascade.save(out))
    answers, seconds = _predict(session, ensemble, test, "test data")
    if session.engine.is_first:
        print_cascade(
            _measure(cascade, ensemble, answers, test.labels.cpu(), seconds, own),
            session.task,
            f"{ensemble.method or 'ensemble'}, {len(ensemble)} members: test set, {len(test):,} examples",
            calibrated=is_calibrated,
        )
        print(f"{_describe(cascade)}: {out}")
    return 0


def _predict(
    session: "Session", ensemble: "Ensemble", data: "DataPart", name: str
) -> "tuple[Tensor, list[float]]":
    """Return the probabilities of each member, [K, N, C], and the seconds that they took."""
    from time import perf_counter

    import torch

    answers, seconds = [], []
    with session.reporter.task(f"members on {name}", len(ensemble)) as advance:
        start = perf_counter()
        for done, member in enumerate(ensemble.predict_each(session.in_batches(data)), 1):
            answers.append(member.cpu())
            seconds.append(perf_counter() - start)
            advance(done, "")
            start = perf_counter()
    return torch.stack(answers), seconds


def _measure(
    cascade: "Cascade",
    ensemble: "Ensemble",
    answers: "Tensor",
    labels: "Tensor",
    seconds: list[float],
    own: float,
) -> "list[MeasuredWay]":
    """Return the scores and cost of one member, the cascade and all members.

    Args:
        cascade: The fitted cascade.
        ensemble: Its ensemble.
        answers: The members' probabilities, [K, N, C].
        labels: The true classes, [N].
        seconds: The time that each member took.
        own: The temperature of the one member alone.
    """
    from pfge.calibration import Temperatures
    from pfge.cascade import NEVER, Cascade
    from pfge.metrics.scores import score_examples
    from pfge.reports.tables.ensembles import MeasuredWay

    first = cascade.order[0]
    ways = {
        "one member": Cascade((0,), NEVER).replay(answers[first : first + 1], Temperatures(own)),
        "cascade": cascade.replay(answers, ensemble.temperatures),
        "all members": Cascade(cascade.order, NEVER).replay(answers, ensemble.temperatures),
    }
    return [
        MeasuredWay(
            name,
            found.evaluated.double().mean().item(),
            int(found.evaluated.max()),
            score_examples(found.probabilities, labels),
            sum(
                (found.evaluated >= place).double().mean().item() * seconds[member]
                for place, member in enumerate(cascade.order, 1)
            ),
        )
        for name, found in ways.items()
    ]


def _describe(cascade: "Cascade") -> str:
    """Describe in words when a cascade stops."""
    order = "Members are evaluated in the order " + ", ".join(map(str, cascade.order))
    if not cascade.thresholds:
        return order
    first, last = (f"{threshold:.4f}" for threshold in (cascade.thresholds[0], cascade.thresholds[-1]))
    falling = f", falling to {last}" if last != first else ""
    agreeing = " and all agree" if cascade.rule == "agreement" else ""
    return f"{order}, until the confidence is at least {first}{falling}{agreeing}"

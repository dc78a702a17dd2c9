"""Baselines: a deep ensemble, and dropout that stays on at test time."""

from collections.abc import Callable

from pfge.lab.evaluation.mc_dropout import mc_dropout
from pfge.lab.evaluation.record import record_ensemble, saved_ensemble
from pfge.lab.session import Session
from pfge.lab.training.pretrain import find_w0, pretraining_iterations
from pfge.weights import Weights


def make_deep_ensemble(session: Session, seed: int, w0: Weights, name: str, count: int) -> None:
    """Train members from starts of their own, w0 being the first, and measure them."""
    members = [w0, *(find_w0(session, seed, number) for number in range(2, count + 1))]
    cost = (count - 1) * pretraining_iterations(session, seed)
    raw = session.make_ensemble(members, method=f"{name}({count})")
    # Not refreshed: each has the BatchNorm statistics of its own training.
    ensemble = saved_ensemble(session, seed, name, lambda: raw)
    record_ensemble(session, seed, name, ensemble, iterations=cost, trainings=count)


def make_mc_dropout(session: Session, seed: int, w0: Weights, name: str, samples: int) -> None:
    """Measure w0 with dropout left on."""
    ensemble = mc_dropout(
        w0,
        session.build_model,
        samples=samples,
        seed=seed,
        task=session.task,
        forward=session.engine.forward,
    )
    record_ensemble(session, seed, name, ensemble.to(session.engine.device))


MAKERS: dict[str, Callable[[Session, int, Weights, str, int], None]] = {
    "trainings": make_deep_ensemble,
    "start": make_mc_dropout,
}
"""The functions that make and measure methods without a path, by `Method.path`, in the order they run."""

"""How long units take on some workers, without running them."""

from statistics import mean

import pytest

from pfge.lab.experiments.cost import Failures, SimulatedUnit, simulate


def unit(name: str, seconds: float, *needs: str) -> SimulatedUnit:
    return SimulatedUnit(name, seconds, needs)


@pytest.mark.parametrize(("workers", "seconds"), [(1, 60), (2, 40), (3, 30), (9, 30)])
def test_workers_share_what_does_not_wait(workers: int, seconds: float) -> None:
    """With two, b runs beside a, c and then e: 10 + 10 + 5 + 15; with more, w0 and b take the longest."""
    units = [unit("w0", 10), unit("a", 10, "w0"), unit("b", 20, "w0"), unit("c", 5, "a"), unit("d", 0, "c")]
    assert max(simulate([*units, unit("e", 15, "w0")], workers).values()) == seconds


def test_units_that_are_done_hold_up_nothing() -> None:
    assert simulate([unit("b", 3, "done before"), unit("c", 2, "b")], 4) == {"b": 3, "c": 5}


def test_failures_cost_what_was_lost() -> None:
    """A worker fails once in 100 s of work, and loses 5 s in the mean, so 1000 s of work take 1050."""
    ends = [
        max(simulate([unit("a", 1000)], 1, Failures(mean_seconds=100, lost_seconds=10, seed=seed)).values())
        for seed in range(400)
    ]
    assert mean(ends) == pytest.approx(1050, rel=0.01)
    assert min(ends) >= 1000

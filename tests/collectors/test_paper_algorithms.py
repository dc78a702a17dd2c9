"""The collectors equal scalar transcriptions of the paper's algorithms; and the laws between them."""

import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfge import EMA, FGE, PFGE, SWA, SWAG, Collector, CosineRestarts, Trajectory, Triangular
from pfge.schedules import Schedule
from tests import paper
from tests.toys import Scalar, assert_same_weights, make_mlp, train

# Any schedule meets any collector here.
pytestmark = pytest.mark.filterwarnings("ignore:.* collects its first points at the rates")

cycles = st.integers(1, 6)
repeats = st.integers(1, 4)
momenta = st.sampled_from([0.0, 0.5, 0.9])
starts = st.floats(-3, 3)
schedules = st.one_of(
    st.builds(Triangular, cycles, st.just(1e-3), st.floats(0.01, 0.2), st.sampled_from(["low", "high"])),
    st.builds(CosineRestarts, cycles, st.just(0.0), st.floats(0.01, 0.2)),
)


def gradient(w: float, i: int) -> float:
    """The slope of (w - 1)^2 / 2 with a disturbance, so that no two iterations are alike."""
    return w - 1 + ((i * 37) % 11 - 5) / 10


def walker(start: float, schedule: Schedule, momentum: float) -> paper.Walker:
    return paper.Walker(start, gradient, schedule, momentum)


def run(collectors: list[Collector], start: float, schedule: Schedule, momentum: float, n: int) -> Trajectory:
    model = Scalar(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=momentum)
    trajectory = Trajectory(model, optimizer, schedule, collectors)
    for i in range(1, n + 1):
        trajectory.before_update()
        model.w.grad = torch.tensor(gradient(model.w.item(), i), dtype=torch.float64)
        optimizer.step()
        trajectory.after_update()
    return trajectory


def values(collector: Collector) -> list[float]:
    return [member["w"].item() for member in collector.members()]


@given(starts, schedules, momenta, cycles, repeats)
def test_swa_equals_algorithm_1(start: float, schedule: Schedule, momentum: float, c: int, m: int) -> None:
    swa = SWA(c)
    run([swa], start, schedule, momentum, c * m)
    expected = paper.algorithm_1_swa(walker(start, schedule, momentum), c * m, c)
    assert values(swa) == pytest.approx([expected], rel=0, abs=1e-12)


@given(starts, schedules, momenta, cycles, st.integers(1, 25))
def test_fge_equals_algorithm_2(start: float, schedule: Schedule, momentum: float, c: int, n: int) -> None:
    fge = FGE(c)
    run([fge], start, schedule, momentum, n)
    expected = paper.algorithm_2_fge(walker(start, schedule, momentum), n, c)
    assert values(fge) == pytest.approx(expected, rel=0, abs=1e-12)


@given(starts, schedules, momenta, cycles, repeats, repeats, st.booleans())
def test_pfge_equals_algorithm_3(
    start: float, schedule: Schedule, momentum: float, c: int, m: int, k: int, clear: bool
) -> None:
    pfge = PFGE(c, c * m, clear_momentum=clear)
    run([pfge], start, schedule, momentum, c * m * k)
    expected = paper.algorithm_3_pfge(
        walker(start, schedule, momentum), c * m * k, c, c * m, clear_momentum=clear
    )
    assert len(expected) == k
    assert values(pfge) == pytest.approx(expected, rel=0, abs=1e-12)


@given(starts, schedules, momenta, cycles, st.integers(1, 12), st.integers(1, 40))
def test_pfge_equals_algorithm_3_when_the_numbers_do_not_divide(
    start: float, schedule: Schedule, momentum: float, c: int, extra: int, n: int
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pfge = PFGE(c, c + extra)
    run([pfge], start, schedule, momentum, n)
    expected = paper.algorithm_3_pfge(walker(start, schedule, momentum), n, c, c + extra, clear_momentum=True)
    assert values(pfge) == pytest.approx(expected, rel=0, abs=1e-12)


@pytest.mark.filterwarnings("ignore:period=")
@given(starts, momenta, st.sampled_from([2, 4, 6]), st.integers(0, 7), repeats, st.integers(1, 3))
def test_the_reference_preset_equals_the_authors_program(
    start: float, momentum: float, c: int, extra: int, k: int, batches: int
) -> None:
    p, cycle = c + extra, c * batches
    pfge = PFGE.reference(cycle, p * batches)
    run([pfge], start, Triangular(cycle, 1e-3, 0.1, start="high"), momentum, p * k * batches)
    theirs = paper.Walker(start, gradient, lambda i: paper.reference_rate(i, cycle, 1e-3, 0.1), momentum)
    expected = paper.reference_pfge(theirs, p * k, c, p, batches)
    assert len(expected) == k
    assert values(pfge) == pytest.approx(expected, rel=0, abs=1e-12)


def test_the_authors_defaults_average_epochs_2_6_10_and_then_14_18() -> None:
    with pytest.warns(
        UserWarning, match=r"the first member averages iterations 2, 6, 10, the second 14, 18, and so on"
    ):
        pfge = PFGE.reference(cycle=4, period=10)
    pfge.begin({"w": torch.tensor(0.0)})
    for epoch in range(1, 21):
        pfge.observe(epoch, {"w": torch.tensor(float(epoch))})
    assert values(pfge) == [(2 + 6 + 10) / 3, (14 + 18) / 2]


@given(starts, schedules, momenta, cycles, repeats, st.booleans())
def test_pfge_with_one_period_is_swa(
    start: float, schedule: Schedule, momentum: float, c: int, m: int, average_start: bool
) -> None:
    n = c * m
    swa, pfge = SWA(c, average_start=average_start), PFGE(c, n, average_start=average_start)
    run([swa, pfge], start, schedule, momentum, n)
    assert values(pfge) == values(swa)


@given(starts, schedules, momenta, cycles, repeats)
def test_pfge_with_period_equal_to_cycle_no_start_and_momentum_kept_is_fge(
    start: float, schedule: Schedule, momentum: float, c: int, k: int
) -> None:
    pfge, fge = PFGE(c, c, average_start=False, clear_momentum=False), FGE(c)
    run([pfge], start, schedule, momentum, c * k)
    run([fge], start, schedule, momentum, c * k)
    assert values(pfge) == values(fge)
    assert pfge.iterations == fge.iterations


def test_pfge_of_a_worked_example() -> None:
    # Rate 1 and gradient -1 every time: w goes up by 1 an iteration. c=2, P=4, start 0.
    # Period 1: points 2 and 4, mean (0 + 2 + 4) / 3 = 2; go on from 2.
    # Period 2: points 4 and 6, mean (2 + 4 + 6) / 3 = 4.
    pfge = PFGE(cycle=2, period=4)
    weights = {"w": torch.tensor(0.0, dtype=torch.float64)}
    pfge.begin(weights)
    for i in range(1, 9):
        weights["w"] = weights["w"] + 1
        restart = pfge.observe(i, weights)
        if restart is not None:
            weights["w"] = restart.weights["w"].clone()
    assert values(pfge) == [2.0, 4.0]
    assert pfge.iterations == [4, 8]


@pytest.mark.parametrize(
    "make", [lambda: SWA(2), lambda: FGE(3), lambda: SWAG(2), lambda: EMA(0.9), lambda: SWA(2, phase=1)]
)
def test_a_listener_changes_nothing(make: Callable[[], Collector]) -> None:
    watched, alone = make_mlp(), make_mlp()
    train(watched, [make()], 7)
    train(alone, [], 7)
    assert_same_weights(watched.state_dict(), alone.state_dict())


def test_a_listener_beside_pfge_changes_nothing() -> None:
    shared, alone = PFGE(2, 4), PFGE(2, 4)
    train(make_mlp(), [shared, FGE(1), SWA(2)], 8)
    train(make_mlp(), [alone], 8)
    for first, second in zip(shared.members(), alone.members(), strict=True):
        assert_same_weights(first, second)

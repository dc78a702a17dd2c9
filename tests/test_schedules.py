import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfge import Constant, CosineRestarts, Triangular
from pfge.schedules import Joined, LinearDecay, pretraining_schedule
from tests import paper


def rates(schedule: object, iterations: int) -> list[float]:
    return [schedule(i) for i in range(1, iterations + 1)]  # type: ignore[operator]


def test_triangular_is_low_at_every_multiple_of_the_cycle() -> None:
    # cycle 4 from 1 to 3: up to 3 at mid-cycle, back to 1 at the end.
    assert rates(Triangular(4, 1.0, 3.0), 8) == [2.0, 3.0, 2.0, 1.0] * 2


def test_triangular_from_high_begins_every_cycle_at_high() -> None:
    assert rates(Triangular(4, 1.0, 3.0, start="high"), 8) == [3.0, 2.0, 1.0, 2.0] * 2


@given(st.integers(1, 50))
def test_triangular_from_high_is_the_rate_of_the_authors_program(cycle: int) -> None:
    expected = [paper.reference_rate(i, cycle, 5e-4, 0.05) for i in range(1, 3 * cycle + 1)]
    found = rates(Triangular(cycle, 5e-4, 0.05, start="high"), 3 * cycle)
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_authors_program_collects_one_iteration_before_its_lowest_rate() -> None:
    schedule = Triangular(20, 5e-4, 0.05, start="high")
    assert [schedule(10), schedule(11)] == pytest.approx([0.00545, 5e-4])


def test_triangular_ends_are_exact() -> None:
    schedule = Triangular(10, 5e-4, 0.05)
    assert schedule(10) == 5e-4
    assert schedule(5) == 0.05


def test_triangular_with_an_odd_cycle_never_quite_reaches_high() -> None:
    assert rates(Triangular(3, 0.0, 3.0), 3) == [2.0, 2.0, 0.0]


def test_cosine_restarts_end_each_cycle_at_low() -> None:
    expected = [2 + math.cos(math.pi * i / 4) for i in (1, 2, 3, 4)]
    assert rates(CosineRestarts(4, 1.0, 3.0), 8) == pytest.approx(expected * 2, abs=1e-15)
    assert CosineRestarts(4, 0.1, 0.7)(4) == 0.1


def test_linear_decay_stays_at_its_last_rate() -> None:
    assert rates(LinearDecay(4, 1.0, 0.0), 6) == [0.75, 0.5, 0.25, 0.0, 0.0, 0.0]


def test_joined_schedules_count_their_own_iterations() -> None:
    joined = Joined(((Constant(5.0), 2), (LinearDecay(2, 4.0, 2.0), 2), (Constant(1.0), 1)))
    assert rates(joined, 7) == [5.0, 5.0, 3.0, 2.0, 1.0, 1.0, 1.0]


def test_pretraining_is_constant_for_a_half_and_reaches_a_hundredth_at_ninety_percent() -> None:
    schedule = pretraining_schedule(100, 0.1)
    assert rates(schedule, 50) == [0.1] * 50
    assert schedule(70) == pytest.approx(0.1 * (1 - 0.99 * 20 / 40))
    assert [schedule(90), schedule(100)] == pytest.approx([0.001, 0.001])


def test_equal_settings_are_the_same_schedule() -> None:
    assert Triangular(4, 0.1, 0.2) == Triangular(4, 0.1, 0.2)
    assert Triangular(4, 0.1, 0.2) != Triangular(4, 0.1, 0.2, start="high")


@pytest.mark.parametrize("cycle", [0, -3])
def test_a_cycle_without_iterations_is_refused(cycle: int) -> None:
    with pytest.raises(ValueError, match=f"cycle must be at least 1 iteration, got {cycle}"):
        Triangular(cycle, 0.1, 0.2)


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (lambda: Triangular(4.5, 0.1, 0.2), "cycle", 4.5),
        (lambda: CosineRestarts(4.0, 0.1, 0.2), "cycle", 4.0),
        (lambda: LinearDecay(2.5, 0.2, 0.1), "iterations", 2.5),
        (lambda: Joined(((Constant(0.1), 1.5),)), "iterations", 1.5),
        (lambda: pretraining_schedule(10.0, 0.1), "iterations", 10.0),
    ],
)
def test_a_number_of_iterations_that_is_not_whole_is_refused(
    make: Callable[[], object], name: str, value: float
) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a whole number of iterations, got {value}; round"):
        make()


@pytest.mark.parametrize("schedule", [Triangular, CosineRestarts])
def test_low_above_high_is_refused_with_both_values(schedule: type[Triangular | CosineRestarts]) -> None:
    with pytest.raises(ValueError, match=r"got low=0\.2 and high=0\.1; exchange"):
        schedule(4, 0.2, 0.1)


def test_an_unknown_start_is_refused() -> None:
    with pytest.raises(ValueError, match="start must be 'low' or 'high', got 'middle'"):
        Triangular(4, 0.1, 0.2, start="middle")  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", ["0.1", None, [0.1]])
def test_rates_of_another_type_are_refused(rate: Any) -> None:
    with pytest.raises(TypeError, match=r"rates must be numbers, got .* pass floats"):
        Triangular(4, rate, 0.2)


def test_rates_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="0 <= low <= high"):
        Constant(math.nan)

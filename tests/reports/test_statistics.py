"""Means and standard errors over seeds, method by method."""

from math import inf, isnan, nan, sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfge.lab.run.results import ComparisonRow, FormatRow
from pfge.reports.statistics import (
    Estimate,
    FormatSummary,
    best_by,
    by_method,
    name_seeds,
    of_shared_seeds,
    over_seeds,
    paired_metrics,
    pareto_front,
    shared_seeds,
    shown_metrics,
    summarize,
)
from pfge.tasks import Classification
from tests.reports.made_run import form_rows, result


def row(method: str, seed: int = 1, **test: float) -> ComparisonRow:
    made = result(method, seed, like="SWA")
    made["test"] |= test
    return ComparisonRow.from_json(made)


def test_an_estimate_is_the_mean_and_its_standard_error() -> None:
    estimate = Estimate.of([1.0, 2.0, 6.0])  # deviations -2, -1, 3: sample variance 14 / 2
    assert estimate.mean == pytest.approx(3.0)
    assert estimate.error == pytest.approx(sqrt(7) / sqrt(3))


def test_one_seed_has_no_standard_error() -> None:
    assert Estimate.of([0.25]) == Estimate(0.25, None)


def test_another_unit_changes_mean_and_error() -> None:
    assert Estimate(0.5, 0.25).scaled(100) == Estimate(50.0, 25.0)
    assert Estimate(0.5).scaled(100) == Estimate(50.0)


@pytest.mark.parametrize("value", [nan, inf, -inf, 1.7e308])
def test_a_value_that_diverged_leaves_no_mean(value: float) -> None:
    assert isnan(Estimate.of([value, 1.0]).mean)
    assert Estimate.of([value, 1.0]).error is None


def test_each_method_is_one_summary_over_its_seeds() -> None:
    found = summarize([row("SWA", 1, accuracy=0.90), row("FGE", 1), row("SWA", 2, accuracy=0.94)])
    assert [summary.method for summary in found] == ["SWA", "FGE"]
    accuracy = found[0].metrics["accuracy"]
    assert accuracy.mean == pytest.approx(0.92)
    assert accuracy.error == pytest.approx(0.02)  # sqrt(0.0008) / sqrt(2)


def test_methods_are_in_the_papers_order_and_then_in_their_own() -> None:
    methods = ["PFGE", "mine", "SWAG*", "FGE*", "w0", "FGE", "another", "SWAG", "SWA"]
    found = by_method([row(method) for method in methods])
    assert list(found) == ["w0", "SWA", "FGE", "FGE*", "SWAG", "SWAG*", "PFGE", "mine", "another"]


def test_another_part_of_the_data_can_be_summarized() -> None:
    validation: dict[str, Any] = {"accuracy": 0.4, "nll": 0.6, "ece": 0.1}
    made = ComparisonRow.from_json(result("SWA", 1) | {"validation": validation})
    (found,) = summarize([made], part="validation")
    assert {name: estimate.mean for name, estimate in found.metrics.items()} == validation


def test_a_method_as_the_comparison_has_it_is_a_format_too() -> None:
    (summary,) = summarize([ComparisonRow.from_json(result("PFGE", 1))])
    found = FormatSummary.of_method(summary)
    assert (found.name, found.is_plain, found.passes.mean, found.kl) == ("PFGE, float32", True, 4.0, None)


def test_paired_metrics_are_the_main_ones_that_every_example_has_a_score_for() -> None:
    rows = [row("SWA", 1), row("SWA", 2)]
    assert [metric.name for metric in shown_metrics(rows)] == ["accuracy", "nll", "ece"]
    assert [metric.name for metric in paired_metrics(rows)] == ["accuracy", "nll"]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=8))
def test_a_point_is_on_the_front_exactly_if_none_beats_it(points: list[tuple[int, int]]) -> None:
    front = pareto_front(points, lambda point: point[0], lambda point: point[1])

    def is_beaten(cost: int, loss: int) -> bool:
        return any((c <= cost and v <= loss) and (c, v) != (cost, loss) for c, v in points)

    assert set(front) == {(cost, loss) for cost, loss in points if not is_beaten(cost, loss)}
    assert front == sorted(set(front))


def test_shared_seeds_are_those_of_every_method() -> None:
    rows = [row("SWA", 1), row("SWA", 2), row("SWA", 3), row("FGE", 3), row("FGE", 2), row("PFGE", 3)]
    assert shared_seeds(rows) == {3}
    assert [(found.method, found.seed) for found in of_shared_seeds(rows)] == [
        ("SWA", 3),
        ("FGE", 3),
        ("PFGE", 3),
    ]
    assert shared_seeds([*rows, row("SWAG", 1)]) == shared_seeds([]) == set()


def test_shared_seeds_are_those_of_every_format() -> None:
    rows = [FormatRow.from_json(found) for found in form_rows(methods=["PFGE"])]
    assert shared_seeds(rows) == {1, 2}
    assert shared_seeds(rows[1:]) == {2}  # seed 1 as float32 is not there


def test_a_note_has_the_fewest_and_the_most_seeds() -> None:
    three = [row("SWA", seed) for seed in (1, 2, 3)]
    assert over_seeds(three) == ["mean ± standard error over 3 seeds"]
    assert over_seeds([*three, row("FGE", 2)]) == ["mean ± standard error over 1 to 3 seeds"]
    assert over_seeds([row("SWA", 1), row("FGE", 2)]) == []


def test_seeds_are_named_in_order() -> None:
    assert [name_seeds({3}), name_seeds([2, 1]), name_seeds({12, 1, 3})] == [
        "seed 3",
        "seeds 1 and 2",
        "seeds 1, 3 and 12",
    ]


def test_the_best_are_all_of_the_best_mean() -> None:
    accuracy = Classification().metric("accuracy")
    assert best_by(accuracy, {"a": 0.9, "b": 0.8, "c": 0.9}) == {"a", "c"}
    assert best_by(accuracy, dict[str, float]()) == set()
    assert best_by(accuracy, {"a": nan, "b": 0.8}) == {"b"}


@pytest.mark.parametrize("last", [0.0, 1e-7, -1e-7])
def test_what_is_best_does_not_depend_on_rounding(last: float) -> None:
    nll = Classification().metric("nll")
    assert best_by(nll, {"a": 0.3, "b": 0.3 + last, "c": 0.31}) == {"a", "b"}
    points = [("a", 1, 0.3), ("b", 1, 0.3 + last), ("c", 2, 0.3 + last), ("d", 3, 0.2)]
    front = pareto_front(points, lambda point: point[1], lambda point: point[2])
    assert [name for name, _, _ in front] == ["a", "d"]

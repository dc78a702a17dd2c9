"""The table of differences, from gaps."""

from pathlib import Path

import pytest

from pfge.reports.contents import comparison_tables
from pfge.reports.run import Run
from pfge.reports.tables.methods import differences_table
from pfge.reports.tables.table import Table
from pfge.reports.verdicts import Gap
from pfge.tasks import Classification, Regression
from tests.reports.made_run import heads, make_run, result, texts, with_validation, write_results

ACCURACY, NLL = Classification().metric("accuracy"), Classification().metric("nll")


def gap(metric: str, mean: float, error: float, *, seeds: int = 5) -> Gap:
    return Gap(
        metric={"accuracy": ACCURACY, "nll": NLL}[metric],
        mean=mean,
        margin={"accuracy": 0.002, "nll": 0.01}[metric],
        seeds=seeds,
        seed_error=error if seeds > 1 else None,
        examples=400,
        example_error=0.0,
    )


def table_of(accuracy: Gap, nll: Gap) -> Table:
    table = differences_table({"FGE": {"accuracy": accuracy, "nll": nll}}, "PFGE")
    assert table is not None
    return table


def test_a_difference_has_its_interval_in_the_unit_of_the_metric() -> None:
    # 2.776 standard errors to each side
    assert texts(table_of(gap("accuracy", 0.01, 0.001), gap("nll", 0.05, 0.01))) == [
        ["FGE", "+1.00", "+0.72 to +1.28", "+0.0500", "+0.0222 to +0.0778", "accuracy better, NLL worse", ""]
    ]


@pytest.mark.parametrize(
    ("accuracy", "nll", "expected"),
    [
        (0.1, -0.1, "accuracy better, NLL better"),
        (-0.1, 0.1, "accuracy worse, NLL worse"),
        (0.001, 0.1, "accuracy equal, NLL worse"),
    ],
)
def test_the_verdict_is_of_each_metric(accuracy: float, nll: float, expected: str) -> None:
    table = table_of(gap("accuracy", accuracy, 0.0001), gap("nll", nll, 0.01))
    assert texts(table)[0][-2:] == [expected, ""]


def test_what_is_undecided_says_what_would_decide_it() -> None:
    # The first n with t(n - 1) x 0.1 x sqrt(5 / n) <= 0.1 is 22: 2.080 x 0.477 = 0.99; for 0.2 it is 8.
    both = texts(table_of(gap("accuracy", 0.1, 0.1), gap("nll", 0.1, 0.1)))
    assert both[0][-2:] == ["accuracy undecided, NLL undecided", "about 17 more seeds"]
    one = texts(table_of(gap("accuracy", 0.1, 0.1), gap("nll", 0.2, 0.1)))
    assert one[0][-1] == "accuracy: about 17 more seeds; NLL: about 3 more seeds"


def test_the_notes_state_sources_margins_and_the_number_of_methods() -> None:
    gaps = {"accuracy": gap("accuracy", 0.1, 0.1), "nll": gap("nll", 0.1, 0.1)}
    table = differences_table({"FGE": gaps, "SWA": gaps}, "PFGE")
    assert table is not None
    assert table.note("") == (
        "Each method minus PFGE, with the 95 % interval over test examples and seeds, for all 2 methods "
        "together (Bonferroni) in each metric; equal: the interval lies within the margin, 0.2 points in "
        "accuracy, 0.01 in NLL; undecided: the interval contains 0 and extends beyond the margin."
    )
    one_seed = table_of(gap("accuracy", 0.1, 0.1, seeds=1), gap("nll", 0.1, 0.1, seeds=1))
    assert "over test examples alone where there is one seed, which decides nothing;" in one_seed.note("")
    assert texts(one_seed)[0][-1] == "at least two more seeds"


def test_columns_have_names_that_are_there_once() -> None:
    table = table_of(gap("accuracy", 0.1, 0.1), gap("nll", 0.1, 0.1))
    assert heads(table) == [
        "method",
        *("accuracy, points", "95 % interval", "NLL", "95 % interval"),
        *("verdict", "would decide it"),
    ]
    names = [column.name or column.head for column in table.columns]
    assert len(set(names)) == len(names)
    assert names[2] == "accuracy, points 95 % interval"


def test_a_method_without_an_interval_has_no_row() -> None:
    without = {
        "accuracy": Gap(metric=ACCURACY, mean=0.1, margin=0.002),
        "nll": Gap(metric=NLL, mean=0.1, margin=0.01),
    }
    assert differences_table({"FGE": without}, "PFGE") is None
    assert differences_table({}, "PFGE") is None


def test_the_notes_name_the_part_of_the_data(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    write_results(folder, [with_validation(result(m, seed)) for seed in (1, 2) for m in ("FGE", "PFGE")])
    run = Run(folder)
    for part in ("test", "validation"):
        (table,) = [
            t for t in comparison_tables(run.folder, run.results, part=part) if t.key == "differences"
        ]
        assert f"interval over {part} examples and seeds; " in table.note("")


def test_the_notes_say_when_a_coverage_is_better() -> None:
    coverage = Regression().metric("coverage")
    found = Gap(metric=coverage, mean=0.1, margin=0.002, seeds=5, seed_error=0.1, called="test examples")
    table = differences_table({"FGE": {"coverage": found}}, "PFGE")
    assert table is not None
    assert (
        "; better or worse in 90% coverage: the interval of the mean of both methods excludes 90 % too; "
        in table.note("")
    )

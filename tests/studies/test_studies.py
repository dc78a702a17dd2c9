"""The numbers on the pages of studies: choices of rates, differences with their intervals, and tables."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_rel

from studies.rates import chosen_rate, methods_of, rate_folder, validation_nll, values
from studies.tables import (
    change,
    differences,
    interval,
    mean_and_error,
    nll_at_rates,
    table,
    validation_nll_at_rates,
    verdict,
)
from tests.reports.made_run import make_run, result, with_validation
from tests.reports.made_run import write_results as write_lines

METHODS = ("w0", "SWA", "FGE", "FGE*", "PFGE")
RATES = (0.05, 0.1, 0.2, 0.4)
BEST = {"SWA": 0.2, "FGE": 0.1, "FGE*": 0.1, "PFGE": 0.2, "w0": 0.05}


def row(method: str, seed: int, rate: float) -> dict[str, Any]:
    """Return a line whose validation NLL at T grows with the distance from a method's best rate."""
    found = with_validation(result(method, seed))
    found["calibrated"]["validation"] = found["calibrated"]["test"] | {
        "nll": 0.2 + abs(rate - BEST[method]) + 0.01 * seed
    }
    return found


@pytest.fixture
def out(tmp_path: Path) -> Path:
    for what, seeds in (("choose", (1,)), ("report", (11, 12, 13)), ("long", (21,))):
        for rate in RATES:
            folder = make_run(rate_folder(tmp_path, what, rate), seeds, METHODS, examples=0)
            write_lines(folder, [row(method, seed, rate) for seed in seeds for method in METHODS])
    return tmp_path


def test_a_rate_is_chosen_by_the_validation_nll_at_the_temperature(out: Path) -> None:
    assert {method: chosen_rate(out, method, RATES) for method in METHODS} == BEST
    assert validation_nll(rate_folder(out, "choose", 0.4), "SWA") == pytest.approx(0.2 + 0.2 + 0.01)
    assert methods_of(rate_folder(out, "choose", 0.4)) == ["SWA", "FGE", "FGE*", "PFGE"]


def test_values_are_those_of_the_test_data_seed_by_seed(out: Path) -> None:
    folder = rate_folder(out, "report", 0.1)
    expected = [result("PFGE", seed)["test"]["nll"] for seed in (11, 12, 13)]
    assert values(folder, "PFGE", "nll", calibrated=False) == expected
    assert values(folder, "PFGE", "nll", calibrated=True) == pytest.approx([nll - 0.05 for nll in expected])


def test_the_interval_of_a_difference_is_that_of_a_paired_test() -> None:
    ours, theirs = [0.31, 0.35, 0.30, 0.36], [0.30, 0.33, 0.31, 0.33]
    expected = ttest_rel(ours, theirs).confidence_interval(0.95)
    assert interval([a - b for a, b in zip(ours, theirs, strict=True)]) == pytest.approx(tuple(expected))
    assert change(ours, theirs, 2, 100) == f"+1.25 ({100 * expected[0]:+.2f} to {100 * expected[1]:+.2f})"


@pytest.mark.parametrize(
    ("low", "high", "lower_is_better", "expected"),
    [
        (-2, -1, True, "better"),
        (-2, -1, False, "worse"),
        (1, 2, True, "worse"),
        (1, 2, False, "better"),
        (-1, 1, True, "undecided"),
        (0, 1, False, "undecided"),
    ],
)
def test_a_difference_counts_if_its_interval_excludes_0(
    low: float, high: float, lower_is_better: bool, expected: str
) -> None:
    assert verdict(low, high, lower_is_better=lower_is_better) == expected


def test_a_mean_has_the_standard_error_of_the_mean() -> None:
    assert mean_and_error([1.0, 2.0, 3.0], 3) == "2.000 ± 0.577"
    assert mean_and_error([0.5], 1, 100) == "50.0"


def test_columns_of_numbers_are_to_the_right() -> None:
    rows = [["SWA", "**0.1 ± 0.2**", "better"], ["w0", "", "worse"]]
    assert table(["method", "NLL", "is"], rows).splitlines()[1] == "| --- | ---: | --- |"


def test_differences_are_from_each_rival(out: Path) -> None:
    folders = {method: rate_folder(out, "report", BEST[method]) for method in METHODS[1:]}
    rows = [line.split(" | ") for line in differences(METHODS[1:], folders).splitlines()[2:]]
    assert [(cells[0].strip("| "), cells[1]) for cells in rows] == [
        *(("FGE", "SWA"), ("FGE*", "SWA"), ("PFGE", "SWA")),
        *(("SWA", "FGE"), ("FGE*", "FGE"), ("PFGE", "FGE")),
    ]
    assert rows[0][2].startswith("-0.1500 (")  # 0.20 and 0.35, whatever the seed
    assert rows[0][3] == "better"
    assert rows[0][4].startswith("+3.00 (")
    assert rows[3][3] == "worse"


def test_the_chosen_rate_is_bold(out: Path) -> None:
    swa = nll_at_rates(out, "choose", ["SWA"], RATES).splitlines()[2]
    assert swa == "| SWA | 0.3000 | 0.3000 | **0.3000** | 0.3000 |"
    assert (
        validation_nll_at_rates(out, ["SWA"], RATES).splitlines()[2]
        == "| SWA | 0.3600 | 0.3100 | 0.2100 | 0.4100 |"
    )


def test_differences_pair_the_seeds_that_both_have(out: Path) -> None:
    folders = {method: rate_folder(out, "report", 0.2) for method in ("SWA", "FGE", "PFGE")}
    write_lines(
        folders["SWA"],
        [
            *(row("SWA", seed, 0.2) for seed in (12, 13)),
            *(row("FGE", seed, 0.2) for seed in (11, 12, 13)),
            row("PFGE", 11, 0.2),
        ],
    )
    lines = differences(["SWA", "FGE", "PFGE"], folders).splitlines()[2:]
    assert lines[0].startswith("| FGE | SWA | -0.1500 (-0.1500 to -0.1500) | better |")
    assert lines[1] == "| PFGE | SWA | not run |  | not run |  |"


def test_what_was_not_run_is_said(out: Path) -> None:
    shutil.rmtree(rate_folder(out, "choose", 0.2))
    assert chosen_rate(out, "SWA", RATES) == 0.1
    assert nll_at_rates(out, "choose", ["SWA"], RATES).splitlines()[1:] == [
        "| --- | ---: | ---: | ---: | ---: |",
        "| SWA | 0.3000 | **0.3000** | not run | 0.3000 |",
    ]
    assert validation_nll_at_rates(out, ["SWA"], RATES).endswith(
        "| SWA | 0.3600 | 0.3100 | not run | 0.4100 |"
    )

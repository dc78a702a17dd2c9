"""How far methods are from one another, with the noise that the run can tell."""

from pathlib import Path

import pytest

from pfge.metrics.significance import Difference, SeedDifference
from pfge.reports.page.significance import Gap, gaps
from pfge.reports.run import Run
from tests.reports.made_run import make_run, result, write_results


def test_a_gap_is_the_difference_of_the_means_over_shared_seeds(tmp_path: Path) -> None:
    found = gaps(Run(make_run(tmp_path / "run")), "FGE", ["PFGE", "FGE"])
    assert found.keys() == {"PFGE"}
    accuracy, nll = found["PFGE"]["accuracy"], found["PFGE"]["nll"]
    assert accuracy.mean == pytest.approx(-0.005, abs=1e-9)  # 0.935 against 0.940, in 2 of 400 examples
    assert nll.mean == pytest.approx(0.01)
    assert accuracy.over_images is not None
    assert accuracy.over_images.low < accuracy.mean < accuracy.over_images.high


def test_without_scores_the_seeds_tell_the_noise(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    rows = [result("FGE", 1), result("FGE", 2), result("PFGE", 1), result("PFGE", 2)]
    rows[3]["test"]["accuracy"] += 0.002
    write_results(folder, rows)
    gap = gaps(Run(folder), "FGE", ["PFGE"])["PFGE"]["accuracy"]
    # Differences of -0.005 and -0.003: mean -0.004, standard error 0.001, so four of them.
    assert gap.over_images is None
    assert gap.over_seeds is not None
    assert (gap.mean, gap.over_seeds.standard_error) == (pytest.approx(-0.004), pytest.approx(0.001))
    assert gap.verdict == "worse"


def test_one_seed_without_scores_leaves_the_noise_unknown(tmp_path: Path) -> None:
    gap = gaps(Run(make_run(tmp_path / "run", seeds=[1], examples=0)), "FGE", ["PFGE"])["PFGE"]["nll"]
    assert gap.within_noise is None
    assert str(gap) == "+0.0100, noise unknown"


def test_methods_that_share_no_seed_have_no_gap(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    write_results(folder, [result("FGE", 1), result("PFGE", 2)])
    assert gaps(Run(folder), "FGE", ["PFGE"]) == {}


@pytest.mark.parametrize(
    ("metric", "mean", "expected"),
    [
        ("accuracy", 0.01, "better"),
        ("accuracy", -0.01, "worse"),
        ("nll", 0.01, "worse"),
        ("nll", -0.01, "better"),
    ],
)
def test_more_accuracy_and_less_nll_are_better(metric: str, mean: float, expected: str) -> None:
    gap = Gap(metric, mean, Difference(mean, mean - 0.001, mean + 0.001), None)
    assert gap.verdict == expected


def test_seeds_may_take_back_what_images_are_sure_of() -> None:
    images = Difference(0.01, 0.005, 0.015)
    assert Gap("accuracy", 0.01, images, SeedDifference(0.01, 0.004, 3)).verdict == "better"
    assert Gap("accuracy", 0.01, images, SeedDifference(0.01, 0.006, 3)).verdict == "within noise"


def test_a_gap_in_words_has_both_kinds_of_noise() -> None:
    gap = Gap("accuracy", -0.0008, Difference(-0.0008, -0.0021, 0.0), SeedDifference(-0.0008, 0.0004, 3))
    assert str(gap) == (
        "-0.08 points (95 % interval -0.21 to +0.00 over test images; ± 0.04 over seeds), within noise"
    )

"""How far methods are from one another, from the scores that a run kept."""

from collections import Counter
from math import sqrt
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor

from pfge.lab.config.settings import MarginSettings
from pfge.reports.run import Run
from pfge.reports.verdicts import Gap, compare, find_gaps, margin_of
from pfge.storage.files import write_tensors
from pfge.tasks import Classification, Metric, Regression
from tests.reports.made_run import make_run, result, write_results

ACCURACY, NLL = Classification().metric("accuracy"), Classification().metric("nll")


def gaps(folder: Path, *methods: str) -> dict[str, dict[str, Gap]]:
    """Return how methods differ from FGE."""
    run = Run(folder)
    return find_gaps(run.folder, run.results, "FGE", methods)


def losses(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_gap_is_the_difference_of_the_means_over_shared_seeds(tmp_path: Path) -> None:
    found = gaps(make_run(tmp_path / "run"), "PFGE", "FGE")
    assert found.keys() == {"PFGE"}
    accuracy, nll = found["PFGE"]["accuracy"], found["PFGE"]["nll"]
    assert accuracy.mean == pytest.approx(-0.005, abs=1e-9)  # 0.935 against 0.940, in 2 of 400 examples
    assert nll.mean == pytest.approx(0.01)
    assert (accuracy.seeds, accuracy.examples, accuracy.step) == (2, 400, 1.0)
    assert nll.step == 0


def test_errors_are_of_seeds_and_of_examples() -> None:
    method = {1: losses(1.0, 3.0), 2: losses(2.0, 6.0)}
    reference = {1: losses(0.0, 0.0), 2: losses(1.0, 1.0)}
    found = compare(NLL, method, reference)
    assert found is not None
    # Of seeds: 2 and 3. Of examples, over both seeds: 1 and 4.
    assert (found.mean, found.reference) == (2.5, 0.5)
    assert found.seed_error == pytest.approx(sqrt(0.5) / sqrt(2))
    assert found.example_error == pytest.approx(sqrt(4.5) / sqrt(2))


def test_without_scores_there_are_the_seeds_and_no_verdict(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    rows = [result("FGE", 1), result("FGE", 2), result("PFGE", 1), result("PFGE", 2)]
    rows[3]["test"]["accuracy"] += 0.002
    write_results(folder, rows)
    gap = gaps(folder, "PFGE")["PFGE"]["accuracy"]
    # Differences of -0.005 and -0.003.
    assert (gap.mean, gap.seed_error) == (pytest.approx(-0.004), pytest.approx(0.001))
    assert (gap.example_error, gap.verdict) == (None, "undecided")


def test_one_seed_without_scores_has_no_interval(tmp_path: Path) -> None:
    gap = gaps(make_run(tmp_path / "run", seeds=[1], examples=0), "PFGE")["PFGE"]["nll"]
    assert gap.interval is None


def test_methods_that_share_no_seed_have_no_gap(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    write_results(folder, [result("FGE", 1), result("PFGE", 2)])
    assert gaps(folder, "PFGE") == {}


def test_only_seeds_that_both_have_are_compared() -> None:
    found = compare(NLL, {1: losses(0.3, 0.3), 2: losses(9.0, 9.0)}, {1: losses(0.2, 0.2), 3: losses(0, 0)})
    assert found is not None
    assert found.mean == pytest.approx(0.1)
    assert (found.seeds, found.seed_error) == (1, None)
    assert compare(NLL, {2: losses(1.0)}, {1: losses(1.0)}) is None


def test_scores_of_different_test_sets_are_not_compared() -> None:
    assert compare(NLL, {1: losses(1.0, 2.0)}, {1: losses(1.0)}) is None


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_are_not_compared(broken: float) -> None:
    assert compare(NLL, {1: losses(1.0, broken)}, {1: losses(1.0, 1.0)}) is None
    assert compare(NLL, {1: losses()}, {1: losses()}) is None


def test_one_example_has_no_end() -> None:
    found = compare(NLL, {1: losses(1.0), 2: losses(1.0)}, {1: losses(0.0), 2: losses(0.0)})
    assert found is not None
    assert found.interval == (-float("inf"), float("inf"))
    assert found.verdict == "undecided"


def test_scores_are_those_of_one_part_as_predicted_or_at_temperatures(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", seeds=[1], methods=["FGE", "PFGE"], examples=0)
    for method, value in (("FGE", 0.0), ("PFGE", 1.0)):
        file = folder / "seed-1" / "scores" / f"{method}.safetensors"
        file.parent.mkdir(parents=True, exist_ok=True)
        right = torch.full((3,), value, dtype=torch.float64)
        write_tensors(
            file,
            {
                "test.correct": right,
                "test.calibrated.correct": 0.5 * right,
                "validation.correct": 2 * right,
            },
        )
    run = Run(folder)
    found = gaps(folder, "PFGE")["PFGE"]
    assert found["accuracy"].mean == 1.0
    assert found["nll"].example_error is None  # no scores of it, so what the rows say
    at = find_gaps(run.folder, run.results, "FGE", part="test.calibrated")["PFGE"]
    assert at["accuracy"].mean == 0.5
    assert find_gaps(run.folder, run.results, "FGE", part="validation.calibrated") == {}


def test_a_table_of_six_methods_has_intervals_for_six(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path / "run"))
    found = find_gaps(run.folder, run.results, "FGE")
    assert {gap.compared for of in found.values() for gap in of.values()} == {6}
    assert gaps(run.folder.path, "PFGE")["PFGE"]["nll"].compared == 1


def test_a_margin_is_in_points_in_nll_or_a_share() -> None:
    margins = MarginSettings(points=0.5, nll=0.02, share=0.1)
    crps = Regression().metric("crps")
    assert [margin_of(metric, -30.0, margins) for metric in (ACCURACY, NLL, crps)] == [0.005, 0.02, 3.0]
    width = Metric("width", "width", "lower", lambda _: 0.0, score="width", is_main=True)
    assert margin_of(width, 0.0, margins) == 0.0


def test_as_many_differences_can_be_compared_as_are_given(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path / "run", methods=["w0", "FGE", "PFGE"]))
    found = find_gaps(run.folder, run.results, "FGE", compared=21)
    assert {gap.compared for of in found.values() for gap in of.values()} == {21}


@pytest.mark.parametrize(
    ("scores", "step"),
    [
        (losses(0, 1, 1, 0), 1.0),
        (losses(1, 1, 1, 1), 1.0),
        (losses(0, 0, 0, 0), 1.0),  # as where all are wrong
        (losses(0, 0.5, 1, 1), 0.5),
        (losses(1 / 3, 2 / 3, 1, 0), 1 / 3),
        (losses(0, 1.25, 2.5, 0), 1.25),  # divided by the mean of weights
        (losses(0.3, 0.7123, 1, 0), 0.0),
        (torch.arange(65).double() / 64, 1 / 64),
        (torch.arange(66).double() / 65, 0.0),  # too many for steps
    ],
)
def test_the_step_of_scores_is_the_smallest_difference(scores: Tensor, step: float) -> None:
    found = compare(ACCURACY, {1: scores, 2: scores}, {1: scores, 2: scores})
    assert found is not None
    assert found.step == pytest.approx(step, rel=1e-5)
    # Neither seeds nor examples differ, so that t^2 / N steps are left.
    t = stats.t.ppf(0.975, len(scores) - 1)
    assert found.interval == pytest.approx((-step * t**2 / len(scores), step * t**2 / len(scores)), rel=1e-5)


def coverage_verdicts(reference: float, method: float, draws: int) -> Counter[str]:
    """Return the verdicts on drawn runs of five seeds and 1,000 examples, whose coverages are known."""
    generator = torch.Generator().manual_seed(0)
    coverage = Regression().metric("coverage")
    found: Counter[str] = Counter()
    for _ in range(draws):
        hard = torch.rand(1000, generator=generator)  # the same examples are hard for both

        def covered(share: float, hard: Tensor = hard) -> dict[int, Tensor]:
            shares = share + 0.0005 * torch.randn(5, generator=generator)
            return {seed: (hard < at).double() for seed, at in enumerate(shares)}

        gap = compare(coverage, covered(method), covered(reference))
        found[gap.verdict if gap else "none"] += 1
    return found


def test_coverages_that_are_equally_far_are_seldom_told_apart() -> None:
    found = coverage_verdicts(0.89, 0.91, draws=200)
    assert found["better"] + found["worse"] <= 0.05 * 200
    assert found["undecided"] >= 0.95 * 200


def test_a_coverage_that_is_clearly_closer_is_told() -> None:
    assert coverage_verdicts(0.95, 0.91, draws=100)["better"] >= 90
    assert coverage_verdicts(0.95, 0.98, draws=100)["worse"] >= 90

"""How far methods are from one another, with the noise that the run can tell."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from pfge.metrics.significance import Difference, SeedDifference
from pfge.reports.run import Run
from pfge.reports.significance import Gap, compare_scores, find_gaps
from pfge.storage.files import write_tensors
from pfge.tasks import Classification, Metric
from tests.reports.made_run import make_run, result, write_results

METRICS = {metric.name: metric for metric in Classification.metrics}


def gaps(folder: Path, *methods: str) -> dict[str, dict[str, Gap]]:
    """Return how methods differ from FGE."""
    run = Run(folder)
    return find_gaps(run.folder, run.results, "FGE", methods)


def scores(correct: float, log_loss: float, *, count: int = 400, shift: int = 0) -> dict[str, Tensor]:
    """Return examples of which a share is right, all with one log loss but for a wave."""
    right = (torch.arange(count).roll(shift) < correct * count).double()
    wave = torch.linspace(-0.1, 0.1, count, dtype=torch.float64).roll(shift)
    return {"correct": right, "log_loss": log_loss + wave}


def compared(method: dict[int, dict[str, Tensor]], reference: dict[int, dict[str, Tensor]]) -> dict[str, Gap]:
    found = compare_scores({"mine": method}, reference, [METRICS["accuracy"], METRICS["nll"]])
    return {metric: gap for (_, metric), gap in found.items()}


def test_a_gap_is_the_difference_of_the_means_over_shared_seeds(tmp_path: Path) -> None:
    found = gaps(make_run(tmp_path / "run"), "PFGE", "FGE")
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
    gap = gaps(folder, "PFGE")["PFGE"]["accuracy"]
    # Differences of -0.005 and -0.003: mean -0.004, standard error 0.001, so four of them.
    assert gap.over_images is None
    assert gap.over_seeds is not None
    assert (gap.mean, gap.over_seeds.standard_error) == (pytest.approx(-0.004), pytest.approx(0.001))
    assert gap.verdict == "worse"


def test_one_seed_without_scores_leaves_the_noise_unknown(tmp_path: Path) -> None:
    gap = gaps(make_run(tmp_path / "run", seeds=[1], examples=0), "PFGE")["PFGE"]["nll"]
    assert gap.within_noise is None
    assert str(gap) == "+0.0100, noise unknown"


def test_methods_that_share_no_seed_have_no_gap(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    write_results(folder, [result("FGE", 1), result("PFGE", 2)])
    assert gaps(folder, "PFGE") == {}


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
    gap = Gap(METRICS[metric], mean, Difference(mean, mean - 0.001, mean + 0.001), None)
    assert gap.verdict == expected


def test_seeds_may_take_back_what_images_are_sure_of() -> None:
    images = Difference(0.01, 0.005, 0.015)
    assert Gap(METRICS["accuracy"], 0.01, images, SeedDifference(0.01, 0.004, 3)).verdict == "better"
    assert Gap(METRICS["accuracy"], 0.01, images, SeedDifference(0.01, 0.006, 3)).verdict == "within noise"


def test_a_gap_in_words_has_both_kinds_of_noise() -> None:
    gap = Gap(
        METRICS["accuracy"], -0.0008, Difference(-0.0008, -0.0021, 0.0), SeedDifference(-0.0008, 0.0004, 3)
    )
    assert str(gap) == (
        "-0.08 points (95 % interval -0.21 to +0.00 over test images; ± 0.04 over seeds), within noise"
    )


def test_a_difference_on_every_example_is_no_noise() -> None:
    found = compared({1: scores(0.9, 0.30)}, {1: scores(0.9, 0.25)})
    assert (found["accuracy"].verdict, found["nll"].verdict) == ("equal", "worse")
    assert found["nll"].over_images == Difference(*[pytest.approx(0.05)] * 3)
    assert found["nll"].over_seeds is None


def test_better_and_worse_are_seen_from_the_method() -> None:
    good, bad = {1: scores(0.95, 0.2)}, {1: scores(0.85, 0.3)}
    assert {gap.verdict for gap in compared(good, bad).values()} == {"better"}
    assert {gap.verdict for gap in compared(bad, good).values()} == {"worse"}


def test_what_other_images_could_turn_round_is_within_noise() -> None:
    # 360 of 400 are right in both, but 40 that are right in one are wrong in the other.
    found = compared({1: scores(0.9, 0.3, shift=40)}, {1: scores(0.9, 0.3)})
    assert found["accuracy"].within_noise
    assert found["nll"].within_noise


def test_what_other_seeds_could_turn_round_is_within_noise() -> None:
    # On every image, but +0.05 with one seed and -0.04 with the other: mean 0.005, standard error 0.045.
    reference = {seed: scores(0.9, 0.25) for seed in (1, 2)}
    gap = compared({1: scores(0.9, 0.30), 2: scores(0.9, 0.21)}, reference)["nll"]
    assert gap.over_seeds is not None
    assert (gap.mean, gap.over_seeds.standard_error) == (pytest.approx(0.005), pytest.approx(0.045))
    assert gap.verdict == "within noise"


def test_only_seeds_that_both_have_are_compared() -> None:
    found = compared({1: scores(0.9, 0.3), 2: scores(0.1, 9.0)}, {1: scores(0.9, 0.2), 3: scores(0.5, 0.1)})
    assert found["nll"].mean == pytest.approx(0.1)
    assert found["nll"].over_seeds is None
    assert compared({2: scores(0.9, 0.3)}, {1: scores(0.9, 0.3)}) == {}


def test_scores_of_different_test_sets_are_not_compared() -> None:
    assert compared({1: scores(0.9, 0.3, count=300)}, {1: scores(0.9, 0.3)}) == {}


def test_scores_are_those_of_one_part_as_predicted(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", seeds=[1], methods=["FGE", "PFGE"], examples=0)
    for method, value in (("FGE", 0.0), ("PFGE", 1.0)):
        file = folder / "seed-1" / "scores" / f"{method}.safetensors"
        file.parent.mkdir(parents=True, exist_ok=True)
        right = torch.full((3,), value, dtype=torch.float64)
        write_tensors(
            file,
            {"test.correct": right, "test.calibrated.correct": 0 * right, "validation.correct": 2 * right},
        )
    found = gaps(folder, "PFGE")["PFGE"]
    assert found["accuracy"].mean == 1.0
    assert found["accuracy"].over_images is not None
    assert found["nll"].over_images is None  # no scores of it, so what the rows say


def test_a_metric_that_scores_do_not_have_is_left_to_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    width = Metric("width", "width", "lower", lambda _: 0.0, score="width", is_main=True)
    monkeypatch.setattr(Classification, "metrics", (*Classification.metrics, width))
    assert compared({1: scores(0.9, 0.3)}, {1: scores(0.9, 0.2)}).keys() == {"accuracy", "nll"}


@pytest.mark.parametrize(
    ("reference", "mean", "low", "high", "expected"),
    [
        (0.85, 0.03, 0.01, 0.05, "better"),  # 0.86 to 0.90
        (0.85, 0.03, 0.01, 0.11, "within noise"),  # to 0.96, past the aim and farther than 0.85
        (0.85, -0.03, -0.05, -0.01, "worse"),
        (0.85, 0.13, 0.11, 0.15, "worse"),
        (0.95, -0.03, -0.05, -0.01, "better"),
        (0.95, 0.03, -0.01, 0.05, "within noise"),
        (0.90, 0.01, -0.05, 0.05, "within noise"),  # away from the aim, to which side cannot be told
    ],
)
def test_where_closer_is_better_the_whole_interval_must_be_closer(
    reference: float, mean: float, low: float, high: float, expected: str
) -> None:
    coverage = Metric("coverage", "coverage", "closer", lambda _: 0.0, "%", aim=0.9)
    of_images = Gap(coverage, mean, Difference(mean, low, high), None, reference=reference)
    of_seeds = Gap(
        coverage, mean, None, SeedDifference((low + high) / 2, (high - low) / 4, 5), reference=reference
    )
    assert (of_images.verdict, of_seeds.verdict) == (expected, expected)

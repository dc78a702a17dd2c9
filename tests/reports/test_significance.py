"""How far methods are from one another, from the scores that a run kept."""

from math import sqrt
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pfge.lab.config.schema import MarginSettings
from pfge.reports.run import Run
from pfge.reports.significance import compare, find_gaps, margin_of
from pfge.reports.verdicts import Gap
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
    assert (accuracy.seeds, accuracy.examples, accuracy.counts) == (2, 400, True)
    assert not nll.counts


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

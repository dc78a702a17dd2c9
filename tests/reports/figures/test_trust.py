"""Reliability, corrupted and unknown inputs, against scikit-learn and the made numbers."""

from pathlib import Path

import pytest
import torch
from sklearn.calibration import calibration_curve

from pfge.reports.figures import trust as trust_figures
from pfge.reports.run import Run
from pfge.storage.files import read_tensors
from tests.reports.made_run import make_run, write_evaluations


@pytest.mark.parametrize(("panel", "prefix"), [(0, "test"), (1, "test.calibrated")])
def test_scikit_learn_finds_the_same_reliability(tmp_path: Path, panel: int, prefix: str) -> None:
    run = Run(make_run(tmp_path / "run", methods=["w0", "FGE*"]))
    figure = trust_figures.reliability(run)
    assert figure is not None
    (found,) = [series for series in figure.panels[panel].series if series.method == "FGE*"]
    files = [
        read_tensors(run.folder.path / f"seed-{s}" / "scores" / "FGE-last.safetensors")[0] for s in (1, 2)
    ]
    confidence, correct = (
        torch.cat([tensors[f"{prefix}.{name}"] for tensors in files]).numpy()
        for name in ("confidence", "correct")
    )
    accuracy, mean_confidence = calibration_curve(correct, confidence, n_bins=trust_figures.BINS)
    assert found.x == pytest.approx(mean_confidence.tolist())
    assert found.y == pytest.approx(accuracy.tolist())


def test_bins_of_few_predictions_are_left_out(tmp_path: Path) -> None:
    # Forty predictions, evenly between confidences of 0.4 and 1: no bin of 1/15 has twenty of them.
    run = Run(make_run(tmp_path / "run", seeds=[1], methods=["w0"], examples=40))
    assert trust_figures.reliability(run) is None


def test_without_scores_there_is_no_reliability(tmp_path: Path) -> None:
    assert trust_figures.reliability(Run(make_run(tmp_path / "run", examples=0))) is None


def test_corruptions_begin_with_the_clean_test_set(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    assert trust_figures.corruptions(Run(folder)) is None
    write_evaluations(folder)
    figure = trust_figures.corruptions(Run(folder))
    assert figure is not None
    assert [panel.title for panel in figure.panels] == ["noise: accuracy, %", "noise: NLL"]
    (pfge,) = [series for series in figure.panels[0].series if series.method == "PFGE"]
    assert pfge.x == [0, 1, 2, 3, 4, 5]
    # 93.5 minus 1 a strength, and 94 minus 2 a strength.
    assert pfge.y == pytest.approx([93.75, 92.25, 90.75, 89.25, 87.75, 86.25])
    assert pfge.error == pytest.approx([0.25, 0.25, 0.75, 1.25, 1.75, 2.25])


def test_unknown_inputs_have_a_point_a_score(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    assert trust_figures.unknown_inputs(Run(folder)) is None
    write_evaluations(folder)
    figure = trust_figures.unknown_inputs(Run(folder))
    assert figure is not None
    (panel,) = figure.panels
    assert panel.x_ticks == [(0, "entropy"), (1, "mutual\ninformation")]
    (fge,) = [series for series in panel.series if series.method == "FGE"]
    assert fge.y == pytest.approx([81.5, 70.0])
    assert fge.error == pytest.approx([0.5, 0.0])

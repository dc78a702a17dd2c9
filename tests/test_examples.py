"""The examples of the lab on data of other kinds: each is short, runs, and shows the metrics of its task."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("name", ["text_classifier", "table_regression", "segmentation"])
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 80


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("text_classifier", ["accuracy", "NLL", "ECE"]),
        ("table_regression", ["RMSE", "NLL", "CRPS", "coverage"]),
        ("segmentation", ["accuracy", "mean IoU"]),
    ],
)
def test_an_example_runs_and_prints_its_table(tmp_path: Path, name: str, metrics: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    table = done.stdout.split("┡")[0]  # the head of the first table
    assert all(metric in table for metric in metrics)
    assert "PFGE" in done.stdout

"""The examples of the lab on data of other kinds: each is short, runs, and shows the metrics of its task."""

import runpy
import tempfile
import warnings
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("name", ["text_classifier", "table_regression", "segmentation"])
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 90


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("text_classifier", ["accuracy", "NLL", "ECE"]),
        ("table_regression", ["RMSE", "NLL", "CRPS", "coverage"]),
        ("segmentation", ["accuracy", "mean IoU"]),
    ],
)
def test_an_example_runs_and_prints_its_table(
    tmp_path: Path,
    name: str,
    metrics: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # which a command replaces
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed, errors = capsys.readouterr()
    assert ended.value.code == 0, errors
    table = printed.split("┡")[0]  # the head of the first table
    assert all(metric in table for metric in metrics)
    assert "PFGE" in printed

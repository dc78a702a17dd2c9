"""The examples with trainers run, as they are."""

import re
import runpy
from pathlib import Path

import pytest

from tests.processes import ROOT, launch_two

EXAMPLES = ROOT / "examples"


def printed_by(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def accuracies(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+)%", text)]


@pytest.mark.slow
def test_bert_in_the_trainer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    printed = printed_by("bert_in_the_trainer.py", capsys, monkeypatch)
    assert "4 members of iterations [32, 64, 96, 128]" in printed
    assert "loaded without the Trainer, it predicts the same: True" in printed
    assert accuracies(printed)[0] > 80


@pytest.mark.slow
def test_lora_ensemble(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    printed = printed_by("lora_ensemble.py", capsys, monkeypatch)
    assert printed.startswith("4 adapters in ")
    assert "in a new base, they predict the same: True" in printed
    assert accuracies(printed)[0] > 50  # by chance 25 %


# Lightning suggests more workers where there are more cores.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_lightning_module(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    printed = printed_by("lightning_module.py", capsys, monkeypatch)
    assert "accuracy of 4 members" in printed
    assert min(accuracies(printed)) > 90


@pytest.mark.slow
def test_fsdp2_in_two_processes(tmp_path: Path) -> None:
    printed = launch_two(str(EXAMPLES / "fsdp2.py"), str(tmp_path / "members"))
    assert "2 processes, 4 members" in printed
    assert accuracies(printed)[0] > 90

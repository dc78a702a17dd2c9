"""Ensembles with several views of each picture: what is measured of a run, and the table of it."""

import json
from pathlib import Path

import pytest

from pfge.compression.compress import FORMATS
from studies import cifar10_views
from studies.cifar10_views import STORED, measure, record_views, viewed_table
from tests.lab.tiny import run, tiny


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    pictures = ["data.validation_from_test=true", "data.crop_padding=1"]
    run(tiny("ensemble.methods=['SWA','FGE','PFGE','TTA']", "seeds=[1,2]", *pictures), folder)
    return folder


@pytest.mark.slow
def test_views_of_swas_model_are_tta(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10_views, "STORED", (("SWA", FORMATS[0]),))
    (tta,) = measure(finished, 1)
    lines = (finished / "results.jsonl").read_text().splitlines()
    (expected,) = [row for row in map(json.loads, lines) if (row["method"], row["seed"]) == ("TTA", 1)]
    assert (tta.passes, tta.size) == (expected["members"], 1)
    for metric in ("accuracy", "nll", "ece"):
        assert getattr(tta, metric) == pytest.approx(expected["calibrated"]["test"][metric], rel=1e-4)


def test_members_are_stored_as_said_and_all_see_all_views(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar10_views, "STORED", (*STORED, ("PFGE", FORMATS[2])))
    small, packed = measure(finished, 1)  # the run has no Star
    assert (small.method, small.stored, small.passes) == ("SWA", "int8 base", 4)
    assert small.size < 0.5
    assert (packed.method, packed.stored, packed.passes) == ("PFGE", "int8 base + 3 bits", 16)
    assert small.size < packed.size < 4


def test_the_table_has_differences_from_the_rivals_seed_by_seed(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = tmp_path / "views.json"
    for seed in (1, 2):
        record_views(finished, seed, recorded)
    rows = json.loads(recorded.read_text())["rows"]
    nll = [row["nll"] for row in rows if row["method"] == "SWA"]
    lines = map(json.loads, (finished / "results.jsonl").read_text().splitlines())
    swa = [row["calibrated"]["test"]["nll"] for row in lines if row["method"] == "SWA"]
    mean = sum(a - b for a, b in zip(nll, swa, strict=True)) / 2
    found = viewed_table(recorded, finished).splitlines()
    assert f"{mean:+.4f} (" in found[2]
    assert found[-1].startswith("| Star | float32 | not run |")

    monkeypatch.setattr(cifar10_views, "_measure", lambda *_: pytest.fail("measured again"))
    record_views(finished, 1, recorded)
    assert json.loads(recorded.read_text())["rows"] == rows

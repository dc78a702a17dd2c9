"""The study of CIFAR-10: what is run, what is recorded, and the page that is made of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pfge.lab.config.settings import Experiment
from studies import cifar10
from studies.cifar10 import BASE, CHOICES, COMPARED, RATES, Study
from studies.rates import rate_folder, rows_of
from studies.records import Part, machines, missing_part, record_parts
from studies.tables import write_results
from tests.reports.made_run import make_run, result, with_validation
from tests.reports.made_run import write_results as write_lines

ENVIRONMENT = '{"torch": "2.13.0", "python": "3.11.7", "cores": 2, "threads": 1, "processor": "x"}'
BEST = {"SWA": 0.1, "FGE": 0.05, "PFGE": 0.1, "Star": 0.025, "Cosine": 0.05, "TTA": 0.1, "FGE*": 0.05}


def make_part(out: Path, part: Part, measured: Sequence[str] = (), best: Mapping[str, float] = BEST) -> None:
    """Write a run folder; the nearer the rate is to a method's best, the lower is its validation NLL."""
    folder = make_run(part.folder(out), [part.seed], [], examples=0)
    (folder / "environment.json").write_text(ENVIRONMENT)
    methods = measured or part.methods
    rows = []
    for method in ("w0", *methods, *(["FGE*"] if "FGE" in methods else [])):
        row = with_validation(result(method, part.seed, like="PFGE"))
        distance = abs(part.rate - best.get(method, 0.0))
        row["calibrated"]["validation"] = row["calibrated"]["test"] | {"nll": 0.2 + distance}
        rows.append(row)
    write_lines(folder, rows)


def record_choices(folder: Path, best: Mapping[str, float] = BEST) -> Path:
    """Return where all choices are recorded."""
    for part in CHOICES:
        make_part(folder / "out", part, best=best)
    record_parts(folder / "out", folder / "recorded")
    return folder / "recorded"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return record_choices(tmp_path)


def test_what_is_recorded_is_not_run_again(tmp_path: Path) -> None:
    part = Part("choose", 0.1, 1, ("SWA", "PFGE", "Star"))
    assert missing_part(part, tmp_path / "recorded") == part
    make_part(tmp_path / "out", part, measured=("SWA", "Star"))
    record_parts(tmp_path / "out", tmp_path / "recorded")
    assert missing_part(part, tmp_path / "recorded") == Part("choose", 0.1, 1, ("PFGE",))
    assert missing_part(Part("choose", 0.1, 2, ("SWA",)), tmp_path / "recorded") is not None
    assert missing_part(Part("choose", 0.1, 1, ("Star", "SWA")), tmp_path / "recorded") is None


def test_a_method_that_measures_another_model_is_run_with_it(tmp_path: Path) -> None:
    part = Part("choose", 0.1, 1, ("SWA", "PFGE", "TTA"))
    make_part(tmp_path / "out", part, measured=("SWA", "PFGE"))
    record_parts(tmp_path / "out", tmp_path / "recorded")
    assert missing_part(part, tmp_path / "recorded") == Part("choose", 0.1, 1, ("SWA", "TTA"))


def test_rows_of_several_runs_are_recorded_once_and_without_members(tmp_path: Path) -> None:
    out, recorded = tmp_path / "out", tmp_path / "recorded"
    for seed in (11, 12):
        make_part(out, Part("report", 0.05, seed, ("SWA",)))
        make_part(out, Part("report", 0.05, seed, ("Star",)))
        record_parts(out, recorded)
    rows = rows_of(rate_folder(recorded, "report", 0.05))
    expected = {(seed, method) for seed in (11, 12) for method in ("w0", "SWA", "Star")}
    assert sorted(row.key for row in rows) == sorted(expected)
    assert {row.each for row in rows} == {row.growing for row in rows} == {None}
    assert [found["processor"] for found in machines(recorded)] == ["x"]


def test_a_stage_runs_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[Experiment, Path]] = []
    monkeypatch.setattr(cifar10, "compare_all", lambda experiments, _: ran.extend(experiments))
    make_part(tmp_path / "out", Part("choose", 0.05, 1, tuple(COMPARED)))
    study = Study(tmp_path / "out", tmp_path / "recorded", Path("w0.safetensors"), processes=2)
    study.record()
    cifar10.STAGES["choose"](study)
    assert [experiment.ensemble.high for experiment, _ in ran] == [0.0125, 0.025, 0.1]
    assert [experiment.ensemble.methods for experiment, _ in ran] == [("Cosine",), COMPARED, COMPARED]
    experiment, folder = ran[1]
    assert (experiment.seeds, experiment.ensemble.methods) == ((1,), COMPARED)
    assert experiment.engine.launcher == "here:2"
    assert folder == tmp_path / "out" / "choose-0.025-seed-1-SWA-FGE-PFGE-Star-Cosine-TTA"


def test_a_part_that_was_begun_is_continued_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[Experiment, Path]] = []
    monkeypatch.setattr(cifar10, "compare_all", lambda experiments, _: ran.extend(experiments))
    begun = Part("choose", 0.05, 1, tuple(COMPARED))
    make_part(tmp_path / "out", begun, measured=("SWA", "FGE"))
    make_run(tmp_path / "out" / "choose-0.05", [1], ["SWA"], examples=0)  # of another kind
    study = Study(tmp_path / "out", tmp_path / "recorded", Path("w0.safetensors"))
    study.record()
    study.run([begun])
    ((experiment, folder),) = ran
    assert folder == begun.folder(tmp_path / "out")
    assert experiment.ensemble.methods == COMPARED


def test_nothing_is_reported_before_all_rates_were_tried(tmp_path: Path) -> None:
    study = Study(tmp_path / "out", tmp_path / "recorded", Path("w0.safetensors"))
    with pytest.raises(SystemExit, match=r"rates 0\.0125, 0\.025, 0\.05, 0\.1 are not finished; run"):
        cifar10.run_report(study)


def test_each_method_is_reported_at_its_chosen_rate(recorded: Path) -> None:
    parts = cifar10.chosen_parts("report", [11], recorded)
    assert {part.rate: part.methods for part in parts} == {
        0.025: ("Star",),
        0.05: ("FGE", "Cosine"),
        0.1: ("SWA", "PFGE", "TTA"),
    }


def test_a_row_that_needs_another_method_is_reported_with_it(tmp_path: Path) -> None:
    recorded = record_choices(tmp_path, BEST | {"TTA": 0.05, "FGE*": 0.1})
    parts = cifar10.chosen_parts("report", [11], recorded)
    assert {part.rate: part.methods for part in parts} == {
        0.025: ("Star",),
        0.05: ("SWA", "FGE", "Cosine", "TTA"),
        0.1: ("SWA", "FGE", "PFGE"),
    }


@pytest.mark.slow
def test_the_page_says_what_was_not_run(recorded: Path) -> None:
    text = cifar10.results(recorded)
    assert text.startswith("**Unfinished.** Nothing is decided before all runs are made")
    assert "\n- report, rate 0.05, seed 11: SWA, FGE, PFGE, Star, Cosine, TTA, SWAG\n" in text
    assert "\n- long, rate 0.05, seed 21: FGE, Cosine\n" in text
    assert "choose, rate" not in text


@pytest.mark.slow
def test_the_finished_page_is_made_of_what_is_recorded(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for seed in cifar10.REPORTED:
        make_part(out, Part("report", 0.05, seed, BASE))
    for part in cifar10.chosen_parts("report", cifar10.REPORTED, recorded):
        make_part(out, part)
    record_parts(out, recorded)
    unfinished = "**Unfinished.** All runs of n = 2,600 are made. Not run yet:\n\n- long, rate"
    assert cifar10.results(recorded).startswith(unfinished)
    for part in cifar10.chosen_parts("long", [cifar10.LONG], recorded):
        make_part(out, part)
    record_parts(out, recorded)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- results -->\nold\n<!-- end of results -->\nafter\n")
    write_results(page, cifar10.results(recorded))
    text = page.read_text()
    assert text.startswith("before\n<!-- results -->\nThe rates were chosen by")
    assert text.endswith("<!-- end of results -->\nafter\n")
    assert "old" not in text
    assert "Unfinished" not in text
    assert text.count("not run") == 2 * (len(COMPARED) + len(["FGE*"]) - 1)  # at the lowest rate
    expected: dict[str, Any] = result("PFGE", 12)  # the middle one of three
    accuracy, nll = 100 * expected["test"]["accuracy"], expected["test"]["nll"]
    assert f"| SWA | 4 | 0.1 | {accuracy:.2f} ± 0.29 | {nll:.4f} ± 0.0058 |" in text
    assert "| PFGE | 4 | 3 | " in text
    assert "| 93.41 ± 0.08 | 95.70 ± 0.05 | 96.37 ± 0.03 |" in text
    assert "each process; x, torch 2.13.0, Python 3.11.7." in text


@pytest.mark.slow
def test_the_page_in_the_docs_has_what_is_recorded(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(cifar10.PAGE.read_text())
    write_results(page, cifar10.results(cifar10.RECORDED))
    assert page.read_text() == cifar10.PAGE.read_text(), "run python -m studies.cifar10 --stage write"
    assert {part.stage for part in CHOICES} == {"choose"}
    assert [part.rate for part in CHOICES] == list(RATES)

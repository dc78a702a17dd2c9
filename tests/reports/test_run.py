"""A run folder as its report sees it, whatever is missing."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pfge.reports.contents import report_figures, report_tables
from pfge.reports.page import make_page
from pfge.reports.run import Run
from pfge.storage.files import StorageError, write_tensors
from tests.hostile import in_time, put_pipe
from tests.reports.made_run import (
    config,
    make_run,
    result,
    write_connectivity,
    write_evaluations,
    write_results,
)


def test_a_finished_run_lacks_nothing(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path / "run"))
    assert (run.name, run.seeds, run.missing(), run.left_out) == ("made", [1, 2], {}, [])
    assert run.problems() == []


def test_what_is_unfinished_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", methods=["w0", "SWA"])
    (folder / "config.toml").write_text(config(ensemble__methods=["SWA", "FGE", "PFGE"]))
    write_results(
        folder, [result("w0", 1), result("SWA", 1), result("FGE*", 1), result("FGE", 1), result("w0", 2)]
    )
    run = Run(folder)
    assert run.missing() == {1: ["PFGE"], 2: ["FGE", "FGE*", "PFGE", "SWA"]}
    assert "Seed 1 has no results yet of PFGE." in run.problems()
    assert any(f"pfge compare --out {folder} continues it" in text for text in run.problems())


def test_a_run_without_results_says_how_to_get_them(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    (folder / "results.jsonl").unlink()
    run = Run(folder)
    assert run.problems() == [
        f"No results yet. Run pfge compare --out {folder}, or wait until it finishes the first method."
    ]
    assert report_figures(run) == []
    assert report_tables(run) == []


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"holds no run: neither config\.toml nor results\.jsonl"):
        Run(tmp_path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"method": 3}, "method must be a string, got 3"),
        ({"bytes": 0}, "bytes must be at least 1, got 0"),
        ({"members": None}, "members must be a whole number, got null"),
        (
            {"test": {"accuracy": 0.9, "nll": float("nan"), "ece": 0.1}},
            "test.nll must be finite, got nan",
        ),
        ({"test": {"accuracy": 0.9}}, "test.nll is missing"),
        ({"test": "good"}, "test must be a JSON object, got 'good'"),
        ({"each": {"test": []}}, "each.test must have an entry for each of 4 members, got 0"),
        ({"growing": {"test": [{"nll": 1.0}] * 4}}, "growing.test[0].accuracy is missing"),
        ({"calibrated": {"temperature": "hot"}}, "calibrated.temperature must be a number, got 'hot'"),
        ({"calibrated_members": [1.5]}, "calibrated_members must be a JSON object, got a list"),
    ],
)
def test_a_line_of_another_format_is_left_out_and_named(
    tmp_path: Path, change: dict[str, object], expected: str
) -> None:
    folder = make_run(tmp_path / "run")
    write_results(folder, [result("w0", 1), result("PFGE", 1) | change])
    run = Run(folder)
    assert run.methods == ["w0"]
    (problem,) = run.left_out
    assert problem.startswith(f"line 2 of results.jsonl is left out: {expected};")
    assert f"L{problem[1:]}." in run.problems()


def test_a_line_that_is_being_written_does_not_count_yet(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    write_results(folder, [result("w0", 1)])
    with (folder / "results.jsonl").open("a") as file:
        file.write('{"seed": 1, "method": "PF')
    assert Run(folder).methods == ["w0"]


def test_results_of_an_older_version_still_make_a_report(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    new = ("trainings", "calibrated", "calibrated_members")
    write_results(
        folder, [{k: v for k, v in result(m, 1).items() if k not in new} for m in ("w0", "FGE", "PFGE")]
    )
    run = Run(folder)
    assert [table.title for table in report_tables(run)] == ["methods"]
    assert [figure.name for figure in report_figures(run)] == ["tradeoff", "rates", "members"]
    assert any(text.startswith("No scores of each example for w0, FGE, PFGE") for text in run.problems())


def test_a_config_of_another_version_is_shown_and_its_fault_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "config.toml").write_text(config() + "\n[warp]\nspeed = 9\n")
    run = Run(folder)
    assert run.name == "run"
    assert "speed = 9" in run.config
    assert any("warp is not a setting" in text for text in run.problems())
    assert "rates" not in [figure.name for figure in report_figures(run)]


def test_evaluated_ensembles_have_tables_of_their_own(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    write_evaluations(folder, seeds=[2], methods=["PFGE"])
    titles = [table.heading for table in report_tables(Run(folder))]
    assert titles == [
        "methods",
        "calibration",
        "differences from PFGE",
        "PFGE, seed 2, 4 members: 400 test examples of made",
        "PFGE, seed 2, 4 members: telling 100 images of other from these",
        "PFGE, seed 2, 4 members: the test images corrupted",
    ]


def test_reading_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    before = sorted(folder.rglob("*"))
    run = Run(folder)
    report_figures(run)
    report_tables(run)
    run.problems()
    assert sorted(folder.rglob("*")) == before


def test_the_environment_may_be_missing(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    assert Run(folder).environment == json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").unlink()
    assert Run(folder).environment == {}


@pytest.mark.parametrize("iterations", [None, [None] * 4])
def test_members_of_no_known_iteration_are_left_out_of_figures_alone(
    tmp_path: Path, iterations: list[None] | None
) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    write_results(folder, [result("PFGE", 1) | {"member_iterations": iterations}])
    run = Run(folder)
    assert run.left_out == []
    assert "methods" in [table.title for table in report_tables(run)]
    assert [figure.name for figure in report_figures(run)] == ["tradeoff", "rates"]


def test_curves_and_evaluations_of_another_format_are_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    write_connectivity(folder)
    write_evaluations(folder, seeds=[1], methods=["PFGE"])
    lines = [json.loads(line) for line in (folder / "connectivity.jsonl").read_text().splitlines()]
    lines[0]["trace"]["values"]["test_error"].pop()
    del lines[1]["trace"]
    (folder / "connectivity.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluation = folder / "seed-1" / "ensembles" / "PFGE" / "evaluation.json"
    assert len(Run(folder).evaluations) == 1
    evaluation.write_text(json.dumps({"test": {"accuracy": 0.9}}))
    run = Run(folder)
    assert [row.method for row in run.connectivity] == ["FGE"]
    assert run.evaluations == []
    first, second, third = run.left_out
    assert first.startswith("line 1 of connectivity.jsonl is left out: trace.values.test_error must have")
    assert second.startswith("line 2 of connectivity.jsonl is left out: trace is missing; it may come from")
    assert third == f"{evaluation} is left out: method is missing; run pfge evaluate again"


def test_a_name_that_is_too_long_for_a_file_leaves_out_its_line_only(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    write_results(folder, [*rows, result("\u20ac" * 100, 1, like="SWA")])
    run = Run(folder)
    assert len(run.results) == len(rows)
    (problem,) = run.left_out
    assert "method must be a name of 1 to 100 printable characters without slashes" in problem
    assert "at most 200 bytes" in problem
    assert report_tables(run)


def test_measurements_that_cannot_be_read_are_named_and_the_report_is_made(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    names = ("formats.jsonl", "connectivity.jsonl")
    for name in names:
        (folder / name).mkdir()
    run = Run(folder)
    assert [problem.partition(":")[0] for problem in run.left_out] == [
        f"{name} is left out" for name in reversed(names)
    ]
    assert "Formats.jsonl is left out: " in make_page([run])


@pytest.mark.parametrize("name", ["environment.json", "landscape.json"])
def test_a_file_that_may_not_be_read_is_named_and_the_report_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = make_run(tmp_path / "run")
    (folder / name).write_text("{}")

    def refuse(path: Path, *_: object) -> dict[str, object]:
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return {}

    monkeypatch.setattr("pfge.reports.run.read_json_object", refuse)
    (problem,) = Run(folder).left_out
    assert "Permission denied" in problem
    assert name in problem


def damage_bytes(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-8])


def put_other_tensors(file: Path) -> None:
    write_tensors(file, {"test.log_loss": torch.zeros(3, 2), "test.correct": torch.zeros(4)})


@pytest.mark.parametrize("damage", [damage_bytes, put_pipe, put_other_tensors])
def test_a_file_of_scores_that_cannot_be_read_is_named_and_the_report_is_made(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "seed-1" / "scores" / "FGE.safetensors.sha256").write_text("damaged")
    damage(folder / "seed-1" / "scores" / "PFGE.safetensors")
    with in_time():
        run = Run(folder)
        page = make_page([run])
    named = [
        problem for problem in run.left_out if problem.startswith("scores of single examples are left out")
    ]
    assert any("FGE.safetensors" in problem for problem in named)
    assert len(named) == 2
    assert "Scores of single examples are left out" in page
    assert next(table.key for table in report_tables(run)) == "methods"
    assert report_figures(run)

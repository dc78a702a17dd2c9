"""A new method is one entry of the table: everything else finds it there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pfge import FGE, PFGE
from pfge.cli.main import main
from pfge.lab.config.settings import ConfigError
from pfge.lab.experiments.connect import connect
from pfge.lab.experiments.landscape import make_landscape
from pfge.lab.run.progress import Reporter
from pfge.methods import METHODS, Method, register
from pfge.reports.appearance import APPEARANCES, Appearance, Style
from pfge.reports.page import make_page
from pfge.reports.run import Run
from tests.cli.every_command import PLAN
from tests.lab.tiny import Stopped, counted_steps, outcome, read_lines, run, tiny
from tests.reports.page.read_page import Read

QUIET = Reporter(quiet=True)
# The same members as FGE's, so that every number of it is known.
TWIN = Method(
    "Twin",
    description="The members of FGE under another name.",
    source="",
    path="shared",
    collector=lambda setting, _seed, store: FGE(setting.cycle, phase=setting.phase, store=store),
    members="cycle",
    starred=True,
    curves=True,
    plan="listed",
)
LOOK = Appearance(Style("#123456", "#abcdef", "star", strong=True), shows_members=True, rates_title="as FGE")
# It steers at the rates of the shared path, so it forks from it, as PFGE does, but later.
SLOW = Method(
    "Slow",
    description="PFGE with periods of twice the length.",
    source="",
    path="own",
    collector=lambda setting, _seed, store: PFGE(setting.cycle, 2 * setting.period, store=store),
)
STARTS = Method("Starts", description="A deep ensemble under another name.", source="", path="trainings")
CHOSEN = "ensemble.methods=['Slow','FGE','PFGE','Twin']"


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    for method in (TWIN, SLOW, STARTS):
        register(method)
    APPEARANCES["Twin"] = LOOK
    yield
    del APPEARANCES["Twin"]
    for method in (TWIN, SLOW, STARTS):
        del METHODS[method.name]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(tiny(CHOSEN), folder)
    return folder


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in read_lines(folder / "results.jsonl")}


def members(folder: Path, method: str) -> list[bytes]:
    files = sorted((folder / "seed-1" / "ensembles" / method).glob("member-*.safetensors"))
    return [file.read_bytes() for file in files]


def test_a_config_allows_it() -> None:
    expected = r"among SWA, .*, DeepEnsemble, Twin, Twin\*, Slow, Starts, got 'Twins'"
    with pytest.raises(ConfigError, match=expected):
        tiny("ensemble.methods=['Twins']")


def test_a_comparison_runs_and_measures_it(finished: Path) -> None:
    found = rows(finished)
    assert found.keys() == {"w0", "FGE", "FGE*", "Twin", "Twin*", "PFGE", "Slow"}
    for twin, row in (("Twin", "FGE"), ("Twin*", "FGE*")):
        assert found[twin] == found[row] | {"method": twin}
    assert members(finished, "Twin") == members(finished, "FGE")


def test_each_method_that_steers_leaves_the_shared_path_where_its_own_begins(
    finished: Path, tmp_path: Path
) -> None:
    run(tiny("ensemble.methods=['PFGE']", "ensemble.period=8"), tmp_path)
    assert len(members(tmp_path, "PFGE")) == 2
    assert members(finished, "Slow") == members(tmp_path, "PFGE")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", ["0", "1e9"])
def test_a_run_that_was_stopped_on_its_path_goes_on(finished: Path, tmp_path: Path, seconds: str) -> None:
    experiment = tiny(CHOSEN, f"engine.checkpoint_seconds={seconds}")
    # w0 takes 10 steps, the shared path 16, PFGE 12 from iteration 4 on, Slow 8 from iteration 8 on.
    for step in (10 + 10, 10 + 16 + 12 + 4):
        with pytest.raises(Stopped), counted_steps(stop_after=step):
            run(experiment, tmp_path / str(step))
        run(experiment, tmp_path / str(step))
        assert outcome(tmp_path / str(step)) == outcome(finished)
    with counted_steps() as steps:
        run(experiment, tmp_path / "whole")
    assert steps == [10 + 16 + 12 + 8]


def test_members_of_own_trainings_are_those_of_a_deep_ensemble(tmp_path: Path) -> None:
    run(tiny("ensemble.methods=['DeepEnsemble','Starts']", "ensemble.length=8"), tmp_path)
    found = rows(tmp_path)
    assert found["Starts"] == found["DeepEnsemble"] | {"method": "Starts"}
    assert found["Starts"]["trainings"] == 2
    manifest = json.loads((tmp_path / "seed-1" / "ensembles" / "Starts" / "manifest.json").read_text())
    assert manifest["method"] == "Starts(2)"


def test_tables_show_it_after_the_others(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", str(finished)]) == 0
    names = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if "|" in line]
    assert names[2:9] == ["w0", "FGE", r"FGE\*", "PFGE", "Twin", r"Twin\*", "Slow"]


def test_the_page_shows_it_in_its_own_style(finished: Path) -> None:
    page = Read(make_page([Run(finished)]))
    styles = page.data["styles"]
    assert styles["Twin"] == {
        "light": "#123456",
        "dark": "#abcdef",
        "mark": "star",
        "open": False,
        "strong": True,
    }
    assert styles["Twin*"] == styles["Twin"] | {"open": True}
    assert styles["Slow"]["light"] not in {"#123456", styles[""]["light"]}  # one of those that are left
    assert [name for name, style in styles.items() if style["strong"]] == ["PFGE", "Twin", "Twin*"]
    figures = page.data["figures"]
    assert [panel["title"] for panel in figures["run-1-rates"]["panels"]][-1] == "Twin: as FGE"
    growing = {s["label"]: s["y"] for s in figures["run-1-members"]["panels"][0]["series"]}
    assert growing["Twin, ensemble so far"] == growing["FGE, ensemble so far"]
    assert "Twin*" in page.text


def test_curves_and_the_loss_plane_have_it(finished: Path) -> None:
    small = ["connect.unit=iterations", "connect.length=1", "connect.points=2", "connect.images=50"]
    found = connect(finished, QUIET, overrides=small, pairs=1)
    assert [row.method for row in found] == ["PFGE", "FGE", "Twin"]
    assert len(make_landscape(finished, QUIET, grid=2, images=50).trajectory or []) == 8


def test_a_plan_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--memory", "9MB", "--images", "1000", "--batch-size", "100"]) == 0
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if " members at iterations" in line]
    of_fge = [line for line in lines if line.startswith("FGE")]
    assert of_fge
    assert [line.replace("Twin", "FGE") for line in lines if line.startswith("Twin")] == of_fge

"""The page as a text: whole, self-contained, and safe whatever a run is called."""

import json
import os
import re
import time
from datetime import UTC, datetime
from errno import ENOSPC
from pathlib import Path

import pytest

from pfge.cli.main import main
from pfge.reports.page import make_page
from pfge.reports.run import Run
from tests.reports.made_run import (
    LANDSCAPE,
    MEMBERS,
    make_run,
    result,
    with_validation,
    write_connectivity,
    write_evaluations,
    write_results,
)
from tests.reports.page.read_page import Read


def page_of(*folders: Path) -> Read:
    return Read(make_page([Run(folder) for folder in folders]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = make_run(tmp_path / "run")
    write_connectivity(made)
    write_evaluations(made)
    return made


def test_the_page_has_every_section_figure_and_table(folder: Path) -> None:
    page = page_of(folder)
    assert [attributes.get("id") for tag, attributes in page.tags if tag == "section"] == [
        f"run-1-{name}" for name in ("summary", "tables", "path", "trust", "source")
    ]
    assert list(page.data["figures"]) == [
        f"run-1-{name}"
        for name in ("tradeoff", "rates", "members", "curves", "reliability", "corruptions", "unknown-inputs")
    ]
    for found in (
        "Methods",
        "Calibration",
        "Differences from PFGE",
        "For reference",
        "pfge compare made.toml",
    ):
        assert found in page.text
    assert 'name = "made"' in page.text  # the config, whole


def test_an_evaluation_without_w0_names_the_command_for_it(folder: Path) -> None:
    command = f"pfge evaluate {folder}/seed-1/ensembles/w0 with the options"
    assert command in page_of(folder).text
    write_evaluations(folder, methods=["w0"])
    page = page_of(folder)
    assert command not in page.text
    panels = page.data["figures"]["run-1-corruptions"]["panels"]
    assert {series["method"] for series in panels[0]["series"]} == {"w0", "FGE", "PFGE"}


def test_a_star_is_explained_before_it_is_used(folder: Path) -> None:
    text = page_of(folder).text
    explained = "FGE*, SWAG*: only the last members of FGE and SWAG, as many as PFGE has."
    assert text.index(explained) == text.index("FGE*")


def test_what_is_to_ship_has_a_seed_a_folder_and_a_command(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run & co", seeds=(1,), examples=0)
    write_results(folder, [with_validation(result("FGE*", 1))])
    whole = folder / "seed-1" / "ensembles" / "FGE"
    whole.mkdir(parents=True)
    (whole / "manifest.json").touch()
    page = page_of(folder)
    assert "FGE*, seed 1" in page.text
    assert (
        f"the command makes it from {whole} and writes it, with its temperature, to {whole}-last."
        in page.text
    )
    assert f"pfge evaluate '{whole}-last' --calibrate pooled" in page.text


def test_several_runs_are_compared_in_one_table_first(folder: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other")
    page = make_page([Run(folder), Run(other)])
    assert page.index('<section id="runs">') < page.index('id="run-1"')
    assert "All runs" in page
    assert 'id="runs"' not in make_page([Run(folder)])
    empty = make_page([Run(folder), Run(make_run(tmp_path / "empty", methods=[]))])
    assert "The runs are not in one table: fewer than two have results." in empty


def test_every_place_for_a_chart_has_its_data_and_its_numbers_as_text(folder: Path) -> None:
    page = page_of(folder)
    places = [attributes["data-panel"] for _, attributes in page.tags if "data-panel" in attributes]
    expected = [f"{n}/{i}" for n, f in page.data["figures"].items() for i in range(len(f["panels"]))]
    assert sorted(places) == sorted(expected)  # type: ignore[type-var]
    assert page.count("figure") == len(page.data["figures"])
    for figure in page.data["figures"].values():
        for panel in figure["panels"]:
            for series in panel["series"]:
                assert f"{series['y'][0]:.5g}" in page.text


def test_nothing_on_the_page_comes_from_elsewhere(folder: Path) -> None:
    page = page_of(folder)
    outside = [
        value
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in ("src", "href", "action") and value and not value.startswith(("#", "data:"))
    ]
    assert outside == []
    text = make_page([Run(folder)])
    assert "@import" not in text
    assert re.findall(r"https?://[^\"' ]+", text) == ["http://www.w3.org/2000/svg"]  # a name, not an address
    assert "default-src 'none'" in text


EVIL = "</script><script>alert('x')</script><img src=x onerror=alert(1)> & \"q\" <!-- ${title}"
EVIL_NAME = EVIL.replace("/", "")
"""Methods have names without slashes."""


def test_names_with_markup_stay_text(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    write_results(folder, [result("w0", 1), result("PFGE", 1), result(EVIL_NAME, 1, like="FGE")])
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace('"made"', json.dumps(EVIL)))
    (folder / "environment.json").write_text(json.dumps({"command": EVIL}))
    page = page_of(folder)
    assert page.count("script") == 2  # the data and the program
    assert page.count("img") == 0
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert EVIL in page.text
    labels = [series["label"] for series in page.data["figures"]["run-1-tradeoff"]["panels"][0]["series"]]
    assert EVIL_NAME in labels


def test_a_number_that_json_does_not_know_breaks_nothing(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    odd = result("PFGE", 1)
    odd["growing"]["test"][1]["nll"] = float("nan")
    write_results(folder, [odd, result("FGE", 1)])
    members = page_of(folder).data["figures"]["run-1-members"]["panels"][1]["series"]
    (growing,) = [series for series in members if series["label"] == "PFGE, ensemble so far"]
    assert growing["x"] == [100, 300, 400]


def test_a_run_without_results_is_a_page_that_says_so(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", methods=[]))
    assert "No results yet. Run pfge compare --out" in page.text
    assert page.data["figures"] == {}


def test_runs_share_a_page_and_a_table_of_contents(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "a"), make_run(tmp_path / "b", methods=["w0"]))
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    ids = {f"#{attributes['id']}" for _, attributes in page.tags if "id" in attributes}
    assert {"#run-1", "#run-2", "#run-1-tables", "#run-2-source"} <= set(links)
    assert set(links) <= ids
    assert {"run-1-tradeoff", "run-2-tradeoff"} <= page.data["figures"].keys()


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    runs = [Run(make_run(tmp_path / name, examples=0)) for name in ("one", "two")]
    page = make_page([*runs, runs[0], runs[0]])
    titles = [f"made ({tmp_path / name})" for name in ("one", "two")]
    titles += [f"{titles[0]}, again", f"{titles[0]}, again, again"]
    assert re.findall(r"<h1>(.*?)</h1>", page) == titles
    assert re.findall(r'<a href="#run-\d">(.*?)</a>', page) == titles


def test_the_best_is_bold_and_pfge_stands_out(folder: Path) -> None:
    text = make_page([Run(folder)])
    assert "<strong>94.25 ±&nbsp;0.25</strong>" in text  # FGE's accuracy
    assert '<tr class="strong"><td class="text" data-head="method">PFGE</td>' in text


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        ("2026-01-02T03:04:05+00:00", "1:02:05 from the start to the last result, pauses included"),
        ("2026-01-02T09:00:00+00:00", None),
        ("yesterday", None),
        (None, None),
    ],
)
def test_the_duration_is_told_where_it_is_known(
    folder: Path, started: str | None, expected: str | None
) -> None:
    end = datetime(2026, 1, 2, 4, 6, 10, tzinfo=UTC).timestamp()
    os.utime(folder / "results.jsonl", (end, end))
    (folder / "environment.json").write_text(json.dumps({"started": started}))
    text = page_of(folder).text
    assert ("from the start to the last result" in text) == (expected is not None)
    assert expected is None or expected in text


def test_the_same_run_gives_the_same_page(folder: Path) -> None:
    assert make_page([Run(folder)]) == make_page([Run(folder)])


def test_a_page_that_cannot_be_written_leaves_the_old_one(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["report", str(folder)]) == 0
    before = (folder / "report.html").read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr("pfge.storage.files._flush", refuse)
    assert main(["report", str(folder)]) != 0
    assert "No space left on device" in capsys.readouterr().err
    assert (folder / "report.html").read_bytes() == before
    assert not list(folder.glob(".*.part"))


@pytest.mark.slow
def test_five_seeds_of_seven_methods_are_a_small_page_made_quickly(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", seeds=range(1, 6), examples=10_000)
    write_evaluations(folder, seeds=range(1, 6), methods=list(MEMBERS))
    start = time.process_time()
    page = make_page([Run(folder)])
    assert time.process_time() - start < 5  # seconds; a machine that is busy with others counts less
    assert len(page.encode()) < 6_000_000


def test_the_loss_plane_is_drawn_where_it_was_measured(folder: Path) -> None:
    assert "The loss plane" not in page_of(folder).text
    (folder / "landscape.json").write_text(json.dumps(LANDSCAPE))
    assert "The loss plane" in page_of(folder).text


def test_a_loss_plane_with_markup_is_left_out(folder: Path) -> None:
    (folder / "landscape.json").write_text(json.dumps(LANDSCAPE | {"members": ["<script>", 2, 3]}))
    assert "The loss plane" not in page_of(folder).text
    (folder / "landscape.json").write_text(json.dumps(LANDSCAPE | {"quantity": "<script>"}))
    assert "The loss plane" not in page_of(folder).text

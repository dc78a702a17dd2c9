"""Pages have what `python docs/write_results.py` writes, and no other measured number."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import write_results
from site_extension import recorded, shipped
from site_extension.run_texts import in_words

from benchmarks.shipped import Row
from pfge.reports.verdicts import Gap
from pfge.tasks import DEFAULT_TASK
from tests.readme_blocks import DOCS


@pytest.mark.slow
@pytest.mark.parametrize("name", write_results.PAGES)
def test_a_page_has_what_the_command_writes(name: str) -> None:
    page = (DOCS / name).read_text()
    assert write_results.BLOCK.search(page)
    assert write_results.filled(page) == page, "run python docs/write_results.py"


def test_results_have_no_measured_number_of_their_own() -> None:
    by_hand = write_results.BLOCK.sub("", (DOCS / "results.md").read_text())
    assert re.findall(r"\d+[.,]\d+|\d+ ?%", by_hand) == []


def test_the_numbers_are_those_of_the_results() -> None:
    rows = map(json.loads, (DOCS / "recorded" / "digits" / "results.jsonl").read_text().splitlines())
    of_pfge = [row["test"] for row in rows if row["method"] == "PFGE"]
    mean = sum(test["accuracy"] for test in of_pfge) / len(of_pfge)
    section = (DOCS / "results.md").read_text().split("## Digits")[1]
    (line,) = re.findall(r"^\| PFGE \| 4 .*$", section.split("\n## ")[0], re.MULTILINE)
    assert f"| {100 * mean:.2f} ± " in line
    assert "Seeds 1, 2, 3. n = 640, P = 160, c = 32." in section


def test_only_blocks_are_replaced() -> None:
    page = "before\n<!-- recorded: digits source -->\nold\n<!-- end -->\nafter\n"
    found = write_results.filled(page)
    assert found.startswith("before\n<!-- recorded: digits source -->\n\n800 training, 200 validation")
    assert found.endswith("```\n\n<!-- end -->\nafter\n")
    assert write_results.filled(found) == found


def test_a_run_that_is_not_there_is_said() -> None:
    page = "<!-- recorded: nothing methods -->\n<!-- end -->"
    assert write_results.NOT_YET in write_results.filled(page)


def test_what_a_run_has_not_is_refused() -> None:
    page = "<!-- recorded: digits methds -->\n<!-- end -->"
    with pytest.raises(ValueError, match="the run digits has no methds; it has source, methods"):
        write_results.filled(page)


def test_the_command_records_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "RECORDED", tmp_path / "recorded")
    monkeypatch.setattr(write_results, "DOCS", tmp_path)
    for name in write_results.PAGES:
        (tmp_path / name).write_text("<!-- recorded: mnist1d methods -->\n<!-- end -->")
    recorded.recorded_run.cache_clear()
    write_results.main(["--record", str(DOCS / "recorded" / "mnist1d"), "--without-scores"])
    assert "| DeepEnsemble |" in (tmp_path / "results.md").read_text()
    recorded.recorded_run.cache_clear()


def test_verdicts_are_said_in_words() -> None:
    accuracy, nll = (next(m for m in DEFAULT_TASK.metrics if m.name == name) for name in ("accuracy", "nll"))

    def gap(metric, mean: float) -> Gap:
        errors = {"seeds": 5, "seed_error": 1e-4, "examples": 9000, "example_error": 1e-4}
        return Gap(metric=metric, mean=mean, margin=0.01, reference=0.5, **errors)

    gaps = {
        "SWA": {"accuracy": gap(accuracy, 0.0), "nll": gap(nll, -0.1)},
        "FGE*": {"accuracy": gap(accuracy, 0.0), "nll": gap(nll, 0.1)},
    }
    assert in_words(gaps, "PFGE").splitlines() == [
        "- accuracy, compared with PFGE: equal: all.",
        "- NLL, compared with PFGE: better: SWA; worse: FGE\\*.",
    ]


def test_shipped_forms_are_the_table_that_the_benchmark_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row("PFGE", "int8 base", 1234567, 0.45, 0.00012, 0.9152, -0.0004, 0.3209, 0.0002)
    found = {"rows": [asdict(row)], "members": 4, "images": "5,000 test images", "validation_images": "all"}
    monkeypatch.setattr(shipped, "RECORDED", tmp_path)
    assert shipped.shipped_text() == shipped.NOT_YET
    (tmp_path / "shipped.json").write_text(f"{json.dumps(found)}\n" * 2)
    first, *_ = shipped.shipped_text().split("\n\n")
    printed = f"{Row.HEAD}\n{row}".splitlines()
    assert first.splitlines() == [
        f"| ensemble {printed[0]}",
        f"| --- {printed[1]}",
        f"| PFGE {printed[2]}",
    ]
    assert shipped.shipped_text().count("4 members, 5,000 test images") == 2

"""Numbers on the site are those of the recorded runs and of docs/results.md."""

import json
from statistics import mean, stdev

import pytest
from site_extension import measured

from pfge.reports.statistics import Estimate
from tests.test_readme import DOCS

RUN = DOCS / "recorded" / "mnist1d"
PAGE = """
## Small data: *ours*

| method | members | bytes | memory | accuracy % | NLL |
| --- | ---: | ---: | ---: | ---: | ---: |
| w0 | 1 | 10 | 1x | 90.00 | 0.4000 |
| FGE\\* | 4 | 40 | 4x | 91.00 ▲ | 0.3000 |

| method | T | NLL at T |
| --- | ---: | ---: |
| w0 | 2.0 | 0.3500 |

| method | members | bytes | memory | accuracy % | NLL |
| --- | ---: | ---: | ---: | ---: | ---: |
| w0 | 1 | 10 | 1x | 99.00 | 0.1000 |
"""


def lines_of(method: str) -> dict[int, dict]:
    rows = map(json.loads, (RUN / "results.jsonl").read_text().splitlines())
    return {row["seed"]: row for row in rows if row["method"] == method}


@pytest.mark.parametrize("method", ["PFGE", "FGE*", "DeepEnsemble"])
def test_a_gain_is_the_mean_difference_from_w0_of_the_same_seed(method: str) -> None:
    (gain,) = [gain for gain in measured.gains(measured.recorded_run("mnist1d")) if gain.row == method]
    rows, start = lines_of(method), lines_of("w0")
    points = [100 * (rows[seed]["test"]["accuracy"] - start[seed]["test"]["accuracy"]) for seed in rows]
    assert gain.accuracy.mean == pytest.approx(mean(points))
    assert gain.accuracy.error == pytest.approx(stdev(points) / len(points) ** 0.5)
    at = [rows[seed]["calibrated"]["test"]["nll"] - start[seed]["calibrated"]["test"]["nll"] for seed in rows]
    assert gain.calibrated_nll.mean == pytest.approx(mean(at))


def test_training_is_relative_to_that_of_w0() -> None:
    training = {gain.row: gain.training for gain in measured.gains(measured.recorded_run("mnist1d"))}
    assert training["DeepEnsemble"] == 3  # three more trainings beside w0
    assert training["SWA"] == pytest.approx(800 / 660)  # 60 epochs of 11 batches


def test_a_page_gives_the_first_table_of_a_section_and_its_calibration() -> None:
    link = "[Small data](/results.md#small-data-ours)"
    assert list(measured.read_qualities(PAGE)) == [
        measured.Quality(link, "w0", "1", "1x", "90.00 %", "0.4000", "0.3500"),
        measured.Quality(link, "FGE*", "4", "4x", "91.00 %", "0.3000", measured.NO_NUMBER),
    ]


def test_a_card_has_what_results_have_of_its_method() -> None:
    found = measured.qualities("PFGE")
    on_cifar = [quality for quality in found if "CIFAR-10" in quality.where]
    assert [quality.row for quality in on_cifar] == ["w0", "PFGE"]
    assert on_cifar[1].metric == "91.52 %"
    assert on_cifar[1].calibrated_nll == "0.2546"
    assert measured.qualities("MCDropout") == []


def test_an_unfinished_run_cannot_be_recorded(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (RUN / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "results.jsonl").write_text("".join(lines[:-1]))
    (tmp_path / "part" / "config.toml").write_text((RUN / "config.toml").read_text())
    monkeypatch.setattr(measured, "RECORDED", tmp_path)
    with pytest.raises(ValueError, match="must be a finished run"):
        measured.recorded_run("part")


def test_numbers_are_shown_with_their_errors() -> None:
    assert measured.show(Estimate(0.5, 0.25), 2, signed=True) == "+0.50 ± 0.25"
    assert measured.show(Estimate(-0.5), 1) == "-0.5"

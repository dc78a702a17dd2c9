"""Numbers on the site are those of the recorded runs."""

import json
import re
from pathlib import Path
from statistics import mean, stdev

import pytest
from site_extension import measured
from site_extension.recorded import recorded_run

from pfge.reports.statistics import Estimate
from tests.readme_blocks import DOCS

RUN = DOCS / "recorded" / "mnist1d"


def lines_of(method: str, run: Path = RUN) -> dict[int, dict]:
    rows = map(json.loads, (run / "results.jsonl").read_text().splitlines())
    return {row["seed"]: row for row in rows if row["method"] == method}


@pytest.mark.parametrize("method", ["PFGE", "FGE*", "DeepEnsemble"])
def test_a_gain_is_the_mean_difference_from_w0_of_the_same_seed(method: str) -> None:
    (gain,) = [gain for gain in measured.gains(recorded_run("mnist1d")) if gain.row == method]
    rows, start = lines_of(method), lines_of("w0")
    points = [100 * (rows[seed]["test"]["accuracy"] - start[seed]["test"]["accuracy"]) for seed in rows]
    assert gain.accuracy.mean == pytest.approx(mean(points))
    assert gain.accuracy.error == pytest.approx(stdev(points) / len(points) ** 0.5)
    at = [rows[seed]["calibrated"]["test"]["nll"] - start[seed]["calibrated"]["test"]["nll"] for seed in rows]
    assert gain.calibrated_nll.mean == pytest.approx(mean(at))


def test_training_is_relative_to_that_of_w0() -> None:
    training = {gain.row: gain.training for gain in measured.gains(recorded_run("mnist1d"))}
    assert training["DeepEnsemble"] == 3  # three more trainings beside w0
    assert training["SWA"] == pytest.approx(800 / 660)  # 60 epochs of 11 batches


def test_a_card_has_what_results_have_of_its_method() -> None:
    found = {(quality.where, quality.row): quality for quality in measured.qualities("PFGE")}
    assert {row for _, row in found} == {"w0", "PFGE"}
    rows = lines_of("PFGE", DOCS / "recorded" / "digits").values()
    of_digits = found["[Digits](/results.md#digits)", "PFGE"]
    assert of_digits.metric.startswith(f"{100 * mean(row['test']['accuracy'] for row in rows):.2f} ± ")
    assert of_digits.metric.endswith(" %")
    assert of_digits.nll.startswith(f"{mean(row['test']['nll'] for row in rows):.4f} ± ")
    at = mean(row["calibrated"]["test"]["nll"] for row in rows)
    assert of_digits.calibrated_nll.startswith(f"{at:.4f} ± ")
    assert found["[Diabetes](/results.md#diabetes)", "PFGE"].metric.endswith(" RMSE")
    assert measured.qualities("MCDropout") == []


@pytest.mark.parametrize("link", measured.ON_CARDS.values())
def test_a_card_links_to_a_section_that_is_there(link: str) -> None:
    page, _, place = link.partition("(/")[2].rstrip(")").partition("#")
    heads = re.findall(r"^## (.*)$", (DOCS / page).read_text(), re.MULTILINE)
    assert not place or place in [head.lower().replace(" ", "-") for head in heads]


def test_numbers_are_shown_with_their_errors() -> None:
    assert measured.show(Estimate(0.5, 0.25), 2, signed=True) == "+0.50 ± 0.25"
    assert measured.show(Estimate(-0.5), 1) == "-0.5"
    assert measured.show(None, 1) == measured.NO_NUMBER

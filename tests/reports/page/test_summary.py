"""What a report says in words."""

from pathlib import Path
from typing import Any

import pytest

from pfge.reports.page.summary import Finding, findings
from pfge.reports.run import Run
from tests.reports.made_run import form_rows, make_run, result, write_forms, write_results


def said(folder: Path) -> dict[str, Finding]:
    names = ("accurate", "likely", "ship", "claim")
    return dict(zip(names, findings(Run(folder)), strict=True))


def rows_of(metrics: dict[str, tuple[float, float]], spread: float) -> list[dict[str, Any]]:
    """Return two seeds of methods; against any other, each differs by an error of about `spread`."""
    rows = []
    for number, (method, (accuracy, nll)) in enumerate(metrics.items()):
        for seed in (1, 2):
            row = result(method, seed)
            sign = spread * (number + 1) * (1 if seed == 1 else -1)
            row["test"] |= {"accuracy": accuracy + sign, "nll": nll + sign}
            rows.append(row)
    return rows


def test_the_best_are_named_with_their_numbers_and_memory(tmp_path: Path) -> None:
    found = said(make_run(tmp_path / "run"))
    assert (found["accurate"].answer, found["likely"].answer) == ("FGE", "FGE")
    assert found["accurate"].why == "94.25 ± 0.25 % at 20× the memory of one model (20 MB)"
    assert found["likely"].why == "0.2050 ± 0.0050 at 20× the memory of one model (20 MB)"


def test_the_smallest_within_noise_of_the_best_is_to_ship(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    metrics = {"w0": (0.90, 0.40), "SWA": (0.91, 0.35), "PFGE": (0.939, 0.201), "FGE": (0.94, 0.20)}
    write_results(folder, rows_of(metrics, spread=0.002))
    found = said(folder)["ship"]
    assert found.answer == "PFGE"
    assert found.why == (
        "The smallest that is not worse than the best in accuracy or NLL, beyond noise; 4× the memory of one "
        "model (4 MB). With less memory, the lowest NLL is that of SWA (1×)."
    )


def test_what_is_to_ship_is_said_in_its_smallest_form_that_predicts_nearly_the_same(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    metrics = {"SWA": (0.91, 0.35), "PFGE": (0.939, 0.201), "FGE": (0.94, 0.20)}
    write_results(folder, rows_of(metrics, spread=0.002))
    rows = form_rows()
    for row in rows:  # of 32 bits a number: 8 + 4 x 1 for PFGE at 1 bit, 8 + 4 x 3 at 3 bits
        row["kl"] = {"int8 base + 1 bit": 0.0011, "int8 base + 3 bits": 0.0001}.get(row["format"], 0.0)
    write_forms(folder, rows)
    assert (
        " As int8 base + 3 bits it takes 0.625× (625 kB) and predicts nearly the same, KL 0.0001 ± 0.0000."
        in (said(folder)["ship"].why)
    )


def test_the_best_itself_is_to_ship_if_nothing_smaller_comes_near(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    metrics = {"w0": (0.90, 0.40), "PFGE": (0.92, 0.30), "FGE": (0.94, 0.20)}
    write_results(folder, rows_of(metrics, spread=0.0001))
    found = said(folder)["ship"]
    assert found.answer == "FGE"
    assert found.why.startswith(
        "Best in accuracy and NLL, and nothing smaller comes within noise of it in both"
    )
    assert found.why.endswith("that of PFGE (4×) or w0 (1×).")


def test_two_bests_that_beat_each_other_leave_the_lowest_nll(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    write_results(folder, rows_of({"SWA": (0.94, 0.30), "PFGE": (0.92, 0.20)}, spread=0.0001))
    found = said(folder)["ship"]
    assert found.answer == "PFGE"
    assert found.why.startswith("The lowest NLL; no method comes within noise of the best in both")


def test_a_noise_that_is_unknown_is_called_so(tmp_path: Path) -> None:
    found = said(make_run(tmp_path / "run", seeds=[1], examples=0))
    assert "cannot tell what is noise" in found["ship"].why
    assert found["claim"].answer == "Cannot be told yet"


@pytest.mark.parametrize(
    ("pfge", "expected"),
    [
        ((0.94, 0.20), "Holds"),
        ((0.95, 0.19), "Holds"),
        ((0.92, 0.20), "Holds for NLL, not for accuracy"),
        ((0.94, 0.30), "Holds for accuracy, not for NLL"),
        ((0.92, 0.30), "Does not hold"),
    ],
)
def test_the_papers_claim_is_checked_in_both_metrics(
    tmp_path: Path, pfge: tuple[float, float], expected: str
) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    write_results(folder, rows_of({"FGE": (0.94, 0.20), "PFGE": pfge}, spread=0.001))
    assert said(folder)["claim"].answer == expected


def test_the_claim_says_difference_interval_and_memory(tmp_path: Path) -> None:
    why = said(make_run(tmp_path / "run"))["claim"].why
    assert why.startswith("PFGE with 4 members against FGE with 20: accuracy -0.50 points (95 % interval -")
    assert "over test images; ± 0.00 over seeds)" in why
    assert "NLL +0.0100 (95 % interval +" in why
    assert why.endswith("Memory 4 MB against 20 MB, 5 times less.")


def test_a_claim_without_one_of_the_two_is_not_checked(tmp_path: Path) -> None:
    found = said(make_run(tmp_path / "run", methods=["w0", "PFGE"]))["claim"]
    assert (found.answer, found.why) == ("Not checked", "There are no results of FGE yet.")


def test_without_results_nothing_is_said(tmp_path: Path) -> None:
    assert findings(Run(make_run(tmp_path / "run", methods=[]))) == []

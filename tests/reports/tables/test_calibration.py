"""The tables of calibration, from results alone."""

from typing import Any

from pfge.reports.tables.calibration import COLUMNS, assessment_tables, calibration_cells


def result(method: str, seed: int, nll: float, ece: float, temperature: float) -> dict[str, Any]:
    return {
        "seed": seed,
        "method": method,
        "test": {"nll": nll, "ece": ece},
        "calibrated": {"temperature": temperature, "test": {"nll": nll - 0.1, "ece": ece / 2}},
        "calibrated_members": {"temperatures": [1.0], "test": {"nll": nll - 0.05, "ece": ece / 4}},
    }


def test_each_method_is_a_row_before_and_after() -> None:
    cells = calibration_cells([result("PFGE", 1, 0.30, 0.04, 1.5), result("PFGE", 2, 0.32, 0.04, 1.7)])
    # deviations of 0.01 and 0.1 from the means: standard errors 0.01 and 0.1
    assert dict(zip(COLUMNS, cells[0], strict=True)) == {
        "method": "PFGE",
        "T": "1.600 ± 0.100",
        "NLL": "0.3100 ± 0.0100",
        "NLL at T": "0.2100 ± 0.0100",
        "NLL at members' T": "0.2600 ± 0.0100",
        "ECE %": "4.00 ± 0.00",
        "ECE % at T": "2.00 ± 0.00",
        "ECE % at members' T": "1.00 ± 0.00",
    }


def test_results_without_temperatures_have_no_row() -> None:
    assert calibration_cells([{"seed": 1, "method": "SWA", "test": {"nll": 1.0, "ece": 0.1}}]) == []


def test_an_assessment_has_a_table_for_all_that_was_measured() -> None:
    metrics = {"accuracy": 0.9, "nll": 0.3, "ece": 0.02}
    found = {
        "images": 100,
        "data": "digits",
        "test": metrics,
        "ood": {"mnist": {"images": 50, "entropy": {"auroc": 0.9, "aupr": 0.8, "fpr_at_95": 0.3}}},
        "corruptions": {
            "blur": [{"strength": s, "accuracy": 0.9 - s / 10, "nll": s, "ece": 0.1} for s in range(1, 6)]
        },
    }
    test, ood, corruptions = assessment_tables(found)
    assert test[2] == [["accuracy", "0.9000"], ["nll", "0.3000"], ["ece", "0.0200"]]
    assert "50 images of mnist" in ood[0]
    assert ood[2] == [["entropy", "90.00", "80.00", "30.00"]]
    assert corruptions[2][0] == ["blur", "accuracy %", "90.00", "80.00", "70.00", "60.00", "50.00", "40.00"]
    assert len(corruptions[1]) == len(corruptions[2][0])
    assert len(assessment_tables({**found, "ood": {}, "corruptions": {}})) == 1

"""The table of calibration, from results alone."""

from typing import Any

from pfge.lab.run.results import ComparisonRow
from pfge.reports.tables.methods import calibration_table
from tests.reports.made_run import heads, result, texts


def row(seed: int, nll: float, temperature: float) -> ComparisonRow:
    def metrics(nll: float, ece: float) -> dict[str, float]:
        return {"accuracy": 0.9, "nll": nll, "ece": ece}

    changed: dict[str, Any] = {
        "test": metrics(nll, 0.04),
        "calibrated": {"temperature": temperature, "test": metrics(nll - 0.1, 0.02)},
        "calibrated_members": {"temperatures": [1.0] * 4, "test": metrics(nll - 0.05, 0.01)},
    }
    return ComparisonRow.from_json(result("PFGE", seed) | changed)


def test_each_method_is_a_row_before_and_after() -> None:
    table = calibration_table([row(1, 0.30, 1.5), row(2, 0.32, 1.7)])
    assert table is not None
    # deviations of 0.01 and 0.1 from the means: standard errors 0.01 and 0.1
    assert dict(zip(heads(table), texts(table)[0], strict=True)) == {
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
    new = ("calibrated", "calibrated_members")
    without = {key: value for key, value in result("SWA", 1).items() if key not in new}
    assert calibration_table([ComparisonRow.from_json(without)]) is None
    both = calibration_table([ComparisonRow.from_json(without), row(1, 0.3, 1.5)])
    assert both is not None
    assert [cells[0] for cells in texts(both)] == ["PFGE"]


def test_a_part_without_temperatures_has_no_table() -> None:
    assert calibration_table([row(1, 0.3, 1.5)], "validation") is None


def test_the_temperature_is_that_of_the_seeds_that_have_the_part() -> None:
    first, second = row(1, 0.30, 1.5).to_json(), row(2, 0.32, 1.7).to_json()
    for measured in (second, second["calibrated"], second["calibrated_members"]):
        measured["validation"] = measured["test"]
    first["validation"] = first["test"]  # measured, but without temperatures on this part
    table = calibration_table([ComparisonRow.from_json(found) for found in (first, second)], "validation")
    assert table is not None
    assert texts(table)[0][:3] == ["PFGE", "1.700", "0.3200"]

"""Tables of calibration: of a comparison's methods, and of one ensemble on inputs that it does not know."""

from collections.abc import Mapping, Sequence
from typing import Any

from pfge.reports.tables.comparison import Number, by_method

COLUMNS = (
    "method",
    "T",
    "NLL",
    "NLL at T",
    "NLL at members' T",
    "ECE %",
    "ECE % at T",
    "ECE % at members' T",
)


def calibration_cells(results: Sequence[dict[str, Any]], part: str = "test") -> list[list[str]]:
    """Return a row for each method: as predicted, and at temperatures fitted on validation data."""
    cells = []
    for method, rows in by_method(results).items():
        fitted = [row for row in rows if part in row.get("calibrated", {})]
        if not fitted:
            continue
        kinds = [
            [row[part] for row in fitted],
            [row["calibrated"][part] for row in fitted],
            [row["calibrated_members"][part] for row in fitted],
        ]
        temperature = Number.of([row["calibrated"]["temperature"] for row in fitted])
        nll = [Number.of([found["nll"] for found in kind]).show(4) for kind in kinds]
        ece = [Number.of([100 * found["ece"] for found in kind]).show(2) for kind in kinds]
        cells.append([method, temperature.show(3), *nll, *ece])
    return cells


def assessment_tables(found: Mapping[str, Any]) -> list[tuple[str, Sequence[str], list[list[str]]]]:
    """Return the tables of one ensemble: a title, the names of the columns and the cells of each."""
    test = found["test"]
    tables: list[tuple[str, Sequence[str], list[list[str]]]] = [
        (
            f"{found['images']:,} test images of {found['data']}",
            ("metric", "value"),
            [[name.replace("_", " "), f"{value:.4f}"] for name, value in test.items()],
        )
    ]
    for name, scores in found["ood"].items():
        rows = [
            [
                score.replace("_", " "),
                *(f"{100 * metrics[key]:.2f}" for key in ("auroc", "aupr", "fpr_at_95")),
            ]
            for score, metrics in scores.items()
            if score != "images"
        ]
        title = f"telling {scores['images']:,} images of {name} from these"
        tables.append((title, ("score", "AUROC %", "AUPR %", "FPR at 95 % found, %"), rows))
    if found["corruptions"]:
        rows = [
            [
                name,
                label,
                f"{factor * test[key]:.{digits}f}",
                *(f"{factor * s[key]:.{digits}f}" for s in strengths),
            ]
            for name, strengths in found["corruptions"].items()
            for key, label, factor, digits in (
                ("accuracy", "accuracy %", 100, 2),
                ("nll", "NLL", 1, 4),
                ("ece", "ECE %", 100, 2),
            )
        ]
        columns = ("corruption", "metric", "none", *(f"strength {n}" for n in range(1, 6)))
        tables.append(("the test images corrupted", columns, rows))
    return tables

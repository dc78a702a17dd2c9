"""The tables of a run folder, for a terminal or a page: methods, calibration, differences, formats."""

from collections.abc import Sequence
from typing import Any

from pfge.lab.run.folder import RunFolder
from pfge.lab.run.result_lines import read_rows
from pfge.lab.run.results import FormatRow
from pfge.methods import find_reference
from pfge.reports.tables import calibration, comparison, differences
from pfge.reports.tables.comparison import BEST, by_method, comparison_cells, summarize
from pfge.reports.tables.formats import format_table
from pfge.reports.tables.table import Table


def run_tables(folder: RunFolder, results: Sequence[dict[str, Any]], part: str = "test") -> list[Table]:
    """Return the tables that a run has the results for."""
    seeds = len({result["seed"] for result in results})
    reference = find_reference().name
    about = f"mean ± standard error over {seeds} seeds; " if seeds > 1 else ""
    tables = [
        Table(
            "methods",
            comparison.COLUMNS,
            comparison_cells(summarize(results, part)),
            f"{about}{BEST} best; * the last members, as many as {reference} has; memory relative to one "
            "model; iterations beyond w0.",
        )
    ]
    if cells := calibration.calibration_cells(results, part):
        note = "T: the temperature fitted on validation data, of the mean, or one of each member."
        tables.append(Table("calibration", calibration.COLUMNS, cells, note))
    if cells := differences.difference_cells(_against(reference, folder, results, part)):
        note = (
            f"Each method minus {reference}: the interval from drawing the test images again (paired "
            "bootstrap), the standard error over seeds, and a verdict where neither explains the difference."
        )
        tables.append(Table(f"differences from {reference}", differences.COLUMNS, cells, note))
    if part == "test" and (formats := read_rows(folder.formats, FormatRow).rows):
        tables.append(format_table([row.to_json() for row in formats]))
    return tables


def _against(
    reference: str, folder: RunFolder, results: Sequence[dict[str, Any]], part: str
) -> dict[str, dict[str, differences.Against]]:
    rows = by_method(results)
    if reference not in rows:
        return {}
    scores = {
        method: differences.read_scores(
            {row["seed"]: folder.scores(row["seed"], method) for row in of_method}, part
        )
        for method, of_method in rows.items()
    }
    of_reference = scores.pop(reference)
    return differences.compare_all(scores, of_reference)

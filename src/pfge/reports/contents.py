"""The figures and tables of a run, in the order of the report."""

from collections.abc import Callable, Sequence
from pathlib import Path

from pfge.lab.config.settings import MarginSettings
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.results import ComparisonRow, FormatRow
from pfge.methods import find_reference
from pfge.reports.figures import path, trust
from pfge.reports.figures.figure import Figure
from pfge.reports.figures.tradeoff import tradeoff
from pfge.reports.run import Run
from pfge.reports.statistics import comparable_part, task_of
from pfge.reports.tables.diagnosis import connectivity_tables
from pfge.reports.tables.ensembles import count_members, evaluation_tables, formats_table
from pfge.reports.tables.methods import calibration_table, differences_table, methods_table, paper_tables
from pfge.reports.tables.table import Table
from pfge.reports.verdicts import DEFAULT_MARGINS, find_gaps

FIGURES: tuple[Callable[[Run], Figure | None], ...] = (
    tradeoff,
    path.rates,
    path.members,
    lambda run: path.curves(run.connectivity),
    lambda run: path.plane(run.landscape),
    trust.reliability,
    trust.corruptions,
    trust.unknown_inputs,
)


def save_if_possible(figure: Figure | None, file: Path, folder: Path) -> str:
    """Write a figure if matplotlib is installed, and return where it can be seen, for people.

    Args:
        figure: The figure; None if there is nothing to draw.
        file: Where to write it.
        folder: The run, whose page shows the figure too.
    """
    try:
        from pfge.reports.figures.plots import save_figure
    except ImportError as error:
        return f"No figure: {error}; or see it on the page of pfge report {folder}"
    if figure is None:
        return "No figure: nothing was measured"
    save_figure(figure, file)
    return f"Figure: {file}"


def report_figures(run: Run) -> list[Figure]:
    """Return the figures that a run has the results for."""
    return [figure for make in FIGURES if (figure := make(run)) is not None]


def report_tables(run: Run) -> list[Table]:
    """Return the tables that a run has the results for: of methods first, then of single ensembles."""
    tables = []
    if run.results:
        tables += comparison_tables(run.folder, run.results, run.formats, margins=run.margins)
    tables += connectivity_tables(run.connectivity) if run.connectivity else []
    if run.experiment:
        tables += paper_tables(run.experiment, run.results, run.connectivity)
    for seed, method, found in run.evaluations:
        tables += evaluation_tables(found, f"{method}, seed {seed}, {count_members(found)}")
    return tables


def comparison_tables(
    folder: RunFolder,
    rows: Sequence[ComparisonRow],
    formats: Sequence[FormatRow] = (),
    part: str = "test",
    margins: MarginSettings = DEFAULT_MARGINS,
) -> list[Table]:
    """Return the tables of a comparison: methods, calibration, differences and formats.

    Args:
        folder: The run, for the scores of each example.
        rows: Its results, at least one.
        formats: Rows that `pfge formats` measured.
        part: Split of the data; formats are measured on the test set only.
        margins: Largest differences that do not matter.
    """
    reference = find_reference().name
    compared = comparable_part(task_of(rows), part)
    gaps = find_gaps(folder, rows, reference, part=compared, margins=margins)
    tables = [
        methods_table(rows, part),
        calibration_table(rows, part),
        differences_table(gaps, reference, calibrated=compared != part),
        formats_table(formats) if formats and part == "test" else None,
    ]
    return [table for table in tables if table]

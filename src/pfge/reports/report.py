"""Everything that a report of a run shows, in the order in which it is shown."""

from collections.abc import Callable

from pfge.reports.figures import paper, trust
from pfge.reports.figures.figure import Figure
from pfge.reports.figures.tradeoff import tradeoff
from pfge.reports.run import Run
from pfge.reports.tables.calibration import assessment_tables
from pfge.reports.tables.connectivity import connectivity_tables
from pfge.reports.tables.run_tables import run_tables
from pfge.reports.tables.table import Table

FIGURES: tuple[Callable[[Run], Figure | None], ...] = (
    tradeoff,
    paper.rates,
    paper.members,
    paper.curves,
    trust.reliability,
    trust.corruptions,
    trust.unknown_inputs,
)


def report_figures(run: Run) -> list[Figure]:
    """Return the figures that a run has the results for."""
    return [figure for make in FIGURES if (figure := make(run)) is not None]


def report_tables(run: Run) -> list[Table]:
    """Return the tables that a run has the results for: of methods first, then of single ensembles."""
    tables = run_tables(run.folder, run.results) if run.results else []
    tables += connectivity_tables(run.connectivity) if run.connectivity else []
    for seed, method, found in run.evaluations:
        about = f"{method}, seed {seed}, {found['members']} members"
        tables += [
            Table(f"{about}: {title}", columns, cells, "")
            for title, columns, cells in assessment_tables(found)
        ]
    return tables


def problems(run: Run) -> list[str]:
    """Return what is missing from a whole report, and how to get it."""
    found = []
    path = run.folder.path
    if not run.results:
        found.append(f"There are no results yet. Run pfge compare --out {path}, or wait for it.")
    for seed, methods in run.missing().items() if run.results else []:
        found.append(f"Seed {seed} has no results yet of {', '.join(methods)}.")
    if run.results and run.missing():
        found.append(f"The run goes on, or stopped: the same pfge compare --out {path} continues it.")
    found += [f"{problem[:1].upper()}{problem[1:]}." for problem in run.left_out]
    if run.config_problem:
        found.append(f"The config cannot be read, so learning rates are not drawn: {run.config_problem}.")
    without = [m for m in run.methods if not any(run.folder.scores(s, m).is_file() for s in run.seeds)]
    if without:
        found.append(
            f"No scores of each example for {', '.join(without)}, so no reliability and no interval over "
            "test images: older versions did not keep them. To get them, remove results.jsonl and run the "
            "same pfge compare again, which only measures."
        )
    return found

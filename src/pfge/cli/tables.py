"""What the commands print in a terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import distributed

from pfge.lab.config.schema import Experiment
from pfge.lab.planner import Plan
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.results import Diagnosis, StartWeights
from pfge.methods import METHODS, style_of
from pfge.metrics.scores import Scores
from pfge.reports.tables import diagnosis
from pfge.reports.tables.calibration import assessment_tables
from pfge.reports.tables.connectivity import connectivity_tables
from pfge.reports.tables.formats import format_table
from pfge.reports.tables.run_tables import run_tables


def print_comparison(results: Sequence[dict[str, Any]], experiment: Experiment, folder: Path) -> None:
    """Print the tables of a comparison and where everything is."""
    if not _is_first_process():
        return
    title = f"{experiment.name}: {experiment.model.name} on {experiment.data.name}, test set"
    for table in run_tables(RunFolder(folder), results):
        _print(f"{title}, {table.title}", table.columns, table.cells, table.note)
    _console().print(f"Config, results and ensembles: {folder}", markup=False, highlight=False)


def print_assessment(found: Mapping[str, Any], file: Path) -> None:
    """Print the tables of one ensemble and where they are."""
    about = f"{found['method'] or 'ensemble'}, {found['members']} members, {found['bytes']:,} bytes"
    for title, columns, cells in assessment_tables(found):
        _print(f"{about}: {title}", columns, cells)
    _console().print(f"Everything as JSON: {file}", markup=False, highlight=False)


def print_diagnosis(found: Diagnosis) -> None:
    """Print what was found of one ensemble, as a table and in words."""
    _print(
        f"seed {found.seed}: {found.method}, adjacent members", diagnosis.COLUMNS, diagnosis.pair_cells(found)
    )
    for sentence in diagnosis.in_words(found):
        _console().print(f"- {sentence}", markup=False, highlight=False, soft_wrap=True)


def print_connectivity(results: Sequence[dict[str, Any]], figure: Path) -> None:
    """Print the three tables of connectivity, and where the figure is."""
    for table in connectivity_tables(results):
        _print(table.title, table.columns, table.cells, table.note)
    _console().print(f"Figure: {figure}", markup=False, highlight=False)


def print_formats(results: Sequence[dict[str, Any]], folder: Path) -> None:
    """Print what each format takes and is worth, and how to see it."""
    table = format_table(results)
    _print(table.title, table.columns, table.cells, table.note)
    _console().print(f"One picture of it: pfge report {folder}", markup=False, highlight=False)


def print_start_weights(found: Sequence[StartWeights]) -> None:
    """Print where each seed's w0 is and what it is worth."""
    if not _is_first_process():
        return
    for w0 in found:
        print(f"seed {w0.seed}: {w0.file}")
        for part, metrics in w0.metrics.items():
            print(
                f"  {part + ':':<11} accuracy {100 * metrics['accuracy']:.2f} %, "
                f"NLL {metrics['nll']:.4f}, ECE {100 * metrics['ece']:.2f} %"
            )


def print_plans(plans: Sequence[Plan], title: str) -> None:
    """Print what fits, and where each method takes its members."""
    columns = ["method", "K", "c", "P", "stored as", "bytes", "while training"]
    cells = [
        [
            plan.method,
            str(plan.members),
            str(plan.setting.cycle),
            str(plan.setting.period) if METHODS[plan.method].members == "period" else "",
            plan.format.name,
            f"{plan.nbytes:,}",
            f"+{plan.training_bytes:,}",
        ]
        for plan in plans
    ]
    note = (
        "Bytes of the members, by pfge compress --small-bits 16; one model more is in memory while they "
        "predict. While training: a mean, and the members unless a folder takes them."
    )
    _print(title, columns, cells, note)
    print(f"Each run has {plans[0].setting.iterations:,} iterations.")
    for line in dict.fromkeys(_where(plan) for plan in plans):
        print(line)


def print_cascade(rows: Mapping[str, tuple[tuple[float, int], Scores, Sequence[float]]], title: str) -> None:
    """Print what a cascade is worth and costs, between one member and all.

    Args:
        rows: For each of the three, the mean and the most members asked, the scores of the test set, and
            the seconds in each round.
        title: Of the table.
    """
    columns = ["", "members, mean", "most", "accuracy %", "NLL", "ECE %", "time, x one", "x all"]
    (*_, times_of_one), *_, (*_, times_of_all) = rows.values()
    cells = [
        [
            name,
            f"{mean:.3f}",
            str(most),
            f"{100 * scores.accuracy():.2f}",
            f"{scores.negative_log_likelihood():.4f}",
            f"{100 * scores.expected_calibration_error():.2f}",
            *(
                f"{median(a / b for a, b in zip(seconds, others, strict=True)):.2f}"
                for others in (times_of_one, times_of_all)
            ),
        ]
        for name, ((mean, most), scores, seconds) in rows.items()
    ]
    note = "Times are medians of ratios; the three took turns. The one member is the first that is asked."
    _print(title, columns, cells, note)


def _where(plan: Plan) -> str:
    rates = sorted(set(plan.rates))
    rate = f"{rates[0]:.3g}" if len(rates) == 1 else f"{rates[0]:.3g} to {rates[-1]:.3g}"
    if METHODS[plan.method].members == "one":
        return (
            f"{plan.method}: the mean of the weights at every multiple of {plan.setting.cycle} iterations, "
            f"the last {plan.iterations[-1]}, at rate {rate}"
        )
    numbers = [str(iteration) for iteration in plan.iterations]
    return f"{plan.method} {plan.members}: members at iterations {', '.join(numbers)}, at rate {rate}"


def _print(title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], note: str = "") -> None:
    table = Table(title=escape(title), caption=escape(note) or None, caption_justify="left")
    for index, column in enumerate(columns):
        table.add_column(escape(column), justify="right" if index else "left", no_wrap=True)
    for row in cells:
        table.add_row(*map(escape, row), style="bold" if style_of(row[0]).strong else "")
    _console().print(table)


def _console() -> Console:
    return Console(width=None if Console().is_terminal else 140)


def _is_first_process() -> bool:
    return not distributed.is_initialized() or distributed.get_rank() == 0

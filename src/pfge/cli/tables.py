"""Tables and messages that the commands print in a terminal."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from torch import distributed

from pfge.lab.config.settings import Experiment
from pfge.lab.planner import Plan
from pfge.lab.run.folder import RunFolder, problem_of_scores
from pfge.lab.run.results import (
    ComparisonRow,
    ConnectivityRow,
    Diagnosis,
    EnsembleEvaluation,
    FormatRow,
    StartWeights,
    read_rows,
)
from pfge.methods import METHODS
from pfge.reports.contents import comparison_tables
from pfge.reports.page import make_page
from pfge.reports.run import Run
from pfge.reports.statistics import Estimate, main_metrics
from pfge.reports.tables.diagnosis import connectivity_tables, diagnosis_table, in_words
from pfge.reports.tables.ensembles import (
    MeasuredWay,
    cascade_table,
    count_members,
    evaluation_tables,
    formats_table,
    plans_table,
)
from pfge.reports.tables.methods import methods_table, name_runs, runs_table
from pfge.reports.tables.table import Number, console, print_table
from pfge.storage.files import write_text
from pfge.tasks import Task


def print_comparison(rows: Sequence[ComparisonRow], experiment: Experiment, path: Path) -> None:
    """Print the tables of a comparison and its folder."""
    if not _is_first_process():
        return
    title = f"{experiment.name}: {experiment.model.name} on {experiment.data.name}, test set"
    folder = RunFolder(path)
    formats = read_rows(folder.formats, FormatRow).rows
    for problem in filter(None, (problem_of_scores(folder.scores(row.seed, row.method)) for row in rows)):
        warnings.warn(problem, stacklevel=2)
    for table in comparison_tables(folder, rows, formats, margins=experiment.margins):
        print_table(table, f"{title}, {table.title}")
    _say(f"Config, results and ensembles: {path}")


def print_comparisons(folders: Sequence[Path], report: Path) -> None:
    """Print one table of comparisons, finished or not, and write one page of all."""
    runs = [Run(folder) for folder in folders if RunFolder(folder).config.exists()]
    if not _is_first_process() or not runs:
        return
    by_task: dict[Task, list[Run]] = {}
    for run in runs:
        if run.results:
            by_task.setdefault(run.task, []).append(run)
    for alike in by_task.values():
        table = runs_table(name_runs(alike)) or methods_table(alike[0].results)
        print_table(table, table.title if len(alike) > 1 else f"{alike[0].name}: {table.title}")
    for run in runs:
        seeds = len({row.seed for row in run.results})
        _say(f"{run.name}: {len(run.results)} results of {seeds} seeds in {run.folder.path}", wrap=False)
    write_text(report, make_page(runs))
    _say(f"Report: {report}", wrap=False)


def print_evaluation(found: EnsembleEvaluation, file: Path) -> None:
    """Print the tables of one ensemble and the file of all results."""
    subject = f"{found.method or 'ensemble'}, {count_members(found)}, {found.bytes:,} bytes"
    for table in evaluation_tables(found, subject):
        print_table(table)
    _say(f"All results as JSON: {file}")


def print_diagnosis(found: Diagnosis) -> None:
    """Print the diagnosis of one ensemble, as a table and in words."""
    print_table(diagnosis_table(found))
    for sentence in in_words(found):
        _say(f"- {sentence}", wrap=False)


def print_connectivity(rows: Sequence[ConnectivityRow], where: str) -> None:
    """Print the three tables of connectivity, and a line on the figure."""
    for table in connectivity_tables(rows):
        print_table(table)
    _say(where)


def print_formats(rows: Sequence[FormatRow], folder: Path) -> None:
    """Print the size and quality of each storage format, and the command that draws them."""
    print_table(formats_table(rows))
    _say(f"To draw this: pfge report {folder}")


def print_start_weights(found: Sequence[StartWeights]) -> None:
    """Print the file and the quality of each seed's w0."""
    if not _is_first_process():
        return
    for w0 in found:
        print(f"seed {w0.seed}: {w0.file}")
        for part, measured in w0.metrics.items():
            metrics = [
                f"{metric.label} {Number.of_metric(metric, Estimate(measured[metric.name]))} {metric.unit}"
                for metric in main_metrics(w0.task, [measured])
            ]
            print(f"  {part + ':':<11} {', '.join(map(str.rstrip, metrics))}")


def print_plans(plans: Sequence[Plan], title: str) -> None:
    """Print which ensembles fit, and at which iterations each method collects its members."""
    print_table(plans_table(plans, title))
    print(f"Each run has {plans[0].setting.iterations:,} iterations.")
    for line in dict.fromkeys(_where(plan) for plan in plans):
        print(line)


def print_cascade(ways: Sequence[MeasuredWay], task: Task, title: str, *, calibrated: bool) -> None:
    """Print the quality and cost of one member, a cascade and all members; see `cascade_table`."""
    print_table(cascade_table(ways, task, title, calibrated=calibrated))


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


def _say(text: str, *, wrap: bool = True) -> None:
    console().print(text, markup=False, highlight=False, soft_wrap=not wrap)


def _is_first_process() -> bool:
    return not distributed.is_initialized() or distributed.get_rank() == 0

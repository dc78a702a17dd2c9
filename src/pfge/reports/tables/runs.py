"""The table that compares runs: every method of every run, those of a method side by side."""

from collections.abc import Mapping, Sequence

from pfge.methods import row_order
from pfge.reports.run import Run
from pfge.reports.statistics import MethodSummary, main_metrics, summarize
from pfge.reports.tables.cells import Count, Number, Ratio, Text
from pfge.reports.tables.table import BEST, LAST_MEMBERS, BestMark, Column, Row, Table, columns, method_row
from pfge.tasks import Metric


def runs_table(runs: Mapping[str, Run]) -> Table | None:
    """Return a row for each method and run; None if fewer than two have results, or of different tasks.

    Args:
        runs: By a name that is there once.
    """
    found = {name: run for name, run in runs.items() if run.results}
    if len(found) < 2 or len({run.task for run in found.values()}) > 1:
        return None
    summaries = {name: {row.method: row for row in summarize(run.results)} for name, run in found.items()}
    rows = [row for of_run in summaries.values() for row in of_run.values()]
    (task,) = {run.task for run in found.values()}
    measured = [{name: estimate.mean for name, estimate in row.metrics.items()} for row in rows]
    metrics = main_metrics(task, measured)
    best = {
        metric.name: min((values[metric.name] for values in measured), key=metric.penalty)
        for metric in metrics
    }

    def number(row: MethodSummary, metric: Metric) -> Number:
        estimate = row.metrics[metric.name]
        return Number.of_metric(metric, estimate, best=estimate.mean == best[metric.name])

    def line(method: str, name: str, row: MethodSummary) -> Row:
        numbers = [number(row, metric) for metric in metrics]
        seeds = Count(len({result.seed for result in found[name].results if result.method == method}))
        return method_row(method, Text(name), seeds, Count(row.members), Ratio(row.relative_bytes), *numbers)

    methods = row_order(dict.fromkeys(method for of_run in summaries.values() for method in of_run))
    lines = [
        line(method, name, of_run[method])
        for method in methods
        for name, of_run in summaries.items()
        if method in of_run
    ]
    without = [name for name in runs if name not in found]
    numbers = columns("run", "seeds", "members", "memory", *(metric.head for metric in metrics))
    heads = [Column("method", align="left"), *numbers]
    notes: list[str | BestMark] = [
        "mean ± standard error over the seeds of a run",
        BEST,
        LAST_MEMBERS,
        "memory relative to one model of the run",
        "means of runs with different test data do not compare methods.",
    ]
    if without:
        notes.append(f"No results yet: {', '.join(without)}.")
    return Table("runs", "all runs", heads, lines, notes)


def name_runs(runs: Sequence[Run]) -> dict[str, Run]:
    """Return runs by their names, with the folder where a name is there more than once."""
    names = [run.name for run in runs]
    found: dict[str, Run] = {}
    for run in runs:
        name = run.name if names.count(run.name) == 1 else f"{run.name} ({run.folder.path})"
        while name in found:
            name += ", again"
        found[name] = run
    return found

"""The table that compares runs: every method of every run, those of a method side by side."""

from collections.abc import Mapping, Sequence

from pfge.methods import row_order
from pfge.reports.run import Run
from pfge.reports.statistics import (
    MethodSummary,
    best_by,
    is_comparable,
    main_metrics,
    shared_seeds,
    summarize,
)
from pfge.reports.tables.cells import Count, Number, Ratio, Text
from pfge.reports.tables.table import (
    LAST_MEMBERS,
    BestMark,
    Column,
    Row,
    Table,
    best_notes,
    columns,
    method_row,
)


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
    metrics = main_metrics(task, [row.metrics for row in rows])
    shared = set.intersection(*(shared_seeds(run.results) for run in found.values()))
    ranked = {
        (name, row.method): row
        for name, run in found.items()
        for row in summarize([result for result in run.results if result.seed in shared])
    }
    best = {
        metric: best_by(metric, {place: row.metrics[metric.name].mean for place, row in ranked.items()})
        for metric in metrics
        if is_comparable(task, metric)
    }

    def line(method: str, name: str, row: MethodSummary) -> Row:
        numbers = [
            Number.of_metric(metric, row.metrics[metric.name], best=(name, method) in best.get(metric, ()))
            for metric in metrics
        ]
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
        *best_notes(shared, {seed for run in found.values() for seed in run.seeds}),
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

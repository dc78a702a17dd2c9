"""The paper's numbers beside those of a run with the same data and model."""

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from pfge.connectivity.tracing import mode_connectivity
from pfge.lab.config.settings import Experiment
from pfge.lab.run.results import ComparisonRow, ConnectivityRow
from pfge.methods import row_order
from pfge.reports.statistics import Estimate, by_method, over_seeds, summarize, task_of
from pfge.reports.tables.table import Cell, Missing, Number, Table, columns, method_row

SOURCE = "the paper: Guo, Jin and Liu, ICIC 2023, mean ± standard error over at least three runs"
SETTINGS = "the paper's settings are those of configs/paper"
ACCURACY = "accuracy"


def paper_tables(
    experiment: Experiment, rows: Sequence[ComparisonRow], connectivity: Sequence[ConnectivityRow]
) -> list[Table]:
    """Return accuracy and mode connectivity beside the paper's, where it has the data and the model."""
    tables = [_accuracy(experiment, rows), _connectivity(experiment, connectivity)]
    return [table for table in tables if table]


def paper_accuracies(data: str) -> dict[str, dict[str, tuple[float, float]]]:
    """Return what the paper printed for a data set, by method and model: percent and their standard error."""
    of_data: dict[str, dict[str, Sequence[float]]] = _numbers()["accuracy"][data]
    return {
        method: {model: (mean, error) for model, (mean, error) in of_models.items()}
        for method, of_models in of_data.items()
    }


def _accuracy(experiment: Experiment, rows: Sequence[ComparisonRow]) -> Table | None:
    if not rows or not (printed := _printed("accuracy", experiment)):
        return None
    metric = next((metric for metric in task_of(rows).metrics if metric.name == ACCURACY), None)
    if metric is None:
        return None
    measured = {row.method: Number.of_metric(metric, row.metrics[ACCURACY]) for row in summarize(rows)}
    in_paper = {name: Number(mean, error, metric.digits) for name, (mean, error) in printed.items()}
    return _table("paper", "accuracy beside the paper's", metric.head, measured, in_paper, over_seeds(rows))


def _connectivity(experiment: Experiment, rows: Sequence[ConnectivityRow]) -> Table | None:
    if not rows or not (printed := _printed("connectivity", experiment)):
        return None
    measured = {
        method: Number.of(Estimate.of([mode_connectivity(pair.trace) for pair in pairs]), 3)
        for method, pairs in by_method(rows).items()
    }
    in_paper = {name: Number(value, digits=3) for name, value in printed.items()}
    title = "mode connectivity beside the paper's"
    return _table("paper-connectivity", title, "mode connectivity", measured, in_paper, [])


def _table(
    key: str,
    title: str,
    head: str,
    measured: Mapping[str, Cell],
    printed: Mapping[str, Cell],
    notes: Sequence[str],
) -> Table:
    names = [name for name in row_order({*measured, *printed}) if name in printed]
    rows = [method_row(name, measured.get(name, Missing()), printed[name]) for name in names]
    return Table(key, title, columns("method", head, f"{head}, paper"), rows, [*notes, SOURCE, SETTINGS])


def _printed(what: str, experiment: Experiment) -> dict[str, Any]:
    """Return the paper's number of each method; none if it has not this data and model."""
    of_data = _numbers()[what].get(experiment.data.name, {})
    model = experiment.model.name
    return {method: of_models[model] for method, of_models in of_data.items() if model in of_models}


@cache
def _numbers() -> dict[str, Any]:
    return tomllib.loads((files("pfge.reports.tables") / "paper.toml").read_text(encoding="utf-8"))

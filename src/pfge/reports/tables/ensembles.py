"""Tables of single ensembles: evaluation, cascade, formats and plans."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pfge.lab.run.results import EnsembleEvaluation, FormatRow, UnknownInputs
from pfge.methods import METHODS
from pfge.metrics.scores import Scores
from pfge.reports.statistics import (
    Estimate,
    FormatSummary,
    is_comparable,
    main_metrics,
    of_shared_seeds,
    over_seeds,
    paired_metrics,
    pareto_front,
    summarize_formats,
    task_of,
)
from pfge.reports.tables.table import (
    Cell,
    Count,
    Missing,
    Number,
    Ratio,
    Row,
    Table,
    Text,
    columns,
    method_row,
)
from pfge.tasks import Classification, Metric, Task

if TYPE_CHECKING:
    from pfge.lab.planner import Plan


def evaluation_tables(found: EnsembleEvaluation, subject: str) -> list[Table]:
    """Return the tables of all that was measured of an ensemble, which the subject names."""
    tables = [_test_table(found, subject)]
    tables += [_unknown_table(name, unknown, subject) for name, unknown in found.ood.items()]
    if found.corruptions:
        tables.append(_corruption_table(found, subject))
    return tables


def count_members(found: EnsembleEvaluation) -> str:
    """Return how many members an ensemble has, in words."""
    return f"{found.members} member{'s' * (found.members > 1)}"


def _test_table(found: EnsembleEvaluation, subject: str) -> Table:
    return Table(
        "evaluation",
        f"{found.images:,} test examples of {found.data}",
        columns("metric", "value"),
        [Row([Text(name.replace("_", " ")), Number(value)]) for name, value in found.test.items()],
        subject=subject,
    )


def _unknown_table(name: str, found: UnknownInputs, subject: str) -> Table:
    return Table(
        "unknown-inputs",
        f"telling {found.images:,} images of {name} from these",
        columns("score", "AUROC %", "AUPR %", "FPR at 95 % found, %"),
        [
            Row(
                [
                    Text(score.replace("_", " ")),
                    *(Number(100 * share, digits=2) for share in (of.auroc, of.aupr, of.fpr_at_95)),
                ]
            )
            for score, of in found.scores.items()
        ],
        subject=subject,
    )


def _corruption_table(found: EnsembleEvaluation, subject: str) -> Table:
    strengths = sorted({of.strength for measured in found.corruptions.values() for of in measured})
    rows = []
    for name, measured in found.corruptions.items():
        at = {of.strength: of.metrics for of in measured}
        for metric in main_metrics(found.task, [found.test, *at.values()]):

            def cell(metrics: Mapping[str, float] | None, metric: Metric = metric) -> Cell:
                return Number.of_metric(metric, Estimate(metrics[metric.name])) if metrics else Missing()

            numbers = [cell(found.test), *(cell(at.get(strength)) for strength in strengths)]
            rows.append(Row([Text(name), Text(metric.head), *numbers]))
    heads = [f"strength {strength}" for strength in strengths]
    return Table(
        "corruptions",
        "the test images corrupted",
        columns("corruption", "metric", "none", *heads),
        rows,
        subject=subject,
    )


CASCADE_NOTE = (
    "Times are those of the members, each for the share of images that it is evaluated on. The one member is "
    "the first that is evaluated"
)
PLAIN = "all rows are without temperatures: the ensemble is not calibrated"
CALIBRATED = (
    "all rows are calibrated: the one member at its own temperature, fitted on validation data, the others "
    "at those of the ensemble"
)


@dataclass(frozen=True)
class MeasuredWay:
    """A way to predict the test set.

    Attributes:
        name: For people.
        mean_members: Mean number of members evaluated per example.
        most_members: Largest number of members evaluated for an example.
        scores: Scores of each example.
        seconds: Time that its members take.
    """

    name: str
    mean_members: float
    most_members: int
    scores: Scores
    seconds: float


def cascade_table(ways: Sequence[MeasuredWay], task: Task, title: str, *, calibrated: bool) -> Table:
    """Return a row for each way; the first has one member, the last all.

    Args:
        ways: The measured ways.
        task: The task of the ensemble.
        title: The title of the table.
        calibrated: Whether all rows are calibrated, or none of them.
    """
    metrics = main_metrics(task, (task.summarize(way.scores) for way in ways))
    rows = [
        Row(
            [
                Text(way.name),
                Number(way.mean_members, digits=3),
                Count(way.most_members),
                *(Number.of_metric(m, Estimate(m.compute(way.scores))) for m in metrics),
                *(Number(way.seconds / other.seconds, digits=2) for other in (ways[0], ways[-1])),
            ]
        )
        for way in ways
    ]
    heads = ["members, mean", "most", *(metric.head for metric in metrics), "time, x one", "x all"]
    return Table(
        "cascade", title, columns("", *heads), rows, [CASCADE_NOTE, CALIBRATED if calibrated else PLAIN]
    )


def formats_table(rows: Sequence[FormatRow]) -> Table:
    """Return a row for each method, format and cascade."""
    metrics = paired_metrics(rows)
    heads = [metric.head for metric in metrics]
    found = summarize_formats(rows)
    comparable = [metric for metric in metrics if is_comparable(task_of(rows), metric)]
    best = _on_a_front(summarize_formats(of_shared_seeds(rows)), comparable)
    without = "" if any(row.cascade for row in rows) else f" No cascades without {_missing(task_of(rows))}."
    return Table(
        "formats",
        "formats",
        columns("method", "stored as", "cascade", "bytes", "memory", "passes", *heads, "KL"),
        [replace(_row(row, metrics), folded=bool(best) and row.name not in best) for row in found],
        [
            *over_seeds(rows),
            "memory relative to one float32 model",
            "passes: mean number of members evaluated per example",
            f"KL: from the same members as float32, all evaluated.{without}",
        ],
    )


def _on_a_front(rows: Sequence[FormatSummary], metrics: Sequence[Metric]) -> set[str]:
    """Return the names of rows on a Pareto front: of bytes or of passes, against some metric."""

    def loss(metric: Metric, row: FormatSummary) -> float:
        return metric.penalty(row.metrics[metric.name].mean)

    costs: list[Callable[[FormatSummary], float]] = [lambda row: row.bytes, lambda row: row.passes.mean]
    fronts = (pareto_front(rows, cost, partial(loss, metric)) for metric in metrics for cost in costs)
    return {row.name for front in fronts for row in front}


def _missing(task: Task) -> str:
    return "validation data" if isinstance(task, Classification) else "classes"


def _row(row: FormatSummary, metrics: Sequence[Metric]) -> Row:
    return method_row(
        row.method,
        Text(row.format),
        Text("yes") if row.cascade else Missing(),
        Count(row.bytes),
        Ratio(row.relative_bytes),
        Number.of(row.passes, 2) if row.cascade else Count(round(row.passes.mean)),
        *(Number.of_metric(metric, row.metrics[metric.name]) for metric in metrics),
        Missing() if row.kl is None else Number.of(row.kl, 5),
    )


PLANS_NOTE = (
    "Bytes of the members, by pfge compress --small-bits 16; one more model is in memory while they "
    "predict. While training: a mean, and the members unless a folder takes them."
)


def plans_table(plans: Sequence["Plan"], title: str) -> Table:
    """Return a row for each plan."""
    rows = [
        method_row(
            plan.method,
            Count(plan.members),
            Count(plan.setting.cycle),
            Count(plan.setting.period) if METHODS[plan.method].members == "period" else Missing(),
            Text(plan.format.name),
            Count(plan.nbytes),
            Count(plan.training_bytes, signed=True),
        )
        for plan in plans
    ]
    heads = columns("method", "K", "c", "P", "stored as", "bytes", "while training")
    return Table("plans", title, heads, rows, [PLANS_NOTE])

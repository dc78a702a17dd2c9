"""The table of a cascade: what it is worth and costs, between one member and all."""

from collections.abc import Sequence
from dataclasses import dataclass

from pfge.metrics.scores import Scores
from pfge.reports.statistics import Estimate, main_metrics
from pfge.reports.tables.cells import Count, Number, Text
from pfge.reports.tables.table import Row, Table, columns
from pfge.tasks import Task

NOTE = (
    "Times are those of the members, each for the share of images that it is evaluated on. The one member is "
    "the first that is evaluated."
)


@dataclass(frozen=True)
class MeasuredWay:
    """A way to predict the test set.

    Attributes:
        name: For people.
        mean_members: Mean number of members evaluated per example.
        most_members: The largest number.
        scores: Of each example.
        seconds: That its members take.
    """

    name: str
    mean_members: float
    most_members: int
    scores: Scores
    seconds: float


def cascade_table(ways: Sequence[MeasuredWay], task: Task, title: str) -> Table:
    """Return a row for each way; the first has one member, the last all."""
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
    return Table("cascade", title, columns("", *heads), rows, [NOTE])

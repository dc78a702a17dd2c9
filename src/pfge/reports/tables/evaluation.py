"""The tables of one ensemble: on the test set, on inputs of unknown kinds, and on corrupted inputs."""

from collections.abc import Mapping

from pfge.lab.run.results import EnsembleEvaluation, UnknownInputs
from pfge.reports.statistics import Estimate, main_metrics
from pfge.reports.tables.cells import Cell, Missing, Number, Text
from pfge.reports.tables.table import Row, Table, columns
from pfge.tasks import Metric


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

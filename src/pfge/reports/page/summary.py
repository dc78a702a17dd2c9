"""What a run found, in words: the best methods, which to ship, and whether the paper's claim holds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pfge.lab.run.results import ComparisonRow
from pfge.methods import START, find_reference, method_of
from pfge.reports.figures.paper import show_bytes
from pfge.reports.run import Run
from pfge.reports.significance import find_gaps
from pfge.reports.statistics import (
    MethodSummary,
    comparable_part,
    measured,
    name_seeds,
    of_shared_seeds,
    paired_metrics,
    pareto_front,
    summarize,
    summarize_formats,
)
from pfge.reports.tables.cells import Number
from pfge.reports.verdicts import Gap
from pfge.tasks import Metric

SAME = 0.001
"""KL in nats up to which two ensembles are said to predict nearly the same."""
NO_SHARED_SEED = "No seed has results of all methods yet."
SUPERLATIVES = {"higher": "Highest", "lower": "Lowest", "closer": "Best"}


@dataclass(frozen=True)
class Finding:
    """One thing that a run found: about what, the answer, why, and the kind of finding for its look."""

    about: str
    answer: str
    why: str
    kind: str = ""


def findings(run: Run) -> list[Finding]:
    """Return the best method in each deciding metric, the one to ship, and the paper's claim."""
    metrics = deciding_metrics(run)
    if not metrics:
        return []
    return [*(_leader(run, metric) for metric in metrics), _to_ship(run), _claim(run, metrics)]


def _leader(run: Run, metric: Metric) -> Finding:
    """Return the method of the best mean, and which others it was not shown to be better than."""
    part, compared = _compared(run)
    results = of_shared_seeds(compared)
    if not results:
        return Finding(_superlative(metric), "Not compared yet", NO_SHARED_SEED)
    rows = summarize(results, part)
    row = _best(rows, metric)
    # Any of the methods could have been the best, so the intervals are for all pairs.
    pairs = len(rows) * (len(rows) - 1) // 2
    behind = find_gaps(run.folder, results, row.method, part=part, margins=run.margins, compared=pairs)
    others = [
        f"{name} ({gaps[metric.name].verdict})"
        for name, gaps in behind.items()
        if gaps[metric.name].verdict != "worse"
    ]
    why = f"{_show(row, metric)} at {_memory(row)}{_calibrated(part)}"
    if len(rows) == 1:
        why += ". It is the only method with results"
    if others and len(others) == len(behind):
        why += ". The data does not tell it from any other method"
    elif others:
        why += f". Not shown to be worse: {', '.join(others)}"
    if len(results) < len(compared):
        why += f". {_compared_over(results)}"
    return Finding(_superlative(metric), row.method, why)


def deciding_metrics(run: Run) -> list[Metric]:
    """Return the two metrics, or the one, by which methods are judged; the last is the most telling."""
    part, results = _compared(run)
    return paired_metrics(results, part)[:2]


def _compared(run: Run) -> tuple[str, list[ComparisonRow]]:
    """Return the part of the data by which methods are judged, and the results that have it."""
    part = comparable_part(run.task)
    return part, [row for row in run.results if measured(row, part)]


def _calibrated(part: str) -> str:
    return ", calibrated on validation data" if part.endswith(".calibrated") else ""


def _to_ship(run: Run) -> Finding:
    """Return the smallest method that is about as good as the best on validation data, at temperatures."""
    chosen_on, about = "validation.calibrated", "To ship"
    measured_rows = [row for row in run.results if measured(row, chosen_on)]
    if not measured_rows:
        why = (
            "There are no results on validation data, and a choice on the test set would make its numbers "
            "too good. Set data.validation, or data.halve_test if w0 saw all training data, in a new run."
        )
        return Finding(about, "Cannot be chosen", why, "ship")
    results = of_shared_seeds(measured_rows)
    if not results:
        return Finding(about, "Cannot be chosen", NO_SHARED_SEED, "ship")
    rows = {row.method: row for row in summarize(results, chosen_on)}
    metrics = paired_metrics(results, chosen_on)[:2]
    best = {metric: _best(rows.values(), metric).method for metric in metrics}
    behind = {
        name: find_gaps(run.folder, results, name, part=chosen_on, margins=run.margins)
        for name in dict.fromkeys(best.values())
    }

    def is_about_as_good(method: str) -> bool:
        gaps = [
            behind[name].get(method, {}).get(metric.name) for metric, name in best.items() if name != method
        ]
        return all(gap and gap.loss <= max(gap.margin, gap.error) for gap in gaps)

    last = metrics[-1]
    candidates = [row for row in rows.values() if is_about_as_good(row.method)]
    chosen = min(candidates, key=_cost(last), default=rows[best[last]])
    margins = " and ".join(metric.label for metric in metrics)
    why = f"The smallest within the margins, or one standard error, of the best in {margins}"
    if not candidates:
        why = f"The {_lower(_superlative(last))}; no method is near the best in both metrics"
    cost = f"; it takes {chosen.trainings} trainings" if chosen.trainings > 1 else ""
    smaller = [
        f"{row.method} ({row.relative_bytes:.3g}×)"
        for row in pareto_front([*rows.values()], lambda row: row.bytes, lambda row: _loss(row, last))
        if row.bytes < chosen.bytes
    ]
    less = ""
    if smaller:
        less = f" With less memory, the {_lower(_superlative(last))} is that of {' or '.join(smaller[::-1])}."
    seeds = f" {_compared_over(results)}." if len(results) < len(measured_rows) else ""
    return Finding(
        about,
        chosen.method,
        f"{why}, on validation data at temperatures; {_memory(chosen)}{cost}.{_views(chosen)}{seeds}"
        f"{_on_test(run, chosen.method)}{_compressed(run, chosen)}{less}",
        "ship",
    )


def _cost(metric: Metric) -> Callable[[MethodSummary], tuple[float, ...]]:
    # Views of one model are passes that take no memory, but time.
    return lambda row: (row.bytes, row.trainings, row.members, _loss(row, metric))


def _views(chosen: MethodSummary) -> str:
    """Return how to use a method that has no ensemble of its own: views by the model of another."""
    method = method_of(chosen.method)
    if method is None or method.path != "augmented":
        return ""
    return (
        f" It is the model of {method.base} in {chosen.members} forward passes: pfge views makes such a "
        "copy of that ensemble."
    )


def _on_test(run: Run, method: str) -> str:
    """Return what was chosen on test data, at its temperature, and whether it is better than w0."""
    part = "test.calibrated"
    rows = [row for row in run.results if row.method == method and measured(row, part)]
    if not rows:
        return ""
    (summary,) = summarize(rows, part)
    shown = [f"{metric.label} {_show(summary, metric)}" for metric in paired_metrics(rows, part)[:2]]
    found = find_gaps(run.folder, run.results, START, [method], part, run.margins).get(method, {})
    verdicts = [f"{gap.metric.label} {gap.in_words}" for gap in [*found.values()][:2]]
    against = f"; against {START}: {', '.join(verdicts)}" if verdicts else ""
    return f" On test data, at its temperature: {', '.join(shown)}{against}."


def _compressed(run: Run, chosen: MethodSummary) -> str:
    """Return the smallest format in which a method predicts the same as uncompressed, if one was measured."""
    if run.task.needs_calibration:
        return ""  # formats are measured as predicted
    same = [
        row
        for row in summarize_formats(run.formats)
        if row.method == chosen.method and not row.cascade and row.kl and row.kl.mean <= SAME
    ]
    if not same or (smallest := min(same, key=lambda row: row.bytes)).bytes >= chosen.bytes:
        return ""
    return (
        f" As {smallest.format} it takes {smallest.relative_bytes:.3g}× ({show_bytes(smallest.bytes)}) and "
        f"predicts nearly the same, KL {Number.of(smallest.kl, 4) if smallest.kl else ''}."
    )


def _claim(run: Run, metrics: Sequence[Metric]) -> Finding:
    part, results = _compared(run)
    rows = {row.method: row for row in summarize(results, part)}
    reference = find_reference()
    name, rival = reference.name, reference.rival
    about = f"The paper's claim: {name} is as good as {rival}, in far less memory"
    missing = [method for method in (name, rival) if method not in rows]
    if missing:
        return Finding(about, "Not checked", f"There are no results of {' and '.join(missing)} yet.", "claim")
    ours, theirs = rows[name], rows[rival]
    found = find_gaps(run.folder, results, rival, [name], part, run.margins).get(name)
    if found is None:
        return Finding(about, "Not checked", f"{name} and {rival} share no seed yet.", "claim")
    ratio = theirs.bytes / ours.bytes
    alone = "Intervals are for this comparison alone. " if len(rows) > 2 else ""
    return Finding(
        about,
        _answer([found[metric.name] for metric in metrics]),
        f"{name} with {ours.members} members against {rival} with {theirs.members}{_calibrated(part)}: "
        f"{'; '.join(f'{metric.label} {found[metric.name]}' for metric in metrics)}. {alone}"
        f"Memory {show_bytes(ours.bytes)} against {show_bytes(theirs.bytes)}, {ratio:.3g} times less.",
        "claim",
    )


def _answer(gaps: Sequence[Gap]) -> str:
    """Return in which metrics a method is as good as the other: not worse by more than the margin."""
    groups: dict[str, list[str]] = {"holds": [], "does not hold": [], "undecided": []}
    for gap in gaps:
        state = "holds" if gap.is_no_worse else "does not hold" if gap.verdict == "worse" else "undecided"
        groups[state].append(gap.metric.label)
    found = {state: labels for state, labels in groups.items() if labels}
    if len(found) == 1:
        (answer,) = found
    else:
        answer = ", ".join(f"{state} for {' and '.join(labels)}" for state, labels in found.items())
    return answer[:1].upper() + answer[1:]


def _superlative(metric: Metric) -> str:
    if metric.label == "accuracy":
        return "Most accurate"
    return f"{SUPERLATIVES[metric.better]} {metric.label}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _best(rows: Iterable[MethodSummary], metric: Metric) -> MethodSummary:
    return min(rows, key=lambda row: _loss(row, metric))


def _loss(row: MethodSummary, metric: Metric) -> float:
    return metric.penalty(row.metrics[metric.name].mean)


def _compared_over(rows: Sequence[ComparisonRow]) -> str:
    return f"Compared over {name_seeds({row.seed for row in rows})}, which all methods have"


def _show(row: MethodSummary, metric: Metric) -> str:
    return f"{Number.of_metric(metric, row.metrics[metric.name])} {metric.unit}".rstrip()


def _memory(row: MethodSummary) -> str:
    return f"{row.relative_bytes:.3g}× the memory of one model ({show_bytes(row.bytes)})"

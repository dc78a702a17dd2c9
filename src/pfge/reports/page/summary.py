"""What a run found, in words: the best methods, which to ship, and whether the paper's claim holds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pfge.methods import find_reference
from pfge.reports.figures.paper import show_bytes
from pfge.reports.figures.tradeoff import pareto_front
from pfge.reports.run import Run
from pfge.reports.significance import UNKNOWN, Gap, find_gaps
from pfge.reports.statistics import MethodSummary, paired_metrics, summarize, summarize_formats
from pfge.reports.tables.cells import Number
from pfge.tasks import Metric

SAME = 0.001
"""KL in nats up to which two ensembles are said to predict nearly the same."""
SUPERLATIVES = {"higher": "Highest", "lower": "Lowest", "closer": "Best"}
SCORES = "the scores of each example, which older versions did not keep,"


@dataclass(frozen=True)
class Finding:
    """One thing that a run found: about what, the answer, why, and the kind of finding for its look."""

    about: str
    answer: str
    why: str
    kind: str = ""


def findings(run: Run) -> list[Finding]:
    """Return the best method in each deciding metric, the one to ship, and the paper's claim."""
    rows = {row.method: row for row in summarize(run.results)}
    metrics = deciding_metrics(run)
    if not rows or not metrics:
        return []
    best = {metric: _best(rows.values(), metric) for metric in metrics}
    return [
        *(
            Finding(_superlative(metric), row.method, f"{_show(row, metric)} at {_memory(row)}")
            for metric, row in best.items()
        ),
        _to_ship(run, rows, {metric: row.method for metric, row in best.items()}),
        _claim(run, rows, metrics),
    ]


def deciding_metrics(run: Run) -> list[Metric]:
    """Return the two metrics, or the one, by which methods are judged; the last is the most telling."""
    return paired_metrics(run.results)[:2]


def _to_ship(run: Run, rows: Mapping[str, MethodSummary], best: Mapping[Metric, str]) -> Finding:
    """Return the smallest method that is not worse than the best, as far as can be told from noise."""
    behind = {name: find_gaps(run.folder, run.results, name) for name in dict.fromkeys(best.values())}
    last = [*best][-1]
    labels = [metric.label for metric in best]

    def is_as_good(method: str) -> bool:
        return all(
            method == name or (method in behind[name] and _is_no_worse(behind[name][method][metric.name]))
            for metric, name in best.items()
        )

    candidates = [row for row in rows.values() if is_as_good(row.method)]
    lowest = _superlative(last)[:1].lower() + _superlative(last)[1:]
    of_all = "both metrics" if len(best) > 1 else "it"
    if any(
        gap.verdict == UNKNOWN for found in behind.values() for of in found.values() for gap in of.values()
    ):
        chosen = rows[best[last]]
        why = f"The {lowest}; one seed without {SCORES} cannot tell what is noise"
    elif candidates:
        chosen = min(candidates, key=lambda row: (row.bytes, row.trainings, _loss(row, last)))
        why = f"The smallest that is not worse than the best in {' or '.join(labels)}, beyond noise"
        if {chosen.method} == set(best.values()):
            of_both = " in both" if len(best) > 1 else ""
            why = f"Best in {' and '.join(labels)}, and nothing smaller comes within noise of it{of_both}"
    else:
        chosen = rows[best[last]]
        why = f"The {lowest}; no method comes within noise of the best in {of_all}"
    cost = f"; it takes {chosen.trainings} trainings" if chosen.trainings > 1 else ""
    smaller = [
        f"{row.method} ({row.relative_bytes:.3g}×)"
        for row in pareto_front([*rows.values()], lambda row: row.bytes, lambda row: _loss(row, last))
        if row.bytes < chosen.bytes
    ]
    less = f" With less memory, the {lowest} is that of {' or '.join(smaller[::-1])}." if smaller else ""
    return Finding(
        "To ship", chosen.method, f"{why}; {_memory(chosen)}{cost}.{_compressed(run, chosen)}{less}", "ship"
    )


def _compressed(run: Run, chosen: MethodSummary) -> str:
    """Return the smallest format in which a method predicts the same as uncompressed, if one was measured."""
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


def _is_no_worse(gap: Gap) -> bool:
    return gap.verdict != "worse"


def _claim(run: Run, rows: Mapping[str, MethodSummary], metrics: Sequence[Metric]) -> Finding:
    reference = find_reference()
    name, rival = reference.name, reference.rival
    about = f"The paper's claim: {name} is as good as {rival}, in far less memory"
    missing = [method for method in (name, rival) if method not in rows]
    if missing:
        return Finding(about, "Not checked", f"There are no results of {' and '.join(missing)} yet.", "claim")
    ours, theirs = rows[name], rows[rival]
    found = find_gaps(run.folder, run.results, rival, [name]).get(name)
    if found is None:
        return Finding(about, "Not checked", f"{name} and {rival} share no seed yet.", "claim")
    ratio = theirs.bytes / ours.bytes
    return Finding(
        about,
        _answer({metric.label: found[metric.name].verdict for metric in metrics}),
        f"{name} with {ours.members} members against {rival} with {theirs.members}: "
        f"{'; '.join(f'{metric.label} {found[metric.name]}' for metric in metrics)}. "
        f"Memory {show_bytes(ours.bytes)} against {show_bytes(theirs.bytes)}, {ratio:.3g} times less.",
        "claim",
    )


def _answer(verdicts: Mapping[str, str]) -> str:
    if UNKNOWN in verdicts.values():
        return "Cannot be told yet"
    worse = [label for label, verdict in verdicts.items() if verdict == "worse"]
    others = [label for label in verdicts if label not in worse]
    if not worse:
        return "Holds"
    if not others:
        return "Does not hold"
    return f"Holds for {' and '.join(others)}, not for {' and '.join(worse)}"


def _superlative(metric: Metric) -> str:
    if metric.label == "accuracy":
        return "Most accurate"
    return f"{SUPERLATIVES[metric.better]} {metric.label}"


def _best(rows: Iterable[MethodSummary], metric: Metric) -> MethodSummary:
    return min(rows, key=lambda row: _loss(row, metric))


def _loss(row: MethodSummary, metric: Metric) -> float:
    return metric.penalty(row.metrics[metric.name].mean)


def _show(row: MethodSummary, metric: Metric) -> str:
    return f"{Number.of_metric(metric, row.metrics[metric.name])} {metric.unit}".rstrip()


def _memory(row: MethodSummary) -> str:
    return f"{row.relative_bytes:.3g}× the memory of one model ({show_bytes(row.bytes)})"

"""What a run found, in words: the best methods, which to ship, and whether the paper's claim holds."""

from collections.abc import Mapping
from dataclasses import dataclass

from pfge.methods import find_reference
from pfge.reports.figures.paper import show_bytes
from pfge.reports.figures.tradeoff import pareto_front
from pfge.reports.run import Run
from pfge.reports.significance import UNKNOWN, Gap, find_gaps
from pfge.reports.statistics import MethodSummary, summarize, summarize_formats
from pfge.reports.tables.cells import Number
from pfge.tasks.manifest import DEFAULT_TASK

SAME = 0.001
"""KL in nats up to which two ensembles are said to predict nearly the same."""
SCORES = "the scores of each example, which older versions did not keep,"


@dataclass(frozen=True)
class Finding:
    """One thing that a run found: about what, the answer, and why."""

    about: str
    answer: str
    why: str


def findings(run: Run) -> list[Finding]:
    """Return the most accurate method, that of the lowest NLL, the one to ship, and the paper's claim."""
    rows = {row.method: row for row in summarize(run.results)}
    if not rows:
        return []
    accurate = max(rows.values(), key=lambda row: row.metrics["accuracy"].mean)
    likely = min(rows.values(), key=_nll)
    return [
        Finding("Most accurate", accurate.method, f"{_show(accurate, 'accuracy')} % at {_memory(accurate)}"),
        Finding("Lowest NLL", likely.method, f"{_show(likely, 'nll')} at {_memory(likely)}"),
        _to_ship(run, rows, accurate.method, likely.method),
        _claim(run, rows),
    ]


def _to_ship(run: Run, rows: Mapping[str, MethodSummary], accurate: str, likely: str) -> Finding:
    """Return the smallest method that is not worse than the best, as far as can be told from noise."""
    behind_accurate = find_gaps(run.folder, run.results, accurate)
    behind_likely = behind_accurate if likely == accurate else find_gaps(run.folder, run.results, likely)
    behind = behind_accurate, behind_likely

    def is_as_good(method: str) -> bool:
        return all(
            method == best or (method in found and _is_no_worse(found[method][metric]))
            for best, found, metric in zip((accurate, likely), behind, ("accuracy", "nll"), strict=True)
        )

    candidates = [row for row in rows.values() if is_as_good(row.method)]
    if any(gap.verdict == UNKNOWN for found in behind for of in found.values() for gap in of.values()):
        chosen = rows[likely]
        why = f"The lowest NLL; one seed without {SCORES} cannot tell what is noise"
    elif candidates:
        chosen = min(candidates, key=lambda row: (row.bytes, row.trainings, _nll(row)))
        why = "The smallest that is not worse than the best in accuracy or NLL, beyond noise"
        if chosen.method == accurate == likely:
            why = "Best in accuracy and NLL, and nothing smaller comes within noise of it in both"
    else:
        chosen = rows[likely]
        why = "The lowest NLL; no method comes within noise of the best in both metrics"
    cost = f"; it takes {chosen.trainings} trainings" if chosen.trainings > 1 else ""
    smaller = [
        f"{row.method} ({row.relative_bytes:.3g}×)"
        for row in pareto_front([*rows.values()], lambda row: row.bytes, _nll)
        if row.bytes < chosen.bytes
    ]
    less = f" With less memory, the lowest NLL is that of {' or '.join(smaller[::-1])}." if smaller else ""
    return Finding(
        "To ship", chosen.method, f"{why}; {_memory(chosen)}{cost}.{_compressed(run, chosen)}{less}"
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


def _claim(run: Run, rows: Mapping[str, MethodSummary]) -> Finding:
    reference = find_reference()
    name, rival = reference.name, reference.rival
    about = f"The paper's claim: {name} is as good as {rival}, in far less memory"
    missing = [method for method in (name, rival) if method not in rows]
    if missing:
        return Finding(about, "Not checked", f"There are no results of {' and '.join(missing)} yet.")
    ours, theirs = rows[name], rows[rival]
    found = find_gaps(run.folder, run.results, rival, [name]).get(name)
    if found is None:
        return Finding(about, "Not checked", f"{name} and {rival} share no seed yet.")
    verdicts = [found["accuracy"].verdict, found["nll"].verdict]
    ratio = theirs.bytes / ours.bytes
    return Finding(
        about,
        _answer(*verdicts),
        f"{name} with {ours.members} members against {rival} with {theirs.members}: accuracy "
        f"{found['accuracy']}; NLL {found['nll']}. Memory {show_bytes(ours.bytes)} against "
        f"{show_bytes(theirs.bytes)}, {ratio:.3g} times less.",
    )


def _answer(accuracy: str, nll: str) -> str:
    if UNKNOWN in (accuracy, nll):
        return "Cannot be told yet"
    match accuracy == "worse", nll == "worse":
        case False, False:
            return "Holds"
        case False, True:
            return "Holds for accuracy, not for NLL"
        case True, False:
            return "Holds for NLL, not for accuracy"
    return "Does not hold"


def _nll(row: MethodSummary) -> float:
    return row.metrics["nll"].mean


def _show(row: MethodSummary, name: str) -> str:
    return str(Number.of_metric(DEFAULT_TASK.metric(name), row.metrics[name]))


def _memory(row: MethodSummary) -> str:
    return f"{row.relative_bytes:.3g}× the memory of one model ({show_bytes(row.bytes)})"

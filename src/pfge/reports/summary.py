"""The findings of a run: the best methods, the ensemble to ship, and whether the paper's claim holds."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pfge.lab.run.results import ComparisonRow
from pfge.methods import START, base_of, find_reference, is_starred, method_of
from pfge.reports.appearance import appearance_of
from pfge.reports.printable import show_bytes
from pfge.reports.run import Run
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
from pfge.reports.tables.table import Number
from pfge.reports.verdicts import Claim, Gap, find_gaps
from pfge.rounding import first_lowest
from pfge.tasks import Metric


@dataclass(frozen=True)
class ShippedEnsemble:
    """The ensemble of one seed.

    Attributes:
        seed: The seed that is best on validation data.
        why: The folder, and why this seed, in words.
        command: Command that writes the ensemble with its temperature to that folder; "" if its weights are
            missing.
    """

    seed: int
    why: str
    command: str


def can_be_shipped(method: str) -> bool:
    """Return whether a method has an ensemble that can be saved: random passes of one model do not."""
    found = method_of(method)
    return found is None or found.path != "start"


def shipped_ensemble(run: Run, method: str, metric: Metric, part: str) -> ShippedEnsemble:
    """Return the ensemble of the best seed of a method.

    Args:
        run: The run.
        method: A method that can be shipped, with results on the part.
        metric: The metric that decides which seed is the best.
        part: The validation data; see `measured`.
    """
    values = {
        row.seed: (measured(row, part) or {})[metric.name]
        for row in run.results
        if row.method == method and measured(row, part)
    }
    seed = first_lowest(sorted(values), key=lambda seed: metric.penalty(values[seed]), scale=0)
    best = f"Seed {seed} has the best {metric.label} of {len(values)} seeds on validation data. "
    chosen = best if len(values) > 1 else ""
    folder = run.folder.ensemble(seed, method)
    source = _source(run, seed, method)
    if source is None:
        missing = f"Its weights are not in the run folder: {folder} is missing."
        return ShippedEnsemble(seed, chosen + missing, "")
    where = f"The ensemble is {folder}; the command fits its temperature and saves it there."
    if source != folder:
        where = (
            f"The ensemble has no folder yet: the command makes it from {source} and writes it, with its "
            f"temperature, to {folder}."
        )
    return ShippedEnsemble(seed, chosen + where, _command(run, seed, method, source, folder))


def _source(run: Run, seed: int, method: str) -> Path | None:
    """Return the folder or the file that holds the members; None if it is missing."""
    if run.folder.has_ensemble(seed, method):
        return run.folder.ensemble(seed, method)
    if method == START:
        file = run.folder.w0(seed)
        return file if file.is_file() else None
    found = method_of(method)
    base = found.base if found and found.path == "augmented" else base_of(method)
    return run.folder.ensemble(seed, base) if run.folder.has_ensemble(seed, base) else None


def _command(run: Run, seed: int, method: str, source: Path, folder: Path) -> str:
    if source != folder and method != START and not is_starred(method):
        members = next(row.members for row in run.results if (row.seed, row.method) == (seed, method))
        return shlex.join(["pfge", "views", str(source), str(folder), "--count", str(members)])
    return shlex.join(["pfge", "evaluate", str(folder), "--calibrate", "pooled"])


SAME = 0.001
"""KL in nats up to which two ensembles predict nearly the same."""
CHOSEN_ON = "validation.calibrated"
"""The data by which the ensemble to ship is chosen: test data must not decide."""
NO_SHARED_SEED = "No seed has results of all methods yet."
SUPERLATIVES = {"higher": "Highest", "lower": "Lowest", "closer": "Best"}
OF_CLAIMS = {"as good": "holds", "worse": "does not hold"}


@dataclass(frozen=True)
class Finding:
    """One statement about a run.

    Attributes:
        about: Topic of the statement.
        answer: The statement.
        why: The numbers that it follows from.
        kind: The kind of finding, for its look.
        command: How to get what it names, if that takes a command.
    """

    about: str
    answer: str
    why: str
    kind: str = ""
    command: str = ""


def findings(run: Run) -> list[Finding]:
    """Return the best in each deciding metric, what to ship, its gain on w0, and the paper's claim."""
    metrics = deciding_metrics(run)
    if not metrics:
        return []
    compared = _Compared(run)
    chosen = _choose(run)
    return [
        *(_leader(compared, metric) for metric in metrics),
        _to_ship(run, chosen) if isinstance(chosen, _Choice) else chosen,
        *(_gain(compared, chosen.row.method, metrics) if isinstance(chosen, _Choice) else []),
        _claim(run, metrics),
    ]


def deciding_metrics(run: Run) -> list[Metric]:
    """Return the two metrics, or the one, by which methods are judged; the last is the most telling."""
    part = comparable_part(run.task)
    return paired_metrics(_measured_on(run, part), part)[:2]


class _Compared:
    """All methods on test data, over the seeds that all of them have.

    The findings that compare methods take their verdicts from here, so that no two of them differ. Any of the
    methods could have been the best, so the intervals hold for all pairs together.
    """

    def __init__(self, run: Run):
        self._run = run
        self.part = comparable_part(run.task)
        self.all_results = _measured_on(run, self.part)
        self.results = of_shared_seeds(self.all_results)
        self.rows = summarize(self.results, self.part)

    def gaps(self, reference: str) -> dict[str, dict[str, Gap]]:
        """Return how the other methods differ from one, by their names and those of the metrics."""
        pairs = len(self.rows) * (len(self.rows) - 1) // 2
        return find_gaps(
            self._run.folder,
            self.results,
            reference,
            part=self.part,
            margins=self._run.margins,
            compared=pairs,
        )

    @property
    def seeds(self) -> str:
        """The seeds, if there are others that not all methods have."""
        return _compared_over(self.results) if len(self.results) < len(self.all_results) else ""


def _leader(compared: _Compared, metric: Metric) -> Finding:
    """Return the methods that may be the best: that of the best mean, and those not shown to be worse."""
    about = _superlative(metric)
    if not compared.results:
        return Finding(about, "Not compared yet", NO_SHARED_SEED)
    best = _best(compared.rows, metric)
    others = {name: gaps[metric.name].verdict for name, gaps in compared.gaps(best.method).items()}
    rivals = {name: verdict for name, verdict in others.items() if verdict != "worse"}
    answer = _join([best.method, *rivals], "or")
    mean = f"{_show(best, metric)} at {_memory(best)}{_calibrated(compared.part)}"
    if not others:
        why = f"{mean}. It is the only method with results"
    elif not rivals:
        why = f"{mean}. All other methods are worse"
    elif len(rivals) < len(others):
        named = ", ".join(f"{name} ({verdict})" for name, verdict in rivals.items())
        why = (
            f"{best.method} has the best mean, {mean}. Not shown to be worse, by intervals for all pairs of "
            f"methods: {named}"
        )
    else:
        answer = "Undecided"
        why = (
            f"{best.method} has the best mean, {mean}. Not distinguishable from any other method with "
            "this data"
        )
    return Finding(about, answer, ". ".join(filter(None, [why, compared.seeds])))


def _gain(compared: _Compared, method: str, metrics: Sequence[Metric]) -> list[Finding]:
    """Return whether the method to ship is better than w0 on test data, by the verdicts of `_leader`."""
    found = compared.gaps(START).get(method)
    if found is None:  # it is w0 itself, or w0 has no results
        return []
    gaps = [found[metric.name] for metric in metrics]
    about = f"{method} against {START}, on test data{_calibrated(compared.part)}"
    return [Finding(about, _answer(gaps, {}), f"{_list(gaps)}.", "gain")]


@dataclass(frozen=True)
class _Choice:
    """The method to ship, and what it was chosen from and by.

    Attributes:
        row: The method on validation data.
        rows: All methods that could have been chosen.
        metrics: The deciding metrics; the last is the most telling.
        is_near: Whether it is about as good as the best in all of them.
        notes: Sentences about methods and seeds that were not considered.
    """

    row: MethodSummary
    rows: Sequence[MethodSummary]
    metrics: Sequence[Metric]
    is_near: bool
    notes: Sequence[str]


def _choose(run: Run) -> _Choice | Finding:
    """Return the smallest method about as good as the best on validation data, or why none was chosen."""
    measured_rows = _measured_on(run, CHOSEN_ON)
    if not measured_rows:
        why = (
            "The run has no results on validation data, and a choice on the test set would make its numbers "
            "too good. Set data.validation, or data.validation_from_test if w0 saw all training data, in a "
            "new run."
        )
        return _nothing_to_ship(why)
    saved = [row for row in measured_rows if can_be_shipped(row.method)]
    results = of_shared_seeds(saved)
    if not results:
        return _nothing_to_ship(NO_SHARED_SEED)
    rows = {row.method: row for row in summarize(results, CHOSEN_ON)}
    metrics = paired_metrics(results, CHOSEN_ON)[:2]
    best = {metric: _best(rows.values(), metric).method for metric in metrics}
    behind = {
        name: find_gaps(run.folder, results, name, part=CHOSEN_ON, margins=run.margins)
        for name in dict.fromkeys(best.values())
    }

    def is_about_as_good(method: str) -> bool:
        gaps = [
            behind[name].get(method, {}).get(metric.name) for metric, name in best.items() if name != method
        ]
        return all(gap and gap.loss <= max(gap.margin, gap.error) for gap in gaps)

    last = metrics[-1]
    candidates = [row for row in rows.values() if is_about_as_good(row.method)]
    least = min(map(_cost, candidates), default=())
    chosen = _best([row for row in candidates if _cost(row) == least] or [rows[best[last]]], last)
    notes = [f"{_compared_over(results)}."] if len(results) < len(saved) else []
    if never := sorted({row.method for row in measured_rows} - {row.method for row in saved}):
        notes.append(f"{_join(never, 'and')} cannot be saved as an ensemble and was not considered.")
    return _Choice(chosen, list(rows.values()), metrics, bool(candidates), notes)


def _nothing_to_ship(why: str) -> Finding:
    return Finding("To ship", "Cannot be chosen", why, "ship")


def _to_ship(run: Run, choice: _Choice) -> Finding:
    """Return the chosen method as an ensemble on disk: the seed that is best on validation data."""
    chosen, last = choice.row, choice.metrics[-1]
    labels = " and ".join(metric.label for metric in choice.metrics)
    rule = (
        "The smallest method whose calibrated scores on validation data are within the margin, or one "
        f"standard error, of the best in {labels}"
    )
    if not choice.is_near:
        rule = (
            f"The method of the {_lower(_superlative(last))} on validation data, calibrated; no method is "
            "near the best in both metrics"
        )
    cost = f"; it takes {chosen.trainings} trainings" if chosen.trainings > 1 else ""
    shipped = shipped_ensemble(run, chosen.method, last, CHOSEN_ON)
    details = [
        f"{rule}; {_memory(chosen)}{cost}.",
        *choice.notes,
        shipped.why,
        _on_test(run, chosen.method),
        _compressed(run, chosen),
        _with_less_memory(choice),
    ]
    return Finding(
        "To ship",
        f"{chosen.method}, seed {shipped.seed}",
        " ".join(filter(None, details)),
        "ship",
        shipped.command,
    )


def _cost(row: MethodSummary) -> tuple[float, ...]:
    # Views of one model are passes that take no memory, but time.
    return row.bytes, row.trainings, row.members


def _with_less_memory(choice: _Choice) -> str:
    last = choice.metrics[-1]
    smaller = [
        f"{row.method} ({row.relative_bytes:.3g}×)"
        for row in pareto_front(choice.rows, lambda row: row.bytes, lambda row: _loss(row, last))
        if row.bytes < choice.row.bytes
    ]
    if not smaller:
        return ""
    return f"With less memory, the {_lower(_superlative(last))} is that of {' or '.join(smaller[::-1])}."


def _on_test(run: Run, method: str) -> str:
    """Return the metrics of the chosen method on test data, and those of w0, each at its temperature."""
    part = "test.calibrated"
    rows = [row for row in _measured_on(run, part) if row.method in (method, START)]
    shown = {
        row.method: ", ".join(
            f"{metric.label} {_show(row, metric)}" for metric in paired_metrics(rows, part)[:2]
        )
        for row in summarize(rows, part)
    }
    if method not in shown:
        return ""
    start = f"; {START}: {shown[START]}" if START in shown and method != START else ""
    return f"On test data, at its temperature: {shown[method]}{start}."


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
        f"As {smallest.format} it takes {smallest.relative_bytes:.3g}× ({show_bytes(smallest.bytes)}) and "
        f"predicts nearly the same, KL {Number.of(smallest.kl, 4) if smallest.kl else ''}."
    )


def _claim(run: Run, metrics: Sequence[Metric]) -> Finding:
    part = comparable_part(run.task)
    results = _measured_on(run, part)
    rows = {row.method: row for row in summarize(results, part)}
    name = find_reference().name
    rival = appearance_of(name).rival
    about = f"The paper's claim: {name} is as good as {rival}, in far less memory"
    missing = [method for method in (name, rival) if method not in rows]
    if missing:
        return Finding(about, "Not checked", f"No results of {' and '.join(missing)} yet.", "claim")
    ours, theirs = rows[name], rows[rival]
    found = find_gaps(run.folder, results, rival, [name], part, run.margins).get(name)
    if found is None:
        return Finding(about, "Not checked", f"{name} and {rival} share no seed yet.", "claim")
    claims = [Claim.about(found[metric.name]) for metric in metrics]
    ratio = theirs.bytes / ours.bytes
    alone = "The claim was made before the run, so intervals are for this comparison alone. "
    return Finding(
        about,
        _answer(claims, OF_CLAIMS),
        f"{name} with {ours.members} members against {rival} with {theirs.members}{_calibrated(part)}: "
        f"{_list(claims)}. {alone if len(rows) > 2 else ''}"
        f"Memory {show_bytes(ours.bytes)} against {show_bytes(theirs.bytes)}, {ratio:.3g} times less.",
        "claim",
    )


def _answer(gaps: Sequence[Gap], words: Mapping[str, str]) -> str:
    """Return the verdict on all metrics, or the metrics of each verdict.

    Args:
        gaps: The differences, one for each metric.
        words: Words for verdicts, where they differ from the verdict's name.
    """
    groups: dict[str, list[str]] = {}
    for verdict in ("as good", "better", "equal", "worse", "undecided"):
        if labels := [gap.metric.label for gap in gaps if gap.verdict == verdict]:
            groups[words.get(verdict, verdict)] = labels
    if len(groups) == 1:
        (answer,) = groups
    else:
        answer = ", ".join(f"{verdict} for {' and '.join(labels)}" for verdict, labels in groups.items())
    return answer[:1].upper() + answer[1:]


def _list(gaps: Sequence[Gap]) -> str:
    return "; ".join(f"{gap.metric.label} {gap}" for gap in gaps)


def _measured_on(run: Run, part: str) -> list[ComparisonRow]:
    return [row for row in run.results if measured(row, part)]


def _calibrated(part: str) -> str:
    return ", calibrated on validation data" if part.endswith(".calibrated") else ""


def _superlative(metric: Metric) -> str:
    if metric.label == "accuracy":
        return "Most accurate"
    return f"{SUPERLATIVES[metric.better]} {metric.label}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _join(names: Sequence[str], word: str) -> str:
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last


def _best(rows: Iterable[MethodSummary], metric: Metric) -> MethodSummary:
    return first_lowest(rows, key=lambda row: _loss(row, metric), scale=0)


def _loss(row: MethodSummary, metric: Metric) -> float:
    return metric.penalty(row.metrics[metric.name].mean)


def _compared_over(rows: Sequence[ComparisonRow]) -> str:
    return f"Compared over {name_seeds({row.seed for row in rows})}, which all methods have"


def _show(row: MethodSummary, metric: Metric) -> str:
    return f"{Number.of_metric(metric, row.metrics[metric.name])} {metric.unit}".rstrip()


def _memory(row: MethodSummary) -> str:
    return f"{row.relative_bytes:.3g}× the memory of one model ({show_bytes(row.bytes)})"

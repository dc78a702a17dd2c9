"""A diagnosis as a table and in words: what the geometry shows, and what to change."""

from collections.abc import Sequence
from math import isclose

from pfge.lab.run.results import Diagnosis
from pfge.reports.tables.cells import Number, Text
from pfge.reports.tables.table import Row, Table, columns

BARRIER = 0.1
"""A rise half-way by more than this share of the members' loss, and by 0.01, is a barrier."""
ALIKE = 0.3
"""Members that differ on fewer examples than this share of their error are alike."""


def diagnosis_table(found: Diagnosis) -> Table:
    """Return a row for each pair of adjacent members."""
    rows = [
        Row(
            [
                Text(f"{pair.members[0]} and {pair.members[1]}"),
                Number(100 * pair.distance, digits=2),
                Number(pair.angle, digits=1),
                Number(pair.loss),
                Number(pair.barrier, signed=True),
                Number(100 * pair.disagreement, digits=2),
            ]
        )
        for pair in found.pairs
    ]
    heads = columns("members", "distance %", "angle °", "training loss", "half-way", "disagree %")
    return Table("diagnosis", f"seed {found.seed}: {found.method}, adjacent members", heads, rows)


def in_words(found: Diagnosis) -> list[str]:
    """Return what was found, a sentence or two each, and then what to change, if anything."""
    return [
        _connected(found),
        _different(found),
        *([] if found.stale_loss is None else [_stale(found, found.stale_loss)]),
        _rates(found),
        *_advice(found),
    ]


def has_barrier(found: Diagnosis) -> bool:
    """Return whether some straight line between adjacent members crosses a barrier."""
    return any(pair.barrier > max(BARRIER * pair.loss, 0.01) for pair in found.pairs)


def are_alike(found: Diagnosis) -> bool:
    """Return whether the members hardly differ, for what there is to correct."""
    error = _mean(found.errors)
    return _mean([pair.disagreement for pair in found.pairs]) < ALIKE * error


def _connected(found: Diagnosis) -> str:
    worst = max(found.pairs, key=lambda pair: pair.barrier)
    where = f"members {worst.members[0]} and {worst.members[1]}"
    if has_barrier(found):
        return (
            f"A barrier: half-way between {where} the training loss is {worst.barrier:.4f} above their mean "
            f"of {worst.loss:.4f}. They lie in different valleys, as far as a straight line tells."
        )
    if worst.barrier <= 0:
        return "Connected: half-way between any two adjacent members the training loss is lower than theirs."
    return (
        f"Connected: half-way between adjacent members the training loss is at most {worst.barrier:.4f} "
        f"above their mean of {worst.loss:.4f} (between {where})."
    )


def _different(found: Diagnosis) -> str:
    disagreement = _mean([pair.disagreement for pair in found.pairs])
    error = _mean(found.errors)
    verdict = "They hardly differ" if are_alike(found) else "They differ"
    return (
        f"{verdict}: adjacent members disagree on {100 * disagreement:.2f} % of the {found.judged_on} "
        f"examples, where each is wrong on {100 * error:.2f} % and all together on "
        f"{100 * found.pooled_error:.2f} %."
    )


def _stale(found: Diagnosis, stale: float) -> str:
    fresh = _mean([pair.loss for pair in found.pairs])
    return (
        f"BatchNorm: with the statistics of w0 instead of their own the members' training loss would be "
        f"{stale:.4f} instead of {fresh:.4f}."
    )


def _rates(found: Diagnosis) -> str:
    taken = [rate for rate in found.rates if rate is not None]
    if not taken:
        return "Members belong to no iteration of the run, so no learning rate belongs to them."
    off = [
        number
        for number, rate in enumerate(found.rates, 1)
        if rate and not isclose(rate, found.low, rel_tol=0.01)
    ]
    if not off:
        return f"Every member was taken at the lowest learning rate, {found.low:g}."
    highest = max(taken)
    return (
        f"Members {', '.join(map(str, off))} were taken at a learning rate above the lowest, {found.low:g}: "
        f"up to {highest:g}."
    )


def _advice(found: Diagnosis) -> list[str]:
    advice = []
    if any(_is_above(rate, found.low) for rate in found.rates):
        advice.append(
            "Change: make ensemble.period a multiple of ensemble.cycle, so that members are taken at the "
            "minimum."
        )
    if has_barrier(found):
        advice.append(
            "Change: a smaller ensemble.high, or a shorter ensemble.cycle, keeps members in one valley; or "
            "refresh BatchNorm with more images (data.batch_norm_images)."
        )
    elif are_alike(found):
        advice.append(
            "Change: a larger ensemble.high, a longer ensemble.cycle or ensemble.period, or "
            'ensemble.average_start = "no" lets members differ more.'
        )
    return advice or ["Change nothing: the members connect and differ."]


def _is_above(rate: float | None, low: float) -> bool:
    return rate is not None and not isclose(rate, low, rel_tol=0.01)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

"""Tables of connectivity and diagnosis, and what to change."""

from collections.abc import Callable, Sequence
from math import isclose

from pfge.connectivity.fitting import mode_connectivity
from pfge.lab.config.settings import MarginSettings
from pfge.lab.run.results import AdjacentMembers, Change, ConnectivityRow, Diagnosis, Gains
from pfge.reports.statistics import Estimate, by_method
from pfge.reports.tables.table import Count, Number, Row, Table, Text, columns, method_row
from pfge.rounding import is_lower

NOTE = "mean over pairs, ± standard error if there are two or more"
SIGNS = ("below 0: a barrier", "near 0: connected", "above 0: the inside is better than the ends")

Value = Callable[[ConnectivityRow], float]


def connectivity_tables(rows: Sequence[ConnectivityRow]) -> list[Table]:
    """Return the paper's three: test error and training loss along the curves, and mode connectivity."""
    connectivity: dict[str, Value] = {
        "training loss": lambda row: mode_connectivity(row.trace),
        "with penalty": _penalized_connectivity,
        "training error": lambda row: mode_connectivity(row.trace, "train_error"),
    }
    along_error, along_loss = _along("test_error", 100), _along("train_loss", 1)
    return [
        _table(rows, "test-error", "test error along the curve, %", along_error, 2),
        _table(rows, "training-loss", "training loss along the curve", along_loss, 5),
        _table(rows, "connectivity", "mode connectivity", connectivity, 5, SIGNS),
    ]


def _table(
    rows: Sequence[ConnectivityRow],
    key: str,
    title: str,
    values: dict[str, Value],
    digits: int,
    more_notes: Sequence[str] = (),
) -> Table:
    found = []
    for method, pairs in by_method(rows).items():
        estimates = [Estimate.of([value(pair) for pair in pairs]) for value in values.values()]
        numbers = [Number.of(estimate, digits) for estimate in estimates]
        found.append(method_row(method, Count(len(pairs)), *numbers))
    return Table(key, title, columns("method", "pairs", *values), found, [NOTE, *more_notes])


def _along(quantity: str, factor: float) -> dict[str, Value]:
    def value(name: str) -> Value:
        return lambda row: factor * float(getattr(row.trace.statistics(quantity), name))

    return {name: value(name) for name in ("max", "min", "mean")}


def _penalized_connectivity(row: ConnectivityRow) -> float:
    return mode_connectivity(row.trace.with_penalty("train_loss", row.settings.weight_decay))


BARRIER = 0.1
"""A rise half-way by more than this share of the members' loss, and by 0.01, is a barrier."""
ALIKE = 0.3
"""Members that differ on fewer examples than this share of their error are alike."""


FALLS_FAST = 0.5
"""If members' training loss is below w0's by more than this share, and by 0.05, w0 is undertrained."""
LARGE_GAIN = 0.25
"""Averaging alone does not reduce w0's errors by more than this share."""
MARGINS = MarginSettings()
NOTHING = "Change nothing: the members connect, differ, and are better together."


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
        *([] if found.gains is None else _of_gains(found, found.gains)),
        *([] if found.stale_loss is None else [_stale(found, found.stale_loss)]),
        _rates(found),
        *_advice(found),
    ]


def pooling_helps(gains: Gains) -> bool:
    """Return whether all members together are better than each alone, by more than noise or the margin."""
    fewer_errors = is_lower(gains.pooled_error.mean, 0.0, error=2 * gains.pooled_error.error)
    more_errors = is_lower(0.0, gains.pooled_error.mean)  # shares that are equal may differ by rounding
    return not more_errors and (fewer_errors or -gains.pooled_loss.mean > MARGINS.nll)


def is_undertrained(found: Diagnosis, gains: Gains) -> bool:
    """Return whether w0 is undertrained: members alone gain more on it than averages and ensembles do."""
    loss = _mean([pair.loss for pair in found.pairs])
    falls_fast = loss < (1 - FALLS_FAST) * gains.w0_training_loss - 0.05
    gain = -gains.member_error.mean
    return falls_fast or gain > max(LARGE_GAIN * gains.w0_error, 2 * gains.member_error.error)


def is_as_good_at_a_temperature(gains: Gains) -> bool:
    """Return whether one member at its temperature has the NLL of all as predicted, or a lower one."""
    tempered = gains.tempered_loss
    return tempered is not None and tempered.mean + 2 * tempered.error <= MARGINS.nll


def has_barrier(found: Diagnosis) -> bool:
    """Return whether the straight line between any two adjacent members crosses a barrier."""
    return any(_relative_barrier(pair) > 1 for pair in found.pairs)


def _relative_barrier(pair: AdjacentMembers) -> float:
    """Return the rise half-way in units of the smallest rise that counts as a barrier."""
    return pair.barrier / max(BARRIER * pair.loss, 0.01)


def are_alike(found: Diagnosis) -> bool:
    """Return whether members disagree on few examples, compared with their error."""
    error = _mean(found.errors)
    return _mean([pair.disagreement for pair in found.pairs]) < ALIKE * error


def _of_gains(found: Diagnosis, gains: Gains) -> list[str]:
    numbers = (
        f"the error changes by {_points(gains.pooled_error)} points and the NLL by {_nats(gains.pooled_loss)}"
    )
    against = f"against each alone, {numbers}."
    if found.judged_on == "training":
        said = [
            "Whether pooling helps is unknown without validation data. Set data.validation, or "
            "data.validation_from_test if w0 saw all training data, in a new run."
        ]
    elif pooling_helps(gains):
        said = [f"Pooling helps: {against}"]
    elif is_lower(0.0, gains.pooled_error.mean, error=2 * gains.pooled_error.error):
        said = [f"Pooling hurts: {against}"]
    else:
        said = [f"Pooling does not help beyond noise: {against}"]
    if is_undertrained(found, gains):
        said.append(
            f"w0 is undertrained: each member alone changes its error of {100 * gains.w0_error:.2f} % by "
            f"{_points(gains.member_error)} points, and its training loss of {gains.w0_training_loss:.4f} to "
            f"{_mean([pair.loss for pair in found.pairs]):.4f}. That is the gain of training longer, not of "
            "an ensemble."
        )
    if gains.tempered_loss and is_as_good_at_a_temperature(gains):
        said.append(
            "A temperature does as much: the NLL of one member at its temperature differs from that of all "
            f"together as predicted by {_nats(gains.tempered_loss)}."
        )
    return said


def _points(change: Change) -> str:
    return f"{100 * change.mean:+.2f} ± {100 * change.error:.2f}"


def _nats(change: Change) -> str:
    return f"{change.mean:+.4f} ± {change.error:.4f}"


def _connected(found: Diagnosis) -> str:
    if has_barrier(found):
        worst = max(found.pairs, key=_relative_barrier)
        return (
            f"A barrier: half-way between {_names(worst)} the training loss is {worst.barrier:.4f} above "
            f"their mean of {worst.loss:.4f}. They lie in different valleys, as far as a straight line tells."
        )
    worst = max(found.pairs, key=lambda pair: pair.barrier)
    if worst.barrier <= 0:
        return "Connected: half-way between any two adjacent members the training loss is lower than theirs."
    return (
        f"Connected: half-way between adjacent members the training loss is at most {worst.barrier:.4f} "
        f"above their mean of {worst.loss:.4f} (between {_names(worst)})."
    )


def _names(pair: AdjacentMembers) -> str:
    return f"members {pair.members[0]} and {pair.members[1]}"


def _different(found: Diagnosis) -> str:
    disagreement = _mean([pair.disagreement for pair in found.pairs])
    error = _mean(found.errors)
    examples = f"{found.judged_on} examples"
    if not error and not disagreement:
        return f"Whether they differ is unknown: every member is right on all of the {examples}."
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
        return "Members do not belong to iterations of the run, so their learning rates are unknown."
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
    gains = found.gains
    if gains and is_undertrained(found, gains):
        advice.append(
            "Change: train w0 longer (pretrain.epochs), or to a lower last rate, before methods are compared."
        )
    on_validation = found.judged_on == "validation"
    if gains and on_validation and not pooling_helps(gains):
        advice.append(
            "Change: use one member, or one mean of the weights as SWA has it, in place of these members: "
            "together they cost more passes and are not better."
        )
    elif gains and on_validation and is_as_good_at_a_temperature(gains):
        advice.append(
            "Change: if only the NLL matters, use one member at a temperature "
            "(pfge evaluate ENSEMBLE --calibrate members) in place of all."
        )
    return advice or [
        NOTHING if gains and on_validation else "Change nothing: the members connect and differ."
    ]


def _is_above(rate: float | None, low: float) -> bool:
    return rate is not None and not isclose(rate, low, rel_tol=0.01)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

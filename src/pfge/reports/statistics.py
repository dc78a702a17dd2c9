"""Results over seeds: means, standard errors and intervals."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, inf, isnan, nan, sqrt
from statistics import mean, stdev
from typing import Protocol, TypeVar

from scipy.special import stdtrit

from pfge.errors import InvalidValueError
from pfge.lab.config.typed import LARGEST_FLOAT
from pfge.lab.run.results import ComparisonRow, FormatRow, MeasuredRow
from pfge.methods import row_order
from pfge.rounding import first_lowest, is_lower
from pfge.tasks import Metric, Task

CONFIDENCE = 0.95
MOST_SEEDS = 100
"""More seeds than these are not proposed."""


@dataclass(frozen=True, kw_only=True)
class MeanEstimate:
    """A mean over seeds and test examples, with its interval.

    The two sources of noise, which test examples were drawn and which seeds were run, each have a half width
    by Student's t, and the interval is the mean and the square root of the sum of their squares to each side.

    Attributes:
        mean: Over seeds and examples.
        seeds: How many there are.
        seed_error: The standard error over seeds; None with one seed.
        examples: How many test examples there are; 0 if the run did not keep their scores.
        example_error: The standard error over test examples; None without their scores.
        step: The smallest difference between two scores, as 1 where an example is right or wrong; 0 if scores
            take any value.
        compared: How many differences the intervals hold for together (Bonferroni).
    """

    mean: float
    seeds: int = 1
    seed_error: float | None = None
    examples: int = 0
    example_error: float | None = None
    step: float = 0.0
    compared: int = 1

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the interval, of those sources of noise that are known; None if none is."""
        if self.seed_error is None and self.example_error is None:
            return None
        half = hypot(self.half_of_seeds(self.seeds), self.half_of_examples)
        return self.mean - half, self.mean + half

    @property
    def error(self) -> float:
        """The standard error over seeds and examples, as far as they are known."""
        return hypot(self.seed_error or 0.0, self.example_error or 0.0)

    @property
    def is_complete(self) -> bool:
        """Whether both sources of noise are known."""
        return self.seed_error is not None and self.example_error is not None

    @property
    def half_of_examples(self) -> float:
        """The half width from test examples.

        Where scores have steps, few examples may differ, or none, which does not mean that none ever would.
        So t^2 examples that differ by a step are added, as in Wilson's interval: with no difference among N
        examples the half width is t^2 / N steps, which is a little more than the rule of three says.
        """
        if self.example_error is None or self.examples < 2:
            return 0.0 if self.example_error is None else inf
        times = self._times_of_examples
        return times * hypot(self.example_error, times * self.step / self.examples)

    def half_of_seeds(self, seeds: int) -> float:
        """Return the half width from seeds, if there were so many of the same spread."""
        if self.seed_error is None:
            return 0.0
        spread = self.seed_error * sqrt(self.seeds)
        return float(-stdtrit(seeds - 1, self._outside)) * spread / sqrt(seeds)

    def more_seeds(self, half: float) -> float:
        """Return how many more seeds have a half width; infinity if they are too many to propose."""
        for more in range(MOST_SEEDS + 1):
            if self.half_of_seeds(self.seeds + more) <= half:
                return more
        return inf

    def more_examples(self, half: float) -> float:
        """Return how many more examples of the same spread have a half width, which is solved for 1 / N."""
        if half <= 0:
            return inf
        times = self._times_of_examples
        aim = (half / times) ** 2
        variance = (self.example_error or 0.0) ** 2 * self.examples
        added = times * self.step
        needed = (variance + sqrt(variance**2 + 4 * added**2 * aim)) / (2 * aim)
        return max(needed - self.examples, 0)

    @property
    def _times_of_examples(self) -> float:
        return float(-stdtrit(max(self.examples - 1, 1), self._outside))

    @property
    def _outside(self) -> float:
        return (1 - CONFIDENCE) / 2 / self.compared


UNPACKED = "float32"


class OfMethod(Protocol):
    """A result that belongs to a method."""

    @property
    def method(self) -> str:
        """The name of the method."""


Found = TypeVar("Found", bound=OfMethod)
Item = TypeVar("Item")
Ranked = TypeVar("Ranked", bound=ComparisonRow | FormatRow)


def by_method(rows: Sequence[Found]) -> dict[str, list[Found]]:
    """Return the results of each method, in the order of tables."""
    found: dict[str, list[Found]] = {}
    for row in rows:
        found.setdefault(row.method, []).append(row)
    return {name: found[name] for name in row_order(found)}


def task_of(rows: Sequence[MeasuredRow]) -> Task:
    """Return the task of results, which is the same for all of them."""
    first, *others = dict.fromkeys(row.task for row in rows)
    if others:
        raise InvalidValueError(
            f"results of different tasks cannot share a table, got {first} and {others[0]}"
        )
    return first


def main_metrics(task: Task, measured: Iterable[Mapping[str, object]]) -> list[Metric]:
    """Return the metrics that have columns in tables: the main ones that all of the measured have."""
    found = list(measured)
    return [m for m in task.metrics if m.is_main and all(m.name in metrics for metrics in found)]


def measured(row: ComparisonRow | FormatRow, part: str) -> Mapping[str, float] | None:
    """Return the metrics on a part of the data, such as "test"; None if they were not measured.

    Those of "test.calibrated" and "validation.calibrated" are at the temperature of the pooled prediction.
    """
    name, _, calibrated = part.partition(".")
    if not calibrated:
        return row.metrics.get(name)
    at = row.calibrated if isinstance(row, ComparisonRow) else None
    return at.metrics.get(name) if at else None


def shown_metrics(rows: Sequence[ComparisonRow | FormatRow], part: str = "test") -> list[Metric]:
    """Return the main metrics of results, which have columns in the tables of a comparison."""
    return main_metrics(task_of(rows), (measured(row, part) or {} for row in rows)) if rows else []


def paired_metrics(rows: Sequence[ComparisonRow | FormatRow], part: str = "test") -> list[Metric]:
    """Return the main metrics that are means over examples, so that methods are compared example by example.

    Figures and the tables of differences and formats show these.
    """
    return [metric for metric in shown_metrics(rows, part) if metric.score]


def comparable_part(task: Task, part: str = "test") -> str:
    """Return by which numbers methods are compared: those on a part of the data, calibrated if need be."""
    return f"{part}.calibrated" if task.needs_calibration else part


def is_comparable(task: Task, metric: Metric, part: str = "test") -> bool:
    """Return whether a metric compares methods by its numbers on a part of the data."""
    return not (task.needs_calibration and metric.uses_confidence) or part.endswith(".calibrated")


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its standard error, which one seed does not have."""

    mean: float
    error: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """Return the mean of one value for each seed; it is NaN where one of them diverged."""
        if not all(abs(value) <= LARGEST_FLOAT for value in values):
            return cls(nan)
        return cls(mean(values), stdev(values) / sqrt(len(values)) if len(values) > 1 else None)

    def scaled(self, factor: float) -> "Estimate":
        """Return the estimate in another unit."""
        return Estimate(factor * self.mean, None if self.error is None else factor * self.error)


@dataclass(frozen=True)
class MethodSummary:
    """One method over all its seeds; metrics are by name."""

    method: str
    members: int
    bytes: int
    relative_bytes: float
    metrics: Mapping[str, Estimate]
    iterations: int
    trainings: int


@dataclass(frozen=True)
class FormatSummary:
    """One method in one storage format over all its seeds; `kl` is None where it was not measured."""

    method: str
    format: str
    cascade: bool
    bytes: int
    relative_bytes: float
    passes: Estimate
    metrics: Mapping[str, Estimate]
    kl: Estimate | None

    @classmethod
    def of_method(cls, row: MethodSummary) -> "FormatSummary":
        """Return a method as the comparison measured it: its members as they are, all of them evaluated."""
        passes = Estimate(float(row.members))
        return cls(row.method, UNPACKED, False, row.bytes, row.relative_bytes, passes, row.metrics, None)

    @property
    def is_plain(self) -> bool:
        """Whether it is as the comparison has it: members as they are, all of them evaluated."""
        return self.format == UNPACKED and not self.cascade

    @property
    def name(self) -> str:
        """Method, format and cascade, for people."""
        return ", ".join([self.method, self.format, *["cascade"] * self.cascade])


def summarize(rows: Sequence[ComparisonRow], part: str = "test") -> list[MethodSummary]:
    """Return each method over its seeds, on one part of the data."""
    return [
        MethodSummary(
            method=method,
            members=of_seeds[0].members,
            bytes=of_seeds[0].bytes,
            relative_bytes=of_seeds[0].bytes / of_seeds[0].bytes_of_one,
            metrics=estimate_metrics(of_seeds, part),
            iterations=of_seeds[0].iterations,
            trainings=of_seeds[0].trainings,
        )
        for method, of_seeds in by_method(rows).items()
    ]


def summarize_formats(rows: Sequence[FormatRow]) -> list[FormatSummary]:
    """Return each method, format and cascade over its seeds, those of a method together."""
    found = []
    for method, of_method in by_method(rows).items():
        kinds: dict[tuple[str, bool], list[FormatRow]] = {}
        for row in of_method:
            kinds.setdefault((row.format, row.cascade), []).append(row)
        found += [
            FormatSummary(
                method=method,
                format=stored_as,
                cascade=cascade,
                bytes=of_seeds[0].bytes,
                relative_bytes=of_seeds[0].bytes / of_seeds[0].bytes_of_one,
                passes=Estimate.of([row.mean_members for row in of_seeds]),
                metrics=estimate_metrics(of_seeds),
                kl=Estimate.of([row.kl for row in of_seeds]),
            )
            for (stored_as, cascade), of_seeds in kinds.items()
        ]
    return found


def estimate_metrics(
    of_seeds: Sequence[ComparisonRow | FormatRow], part: str = "test"
) -> dict[str, Estimate]:
    """Return the main metrics by name, each over the seeds, on one part of the data."""
    return {
        metric.name: Estimate.of([(measured(row, part) or {})[metric.name] for row in of_seeds])
        for metric in shown_metrics(of_seeds, part)
    }


def over_seeds(rows: Sequence[ComparisonRow | FormatRow]) -> list[str]:
    """Return what a note says of the numbers: nothing if there is one seed."""
    counts = {len(seeds) for seeds in _seeds_of_each(rows)}
    if max(counts, default=0) < 2:
        return []
    fewest = f"{min(counts)} to " if len(counts) > 1 else ""
    return [f"mean ± standard error over {fewest}{max(counts)} seeds"]


def shared_seeds(rows: Sequence[ComparisonRow | FormatRow]) -> set[int]:
    """Return the seeds that every method has results of, in every format."""
    each = _seeds_of_each(rows)
    return set.intersection(*each) if each else set()


def of_shared_seeds(rows: Sequence[Ranked]) -> list[Ranked]:
    """Return the results by which methods are ranked: means over other seeds would compare seeds too."""
    shared = shared_seeds(rows)
    return [row for row in rows if row.seed in shared]


def name_seeds(seeds: Iterable[int]) -> str:
    """Return seeds for people, as "seeds 1 and 2"."""
    *others, last = map(str, sorted(seeds))
    return f"seeds {', '.join(others)} and {last}" if others else f"seed {last}"


def _seeds_of_each(rows: Sequence[ComparisonRow | FormatRow]) -> list[set[int]]:
    """Return the seeds of each method, or of each method, format and cascade."""
    found: dict[tuple[object, ...], set[int]] = {}
    for row in rows:
        kind = (row.format, row.cascade) if isinstance(row, FormatRow) else ()
        found.setdefault((row.method, *kind), set()).add(row.seed)
    return [*found.values()]


def best_by(metric: Metric, means: Mapping[Item, float]) -> set[Item]:
    """Return what has the best mean: several if they are equal up to rounding."""
    penalties = {item: metric.penalty(mean) for item, mean in means.items() if not isnan(mean)}
    lowest = min(penalties.values(), default=nan)
    return {item for item, penalty in penalties.items() if not is_lower(lowest, penalty, scale=0)}


def pareto_front(
    items: Sequence[Item], cost: Callable[[Item], float], loss: Callable[[Item], float]
) -> list[Item]:
    """Return the items that nothing as cheap or cheaper loses less than, by growing cost."""
    front: list[Item] = []
    for price in sorted({cost(item) for item in items}):
        item = first_lowest([item for item in items if cost(item) == price], key=loss, scale=0)
        if not front or is_lower(loss(item), loss(front[-1]), scale=0):
            front.append(item)
    return front

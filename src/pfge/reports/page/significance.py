"""How far methods are from one of them, with whatever a run knows about the noise."""

from collections.abc import Sequence
from dataclasses import dataclass

from pfge.metrics.significance import Difference, SeedDifference, seed_difference
from pfge.reports.run import Run
from pfge.reports.tables.comparison import by_method
from pfge.reports.tables.differences import Against, SeedScores, compare_all, read_scores

OF_EXAMPLES = {"accuracy": "correct", "nll": "log_loss"}
"""Each metric as the mean of a score that every example has."""
UNKNOWN = "noise unknown"
UNITS = {"accuracy": (100.0, 2, " points"), "nll": (1.0, 4, "")}


@dataclass(frozen=True)
class Gap:
    """A method minus the reference in one metric.

    Attributes:
        metric: "accuracy" or "nll".
        mean: The difference, mean over the seeds that both have.
        over_images: With its interval over test images, if the run kept each example's scores.
        over_seeds: With its standard error, if there are two seeds or more.
    """

    metric: str
    mean: float
    over_images: Difference | None
    over_seeds: SeedDifference | None

    @property
    def within_noise(self) -> bool | None:
        """Whether another test set or other seeds might turn it round; None if that cannot be told."""
        if self.over_images:
            return Against(self.over_images, self.over_seeds).within_noise
        if self.over_seeds:
            return abs(self.over_seeds.mean) <= 2 * self.over_seeds.standard_error
        return None

    @property
    def verdict(self) -> str:
        """The difference in a word or two."""
        if not self.mean:
            return "equal"
        if self.within_noise is None:
            return UNKNOWN
        if self.within_noise:
            return "within noise"
        return "better" if (self.mean > 0) == (self.metric == "accuracy") else "worse"

    def __str__(self) -> str:
        factor, digits, unit = UNITS[self.metric]
        noise = []
        if self.over_images:
            low, high = (factor * end for end in (self.over_images.low, self.over_images.high))
            noise.append(f"95 % interval {low:+.{digits}f} to {high:+.{digits}f} over test images")
        if self.over_seeds:
            noise.append(f"± {factor * self.over_seeds.standard_error:.{digits}f} over seeds")
        about = f" ({'; '.join(noise)})" if noise else ""
        return f"{factor * self.mean:+.{digits}f}{unit}{about}, {self.verdict}"


def gaps(run: Run, reference: str, methods: Sequence[str]) -> dict[str, dict[str, Gap]]:
    """Return how methods differ from a reference in accuracy and NLL, for those that share a seed with it."""
    wanted = [method for method in methods if method != reference]
    scores = {method: _scores(run, method) for method in [*wanted, reference]}
    known = compare_all({method: scores[method] for method in wanted}, scores[reference])
    found: dict[str, dict[str, Gap]] = {}
    for method in wanted:
        for metric, name in OF_EXAMPLES.items():
            if method in known:
                against = known[method][name]
                gap = Gap(metric, against.over_images.mean, against.over_images, against.over_seeds)
            elif (without := _of_rows(run, method, reference, metric)) is not None:
                gap = without
            else:
                continue
            found.setdefault(method, {})[metric] = gap
    return found


def _scores(run: Run, method: str) -> SeedScores:
    return read_scores({seed: run.folder.scores(seed, method) for seed in run.seeds})


def _of_rows(run: Run, method: str, reference: str, metric: str) -> Gap | None:
    """Return what the metrics alone say: older versions kept no scores of examples."""
    first, second = (
        {row["seed"]: row["test"][metric] for row in by_method(run.results)[name]}
        for name in (method, reference)
    )
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    over_seeds = None
    if len(seeds) > 1:
        over_seeds = seed_difference([first[seed] for seed in seeds], [second[seed] for seed in seeds])
    mean = sum(first[seed] - second[seed] for seed in seeds) / len(seeds)
    return Gap(metric, mean, None, over_seeds)

"""What an interval allows to say, and what would decide the rest."""

import re
from dataclasses import replace
from math import sqrt

import pytest
from scipy import stats

from pfge.reports.statistics import MeanEstimate
from pfge.reports.verdicts import Claim, Gap
from pfge.tasks import Classification, Metric

ACCURACY, NLL = Classification().metric("accuracy"), Classification().metric("nll")
COVERAGE = Metric("coverage", "coverage", "closer", lambda _: 0.0, "%", aim=0.9)


def gap(
    mean: float, seed_error: float | None = 0.0, example_error: float | None = 0.0, metric: Metric = NLL
) -> Gap:
    """Return a gap of five seeds and 10,000 examples, with a margin of 0.01."""
    return Gap(
        metric=metric,
        mean=mean,
        margin=0.01,
        seeds=1 if seed_error is None else 5,
        seed_error=seed_error,
        examples=0 if example_error is None else 10_000,
        example_error=example_error,
    )


def coverage_gap(mean: float, seed_error: float, reference: float, seeds: int = 5) -> Gap:
    """Return a gap in coverage where the sum of both has the error of the difference."""
    total = MeanEstimate(
        mean=mean + 2 * (reference - 0.9),
        seeds=seeds,
        seed_error=seed_error,
        examples=10_000,
        example_error=0.0,
    )
    found = replace(gap(mean, seed_error, metric=COVERAGE), seeds=seeds, margin=0.002)
    return replace(found, reference=reference, sum=total)


def number_of(what: str, found: Gap) -> int:
    """Return how many more of something would decide."""
    (number,) = re.findall(rf"about ([\d,]+) more {what}", found.missing)
    return int(number.replace(",", ""))


def test_the_interval_adds_the_squares_of_both_half_widths() -> None:
    of_seeds = stats.t.ppf(0.975, 4) * 0.003
    of_examples = stats.t.ppf(0.975, 9999) * 0.004
    low, high = gap(0.1, 0.003, 0.004).interval or (0.0, 0.0)
    assert (low + high) / 2 == pytest.approx(0.1)
    assert (high - low) / 2 == pytest.approx(sqrt(of_seeds**2 + of_examples**2))


def test_the_interval_is_wider_the_more_methods_are_compared() -> None:
    low, high = replace(gap(0.0, 0.003), compared=6).interval or (0.0, 0.0)
    assert high == -low == pytest.approx(stats.t.ppf(1 - 0.025 / 6, 4) * 0.003)


def test_examples_that_never_differ_are_as_if_some_did() -> None:
    none_differ = replace(gap(0.0, metric=ACCURACY), step=1.0)
    assert none_differ.interval == pytest.approx((-3.8425e-4, 3.8425e-4), rel=1e-3)  # 1.96^2 / 10,000
    halves = replace(gap(0.0, metric=ACCURACY), step=0.5)
    assert halves.interval == pytest.approx((-1.92125e-4, 1.92125e-4), rel=1e-3)
    assert gap(0.0).interval == (0.0, 0.0)


@pytest.mark.parametrize(
    ("mean", "half", "expected"),
    [
        (-0.02, 0.015, "better"),
        (0.02, 0.015, "worse"),
        (0.0, 0.009, "equal"),
        (0.005, 0.004, "equal"),  # worse for sure, by too little to matter
        (0.005, 0.006, "undecided"),
        (0.02, 0.021, "undecided"),
        (0.0, 0.011, "undecided"),
    ],
)
def test_a_verdict_is_of_the_whole_interval(mean: float, half: float, expected: str) -> None:
    error = half / stats.t.ppf(0.975, 4)
    assert gap(mean, error).verdict == expected
    of_examples = half / stats.t.ppf(0.975, 9999)
    assert gap(mean, 0.0, of_examples).verdict == expected
    mirrored = {"better": "worse", "worse": "better"}.get(expected, expected)
    assert gap(mean, error, metric=ACCURACY).verdict == mirrored


def test_one_seed_decides_nothing() -> None:
    found = gap(0.5, seed_error=None)
    assert (found.verdict, Claim.about(found).verdict) == ("undecided", "undecided")
    assert found.missing == Claim.about(found).missing == "at least two more seeds"
    assert found.interval == (0.5, 0.5)


def test_without_scores_of_examples_nothing_is_decided() -> None:
    found = gap(0.5, 0.001, example_error=None)
    assert found.verdict == "undecided"
    assert found.missing == "the scores of each example, which older versions did not keep"
    assert found.interval is not None
    assert gap(0.5, None, None).interval is None
    assert str(gap(0.5, None, None)).startswith("+0.5000: undecided; to decide: the scores of each example")


def test_a_claim_needs_less_than_equal_and_its_words_are_its_verdict() -> None:
    better_or_equal = gap(-0.02, 0.01)  # -0.048 to +0.008
    claim = Claim.about(better_or_equal)
    assert (better_or_equal.verdict, claim.verdict) == ("undecided", "as good")
    assert str(claim).endswith("5 seeds): not worse by more than 0.01")
    assert claim.missing == ""
    assert Claim.about(gap(0.0, 0.01)).verdict == "undecided"


@pytest.mark.parametrize(("mean", "expected"), [(-0.02, "as good"), (-0.005, "as good"), (0.03, "worse")])
def test_what_would_decide_a_claim_does_decide_it(mean: float, expected: str) -> None:
    found = Claim.about(gap(mean, 0.02, 0.0))
    assert (found.verdict, str(found).split(": ")[1]) == ("undecided", "undecided; to decide")
    more = number_of("seed", found)
    enough = replace(found, seeds=5 + more, seed_error=0.02 * sqrt(5 / (5 + more)))
    one_less = replace(found, seeds=4 + more, seed_error=0.02 * sqrt(5 / (4 + more)))
    assert (enough.verdict, one_less.verdict) == (expected, "undecided")


def test_what_would_decide_does_decide() -> None:
    found = gap(0.02, 0.02, 0.0)
    more = number_of("seed", found)
    enough = replace(found, seeds=5 + more, seed_error=0.02 * sqrt(5 / (5 + more)))
    one_less = replace(found, seeds=4 + more, seed_error=0.02 * sqrt(5 / (4 + more)))
    assert (enough.verdict, one_less.verdict) == ("worse", "undecided")


@pytest.mark.parametrize("step", [0.0, 0.5, 1.0])
def test_so_many_more_examples_do_decide(step: float) -> None:
    found = replace(gap(0.02, 0.0, 0.02, metric=ACCURACY), step=step)
    more = number_of("test examples", found)
    enough = replace(found, examples=10_000 + more, example_error=0.02 * sqrt(10_000 / (10_000 + more)))
    fewer = 10_000 + int(0.9 * more)
    not_enough = replace(found, examples=fewer, example_error=0.02 * sqrt(10_000 / fewer))
    assert (enough.verdict, not_enough.verdict) == ("better", "undecided")


def test_where_neither_is_enough_both_are_asked_for() -> None:
    missing = gap(0.02, 0.02, 0.02).missing
    assert missing.startswith("about ")
    assert " more seeds and " in missing
    assert missing.endswith(" more test examples")
    assert gap(0.0, 1.0).missing == "more than 100 seeds"


def test_a_gap_in_words() -> None:
    found = Gap(
        metric=ACCURACY, mean=-0.0008, margin=0.002, seeds=3, seed_error=0.0001, examples=9, example_error=0.0
    )
    assert str(found) == (
        "-0.08 points (95 % interval -0.12 to -0.04 over test examples and 3 seeds): equal within 0.2 points"
    )
    undecided = str(replace(found, seed_error=0.0005, compared=4, called="validation examples"))
    assert re.search(r"more validation examples$|more seeds?$", undecided)
    assert "and 3 seeds, 4 comparisons together): undecided; to decide: about " in undecided


@pytest.mark.parametrize(
    ("reference", "low", "high", "expected"),
    [
        (0.85, 0.01, 0.05, "better"),  # 0.86 to 0.90
        (0.85, 0.01, 0.11, "undecided"),  # to 0.96, past the aim and farther than 0.85
        (0.85, -0.05, -0.01, "worse"),
        (0.85, 0.11, 0.15, "worse"),
        (0.95, -0.05, -0.01, "better"),
        (0.95, -0.01, 0.05, "undecided"),
        (0.90, -0.05, 0.05, "undecided"),  # away from the aim, to which side cannot be told
        (0.90, -0.001, 0.001, "equal"),
    ],
)
def test_where_closer_is_better_the_whole_interval_must_be_closer(
    reference: float, low: float, high: float, expected: str
) -> None:
    error = (high - low) / 2 / stats.t.ppf(0.975, 4)
    assert coverage_gap((low + high) / 2, error, reference).verdict == expected


@pytest.mark.parametrize("mean", [-0.02, 0.02, 0.07, 0.13])  # 0.83, 0.87, 0.92, 0.98
def test_what_would_decide_does_decide_where_closer_is_better(mean: float) -> None:
    more = number_of("seed", coverage_gap(mean, 0.02, 0.85))
    enough = coverage_gap(mean, 0.02 * sqrt(5 / (5 + more)), 0.85, 5 + more)
    one_less = coverage_gap(mean, 0.02 * sqrt(5 / (4 + more)), 0.85, 4 + more)
    assert enough.verdict == ("better" if 0 < mean < 0.1 else "worse")
    assert one_less.verdict == "undecided"


@pytest.mark.parametrize(
    ("difference", "total", "expected"),
    [
        ((0.01, 0.03), (-0.05, -0.02), ("better", True)),
        ((-0.03, -0.01), (0.02, 0.05), ("better", True)),
        ((0.01, 0.03), (0.02, 0.05), ("worse", False)),
        ((-0.03, -0.01), (-0.05, -0.02), ("worse", False)),
        ((0.01, 0.03), (-0.02, 0.02), ("undecided", False)),  # as far as 0.02 farther
        ((0.01, 0.03), (-0.02, 0.001), ("undecided", True)),  # at most 0.001 farther
        ((-0.001, 0.03), (-0.05, -0.02), ("undecided", True)),
        ((-0.001, 0.001), (-0.05, 0.05), ("equal", True)),
    ],
)
def test_closer_is_told_by_the_difference_and_the_sum(
    difference: tuple[float, float], total: tuple[float, float], expected: tuple[str, bool]
) -> None:
    def noisy(low: float, high: float) -> dict[str, float]:
        return {"mean": (low + high) / 2, "seed_error": (high - low) / 2 / stats.t.ppf(0.975, 4)}

    of_sum = replace(MeanEstimate(mean=0.0, seeds=5, examples=9, example_error=0.0), **noisy(*total))
    found = replace(coverage_gap(0.0, 0.0, 0.9), **noisy(*difference), sum=of_sum)
    assert (found.verdict, Claim.about(found).verdict == "as good") == expected


@pytest.mark.parametrize("reference", [0.7, 0.89, 0.9, 0.97])
@pytest.mark.parametrize("mean", [-0.1, -0.01, 0.0, 0.03, 0.1])
def test_without_noise_the_closer_of_two_is_better(reference: float, mean: float) -> None:
    found = replace(coverage_gap(mean, 0.0, reference), margin=1e-9)
    nearer = abs(reference - 0.9) - abs(reference + mean - 0.9)
    assert found.verdict == ("equal" if mean == 0 else "better" if nearer > 0 else "worse")
    assert found.loss == pytest.approx(-nearer)

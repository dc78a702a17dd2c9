import math
from dataclasses import astuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from pfge.metrics import (
    Difference,
    Scores,
    paired_bootstrap,
    paired_bootstrap_of,
    score_examples,
    seed_difference,
)
from pfge.metrics.significance import paired_bootstraps


def two_losses(examples: int, shift: float = 0.1) -> tuple[Tensor, Tensor]:
    """Losses that share most of what makes an example hard."""
    generator = torch.Generator().manual_seed(0)
    shared, one, other = torch.randn(3, examples, generator=generator, dtype=torch.float64)
    return 3 * shared + one + shift, 3 * shared + other


def two_scores(examples: int = 200) -> tuple[Scores, Scores]:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(examples, 3, generator=generator, dtype=torch.float64)
    targets = (logits / 3).softmax(1).multinomial(1, generator=generator)[:, 0]
    return score_examples(logits.softmax(1), targets), score_examples((logits / 3).softmax(1), targets)


def test_many_examples_give_the_interval_of_a_normal_mean() -> None:
    first, second = two_losses(5000)
    found = paired_bootstrap(first, second)
    difference = first - second
    # Pairing leaves a variance of 2, not of 20, and the ends are themselves drawn: 1.96 give or take 5 %.
    error = difference.std().item() / math.sqrt(5000)
    assert found.mean == pytest.approx(difference.mean().item())
    assert (found.low - found.mean) / error == pytest.approx(-1.96, rel=0.05)
    assert (found.high - found.mean) / error == pytest.approx(1.96, rel=0.05)


def test_scipy_finds_the_same_interval() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.rand(2, 40, generator=generator, dtype=torch.float64).square()
    found = paired_bootstrap(first, second, samples=20_000, confidence=0.9)
    expected = stats.bootstrap(
        ((first - second).numpy(),),
        np.mean,
        n_resamples=20_000,
        confidence_level=0.9,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    width = expected.high - expected.low
    assert found.low == pytest.approx(expected.low, abs=0.02 * width)
    assert found.high == pytest.approx(expected.high, abs=0.02 * width)


def test_every_way_to_draw_two_examples_is_as_likely() -> None:
    """Differences 0 and 1: means of 0, a half and 1 in a quarter, a half and a quarter of the samples."""
    first, second = torch.tensor([0.0, 1.0]), torch.zeros(2)
    ends = [paired_bootstrap(first, second, samples=4000, confidence=c) for c in (0.45, 0.55)]
    assert astuple(ends[0]) == (0.5, 0.5, 0.5)
    assert astuple(ends[1]) == (0.5, 0, 1)


def test_pairs_that_are_drawn_together_have_the_intervals_that_they_have_alone() -> None:
    first, second = two_losses(300)
    third = second.square()
    together = paired_bootstraps(torch.stack([first - second, first - third], 1), seed=3)
    alone = [paired_bootstrap(first, other, seed=3) for other in (second, third)]
    for one, other in zip(together, alone, strict=True):
        assert astuple(one) == pytest.approx(astuple(other), rel=1e-12)
    assert together[0] != together[1]


def test_a_constant_difference_has_an_interval_of_no_width() -> None:
    second = torch.arange(64, dtype=torch.float64)
    assert paired_bootstrap(second + 0.25, second) == Difference(0.25, 0.25, 0.25)
    assert paired_bootstrap(second, second) == Difference(0, 0, 0)


def test_an_interval_with_zero_in_it_is_within_noise() -> None:
    assert not paired_bootstrap(*two_losses(5000, shift=0.2)).within_noise
    assert paired_bootstrap(*two_losses(50, shift=0.05)).within_noise
    assert [Difference(1, *ends).within_noise for ends in ((0, 2), (-1, 0), (0.1, 2), (-2, -0.1))] == [
        True,
        True,
        False,
        False,
    ]


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=20), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_swapping_the_predictors_mirrors_the_interval(pairs: list[tuple[float, float]], seed: int) -> None:
    first, second = torch.tensor(pairs, dtype=torch.float64).T
    one = paired_bootstrap(first, second, samples=50, seed=seed)
    other = paired_bootstrap(second, first, samples=50, seed=seed)
    assert (one.mean, one.low, one.high) == pytest.approx((-other.mean, -other.high, -other.low), abs=1e-12)


def test_the_seed_alone_decides_what_is_drawn() -> None:
    first, second = two_losses(50)
    before = torch.get_rng_state()
    one = paired_bootstrap(first, second, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    assert paired_bootstrap(first, second, seed=1) == one
    assert paired_bootstrap(first, second, seed=2) != one


def test_memory_does_not_grow_with_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    randint = torch.randint

    def recorded(high: int, size: tuple[int, int], generator: torch.Generator) -> Tensor:
        drawn.append(size)
        return randint(high, size, generator=generator)

    monkeypatch.setattr(torch, "randint", recorded)
    paired_bootstrap(*two_losses(300_000), samples=8)
    assert drawn == [(3, 300_000), (3, 300_000), (2, 300_000)]


def test_a_statistic_that_is_a_mean_has_the_interval_of_the_mean() -> None:
    first, second = two_scores()
    found = paired_bootstrap_of(Scores.brier_score, first, second, samples=100, seed=4)
    expected = paired_bootstrap(first.brier, second.brier, samples=100, seed=4)
    assert astuple(found) == pytest.approx(astuple(expected), abs=1e-12)


def test_a_calibration_error_is_bootstrapped_over_the_same_examples_of_both() -> None:
    first, second = two_scores()
    found = paired_bootstrap_of(Scores.expected_calibration_error, first, second)
    assert found.mean == first.expected_calibration_error() - second.expected_calibration_error()
    assert found.low > 0  # the first is three times too sure
    same = paired_bootstrap_of(Scores.expected_calibration_error, first, first, samples=20)
    assert same == Difference(0, 0, 0)


def test_scipy_finds_the_same_difference_over_seeds() -> None:
    first, second = [0.93, 0.94, 0.91, 0.95], [0.92, 0.92, 0.92, 0.93]
    found = seed_difference(first, second)
    assert found.mean == pytest.approx(0.01)
    assert found.standard_error == pytest.approx(stats.sem(np.subtract(first, second)))
    assert found.mean / found.standard_error == pytest.approx(stats.ttest_rel(first, second).statistic)
    assert found.seeds == 4


def test_the_documented_numbers_of_standard_errors_are_those_of_student() -> None:
    assert [round(stats.t.ppf(0.975, seeds - 1), 1) for seeds in (3, 5, 10)] == [4.3, 2.8, 2.3]


@pytest.mark.parametrize(
    ("first", "second", "settings", "message"),
    [
        (torch.zeros(3), torch.zeros(4), {}, r"of the same examples, got \[3\] and \[4\]"),
        (torch.zeros(3, 1), torch.zeros(3, 1), {}, r"got \[3, 1\] and \[3, 1\]"),
        (torch.zeros(0), torch.zeros(0), {}, "at least one example, got none"),
        (torch.tensor([math.nan]), torch.zeros(1), {}, "must be finite"),
        (torch.zeros(3), torch.zeros(3), {"samples": 0}, "samples must be at least 1, got 0"),
        (torch.zeros(3), torch.zeros(3), {"confidence": 95}, "between 0 and 1, got 95"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    first: Tensor, second: Tensor, settings: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        paired_bootstrap(first, second, **settings)  # type: ignore[arg-type]


def test_scores_of_different_sets_are_refused() -> None:
    first, second = two_scores()
    with pytest.raises(ValueError, match="of the same examples, got 200 and 2"):
        paired_bootstrap_of(Scores.accuracy, first, second.take(torch.tensor([0, 1])))


def test_seeds_that_are_no_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="runs of the same seeds, got 2 and 1"):
        seed_difference([1, 2], [1])
    with pytest.raises(ValueError, match="at least two seeds, got 1"):
        seed_difference([1], [2])

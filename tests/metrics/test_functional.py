import json
import math
from collections.abc import Callable
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss
from torch import Tensor

from pfge.metrics import (
    accuracy,
    area_under_risk_coverage,
    brier_score,
    expected_calibration_error,
    maximum_calibration_error,
    negative_log_likelihood,
    reliability,
)

METRICS: list[Callable[[Tensor, Tensor], object]] = [
    accuracy,
    negative_log_likelihood,
    brier_score,
    expected_calibration_error,
    maximum_calibration_error,
    area_under_risk_coverage,
    reliability,
]

P = torch.tensor([[0.95, 0.05], [0.65, 0.35], [0.15, 0.85], [0.25, 0.75]])
Y = torch.tensor([0, 1, 1, 1])


def of_confidences(confidences: list[float], right: list[bool]) -> tuple[Tensor, Tensor]:
    """Predictions of class 0 of two, with these confidences of at least a half."""
    first = torch.tensor(confidences, dtype=torch.float64)
    return torch.stack([first, 1 - first], dim=1), torch.tensor([0 if each else 1 for each in right])


def random_predictions(examples: int = 200, classes: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    probabilities = (2 * torch.randn(examples, classes, generator=generator, dtype=torch.float64)).softmax(1)
    return probabilities, torch.randint(classes, (examples,), generator=generator)


def test_values_worked_out_by_hand() -> None:
    assert accuracy(P, Y) == 0.75
    expected = -(math.log(0.95) + math.log(0.35) + math.log(0.85) + math.log(0.75)) / 4
    assert negative_log_likelihood(P, Y) == pytest.approx(expected)
    # Squared distances to the one-hot targets: 2 * 0.05^2, 2 * 0.65^2, 2 * 0.15^2, 2 * 0.25^2.
    assert brier_score(P, Y) == pytest.approx((0.005 + 0.845 + 0.045 + 0.125) / 4)
    # Ten bins: 0.95 (right), 0.65 (wrong), 0.85 (right), 0.75 (right), each alone in its bin.
    assert expected_calibration_error(P, Y, bins=10) == pytest.approx((0.05 + 0.65 + 0.15 + 0.25) / 4)
    # One bin: accuracy 0.75 and confidence 0.8.
    assert expected_calibration_error(P, Y, bins=1) == pytest.approx(0.05)
    assert maximum_calibration_error(P, Y, bins=10) == pytest.approx(0.65)
    # Two bins of equal mass: 0.65 (wrong) and 0.75 (right), then 0.85 and 0.95 (both right).
    assert expected_calibration_error(P, Y, bins=2, equal_mass=True) == pytest.approx((0.2 + 0.1) / 2)
    # From most to least confident: right, right, right, wrong.
    assert area_under_risk_coverage(P, Y) == pytest.approx((0 + 0 + 0 + 1 / 4) / 4)


def test_scikit_learn_agrees() -> None:
    probabilities, targets = random_predictions()
    p, y = probabilities.numpy(), targets.numpy()
    assert accuracy(probabilities, targets) == pytest.approx(accuracy_score(y, p.argmax(1)))
    assert negative_log_likelihood(probabilities, targets) == pytest.approx(log_loss(y, p, labels=range(5)))
    assert brier_score(probabilities, targets) == pytest.approx(
        brier_score_loss(y, p, labels=range(5), scale_by_half=False)
    )


def test_calibration_error_agrees_with_a_plain_transcription() -> None:
    probabilities, targets = random_predictions()
    p, y = probabilities.numpy(), targets.numpy()
    confidence, right = p.max(1), p.argmax(1) == y
    expected = 0.0
    for low, high in zip(np.arange(15) / 15, np.arange(1, 16) / 15, strict=True):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert expected_calibration_error(probabilities, targets) == pytest.approx(expected, abs=1e-12)


def test_a_probability_of_zero_does_not_make_the_mean_infinite() -> None:
    value = negative_log_likelihood(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert value == pytest.approx(-math.log(torch.finfo(torch.float32).tiny))


@pytest.mark.parametrize(
    ("probabilities", "targets", "message"),
    [
        (P * 2, Y, r"must sum to 1 .* sums to 2; apply softmax"),
        (P.clone().index_fill(0, torch.tensor([2]), math.nan), Y, r"a row \(2\) that sums to nan"),
        (torch.tensor([[1.5, -0.5]]), Y[:1], r"entries from -0.5 in a row \(0\)"),
        (P, Y + 1, "targets must be whole numbers from 0 to 1, got torch.int64 from 1 to 2"),
        (P, Y.float(), "whole numbers from 0 to 1, got torch.float32"),
        (P, Y[:3], r"targets must be \[4\], .* predictions \[4, 2\], got \[3\]; .* task=MultiLabel\(\)"),
        (P[:0], Y[:0], "at least one example, got none"),
        (P[:, :1], Y, "at least two classes, got 1"),
    ],
)
def test_what_is_no_prediction_is_refused(probabilities: Tensor, targets: Tensor, message: str) -> None:
    for metric in METRICS:
        with pytest.raises(ValueError, match=message):
            metric(probabilities, targets)


def test_targets_may_be_of_any_integer_type() -> None:
    for metric in METRICS:
        assert metric(P, Y.to(torch.int32)) == metric(P, Y.to(torch.uint8)) == metric(P, Y)


# Bins


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_scikit_learn_finds_the_same_bins_of_equal_width(bins: int) -> None:
    probabilities, targets = random_predictions()
    p, right = probabilities.numpy(), probabilities.numpy().argmax(1) == targets.numpy()
    accuracies, confidences = calibration_curve(right, p.max(1), n_bins=bins)
    found = reliability(probabilities, targets, bins=bins)
    filled = [number for number, count in enumerate(found.count) if count]
    assert [found.accuracy[number] for number in filled] == pytest.approx(accuracies)
    assert [found.confidence[number] for number in filled] == pytest.approx(confidences)
    assert found.maximum_calibration_error == pytest.approx(abs(accuracies - confidences).max())


@pytest.mark.parametrize("bins", [1, 7, 15, 250])
def test_bins_of_equal_mass_are_those_of_numpy(bins: int) -> None:
    probabilities, targets = random_predictions()
    p, right = probabilities.numpy(), probabilities.numpy().argmax(1) == targets.numpy()
    order = p.max(1).argsort()
    confidences = np.array_split(p.max(1)[order], bins)
    rights = np.array_split(right[order], bins)
    found = reliability(probabilities, targets, bins=bins, equal_mass=True)
    assert list(found.count) == [len(part) for part in confidences]
    filled = min(bins, len(targets))
    assert found.confidence[:filled] == pytest.approx([part.mean() for part in confidences[:filled]])
    assert found.accuracy[:filled] == pytest.approx([part.mean() for part in rights[:filled]])
    assert found.lower[:filled] == pytest.approx([part.min() for part in confidences[:filled]])
    assert found.upper[:filled] == pytest.approx([part.max() for part in confidences[:filled]])
    gap = sum(abs(b.sum() - a.sum()) for a, b in zip(confidences, rights, strict=True)) / len(targets)
    assert expected_calibration_error(probabilities, targets, bins, equal_mass=True) == pytest.approx(gap)


@pytest.mark.parametrize("bins", [4, 10, 15, 49])
def test_an_upper_bound_belongs_to_its_bin(bins: int) -> None:
    bounds = [number / bins for number in range(1, bins + 1) if number / bins > 0.5]
    found = reliability(*of_confidences(bounds, [True] * len(bounds)), bins=bins)
    assert found.count == (0,) * (bins - len(bounds)) + (1,) * len(bounds)
    assert found.upper[-len(bounds) :] == tuple(bounds)


def test_equal_confidences_share_their_accuracy_between_bins_of_equal_mass() -> None:
    # One of three at 0.6 is right. Two bins of two: [0.6, 0.6] and [0.6, 0.9].
    found = reliability(*of_confidences([0.6, 0.9, 0.6, 0.6], [True, True, False, False]), 2, equal_mass=True)
    assert found.accuracy == pytest.approx((1 / 3, (1 / 3 + 1) / 2))
    assert found.confidence == pytest.approx((0.6, 0.75))


def test_an_empty_bin_has_numbers_that_json_can_hold() -> None:
    for equal_mass in (False, True):
        found = reliability(P, Y, bins=6, equal_mass=equal_mass)
        assert 0 in found.count
        assert json.loads(json.dumps(found.to_dict(), allow_nan=False)) == found.to_dict()
        assert sum(found.to_dict()["count"]) == 4


@given(
    st.lists(st.tuples(st.sampled_from([0.55, 0.6, 0.8, 1.0]), st.booleans()), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
)
@settings(max_examples=30, deadline=None)
def test_no_metric_depends_on_the_order_of_the_examples(
    examples: list[tuple[float, bool]], random: object
) -> None:
    shuffled = list(examples)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    (one, other) = (of_confidences(*map(list, zip(*each, strict=True))) for each in (examples, shuffled))
    assert area_under_risk_coverage(*one) == area_under_risk_coverage(*other)
    assert reliability(*one) == reliability(*other)
    assert reliability(*one, bins=4, equal_mass=True) == reliability(*other, bins=4, equal_mass=True)


def test_less_than_one_bin_is_refused() -> None:
    with pytest.raises(ValueError, match="bins must be at least 1, got 0"):
        expected_calibration_error(P, Y, bins=0)


# Risk and coverage


def test_risk_coverage_agrees_with_a_plain_transcription() -> None:
    probabilities, targets = random_predictions()
    p, y = probabilities.numpy(), targets.numpy()
    wrong = (p.argmax(1) != y)[np.argsort(-p.max(1))]
    expected = np.mean([wrong[:k].mean() for k in range(1, len(y) + 1)])
    assert area_under_risk_coverage(probabilities, targets) == pytest.approx(expected, abs=1e-12)


def test_risk_coverage_with_equal_confidences_is_the_mean_over_their_orders() -> None:
    confidences = [0.9, 0.7, 0.7, 0.7, 0.6, 0.6]
    wrong = np.array([0, 1, 0, 0, 1, 0])
    areas = [
        np.mean([wrong[list(order[:k])].mean() for k in range(1, 7)])
        for order in permutations(range(6))
        if all(confidences[a] >= confidences[b] for a, b in pairwise(order))
    ]
    assert len(areas) == 6 * 2
    found = area_under_risk_coverage(*of_confidences(confidences, [not each for each in wrong]))
    assert found == pytest.approx(np.mean(areas))


def confident_logits() -> tuple[Tensor, Tensor]:
    """Logits of which some targets have a probability that float16 rounds to 0."""
    generator = torch.Generator().manual_seed(0)
    return 4.5 * torch.randn(500, 10, generator=generator), torch.randint(10, (500,), generator=generator)


@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.bfloat16, 1.0), (torch.float16, 1.0), (torch.float16, 0.3)]
)
@pytest.mark.parametrize("metric", METRICS[:6])
def test_probabilities_of_half_precision_have_nearly_the_metrics_of_float32(
    metric: Callable[[Tensor, Tensor], float], dtype: torch.dtype, scale: float
) -> None:
    logits, targets = confident_logits()
    # The same logits for both, as only the rounding of probabilities is looked at.
    logits = (scale * logits).to(dtype)
    expected = metric(logits.float().softmax(dim=1), targets)
    assert metric(logits.softmax(dim=1), targets) == pytest.approx(expected, rel=0.01, abs=0.005)


def test_a_zero_of_float16_counts_as_its_least_number_and_not_as_that_of_float32() -> None:
    zero = torch.tensor([[1.0, 0.0]])
    assert negative_log_likelihood(zero.half(), torch.tensor([1])) == pytest.approx(-math.log(2**-24))
    assert negative_log_likelihood(zero.bfloat16(), torch.tensor([1])) == pytest.approx(126 * math.log(2))
    assert negative_log_likelihood(zero, torch.tensor([1])) == pytest.approx(126 * math.log(2))


def test_rows_of_bfloat16_are_divided_by_their_sum() -> None:
    # 0.999 and 0.001 are rounded to 1 and 0.001.
    p = torch.tensor([[0.999, 0.001]]).bfloat16()
    assert p[0, 0] == 1
    assert negative_log_likelihood(p, torch.tensor([0])) == pytest.approx(0.001, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_many_classes_in_half_precision_are_probabilities(dtype: torch.dtype) -> None:
    even = torch.full((1, 50_257), 1 / 50_257).to(dtype)
    assert negative_log_likelihood(even, torch.tensor([3])) == pytest.approx(math.log(50_257), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_logits_of_any_type_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="apply softmax to logits first"):
        accuracy(torch.tensor([[0.9, 0.15]]).to(dtype), torch.tensor([0]))

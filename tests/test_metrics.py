import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss
from torch import Tensor

from pfge import accuracy, brier_score, expected_calibration_error, negative_log_likelihood

P = torch.tensor([[0.95, 0.05], [0.65, 0.35], [0.15, 0.85], [0.25, 0.75]])
Y = torch.tensor([0, 1, 1, 1])


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
        (torch.tensor([[1.5, -0.5]]), Y[:1], "without negative"),
        (P, Y + 1, "targets must be whole numbers from 0 to 1, got torch.int64 from 1 to 2"),
        (P, Y.float(), "whole numbers from 0 to 1, got torch.float32"),
        (P, Y[:3], r"got \[4, 2\] and \[3\]"),
        (P[:0], Y[:0], "at least one example, got none"),
        (P[:, :1], Y, "at least two classes, got 1"),
    ],
)
def test_what_is_no_prediction_is_refused(probabilities: Tensor, targets: Tensor, message: str) -> None:
    for metric in (accuracy, negative_log_likelihood, brier_score, expected_calibration_error):
        with pytest.raises(ValueError, match=message):
            metric(probabilities, targets)

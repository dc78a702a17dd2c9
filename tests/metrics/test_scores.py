from collections.abc import Callable

import pytest
import torch
from scipy.stats import entropy
from torch import Tensor

from pfge.metrics import (
    Scores,
    accuracy,
    area_under_risk_coverage,
    brier_score,
    expected_calibration_error,
    maximum_calibration_error,
    negative_log_likelihood,
    predictive_entropy,
    score_examples,
)

SAME: list[tuple[Callable[[Scores], float], Callable[[Tensor, Tensor], float]]] = [
    (Scores.accuracy, accuracy),
    (Scores.negative_log_likelihood, negative_log_likelihood),
    (Scores.brier_score, brier_score),
    (Scores.expected_calibration_error, expected_calibration_error),
    (
        lambda scores: scores.expected_calibration_error(7, equal_mass=True),
        lambda p, y: expected_calibration_error(p, y, 7, equal_mass=True),
    ),
    (Scores.maximum_calibration_error, maximum_calibration_error),
    (Scores.area_under_risk_coverage, area_under_risk_coverage),
    (Scores.mean_entropy, lambda p, y: predictive_entropy(p).mean().item()),  # noqa: ARG005
]


def predictions(examples: int = 50, classes: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    # Few distinct rows, so that confidences tie.
    rows = (2 * torch.randn(20, classes, generator=generator)).softmax(1)
    probabilities = rows[torch.randint(20, (examples,), generator=generator)]
    return probabilities, torch.randint(classes, (examples,), generator=generator)


def test_the_scores_of_one_example_worked_out_by_hand() -> None:
    scores = score_examples(torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([1]))
    assert scores.confidence.tolist() == [0.5]
    assert scores.correct.tolist() == [0]
    assert scores.log_loss.tolist() == pytest.approx([torch.tensor(4.0).log().item()])
    # 0.5^2 + 0.75^2 + 0.25^2
    assert scores.brier.tolist() == pytest.approx([0.875])
    assert scores.entropy.tolist() == pytest.approx([entropy([0.5, 0.25, 0.25])])


@pytest.mark.parametrize(("of_scores", "of_predictions"), SAME)
def test_every_metric_of_predictions_is_that_of_their_scores(
    of_scores: Callable[[Scores], float], of_predictions: Callable[[Tensor, Tensor], float]
) -> None:
    p, y = predictions()
    assert of_scores(score_examples(p, y)) == pytest.approx(of_predictions(p, y), abs=1e-12)


def test_taken_examples_may_repeat() -> None:
    scores = score_examples(*predictions())
    taken = scores.take(torch.tensor([4, 4, 0]))
    assert len(taken) == 3
    for column, whole in zip(taken.tensors.values(), scores.tensors.values(), strict=True):
        assert column.tolist() == [whole[4].item(), whole[4].item(), whole[0].item()]

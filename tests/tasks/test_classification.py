"""What classes mean, against torch and closed forms."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pfge.tasks import Classification, Task
from pfge.tasks.classification import require_classification
from tests.tasks.fractions import Fractions

TASK = Classification()
GENERATOR = torch.Generator().manual_seed(0)
LOGITS = 3 * torch.randn(40, 4, generator=GENERATOR)
TARGETS = torch.randint(4, (40,), generator=GENERATOR)


def test_its_repr_is_the_constructor_call_and_equal_tasks_are_one_value() -> None:
    assert repr(TASK) == "Classification()"
    assert eval(repr(TASK)) == TASK
    assert len({TASK, Classification()}) == 1


def test_the_loss_is_the_mean_or_the_sum_of_the_cross_entropy() -> None:
    by_hand = LOGITS.double().exp().sum(dim=1).log() - LOGITS.double()[torch.arange(40), TARGETS]
    assert TASK.loss(LOGITS, TARGETS).item() == pytest.approx(by_hand.mean().item(), rel=1e-5)
    assert TASK.loss(LOGITS, TARGETS, reduction="sum").item() == pytest.approx(by_hand.sum().item(), rel=1e-5)


def test_the_loss_can_be_followed_down_in_the_type_of_the_model() -> None:
    logits = LOGITS.bfloat16().requires_grad_()
    loss = TASK.loss(logits, TARGETS)
    assert loss.dtype == torch.bfloat16
    (gradient,) = torch.autograd.grad(loss, logits)
    expected = (logits.float().softmax(dim=1) - nn.functional.one_hot(TARGETS, 4)) / 40
    torch.testing.assert_close(gradient.float(), expected, rtol=0.05, atol=1e-3)


def test_predictions_are_softmax_in_float32() -> None:
    odds = LOGITS.double().exp()
    torch.testing.assert_close(TASK.predictions(LOGITS), (odds / odds.sum(dim=1, keepdim=True)).float())
    assert TASK.predictions(LOGITS.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize(
    ("outputs", "found"),
    [
        (torch.zeros(5), r"\[5\]"),
        (torch.zeros(2, 3, 8, 8), r"\[2, 3, 8, 8\]"),
        ({"logits": LOGITS}, "dict"),
        ((LOGITS,), "tuple"),
    ],
)
def test_outputs_that_are_no_logits_of_classes_are_refused(outputs: Any, found: str) -> None:
    with pytest.raises(ValueError, match=rf"must return logits \[N, C\], got {found}; pass forward= to pick"):
        TASK.predictions(outputs)


def test_the_pool_is_the_mean_of_the_probabilities() -> None:
    pool = TASK.pool()
    pool.add(torch.tensor([[0.9, 0.1]]))
    pool.add(torch.tensor([[0.2, 0.8]]))
    torch.testing.assert_close(pool.result(), torch.tensor([[0.55, 0.45]]).double())


def test_every_metric_has_its_value_by_hand() -> None:
    probabilities = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    assert TASK.summarize(TASK.score(probabilities, torch.tensor([0, 1, 1]))) == {
        "accuracy": pytest.approx(2 / 3),
        # -(log 0.9 + log 0.8 + log 0.4) / 3
        "nll": pytest.approx((0.1053605 + 0.2231436 + 0.9162907) / 3),
        # (2 * 0.01 + 2 * 0.04 + 2 * 0.36) / 3
        "brier": pytest.approx(0.82 / 3),
        # each alone in its bin: gaps 0.1, 0.2 and 0.6
        "ece": pytest.approx(0.9 / 3),
        "ece_equal_mass": pytest.approx(0.9 / 3),
        "mce": pytest.approx(0.6),
        # by confidence right, right, wrong: errors 0, 0 and 1/3
        "aurc": pytest.approx(1 / 9),
        # -sum p log p: 0.325083, 0.500402 and 0.673012
        "entropy": pytest.approx((0.325083 + 0.500402 + 0.673012) / 3, rel=1e-5),
    }


def test_a_metric_is_found_by_its_name() -> None:
    assert TASK.metric("nll").compute(TASK.score(torch.tensor([[0.25, 0.75]]), torch.tensor([0]))) == (
        pytest.approx(math.log(4))
    )
    with pytest.raises(ValueError, match=r"metrics of Classification\(\) are accuracy, nll, .*, got 'rmse'"):
        TASK.metric("rmse")


def test_metrics_that_are_means_over_examples_name_the_score_they_are_the_mean_of() -> None:
    scores = TASK.score(TASK.predictions(LOGITS), TARGETS)
    means = {metric.name: getattr(scores, metric.score) for metric in TASK.metrics if metric.score}
    assert means.keys() == {"accuracy", "nll", "brier", "entropy"}
    for name, values in means.items():
        assert TASK.metric(name).compute(scores) == pytest.approx(values.mean().item())


def test_the_divergence_is_that_of_kullback_and_leibler() -> None:
    expected, found = TASK.predictions(LOGITS), TASK.predictions(LOGITS.flip(0))
    torch_says = nn.functional.kl_div(found.double().log(), expected.double(), reduction="batchmean")
    assert TASK.divergence(expected, found) == pytest.approx(torch_says.item())
    assert TASK.divergence(expected, expected) == 0


def test_the_calibration_is_the_temperature_of_least_loss() -> None:
    predictions = TASK.predictions(LOGITS)
    fitted = TASK.fit_calibration(predictions, TARGETS)

    def nll(temperature: float) -> float:
        scaled: Tensor = LOGITS.double() / temperature
        return nn.functional.cross_entropy(scaled, TARGETS).item()

    assert nll(fitted) < min(nll(fitted * 1.01), nll(fitted / 1.01))
    torch.testing.assert_close(TASK.calibrate(predictions, fitted), (LOGITS / fitted).softmax(dim=1))
    assert TASK.calibrate(predictions, 1.0) is predictions


def test_what_needs_classes_says_what_it_got() -> None:
    require_classification(TASK, "a cascade")
    task: Task = Fractions(places=2)
    with pytest.raises(
        ValueError, match=r"a cascade needs a task with one class .* got Fractions\(places=2\)"
    ):
        require_classification(task, "a cascade")

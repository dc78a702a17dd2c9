"""What labels mean, against torch, scikit-learn and closed forms."""

import math

import pytest
import torch
from sklearn.metrics import average_precision_score, brier_score_loss, f1_score, log_loss
from torch import Tensor, nn

from pfge import Ensemble
from pfge.calibration import scale_label_probabilities
from pfge.tasks import MultiLabel

TASK = MultiLabel()
GENERATOR = torch.Generator().manual_seed(0)
TARGETS = torch.randint(2, (60, 3), generator=GENERATOR)
LOGITS = 2 * torch.randn(60, 3, generator=GENERATOR) + TARGETS


def test_the_loss_is_that_of_torch() -> None:
    expected = nn.functional.binary_cross_entropy_with_logits(LOGITS, TARGETS.float())
    torch.testing.assert_close(TASK.loss(LOGITS, TARGETS), expected)
    torch.testing.assert_close(TASK.loss(LOGITS, TARGETS, reduction="sum"), expected * 60)


def test_metrics_are_those_of_scikit_learn() -> None:
    predictions = TASK.predictions(LOGITS)
    found = TASK.summarize(TASK.score(predictions, TARGETS))
    p, y = predictions.numpy(), TARGETS.numpy()
    assert found["macro_f1"] == pytest.approx(f1_score(y, p > 0.5, average="macro"))
    assert found["average_precision"] == pytest.approx(average_precision_score(y, p, average="macro"))
    assert found["nll"] == pytest.approx(log_loss(y.ravel(), p.ravel()))
    assert found["brier"] == pytest.approx(brier_score_loss(y.ravel(), p.ravel()))


def test_the_calibration_error_compares_probabilities_with_how_often_labels_apply() -> None:
    predictions = torch.tensor([[0.1, 0.1], [0.1, 0.9]], dtype=torch.float64)
    # Three in the bin of 0.1, one of which applies, and one of 0.9, which does.
    found = TASK.summarize(TASK.score(predictions, torch.tensor([[1, 0], [0, 1]])))
    assert found["ece"] == pytest.approx((3 * (1 / 3 - 0.1) + (1 - 0.9)) / 4)


def test_predictions_tell_sure_labels_apart() -> None:
    p = TASK.predictions(torch.tensor([[20.0, -20.0]]))
    assert (1 - p[0, 0]).item() == pytest.approx(math.exp(-20), rel=1e-6)
    wrong = TASK.summarize(TASK.score(p, torch.tensor([[0, 1]])))
    assert wrong["nll"] == pytest.approx(20, rel=1e-6)


def test_each_label_has_the_temperature_of_least_loss() -> None:
    predictions = TASK.predictions(LOGITS)
    fitted = TASK.fit_calibration(predictions, TARGETS)
    assert len(fitted) == 3

    def nll(label: int, temperature: float) -> float:
        scaled: Tensor = LOGITS[:, label].double() / temperature
        return nn.functional.binary_cross_entropy_with_logits(scaled, TARGETS[:, label].double()).item()

    for label, t in enumerate(fitted):
        assert nll(label, t) < min(nll(label, t * 1.01), nll(label, t / 1.01))
    expected = (LOGITS.double() / torch.tensor(fitted)).sigmoid()
    torch.testing.assert_close(TASK.calibrate(predictions, fitted), expected)
    assert TASK.calibrate(predictions, 1.0) is predictions


def test_a_label_that_no_example_has_keeps_the_temperature_1() -> None:
    targets = TARGETS.clone()
    targets[:, 1] = 0
    sure = TASK.predictions(LOGITS.index_copy(1, torch.tensor([1]), torch.full((60, 1), -5.0)))
    with pytest.warns(UserWarning, match=r"temperatures of 1 of 3 labels stay 1, .* \(1: no class is more"):
        fitted = TASK.fit_calibration(sure, targets)
    assert fitted[1] == 1
    assert fitted[0] != 1


def test_temperatures_for_other_labels_are_refused() -> None:
    predictions = TASK.predictions(LOGITS)
    with pytest.raises(ValueError, match=r"each of 3 labels has a temperature, got 2 for .* \[60, 3\]"):
        TASK.calibrate(predictions, (1.0, 2.0))


def test_divergence_and_spread_are_means_over_labels() -> None:
    one, two = TASK.predictions(LOGITS), TASK.predictions(LOGITS.flip(0))
    kl = one * (one / two).log() + (1 - one) * ((1 - one) / (1 - two)).log()
    assert TASK.divergence(one, two) == pytest.approx(kl.mean().item())
    assert TASK.divergence(one, one) == 0
    diversity = TASK.diversity()
    diversity.add(one)
    diversity.add(two)
    found = diversity.metrics((one + two) / 2)
    assert found["disagreement"] == pytest.approx(((one > 0.5) != (two > 0.5)).double().mean().item())


@pytest.mark.parametrize("outputs", [torch.zeros(5), torch.zeros(5, 3, 2)])
def test_outputs_of_another_shape_are_refused(outputs: Tensor) -> None:
    with pytest.raises(ValueError, match=rf"MultiLabel\(\) takes logits \[N, L\], got \[{outputs.shape[0]}"):
        TASK.predictions(outputs)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.zeros(60), r"be \[N, L\], got \[60, 3\] and \[60\]"),
        (torch.full((60, 3), 2), r"targets \[60, 3\] of labels must be 0 or 1, got 2"),
        (torch.full((60, 3), torch.nan), r"must be 0 or 1, got nan"),
    ],
)
def test_targets_that_do_not_fit_are_refused(targets: Tensor, message: str) -> None:
    predictions = TASK.predictions(LOGITS)
    for use in (TASK.score, TASK.fit_calibration):
        with pytest.raises(ValueError, match=message):
            use(predictions, targets)
    if targets.ndim == 1:
        with pytest.raises(ValueError, match=r"be \[N, L\], got \[60, 3\] and \[60\]"):
            TASK.loss(LOGITS, targets)


def test_what_is_no_probability_is_refused() -> None:
    with pytest.raises(ValueError, match=r"probabilities \[60, 3\] .* got .*; apply sigmoid"):
        TASK.score(LOGITS, TARGETS)


def test_an_ensemble_predicts_float32_and_pools_and_scores_in_float64() -> None:
    x, targets = torch.ones(1, 1), torch.tensor([[0, 1]])
    members = [{"weight": torch.tensor([[z], [-z]])} for z in (20.0, 30.0)]
    ensemble = Ensemble(members, lambda: nn.Linear(1, 2, bias=False), task=TASK)
    uses = (ensemble.predict, ensemble.predict_members, ensemble.predict_variance, ensemble.as_module())
    assert [use(x).dtype for use in uses] == [torch.float32] * 4
    # -log of the mean of both probabilities of the answers, which float32 rounds to 0.
    expected = -math.log((math.exp(-20) + math.exp(-30)) / 2)
    assert ensemble.evaluate([(x, targets)]).negative_log_likelihood() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_label_that_is_rounded_to_1_costs_what_rounding_hides_and_not_87_nats(dtype: torch.dtype) -> None:
    p = torch.ones(1, 1, dtype=dtype)
    found = TASK.score(p, torch.zeros(1, 1)).negative_log_likelihood()
    below = (1 - torch.nextafter(p, torch.zeros_like(p)).double()).item()
    assert found == pytest.approx(-math.log(below / 2))
    assert scale_label_probabilities(p, 4.0).double().item() == pytest.approx(
        1 / (1 + (below / 2) ** 0.25), rel=torch.finfo(dtype).eps
    )

from typing import Any

import pytest
import torch
from torch import nn

from pfge import Ensemble
from pfge.calibration import Temperatures
from pfge.forward import call_model
from pfge.tasks import Raw

TASK = Raw()
OUTPUTS = torch.randn(3, 4, 2, 5, generator=torch.Generator().manual_seed(0))  # of three members


def make_ensemble(**options: object) -> Ensemble:
    """Three members whose outputs for the examples 0 to 3 are OUTPUTS."""
    members = [{"weight": outputs.reshape(4, 10)} for outputs in OUTPUTS]

    def forward(model: nn.Module, batch: Any) -> torch.Tensor:
        return call_model(model, batch).view(-1, 2, 5)

    return Ensemble(members, lambda: nn.Embedding(4, 10), task=TASK, forward=forward, **options)


def test_an_ensemble_gives_mean_and_variance_over_members_of_outputs_as_they_are() -> None:
    x = torch.arange(4)
    torch.testing.assert_close(make_ensemble().predict(x), OUTPUTS.mean(0))
    torch.testing.assert_close(make_ensemble().predict_members(x), OUTPUTS)
    torch.testing.assert_close(make_ensemble().predict_variance(x), OUTPUTS.var(0, correction=0))
    torch.testing.assert_close(make_ensemble().as_module()(x), OUTPUTS.mean(0))


def test_mean_and_variance_count_members_by_their_weights() -> None:
    weights = torch.tensor([0.5, 0.2, 0.3])
    ensemble = make_ensemble(temperatures=Temperatures(weights=tuple(weights.tolist())))
    mean = torch.einsum("k,k...->...", weights, OUTPUTS)
    torch.testing.assert_close(ensemble.predict(torch.arange(4)), mean)
    variance = torch.einsum("k,k...->...", weights, (OUTPUTS - mean).square())
    torch.testing.assert_close(ensemble.predict_variance(torch.arange(4)), variance)


def test_the_spread_is_the_mean_variance_over_entries() -> None:
    diversity = TASK.diversity()
    for member in OUTPUTS:
        diversity.add(member)
    expected = OUTPUTS.double().var(0, correction=0).mean().item()
    assert diversity.metrics(OUTPUTS.mean(0)) == {"variance": pytest.approx(expected)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_predictions_have_the_type_of_the_outputs(dtype: torch.dtype) -> None:
    def make_model() -> nn.Module:
        return nn.Linear(2, 3, dtype=dtype)

    ensemble = Ensemble([make_model().state_dict()], make_model, task=TASK)
    assert ensemble.predict(torch.ones(1, 2, dtype=dtype)).dtype == dtype


def test_the_metric_is_the_mean_squared_error() -> None:
    targets = torch.zeros(4, 2, 5)
    scores = make_ensemble().evaluate([(torch.arange(4), targets)])
    expected = OUTPUTS.mean(0).square().mean().item()
    assert TASK.summarize(scores) == {"mse": pytest.approx(expected, rel=1e-6)}
    assert TASK.loss(OUTPUTS.mean(0), targets).item() == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"shape of the outputs, \[4, 2, 5\], .*, got \[4, 2\]"):
        TASK.score(OUTPUTS[0], targets[..., 0])
    with pytest.raises(ValueError, match=r"shape of the outputs, \[4, 2, 5\], got \[4, 2\]"):
        TASK.loss(OUTPUTS[0], targets[..., 0])


def test_the_divergence_is_that_of_normal_distributions_of_variance_one() -> None:
    first, second = (torch.distributions.Normal(OUTPUTS[k].double(), 1.0) for k in (0, 1))
    expected = torch.distributions.kl_divergence(first, second).mean().item()
    assert TASK.divergence(OUTPUTS[0], OUTPUTS[1]) == pytest.approx(expected)


def test_a_calibration_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Raw\(\) has no calibration; use the ensemble without"):
        make_ensemble().calibrated([(torch.arange(4), OUTPUTS[0])])
    with pytest.raises(ValueError, match=r"Raw\(\) has no calibration, got 2.0"):
        make_ensemble(temperatures=Temperatures(2.0)).predict(torch.arange(4))


@pytest.mark.parametrize(
    ("outputs", "found"), [(torch.ones(3).long(), r"torch.int64 \[3\]"), ((1, 2), "tuple")]
)
def test_outputs_that_are_no_numbers_are_refused(outputs: object, found: str) -> None:
    with pytest.raises(ValueError, match=f"tensor of floating-point numbers .*, got {found}; pass forward="):
        TASK.predictions(outputs)

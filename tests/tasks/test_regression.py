"""What means and variances mean, against torch, scipy and closed forms."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from torch import Tensor, nn

from pfge.tasks import Regression

FIXED, PREDICTED = Regression(), Regression(noise="predicted")
GENERATOR = torch.Generator().manual_seed(0)
TARGETS = torch.randn(50, 2, generator=GENERATOR)
MEANS = TARGETS + 0.5 * torch.randn(50, 2, generator=GENERATOR)
LOG_VARIANCES = torch.randn(50, 2, generator=GENERATOR)
OUTPUTS = torch.stack([MEANS, LOG_VARIANCES], dim=-1)


def test_the_losses_are_those_of_torch() -> None:
    torch.testing.assert_close(FIXED.loss(MEANS, TARGETS), nn.functional.mse_loss(MEANS, TARGETS))
    nll = nn.functional.gaussian_nll_loss(MEANS, TARGETS, LOG_VARIANCES.exp(), full=True)
    torch.testing.assert_close(PREDICTED.loss(OUTPUTS, TARGETS), nll)
    torch.testing.assert_close(PREDICTED.loss(OUTPUTS, TARGETS, reduction="sum"), 50 * nll)


def test_a_column_of_outputs_meets_a_row_of_targets() -> None:
    # Broadcasting would compare each of 50 with each of 50.
    expected = nn.functional.mse_loss(MEANS[:, 0], TARGETS[:, 0])
    for outputs in (MEANS[:, :1], MEANS[:, 0]):
        for targets in (TARGETS[:, :1], TARGETS[:, 0]):
            torch.testing.assert_close(FIXED.loss(outputs, targets), expected)
            found = FIXED.summarize(FIXED.score(FIXED.predictions(outputs), targets))
            assert found["rmse"] == pytest.approx(expected.sqrt().item())


def test_predictions_are_means_and_variances() -> None:
    expected = torch.stack([MEANS, LOG_VARIANCES.exp()], dim=-1)
    torch.testing.assert_close(PREDICTED.predictions(OUTPUTS), expected)
    torch.testing.assert_close(PREDICTED.predictions(OUTPUTS[:, 0]), expected[:, :1])
    fixed = FIXED.predictions(MEANS.bfloat16())
    assert fixed.dtype == torch.float32
    assert torch.equal(fixed[..., 1], torch.ones(50, 2))


def test_metrics_are_those_of_the_normal_distribution() -> None:
    found = PREDICTED.summarize(PREDICTED.score(PREDICTED.predictions(OUTPUTS), TARGETS))
    mean, deviation = MEANS.double().numpy(), (LOG_VARIANCES.double() / 2).exp().numpy()
    y = TARGETS.double().numpy()
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)))
    assert found["nll"] == pytest.approx(-norm.logpdf(y, mean, deviation).mean(), rel=1e-6)
    low, high = norm.interval(0.9, mean, deviation)
    assert found["coverage"] == pytest.approx(((low <= y) & (y <= high)).mean())


def test_the_crps_is_the_integral_that_defines_it() -> None:
    scores = PREDICTED.score(torch.tensor([[1.0, 4.0], [-2.0, 0.25]]), torch.tensor([2.5, 1.0]))
    for found, mean, deviation, y in zip(
        scores.tensors["crps"].tolist(), (1.0, -2.0), (2.0, 0.5), (2.5, 1.0), strict=True
    ):
        below, _ = quad(lambda x, m=mean, s=deviation: norm.cdf(x, m, s) ** 2, -np.inf, y)
        above, _ = quad(lambda x, m=mean, s=deviation: norm.sf(x, m, s) ** 2, y, np.inf)
        assert found == pytest.approx(below + above, rel=1e-6)


def test_the_factor_on_predicted_variances_is_that_of_least_loss() -> None:
    predictions = PREDICTED.predictions(OUTPUTS)
    fitted = PREDICTED.fit_calibration(predictions, TARGETS)

    def nll(factor: float) -> float:
        scaled = PREDICTED.calibrate(predictions, factor)
        return PREDICTED.summarize(PREDICTED.score(scaled, TARGETS))["nll"]

    assert nll(fitted) < min(nll(fitted * 1.01), nll(fitted / 1.01))
    assert torch.equal(PREDICTED.calibrate(predictions, 3.0)[..., 1], 3 * predictions[..., 1])
    assert PREDICTED.calibrate(predictions, 1.0) is predictions


def pooled_of_fixed_noise() -> Tensor:
    pool = FIXED.pool()
    for shift in (-0.3, 0.1, 0.2):
        pool.add(FIXED.predictions(MEANS + shift * LOG_VARIANCES))
    return pool.result()


def test_the_fixed_noise_is_the_variance_of_least_loss_beside_the_members_own() -> None:
    predictions = pooled_of_fixed_noise()
    fitted = FIXED.fit_calibration(predictions, TARGETS)
    mean, spread = predictions[..., 0].numpy(), predictions[..., 1].numpy() - 1

    def nll(log_noise: float) -> float:
        return -norm.logpdf(TARGETS.numpy(), mean, np.sqrt(spread + np.exp(log_noise))).mean()

    best = minimize_scalar(nll, bounds=(-10, 5), method="bounded", options={"xatol": 1e-10})
    assert fitted == pytest.approx(math.exp(best.x), rel=1e-5)
    calibrated = FIXED.calibrate(predictions, fitted)
    torch.testing.assert_close(calibrated[..., 1].numpy(), spread + fitted)
    assert torch.equal(calibrated[..., 0], predictions[..., 0])


def test_the_fixed_noise_of_one_member_is_its_mean_squared_error() -> None:
    for scale in (1e-4, 1.0, 1e4):
        fitted = FIXED.fit_calibration(FIXED.predictions(MEANS * scale), TARGETS * scale)
        error = nn.functional.mse_loss(MEANS.double(), TARGETS.double()).item()
        assert fitted == pytest.approx(error * scale**2, rel=1e-4)


@pytest.mark.parametrize("task", [FIXED, PREDICTED])
def test_means_without_an_error_leave_the_variance_alone(task: Regression) -> None:
    exact = torch.stack([TARGETS, torch.ones_like(TARGETS)], dim=-1)
    with pytest.warns(UserWarning, match="stays 1, as its fit did not converge: every mean is its target"):
        assert task.fit_calibration(exact, TARGETS) == 1


def test_the_divergence_is_that_of_normal_distributions() -> None:
    one, two = PREDICTED.predictions(OUTPUTS), PREDICTED.predictions(OUTPUTS.flip(0))
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(one[..., 0], one[..., 1].sqrt()),
        torch.distributions.Normal(two[..., 0], two[..., 1].sqrt()),
    )
    assert PREDICTED.divergence(one, two) == pytest.approx(expected.mean().item(), rel=1e-5)
    assert PREDICTED.divergence(one, one) == 0
    with pytest.raises(ValueError, match=r"predictions \[N, D, 2\], got \[50, 2, 2\] and \[3, 2, 2\]"):
        PREDICTED.divergence(one, two[:3])


def test_the_spread_is_the_variance_of_the_means() -> None:
    diversity = PREDICTED.diversity()
    diversity.add(PREDICTED.predictions(OUTPUTS))
    assert diversity.metrics(torch.zeros(())) == {}
    diversity.add(PREDICTED.predictions(OUTPUTS + 2))
    assert diversity.metrics(torch.zeros(())) == {"variance_of_means": pytest.approx(1)}


@pytest.mark.parametrize(
    ("task", "outputs", "message"),
    [
        (FIXED, torch.zeros(5, 3, 8), r"takes means \[N\] or \[N, D\], got \[5, 3, 8\]"),
        (PREDICTED, torch.zeros(5, 3), r"\[N, 2\] or \[N, D, 2\], got \[5, 3\]"),
        (PREDICTED, torch.zeros(5), r"\[N, 2\] or \[N, D, 2\], got \[5\]"),
        (FIXED, {"mean": 1}, "got dict; pass forward= to pick it"),
    ],
)
def test_outputs_of_another_shape_are_refused(task: Regression, outputs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task.predictions(outputs)


def test_targets_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"targets must be \[50, 2\] .* \[50, 2, 2\], got \[50\]"):
        PREDICTED.score(PREDICTED.predictions(OUTPUTS), TARGETS[:, 0])
    with pytest.raises(ValueError, match=r"targets must be \[50\] or \[50, 1\] .* got \[50, 2\]"):
        PREDICTED.score(PREDICTED.predictions(OUTPUTS[:, 0]), TARGETS)
    with pytest.raises(ValueError, match=r"targets .* for outputs \[50, 2, 2\], got \[50\]"):
        PREDICTED.loss(OUTPUTS, TARGETS[:, 0])


@pytest.mark.parametrize("variance", [0.0, -1.0, torch.nan, torch.inf])
def test_a_variance_that_is_not_positive_is_refused(variance: float) -> None:
    predictions = PREDICTED.predictions(OUTPUTS)
    predictions[7, 1, 1] = variance
    for use in (PREDICTED.score, PREDICTED.fit_calibration, FIXED.fit_calibration):
        with pytest.raises(ValueError, match=rf"positive and finite, got {variance:g} for example 7 of \[50"):
            use(predictions, TARGETS)


def test_a_target_that_is_no_number_is_refused() -> None:
    targets = TARGETS.clone()
    targets[3, 0] = torch.nan
    with pytest.raises(ValueError, match=r"a target must be finite, got nan for example 3 of \[50, 2\]"):
        FIXED.score(FIXED.predictions(MEANS), targets)


def test_a_variance_that_float32_cannot_hold_counts_as_the_smallest() -> None:
    predictions = PREDICTED.predictions(torch.tensor([[0.0, -500.0]]))
    assert predictions[0, 0, 1] == torch.finfo(torch.float32).tiny
    assert math.isfinite(PREDICTED.summarize(PREDICTED.score(predictions, torch.tensor([0.0])))["nll"])


def test_coverage_is_best_at_its_aim() -> None:
    coverage = FIXED.metric("coverage")
    assert sorted((0.85, 0.9, 1.0), key=coverage.penalty) == [0.9, 0.85, 1.0]


def test_targets_too_small_for_a_variance_of_1_are_told() -> None:
    """The variance of members, 1e-16, is lost beside 1."""
    predictions = torch.tensor([[0.0, 1 + 1e-16], [0.0, 1 + 1e-16]], dtype=torch.float64)
    with pytest.warns(UserWarning, match="the mean squared error is 4e-16, .*; scale the targets to"):
        Regression().fit_calibration(predictions, torch.tensor([2e-8, -2e-8], dtype=torch.float64))

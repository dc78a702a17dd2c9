"""Regression with uncertainty
==============================

A network that predicts a mean and a variance knows the noise of the data. Members that differ know where
there was no data. Pooled, they give both.
"""

# %%
# Noisy data with a gap
# ---------------------

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pfge
from pfge.tasks import Regression

torch.manual_seed(0)


def sample(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return places left and right of a gap, and noisy values whose noise grows to the right."""
    places = torch.cat([torch.rand(count // 2) * 1.2 - 2, torch.rand(count - count // 2) * 1.4 + 0.6])
    noise = 0.05 + 0.12 * (places + 2)
    return places[:, None], torch.sin(2 * places) + noise * torch.randn(count)


train_x, train_y = sample(160)
validation_x, validation_y = sample(200)
test_x, test_y = sample(1000)
train = DataLoader(TensorDataset(train_x, train_y), batch_size=32, shuffle=True)

# %%
# The task
# --------
# Two outputs: a mean and the logarithm of a variance. The task has the loss, the pooling and the metrics.

task = Regression(noise="predicted")


def make_model() -> nn.Module:
    """Return a network with two outputs."""
    return nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Return the NLL of a normal distribution."""
    inputs, values = batch
    return task.loss(model(inputs), values)


model = make_model()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
pfge.follow(pfge.Trajectory(model, optimizer, pfge.Constant(3e-3), []), train, loss, iterations=600)

# %%
# Members
# -------
# Star starts every period from the same weights, so its members are free to differ. There is no BatchNorm
# here, so members are used as they are.

collector = pfge.collectors.Star(period=250, tail=25)
schedule = pfge.CosineRestarts(cycle=250, low=1e-4, high=2e-2)
pfge.follow(pfge.Trajectory(model, optimizer, schedule, [collector]), train, loss, iterations=1000)
ensemble = pfge.Ensemble.from_collector(collector, make_model, task=task)
calibrated = ensemble.calibrated([(validation_x, validation_y)])
print(f"factor on the variance: {calibrated.temperatures.pooled:.2f}")

# %%
# Two kinds of uncertainty
# ------------------------
# The pooled variance is the mean of the members' variances, the noise, plus the variance of their means,
# which is what the members do not agree on. It is large in the gap, and beyond the data.

places = torch.linspace(-2.6, 2.6, 200)[:, None]
each = calibrated.predict_members(places)[..., 0, :]
means, variances = each.unbind(-1)
mean, variance = calibrated.predict(places)[:, 0].unbind(-1)
noise, spread = variances.mean(0).sqrt(), means.std(0, unbiased=False)

figure, (top, bottom) = plt.subplots(2, 1, figsize=(6, 6), sharex=True, height_ratios=(2, 1))
at = places[:, 0]
reach = 1.645 * variance.sqrt()
top.fill_between(at, mean - reach, mean + reach, color="#d55e00", alpha=0.2, label="90 % interval")
top.plot(at, means.T, color="#d55e00", linewidth=0.7, alpha=0.7)
top.plot(at, mean, color="#d55e00", linewidth=2, label="pooled mean")
top.plot(train_x[:, 0], train_y, ".", color="#444444", markersize=4, label="training data")
top.legend()
bottom.plot(at, noise, color="#0072b2", label="noise: what the members predict")
bottom.plot(at, spread, color="#009e73", label="spread: what they do not agree on")
bottom.set(xlabel="x", ylabel="standard deviation")
bottom.legend()
figure.tight_layout()

# %%
# Is it true?
# -----------
# Of the test data, 90 % should lie in the 90 % interval.

shown = {"one member": ensemble.last(1), "all": ensemble, "all, calibrated": calibrated}
for name, predictor in shown.items():
    found = task.summarize(predictor.evaluate([(test_x, test_y)]))
    print(name.ljust(16), {key: round(value, 3) for key, value in found.items()})

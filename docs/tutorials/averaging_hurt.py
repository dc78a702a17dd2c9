"""Why did averaging hurt?
==========================

The mean of good models can be a bad model. Two causes explain most cases: BatchNorm statistics of other
weights, and points of different valleys. Each has a sign and a remedy.
"""

# %%
# A path whose average is better than its points
# ----------------------------------------------
# The rate of this path is high, so single points are worse than w0. Their mean is about as good as w0.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import pfge
from pfge import metrics
from pfge.weights import Weights, copy_weights, interpolate

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data / 16, dtype=torch.float32)
x = x + 0.1 * torch.randn_like(x)
y = torch.tensor(digits.target)
train = DataLoader(TensorDataset(x[:800], y[:800]), batch_size=40, shuffle=True)
test = DataLoader(TensorDataset(x[800:], y[800:]), batch_size=1000)


def make_model() -> nn.Module:
    """Return a new model with BatchNorm."""
    hidden = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(64, 10))


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Return what is minimized."""
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


def train_one(seed: int) -> nn.Module:
    """Return a model trained from its own start."""
    torch.manual_seed(seed)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = pfge.schedules.LinearDecay(300, 0.05, 1e-3)
    pfge.follow(pfge.Trajectory(model, optimizer, schedule, []), train, loss, iterations=300)
    return model


def error(weights: Weights, *, refreshed: bool = True) -> float:
    """Return the share of test images that weights get wrong."""
    ensemble = pfge.Ensemble([weights], make_model)
    if refreshed:
        ensemble = ensemble.with_fresh_batch_norm(train)
    return 1 - metrics.accuracy(ensemble.predict_batches(test), y[800:])


model = train_one(1)
w0 = copy_weights(model.state_dict())

optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
mean, points = pfge.SWA(20, average_start=False), pfge.FGE(20)
trajectory = pfge.Trajectory(model, optimizer, pfge.Triangular(20, 1e-3, 1.0), [mean, points])
pfge.follow(trajectory, train, loss, iterations=200)

each = [error(point) for point in points.members()]
print(f"w0 {error(w0):.2%}, single points {sum(each) / len(each):.2%} on average")
print(f"mean of the points {error(mean.members()[0]):.2%}")

# %%
# First cause: BatchNorm
# ----------------------
# The mean has other activations than the model that was trained, whose running statistics it was given.
# The sign: the mean is far worse than the points that it was made of. The remedy:
# ``with_fresh_batch_norm``.

stale, fresh = (error(mean.members()[0], refreshed=refreshed) for refreshed in (False, True))

figure, axes = plt.subplots(figsize=(6, 2.6))
names = ["single points, mean error", "mean, BatchNorm of the last point", "mean, fresh BatchNorm"]
errors = [100 * value for value in (sum(each) / len(each), stale, fresh)]
axes.barh(names, errors, color=["#888888", "#d55e00", "#0072b2"])
axes.set_xlabel("test error, %")
figure.tight_layout()

# %%
# Second cause: different valleys
# -------------------------------
# Two points of one path are not separated by a barrier: the middle is better than both. Between two trainings
# from different starts there is one: their mean is worse than both, although both are good. The remedy:
# average within one path, and pool predictions across trainings.

other = copy_weights(train_one(2).state_dict())
first, last = points.members()[4], points.members()[-1]
steps = [step / 10 for step in range(11)]
figure, axes = plt.subplots(figsize=(6, 3.6))
for name, (start, end), color in (
    ("two points of one path", (first, last), "#0072b2"),
    ("two independent trainings", (w0, other), "#d55e00"),
):
    axes.plot(steps, [100 * error(interpolate(start, end, t)) for t in steps], "o-", color=color, label=name)
pooled = pfge.Ensemble([w0, other], make_model).predict_batches(test)
pooled_error = 100 * (1 - metrics.accuracy(pooled, y[800:]))
axes.axhline(pooled_error, color="#d55e00", linestyle=":", label="both trainings, predictions pooled")
axes.set(xlabel="place on the straight line from one to the other", ylabel="test error, %", ylim=(0, None))
axes.legend()
figure.tight_layout()

# %%
# ``pfge diagnose RUN`` looks for these causes in a run, and recommends changes. ``pfge average --config``
# measures half-way between checkpoints before it averages them.

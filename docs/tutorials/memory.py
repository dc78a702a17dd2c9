"""Which method for my memory?
==============================

One model, four members or twenty? And in how many bits? This tutorial trains five methods from the same
start and draws what each is worth for its bytes.
"""

# %%
# The same start for all
# ----------------------

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import pfge
from pfge import metrics
from pfge.reports import appearance
from pfge.weights import copy_weights, load_weights

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data / 16, dtype=torch.float32)
x = x + 0.1 * torch.randn_like(x)
y = torch.tensor(digits.target)
train = DataLoader(TensorDataset(x[:600], y[:600]), batch_size=40, shuffle=True)
validation = DataLoader(TensorDataset(x[600:1000], y[600:1000]), batch_size=400)
test = DataLoader(TensorDataset(x[1000:], y[1000:]), batch_size=800)


def make_model() -> nn.Module:
    """Return a new model."""
    return nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Return what is minimized."""
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


def train_on(schedule: pfge.schedules.Schedule, collectors: list[pfge.Collector], n: int) -> None:
    """Train the model for n updates."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    pfge.follow(pfge.Trajectory(model, optimizer, schedule, collectors), train, loss, iterations=n)


model = make_model()
train_on(pfge.schedules.LinearDecay(300, 0.05, 5e-4), [], 300)
w0 = copy_weights(model.state_dict())

# %%
# Two paths for five methods
# --------------------------
# SWA, EMA, FGE and SWAG only watch, so they share one path. PFGE steers, and has a path of its own.

schedule = pfge.Triangular(cycle=30, low=5e-4, high=1.0)
watching = {
    "SWA": pfge.SWA(30, average_start=False),
    "EMA": pfge.EMA(0.98),
    "FGE": pfge.FGE(30),
    "SWAG": pfge.SWAG(30),
}
train_on(schedule, list(watching.values()), 600)

load_weights(model, w0)
steering = {"PFGE": pfge.PFGE(cycle=30, period=150, average_start=False)}
train_on(schedule, list(steering.values()), 600)

ensembles = {
    name: pfge.Ensemble.from_collector(collector, make_model).with_fresh_batch_norm(train)
    for name, collector in (watching | steering).items()
}
ensembles = {"w0": pfge.Ensemble([w0], make_model), **ensembles}

# %%
# Compress and calibrate
# ----------------------
# Members of one path share a base, stored once in 8 bits; three bits hold the difference of each from it.
# Every row gets a temperature from validation data, so overconfidence does not decide.

test_targets = y[1000:]


def quality(ensemble: pfge.Ensemble) -> float:
    """Return the test NLL at the temperature that validation data asks for."""
    calibrated = ensemble.calibrated(validation)
    return metrics.negative_log_likelihood(calibrated.predict_batches(test), test_targets)


points = {}
for name, ensemble in ensembles.items():
    small = pfge.compress(ensemble, pfge.Bits(3))
    points[name] = [(each.nbytes, quality(each)) for each in (ensemble, small)]
    for kind, (size, nll) in zip(("float32", "compressed"), points[name], strict=True):
        print(f"{name:5} {len(ensemble):2} members, {kind:10} {size:9,} bytes, NLL {nll:.4f}")

# %%
# The figure for your decision
# ----------------------------
# Filled is float32, hollow is compressed. Choose the lowest point to the left of what you can afford.

figure, axes = plt.subplots(figsize=(6, 4.5))
styles = appearance.styles(list(points))
for name, (before, after) in points.items():
    color = styles[name].light
    arrow = {"arrowstyle": "->", "color": color, "shrinkA": 5, "shrinkB": 5}
    axes.annotate("", after, before, arrowprops=arrow)
    axes.plot(*before, "o", color=color, markersize=9, label=f"{name}, {len(ensembles[name])}")
    axes.plot(*after, "o", color=color, markersize=9, markerfacecolor="white")
axes.axvline(points["w0"][0][0], color="#bbbbbb", linestyle=":")
axes.set(xscale="log", ylabel="test NLL at a temperature")
axes.set_xticks([1e4, 4e4, 1e5, 4e5, 8e5], ["10 kB", "40 kB", "100 kB", "400 kB", "800 kB"])
axes.minorticks_off()
axes.set_xlabel("bytes of the weights (dotted: one float32 model)")
axes.legend(title="method, members", ncols=2)
figure.tight_layout()

# %%
# One small data set and one seed only show how to draw the figure. ``pfge compare`` and ``pfge formats``
# make it for your data, over seeds, with intervals; ``pfge plan`` prints before training what would fit.

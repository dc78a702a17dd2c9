"""Calibrate and trust it
=========================

A model reports 99 % confidence and is right in 95 % of those cases. One number, the temperature, corrects
most of that. Where members disagree, an ensemble also shows what it does not know.
"""

# %%
# An ensemble that is too sure
# ----------------------------
# Few training images and many updates: the model fits all of them.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import pfge
from pfge import metrics

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data / 16, dtype=torch.float32)
x = x + 0.15 * torch.randn_like(x)
y = torch.tensor(digits.target)
train = DataLoader(TensorDataset(x[:400], y[:400]), batch_size=50, shuffle=True)
validation = DataLoader(TensorDataset(x[400:900], y[400:900]), batch_size=500)
test = DataLoader(TensorDataset(x[900:], y[900:]), batch_size=900)
targets = y[900:]


def make_model() -> nn.Module:
    """Return a new model."""
    return nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Return what is minimized."""
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
pfge.follow(pfge.Trajectory(model, optimizer, pfge.Constant(0.05), []), train, loss, iterations=300)
collector = pfge.PFGE(cycle=20, period=100, average_start=False)
trajectory = pfge.Trajectory(model, optimizer, pfge.Triangular(20, 1e-3, 1.0), [collector])
pfge.follow(trajectory, train, loss, iterations=400)
ensemble = pfge.Ensemble.from_collector(collector, make_model).with_fresh_batch_norm(train)

# %%
# Fit a temperature
# -----------------
# On validation data, never on training or test data. The loader must not shuffle.

calibrated = ensemble.calibrated(validation)
print(f"T = {calibrated.temperatures.pooled:.2f}")
for name, each in (("as it is", ensemble), ("at T", calibrated)):
    probabilities = each.predict_batches(test)
    print(
        f"{name:8} accuracy {metrics.accuracy(probabilities, targets):.2%}, "
        f"NLL {metrics.negative_log_likelihood(probabilities, targets):.4f}, "
        f"ECE {metrics.expected_calibration_error(probabilities, targets):.2%}"
    )

# %%
# Reliability
# -----------
# In each bar are the test images of about the same confidence. A calibrated model's bars end on the
# diagonal.

figure, panels = plt.subplots(1, 2, figsize=(6, 3.8), sharey=True)
shown = (("as it is", ensemble), ("at its temperature", calibrated))
for axes, (name, each) in zip(panels, shown, strict=True):
    found = metrics.reliability(each.predict_batches(test), targets, bins=8)
    for low, high, count, accuracy in zip(found.lower, found.upper, found.count, found.accuracy, strict=True):
        if count:
            axes.bar((low + high) / 2, accuracy, high - low, color="#d55e00", alpha=0.75, edgecolor="white")
    axes.plot([0, 1], [0, 1], color="#444444", linestyle=":")
    axes.set(title=name, xlabel="confidence", xlim=(0, 1), ylim=(0, 1))
panels[0].set_ylabel("share that is right")
figure.tight_layout()

# %%
# What it does not know
# ---------------------
# Images with shuffled pixels are not digits. The mutual information between the predicted class and the
# choice of the member is high where members disagree.

order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
known, unknown = x[900:], x[900:][:, order]
doubts = [metrics.mutual_information(calibrated.predict_members(inputs)) for inputs in (known, unknown)]

figure, axes = plt.subplots(figsize=(6, 3.2))
edges = torch.linspace(0, float(torch.cat(doubts).max()), 30).tolist()
labels, colors = ["digits", "shuffled pixels"], ["#0072b2", "#d55e00"]
axes.hist([doubt.tolist() for doubt in doubts], bins=edges, label=labels, color=colors)
axes.set(xlabel="mutual information, nats", ylabel="test images")
axes.legend()
figure.tight_layout()

# %%
# Refuse where it doubts
# ----------------------
# Leave the least confident images to a person: the error on the rest falls.

probabilities = calibrated.predict_batches(test)
sure = probabilities.max(1).values.sort(descending=True).indices
wrong = (probabilities.argmax(1) != targets).double()[sure].cumsum(0)
answered = torch.arange(1, len(targets) + 1)

figure, axes = plt.subplots(figsize=(6, 3.2))
axes.plot(100 * answered / len(targets), 100 * wrong / answered, color="#0072b2")
axes.set(xlabel="images answered, %", ylabel="error on them, %", xlim=(0, 100), ylim=(0, None))
figure.tight_layout()

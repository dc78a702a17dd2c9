"""Four members on a phone
==========================

Four members take four times the memory and four passes. Stored as one base and small differences they take
less than one model; evaluated as a cascade they take little more than one pass; and one ONNX file has
everything.
"""

# %%
# Four members
# ------------

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import onnxruntime
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import pfge
from pfge import metrics
from pfge.export import export_onnx

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
x = x + 0.15 * torch.randn_like(x)
y = torch.tensor(digits.target)
train = DataLoader(TensorDataset(x[:600], y[:600]), batch_size=30, shuffle=True)
validation = DataLoader(TensorDataset(x[800:1200], y[800:1200]), batch_size=400)
test = DataLoader(TensorDataset(x[1200:], y[1200:]), batch_size=600)
targets = y[1200:]


def make_model() -> nn.Module:
    """Return a small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1024, 10),
    )


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Return what is minimized."""
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
pfge.follow(pfge.Trajectory(model, optimizer, pfge.Constant(0.05), []), train, loss, iterations=200)
collector = pfge.PFGE(cycle=20, period=100, average_start=False)
trajectory = pfge.Trajectory(model, optimizer, pfge.Triangular(20, 1e-3, 0.6), [collector])
pfge.follow(trajectory, train, loss, iterations=400)
ensemble = pfge.Ensemble.from_collector(collector, make_model).with_fresh_batch_norm(train)
ensemble = ensemble.calibrated(validation)
one_model = ensemble.nbytes / len(ensemble)

# %%
# How few bits?
# -------------
# The base has 8 bits for each weight. Each member's difference from it has 1 to 8.

before = ensemble.predict_batches(test)
sizes, losses, divergences = [], [], []
widths = (1, 2, 3, 4, 6, 8)
for bits in widths:
    small = pfge.compress(ensemble, pfge.Bits(bits))
    after = small.predict_batches(test)
    sizes.append(small.nbytes / one_model)
    losses.append(metrics.negative_log_likelihood(after, targets))
    divergences.append(metrics.kl_divergence(before, after))

figure, (left, right) = plt.subplots(1, 2, figsize=(6, 3.5))
for axes, values, title in ((left, losses, "test NLL"), (right, divergences, "KL from float32, nats")):
    axes.plot(sizes, values, "o-", color="#d55e00")
    for bits, size, value in zip(widths, sizes, values, strict=True):
        axes.annotate(f"{bits}", (size, value), textcoords="offset points", xytext=(4, 5))
    axes.axvline(1, color="#bbbbbb", linestyle=":")
    axes.set(xlabel="memory, in float32 models", title=title)
left.axhline(metrics.negative_log_likelihood(before, targets), color="#444444", linewidth=0.8)
right.set_yscale("log")
figure.suptitle("four members; each point has its bits per weight and member", fontsize=10)
figure.tight_layout()

# %%
# Or let validation data decide: the smallest ensemble whose predictions diverge by at most 0.001 nats.

small = pfge.compress(ensemble, pfge.MaxLoss(kl=0.001), validation=validation)
print(f"{len(small)} members in {small.nbytes / one_model:.2f} times the memory of one model")

# %%
# How few passes?
# ---------------
# A cascade evaluates one member after another and stops when the mean so far is confident enough. Where it
# stops is fitted on validation data: here it must get everything right there that all members get right.
# Images that the first member is sure of take one pass.

cascade = pfge.fit_cascade(small, validation, max_accuracy_loss=0.0)
found = cascade.predict_batches(small, test)
counts = torch.bincount(found.evaluated, minlength=5)[1:]
of_cascade = metrics.negative_log_likelihood(found.probabilities, targets)
of_all = metrics.negative_log_likelihood(small.predict_batches(test), targets)

figure, axes = plt.subplots(figsize=(6, 2.8))
axes.bar_label(axes.bar(range(1, 5), counts.tolist(), color="#0072b2"))
axes.margins(y=0.15)
axes.set(xlabel="members evaluated", ylabel="test images", xticks=range(1, 5))
mean = found.evaluated.double().mean()
axes.set_title(f"{mean:.2f} members in the mean: NLL {of_cascade:.4f}, all members {of_all:.4f}", fontsize=10)
figure.tight_layout()

# %%
# One file
# --------
# The file maps images to probabilities, with the temperature applied. It was compared with PyTorch before it
# was written, and needs only ONNX Runtime. The weights stay packed, but the graph that unpacks them takes
# about 100 kB: for a model as small as this one the file is larger than one float32 model.

file = Path(tempfile.mkdtemp()) / "digits.onnx"
export_onnx(small, file, x[1200:1210])
session = onnxruntime.InferenceSession(file)
(probabilities,) = session.run(None, {"inputs": x[1200:].numpy()})
difference = (torch.tensor(probabilities) - small.predict(x[1200:])).abs().max()
print(f"{file.stat().st_size:,} bytes, one float32 model has {one_model:,.0f}")
print(f"largest difference from PyTorch: {difference:.1e}")

"""PFGE in your loop
====================

You have a training loop and a trained model. Two calls around ``optimizer.step()`` turn a few more epochs
into an ensemble of four members.
"""

# %%
# Data and model
# --------------
# The 8 x 8 digits of scikit-learn, with noise so that there is something to get wrong. Nothing in this
# section uses ``pfge``: use your own data, model, optimizer and loop.

import tempfile

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
x = x + 0.1 * torch.randn_like(x)
y = torch.tensor(digits.target)
train = DataLoader(TensorDataset(x[:600], y[:600]), batch_size=40, shuffle=True)
test = DataLoader(TensorDataset(x[1000:], y[1000:]), batch_size=200)


def make_model() -> nn.Module:
    """Return a new model; an ensemble needs this to put members into."""
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))


model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)

# %%
# Your training so far: w0
# ------------------------

for inputs, labels in [batch for _ in range(20) for batch in train]:
    optimizer.zero_grad()
    cross_entropy(model(inputs), labels).backward()
    optimizer.step()

w0 = pfge.Ensemble([pfge.weights.copy_weights(model.state_dict())], make_model)

# %%
# Five more lines
# ---------------
# An epoch has 15 iterations. A cycle of two epochs, a period of five cycles, four periods: four members.
# The schedule sets the learning rate, so the loop does not need a scheduler. Its peak rate of 1.0 is high.
# This small network with BatchNorm tolerates it, and the members differ more, which helps the ensemble.

schedule = pfge.Triangular(cycle=30, low=5e-4, high=1.0)
collector = pfge.PFGE(cycle=30, period=150, average_start=False)
trajectory = pfge.Trajectory(model, optimizer, schedule, [collector])
losses = []

for inputs, labels in [batch for _ in range(40) for batch in train]:
    optimizer.zero_grad()
    loss = cross_entropy(model(inputs), labels)
    loss.backward()
    trajectory.before_update()  # sets the learning rate
    optimizer.step()
    trajectory.after_update()  # averages, stores members, restarts
    losses.append(loss.item())

print(collector.iterations)

# %%
# What happened on the way
# ------------------------
# The rate rises and falls once a cycle. At the end of each cycle, where it is lowest, a point is averaged;
# at the end of each period the average becomes a member, and the path goes on from there.

figure, (top, bottom) = plt.subplots(2, 1, figsize=(6, 4.5), sharex=True)
iterations = range(1, 601)
top.plot(iterations, [schedule(i) for i in iterations], color="#444444")
top.set_ylabel("learning rate")
bottom.plot(iterations, losses, color="#bbbbbb", linewidth=0.8)
smooth = torch.tensor(losses).unfold(0, 20, 1).mean(1)
bottom.plot(range(20, 601), smooth, color="#0072b2")
bottom.set(xlabel="iteration", ylabel="training loss", yscale="log")
for axes in (top, bottom):
    for at in collector.iterations:
        axes.axvline(at, color="#d55e00")
top.set_title("a member at each orange line")
figure.tight_layout()

# %%
# Use it
# ------
# Averaged weights need BatchNorm statistics of their own, so they are computed from training data once.

ensemble = pfge.Ensemble.from_collector(collector, make_model).with_fresh_batch_norm(train)
targets = y[1000:]


def nll(predictor: pfge.Ensemble) -> float:
    """Return the negative log-likelihood on the test set."""
    return metrics.negative_log_likelihood(predictor.predict_batches(test), targets)


each = [metrics.negative_log_likelihood(p, targets) for p in ensemble.predict_each(test)]
names = ["w0", *(f"member {k}" for k in range(1, 5)), "all four"]
values = [nll(w0), *each, nll(ensemble)]
colors = ["#888888", *["#f0b183"] * 4, "#d55e00"]

figure, axes = plt.subplots(figsize=(6, 3))
axes.barh(names[::-1], values[::-1], color=colors[::-1])
axes.set_xlabel("test NLL (lower is better)")
figure.tight_layout()

# %%
# Save it. The folder has one safetensors file for each member and a manifest; loading it never executes
# anything.

folder = tempfile.mkdtemp()
ensemble.save(folder)
loaded = pfge.Ensemble.load(folder, make_model)
print(f"{len(loaded)} members, {loaded.nbytes:,} bytes, NLL {nll(loaded):.4f}")

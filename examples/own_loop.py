"""A training loop of your own gains PFGE: one import, three constructor lines, two calls.

Run it with `python examples/own_loop.py`; it takes a few seconds.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import pfge


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))


def main() -> None:
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    train = DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=50, shuffle=True)
    test = DataLoader(TensorDataset(x[1000:], y[1000:]), batch_size=100)

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for batch, labels in [pair for _ in range(5) for pair in train]:  # your training so far: w0
        optimizer.zero_grad()
        cross_entropy(model(batch), labels).backward()
        optimizer.step()

    schedule = pfge.Triangular(cycle=40, low=5e-4, high=0.05)
    collector = pfge.PFGE(cycle=40, period=200)
    trajectory = pfge.Trajectory(model, optimizer, schedule, [collector])

    for batch, labels in [pair for _ in range(40) for pair in train]:
        optimizer.zero_grad()
        cross_entropy(model(batch), labels).backward()
        trajectory.before_update()
        optimizer.step()
        trajectory.after_update()

    ensemble = pfge.Ensemble.from_collector(collector, make_model).with_fresh_batch_norm(train)
    probabilities = ensemble.predict_batches(test)
    targets = y[1000:]
    print(f"{len(ensemble)} members in {ensemble.nbytes:,} bytes")
    print(f"accuracy {pfge.metrics.accuracy(probabilities, targets):.2%}")
    print(f"NLL      {pfge.metrics.negative_log_likelihood(probabilities, targets):.4f}")


if __name__ == "__main__":
    main()

"""Compare methods on a table: predict a number and how far off it may be.

Run it with `python examples/table_regression.py`; it takes some seconds. The table is scikit-learn's diabetes
data, read as a table of your own would be.
"""

import tempfile

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

from pfge.cli.main import main
from pfge.lab.data import Splits, TensorSet
from pfge.tasks import Regression


def standardize(values: Tensor, train: slice) -> Tensor:
    """Return columns of mean 0 and standard deviation 1 over the training rows."""
    return (values - values[train].mean(dim=0)) / values[train].std(dim=0)


def load() -> Splits:
    table = load_diabetes()
    train, validation, test = slice(0, 240), slice(240, 300), slice(300, None)
    order = torch.randperm(len(table.target), generator=torch.Generator().manual_seed(0))
    rows = standardize(torch.tensor(table.data, dtype=torch.float32)[order], train)
    targets = standardize(torch.tensor(table.target, dtype=torch.float32)[order], train)
    return Splits(
        train=TensorSet(rows[train], targets[train]),
        validation=TensorSet(rows[validation], targets[validation]),
        test=TensorSet(rows[test], targets[test]),
        task=Regression(noise="predicted"),
    )


def make_model(classes: int, channels: int) -> nn.Module:
    """Return a network; it is asked for two outputs, the mean and the logarithm of the variance."""
    return nn.Sequential(
        nn.Linear(channels, 32),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(32, 32),
        nn.ReLU(),
        nn.Linear(32, classes),
    )


if __name__ == "__main__":
    settings = (
        "name=table seeds=[1,2,3] data.name=table_regression:load model.name=table_regression:make_model"
    )
    settings += " data.batch_size=24 pretrain.epochs=20 pretrain.rate=0.01 pretrain.weight_decay=0.01"
    settings += (
        " ensemble.cycle=2 ensemble.period=4 ensemble.length=16 ensemble.high=0.01 ensemble.weight_decay=0.01"
    )
    folder = tempfile.mkdtemp(prefix="table-")
    raise SystemExit(main(["compare", "--out", folder, *(f"--set={item}" for item in settings.split())]))

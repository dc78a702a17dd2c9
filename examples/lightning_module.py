"""A Lightning module gains PFGE by one callback, and is validated with the averaged weights.

Run it with `python examples/lightning_module.py`; it takes a few seconds.
"""

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import pfge
from pfge.integrations.lightning import CollectWeights


class Digits(pl.LightningModule):
    def __init__(self, width: int):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        self.log("accuracy", (self(batch[0]).argmax(dim=1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    pl.seed_everything(0, verbose=False)
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    train = DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=50, shuffle=True)
    test = DataLoader(TensorDataset(x[1000:], y[1000:]), batch_size=100)

    collector = pfge.PFGE(cycle=20, period=100)
    collect = CollectWeights(pfge.Triangular(20, 5e-4, 0.05), [collector], validate=collector, batches=train)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = pl.Trainer(max_epochs=20, accelerator="cpu", callbacks=[collect], logger=False, **quiet)
    trainer.fit(Digits(64), train, test)

    ensemble = collect.ensemble().with_fresh_batch_norm(train)
    probabilities = ensemble.predict_batches(test)
    print(f"accuracy of the mean so far, at the last validation: {trainer.callback_metrics['accuracy']:.1%}")
    print(f"accuracy of {len(ensemble)} members: {pfge.metrics.accuracy(probabilities, y[1000:]):.1%}")


if __name__ == "__main__":
    main()

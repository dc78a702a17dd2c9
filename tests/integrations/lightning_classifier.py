"""A user's LightningModule."""

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from tests.toys import classification_loss


class Classifier(pl.LightningModule):
    def __init__(self, width: int, optimizers: int = 1):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))
        self.automatic_optimization = optimizers == 1

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:  # noqa: ARG002
        loss = classification_loss(self, batch)
        if not self.automatic_optimization:
            self.manual_backward(loss)
            for optimizer in self.optimizers()[1:]:
                optimizer.step()
                optimizer.step()
        return loss

    def configure_optimizers(self) -> Any:
        made = [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(self.hparams.optimizers)]
        return made[0] if len(made) == 1 else made

"""How batches reach the model."""

from dataclasses import dataclass

import torch

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Delivery:
    """What batches are read by, and where and how they are in memory.

    Attributes:
        workers: Processes that read data which is not in memory; with 0 this one does.
        device: Where the batches are to be.
        channels_last: Whether the batches have the channels-last memory format.
    """

    workers: int = 0
    device: torch.device = CPU
    channels_last: bool = False


READ_HERE = Delivery()

"""Collecting in a loop with accelerate: `CollectWeights(accelerator, model, optimizer, ...)`, and no more."""

from collections.abc import Sequence

from accelerate import Accelerator, DistributedType
from torch import nn
from torch.optim import Optimizer

from pfge.collectors.base import Collector
from pfge.errors import InvalidValueError
from pfge.integrations.collecting import Collecting, warn_if_untested
from pfge.schedules import Schedule

TESTED = ("1.10", "1.15")


class CollectWeights(Collecting):
    """Collects weights in a loop whose model and optimizer were prepared by accelerate.

    It follows the optimizer by itself: the loop stays as it is. Only steps that synchronize gradients
    are updates. `accelerator.save_state` saves its state, and `load_state` continues with the same members.

    Args:
        accelerator: The accelerator that prepared model and optimizer.
        model: The model, prepared or not.
        optimizer: The optimizer, prepared or not.
        schedule: The learning rate for each update, or None to leave the rates alone.
        collectors: One collector or several; see `Trajectory`.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: Optimizer,
        schedule: Schedule | None,
        collectors: Sequence[Collector] | Collector,
    ):
        warn_if_untested("accelerate", TESTED)
        super().__init__(schedule, collectors)
        require_supported(accelerator.distributed_type)
        self.attach(model, optimizer)
        accelerator.register_for_checkpointing(self)


def require_supported(distributed_type: DistributedType) -> None:
    """Raise a ValueError unless every process is known to have the whole weights."""
    kind = distributed_type.value
    if kind != "NO" and not kind.startswith("MULTI_"):
        raise InvalidValueError(
            f"CollectWeights works where every process has the whole weights, got {kind}; use DDP, or "
            "torch.distributed.fsdp.fully_shard in a loop of your own"
        )

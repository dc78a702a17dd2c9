"""Tensors that are split among processes by FSDP2 (`torch.distributed.fsdp.fully_shard`).

A parameter of such a model is a DTensor: each process has a part of it. Averages and restarts work on the
parts alone. What leaves the training, a member or a checkpoint, is put together by all processes.
Nothing of torch.distributed.tensor is imported here: where it is not loaded, no tensor is split.
"""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from pfge.errors import InvalidValueError

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def is_split(tensor: Any) -> "TypeGuard[DTensor]":
    """Return whether a tensor is split among processes, or may be: whether it is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def any_split(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether some of the tensors are split among processes."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is None:
        return False
    # By their few types: this is asked of all tensors at every collection.
    return any(issubclass(kind, module.DTensor) for kind in set(map(type, tensors.values())))


def own_part(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor; writing to it changes the tensor."""
    return tensor.to_local() if is_split(tensor) else tensor


def own_parts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return this process's part of each tensor."""
    return {name: own_part(tensor) for name, tensor in tensors.items()}


def split_like(like: Tensor, tensor: Tensor) -> Tensor:
    """Return a tensor split as another one is; every process has the whole before."""
    if not is_split(like) or is_split(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    moved = tensor.detach().to(like.device)
    # No process sends anything: each takes its part of what it has.
    return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor put together from all processes, each of which must call this."""
    return tensor.full_tensor().detach() if is_split(tensor) else tensor


def in_any_process(found: bool, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether something was found in any of the processes that the tensors are split among."""
    for tensor in filter(is_split, tensors.values()):
        flag = torch.tensor(float(found), device=tensor.device)
        mesh = tensor.device_mesh
        for dimension in range(mesh.ndim):
            distributed.all_reduce(flag, distributed.ReduceOp.MAX, group=mesh.get_group(dimension))
        return bool(flag)
    return found


def split_modules(model: nn.Module) -> "list[FSDPModule]":
    """Return the modules of a model that FSDP2 splits among processes; none in most models."""
    module = sys.modules.get("torch.distributed.fsdp")
    return [] if module is None else [part for part in model.modules() if isinstance(part, module.FSDPModule)]


def keep_parts_only(model: nn.Module) -> None:
    """Let every module of an FSDP2 model drop the whole parameters that a forward pass may have left."""
    for part in split_modules(model):
        part.reshard()


def require_known_split(model: nn.Module, optimizer: Optimizer) -> None:
    """Raise a ValueError where the weights or the updates are split in a way that is not known here."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise InvalidValueError(
            "a Trajectory takes models of FSDP2, got one of FullyShardedDataParallel, which joins "
            "parameters; use torch.distributed.fsdp.fully_shard(model) instead"
        )
    zero_3 = any(hasattr(parameter, "ds_id") for parameter in model.parameters())
    if zero_3 or type(optimizer).__module__.startswith("deepspeed"):
        raise InvalidValueError(
            f"a Trajectory cannot follow DeepSpeed{' with ZeRO-3' if zero_3 else ''}, which keeps weights of "
            "its own beside the model's; use DDP or torch.distributed.fsdp.fully_shard(model) instead"
        )
    # By its name, as it is imported by those alone who use it.
    if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__):
        raise InvalidValueError(
            "a Trajectory takes optimizers whose state it can clear at a restart, got "
            f"{type(optimizer).__name__}, which keeps it in another optimizer; use a torch optimizer as it "
            "is, or torch.distributed.fsdp.fully_shard(model), which splits its state as well"
        )

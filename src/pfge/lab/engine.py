"""The hardware an experiment runs on: device, precision and processes, through Lightning Fabric."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from pfge.forward import call_model
from pfge.lab.config.settings import ConfigError, EngineSettings
from pfge.lab.malloc import keep_freed_memory


class Engine:
    """The device, the precision and the distributed group of one process of an experiment."""

    def __init__(self, settings: EngineSettings):
        self._settings = settings
        self._fabric = _OneCpuProcess() if _needs_no_fabric(settings) else _launch_fabric(settings)
        if self.device.type == "cpu":
            keep_freed_memory()

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        device: torch.device = self._fabric.device
        return device

    @property
    def rank_and_world_size(self) -> tuple[int, int]:
        """The rank of this process, and the number of processes."""
        return self._fabric.global_rank, self._fabric.world_size

    @property
    def is_first(self) -> bool:
        """Whether this process is rank 0, which writes and prints."""
        return bool(self._fabric.is_global_zero)

    def place(self, model: nn.Module) -> nn.Module:
        """Move a model to the device, in the memory format that is fast there."""
        # channels_last does not support 5-D weights (Conv3d).
        if self._settings.channels_last and all(weight.ndim != 5 for weight in model.parameters()):
            # torch's stub of this overload lacks memory_format.
            return model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
        return model.to(self.device)

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        """Return the model to call in training; its weights remain those of `model`."""
        if self._settings.compile:
            model = cast(nn.Module, torch.compile(model))
        wrapped, _ = self._fabric.setup(model, optimizer)
        return cast(nn.Module, wrapped)

    def backward(self, loss: Tensor) -> None:
        """Compute gradients."""
        self._fabric.backward(loss)

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        """Call an unwrapped model on a pair of inputs and targets, in the engine's precision."""
        with self._fabric.autocast():
            outputs: Tensor = call_model(model, batch)
        return outputs

    def sum_over_processes(self, tensor: Tensor) -> Tensor:
        """Return the sum of the tensors of all processes."""
        return cast(Tensor, self._fabric.all_reduce(tensor, reduce_op="sum"))

    def wait_for_all(self) -> None:
        """Wait until every process has reached this point."""
        self._fabric.barrier()

    def on_rank_zero(self, action: Callable[[], object]) -> None:
        """Run an action on rank 0 only; the other processes wait until it is done."""
        if self.is_first:
            action()
        self.wait_for_all()


def has_other_processes() -> bool:
    """Return whether this process belongs to a distributed group of several processes."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


LAUNCHERS = ("LT_CLI_USED", "TORCHELASTIC_RUN_ID", "SLURM_NTASKS", "LOCAL_RANK", "WORLD_SIZE")
"""Environment variables set by programs that start several processes."""


def _needs_no_fabric(settings: EngineSettings) -> bool:
    """Return whether this is one process on the CPU in float32, where Fabric changes nothing.

    Importing Fabric takes several seconds: it imports torchmetrics, which imports matplotlib and SciPy.
    """
    accelerator = settings.accelerator
    on_cpu = accelerator == "cpu" or (accelerator == "auto" and not torch.accelerator.is_available())
    return (
        on_cpu
        and settings.devices in (1, "1", "auto")
        and (settings.nodes, settings.strategy, settings.precision) == (1, "auto", "32-true")
        and not any(name in os.environ for name in LAUNCHERS)
    )


def _launch_fabric(settings: EngineSettings) -> Any:
    try:
        from lightning_fabric import Fabric

        fabric = Fabric(
            accelerator=settings.accelerator,
            devices=settings.devices,
            num_nodes=settings.nodes,
            strategy=settings.strategy,
            precision=settings.precision,
        )
        _launch(fabric, settings)
    except ConfigError:
        raise
    except (ValueError, TypeError, RuntimeError, ImportError) as error:
        if isinstance(error, RuntimeError) and has_other_processes():
            raise  # the group was formed, so a process has been lost since
        raise ConfigError(f"the settings in [engine] do not fit this machine: {error}") from None
    if fabric.world_size > 1 and distributed.is_initialized():
        # Only after the group has formed, as some processes take longer to start. torch has no public API.
        distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=settings.timeout))
    return fabric


def _launch(fabric: Any, settings: EngineSettings) -> None:
    try:
        fabric.launch()
    except TypeError:  # strategies such as ddp_spawn start a function in each process, not the command
        raise ConfigError(
            "engine.strategy must start the whole command in every process, as ddp does, got "
            f"{settings.strategy}; set engine.strategy=ddp, or leave it out"
        ) from None
    if not distributed.is_available() or not distributed.is_torchelastic_launched():
        return
    started = int(os.environ.get("WORLD_SIZE", 1))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", started))
    if started != fabric.world_size:
        # Otherwise each process would believe it is alone, and all would write to the same folder.
        raise ConfigError(
            f"torchrun started {started} processes, got engine.devices = {settings.devices} and "
            f"engine.nodes = {settings.nodes}; set engine.devices={here} and engine.nodes="
            f"{started // here}, or start one process without torchrun"
        )


class _OneCpuProcess:
    """The part of Fabric's interface that an engine uses, for one process on the CPU in float32."""

    device = torch.device("cpu")
    global_rank, world_size, is_global_zero = 0, 1, True

    def setup(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        return model, optimizer

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def autocast(self) -> AbstractContextManager[None]:
        return nullcontext()

    def all_reduce(self, tensor: Tensor, reduce_op: str) -> Tensor:  # noqa: ARG002 - Fabric's signature
        return tensor

    def barrier(self) -> None:
        pass

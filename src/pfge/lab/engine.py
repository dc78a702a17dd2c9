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
    """One of the processes of an experiment."""

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
    def share(self) -> tuple[int, int]:
        """This process's number, and how many there are."""
        return self._fabric.global_rank, self._fabric.world_size

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes and prints."""
        return bool(self._fabric.is_global_zero)

    def place(self, model: nn.Module) -> nn.Module:
        """Move a model to the device, in the memory format that is fast there."""
        # Of weights in five dimensions, as of Conv3d, torch has no such format.
        if self._settings.channels_last and all(weight.ndim != 5 for weight in model.parameters()):
            # A stub of torch's leaves memory_format out of this overload.
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
        """Call a model that is not wrapped on a pair of inputs and targets, in the engine's precision."""
        with self._fabric.autocast():
            outputs: Tensor = call_model(model, batch)
        return outputs

    def sum_over_processes(self, tensor: Tensor) -> Tensor:
        """Return the sum of every process's tensor."""
        return cast(Tensor, self._fabric.all_reduce(tensor, reduce_op="sum"))

    def wait_for_all(self) -> None:
        """Wait until every process has reached this point."""
        self._fabric.barrier()

    def first_does(self, action: Callable[[], object]) -> None:
        """Run an action in the first process only, and let the others wait for it."""
        if self.is_first:
            action()
        self.wait_for_all()


def has_other_processes() -> bool:
    """Return whether this process is one of several that train a model together."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


LAUNCHERS = ("LT_CLI_USED", "TORCHELASTIC_RUN_ID", "SLURM_NTASKS", "LOCAL_RANK", "WORLD_SIZE")
"""Environment variables of programs that start several processes."""


def _needs_no_fabric(settings: EngineSettings) -> bool:
    """Return whether this is one process on the CPU in float32, for which Fabric would change nothing.

    Importing Fabric takes several seconds: it imports torchmetrics, and by that matplotlib and SciPy.
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
            raise  # they have met, so one of them was lost since
        raise ConfigError(f"the settings in [engine] do not fit this machine: {error}") from None
    if fabric.world_size > 1 and distributed.is_initialized():
        # Not before all processes have met, as some take longer to start; torch has no public name for it.
        distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=settings.timeout))
    return fabric


def _launch(fabric: Any, settings: EngineSettings) -> None:
    try:
        fabric.launch()
    except TypeError:  # the processes of such a strategy call a function, and end with it
        raise ConfigError(
            "engine.strategy must be one that starts the whole command again, such as ddp, got "
            f"{settings.strategy}; set engine.strategy=ddp, or leave it out"
        ) from None
    if not distributed.is_available() or not distributed.is_torchelastic_launched():
        return
    started = int(os.environ.get("WORLD_SIZE", 1))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", started))
    if started != fabric.world_size:
        # Else each would take itself for the only one, and all would write to the same folder.
        raise ConfigError(
            f"torchrun started {started} processes, got engine.devices = {settings.devices} and "
            f"engine.nodes = {settings.nodes}; set engine.devices={here} and engine.nodes="
            f"{started // here}, or start one process without torchrun"
        )


class _OneCpuProcess:
    """What of Fabric an engine uses, where there is one process on the CPU in float32."""

    device = torch.device("cpu")
    global_rank, world_size, is_global_zero = 0, 1, True

    def setup(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        return model, optimizer

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def autocast(self) -> AbstractContextManager[None]:
        return nullcontext()

    def all_reduce(self, tensor: Tensor, reduce_op: str) -> Tensor:  # noqa: ARG002 - as of Fabric
        return tensor

    def barrier(self) -> None:
        pass

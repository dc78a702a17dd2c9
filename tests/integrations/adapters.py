"""The same training in every trainer: what a user of it would write."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import accelerate
import lightning.pytorch as pl
import transformers
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import pfge.integrations.accelerate
import pfge.integrations.lightning
import pfge.integrations.transformers
from pfge import Collector, Trajectory, load_checkpoint, save_checkpoint
from pfge.schedules import Schedule
from tests.integrations.problem import BATCH, Divisor, Net, Problem, by_accumulation, by_window


@dataclass(frozen=True)
class Run:
    """A training.

    Args:
        problem: What is trained.
        schedule: The learning rate; None for that of a torch scheduler.
        collectors: None to train without the integration.
        folder: Where checkpoints go.
        checkpoint_at: The update after which a checkpoint is written.
        resume_at: The update to go on after, instead of from the start.
    """

    problem: Problem
    schedule: Schedule | None
    collectors: Sequence[Collector] | None
    folder: Path
    checkpoint_at: int | None = None
    resume_at: int | None = None


class Adapter(ABC):
    """A trainer."""

    name: str
    divisor: Divisor = staticmethod(by_accumulation)
    """What it divides a loss by while it accumulates."""

    @abstractmethod
    def train(self, run: Run) -> tuple[nn.Module, Optimizer]:
        """Train a new model, and return it with its optimizer."""


class OwnLoop(Adapter):
    name = "own loop"

    def train(self, run: Run) -> tuple[nn.Module, Optimizer]:
        problem, schedule, collectors = run.problem, run.schedule, run.collectors
        model = self.wrap(problem.make_model())
        optimizer, scaler = problem.make_optimizer(model), problem.make_scaler()
        scheduler = problem.make_scheduler(optimizer)
        trajectory = Trajectory(model, optimizer, schedule, collectors) if collectors is not None else None
        if trajectory is not None and run.resume_at is not None:
            trajectory.load_state_dict(load_checkpoint(run.folder / "state"))
        updates = 0
        for _ in range(problem.epochs):
            for window in problem.windows():
                updates += 1
                if run.resume_at is not None and updates <= run.resume_at:
                    continue
                optimizer.zero_grad()
                for batch in window:
                    scaler.scale(model(**batch)["loss"] / problem.accumulate).backward()
                if trajectory is not None:
                    trajectory.before_update()
                scaler.step(optimizer)
                scaler.update()
                if trajectory is not None:
                    trajectory.after_update()
                if schedule is None:
                    scheduler.step()
                if trajectory is not None and updates == run.checkpoint_at:
                    save_checkpoint(run.folder / "state", trajectory.state_dict())
        return model, optimizer

    def wrap(self, model: nn.Module) -> nn.Module:
        return DistributedDataParallel(model) if distributed.is_initialized() else model


class OwnLoopFSDP2(OwnLoop):
    name = "own loop, FSDP2"

    def wrap(self, model: nn.Module) -> nn.Module:
        """Split the weights among the processes: the head's three rows are two and one."""
        if not distributed.is_initialized():
            distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
        fully_shard(model.head, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model


class Accelerate(Adapter):
    name = "accelerate"

    def train(self, run: Run) -> tuple[nn.Module, Optimizer]:
        problem, schedule, collectors = run.problem, run.schedule, run.collectors
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=problem.accumulate)
        accelerator.scaler = problem.make_scaler() if problem.overflowing else None
        model = problem.make_model()
        torch_optimizer = problem.make_optimizer(model)
        scheduler = problem.make_scheduler(torch_optimizer)
        prepared, optimizer, loader = accelerator.prepare(model, torch_optimizer, problem.loader())
        if collectors is not None:
            pfge.integrations.accelerate.CollectWeights(
                accelerator, prepared, optimizer, schedule, collectors
            )
        if run.resume_at is not None:
            accelerator.load_state(str(run.folder / "state"))
        updates = 0
        for _ in range(problem.epochs):
            for batch in loader:
                with accelerator.accumulate(prepared):
                    if run.resume_at is None or updates >= run.resume_at:
                        accelerator.backward(prepared(**batch)["loss"])
                        optimizer.step()
                        if schedule is None and accelerator.sync_gradients:
                            scheduler.step()
                        optimizer.zero_grad()
                    updates += accelerator.sync_gradients
                if accelerator.sync_gradients and updates == run.checkpoint_at:
                    accelerator.save_state(str(run.folder / "state"))
        return model, torch_optimizer


class Transformers(Adapter):
    name = "transformers"
    divisor = staticmethod(by_window)

    def train(self, run: Run) -> tuple[nn.Module, Optimizer]:
        problem, schedule, collectors = run.problem, run.schedule, run.collectors
        model = problem.make_model()
        optimizer = problem.make_optimizer(model)
        scheduler = problem.make_scheduler(optimizer) if schedule is None else None
        callbacks = [] if run.checkpoint_at is None else [AskToSaveAt(run.checkpoint_at)]
        if collectors is not None:
            callbacks += [pfge.integrations.transformers.CollectWeights(schedule, collectors)]
        arguments = transformers.TrainingArguments(
            output_dir=str(run.folder),
            num_train_epochs=problem.epochs,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=problem.accumulate,
            train_sampling_strategy="sequential",
            max_grad_norm=0,
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            report_to="none",
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        trainer = transformers.Trainer(
            model,
            arguments,
            train_dataset=problem.examples(),
            optimizers=(optimizer, scheduler),
            callbacks=callbacks,
        )
        trainer.accelerator.scaler = problem.make_scaler() if problem.overflowing else None
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train(
            resume_from_checkpoint=run.resume_at and str(run.folder / f"checkpoint-{run.resume_at}")
        )
        return model, optimizer


class AskToSaveAt(transformers.TrainerCallback):
    """Lets the trainer write a checkpoint after an update."""

    def __init__(self, update: int):
        self.update = update

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        control.should_save = state.global_step == self.update


class LightningAutomatic(Adapter):
    name = "lightning, automatic"

    def train(self, run: Run) -> tuple[nn.Module, Optimizer]:
        problem, schedule, collectors = run.problem, run.schedule, run.collectors
        module = self.make_module(problem, torch_scheduler=schedule is None)
        callbacks: list[pl.Callback] = []
        if collectors is not None:
            callbacks += [pfge.integrations.lightning.CollectWeights(schedule, collectors)]
        if run.checkpoint_at is not None:
            callbacks += [SaveAt(run.checkpoint_at, run.folder / "state.ckpt")]
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=problem.processes,
            strategy="ddp" if problem.processes > 1 else "auto",
            use_distributed_sampler=False,
            max_epochs=problem.epochs,
            callbacks=callbacks,
            plugins=[Scaled("16-mixed", "cpu", problem.make_scaler())] if problem.overflowing else None,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            **self.accumulation(problem),
        )
        resumed = None if run.resume_at is None else run.folder / "state.ckpt"
        trainer.fit(module, StatefulLoader(problem.own_batches()), ckpt_path=resumed)
        return module, trainer.optimizers[0]

    def make_module(self, problem: Problem, *, torch_scheduler: bool) -> "Module":
        return Module(problem, torch_scheduler)

    def accumulation(self, problem: Problem) -> dict[str, Any]:
        return {"accumulate_grad_batches": problem.accumulate}


class LightningManual(LightningAutomatic):
    name = "lightning, manual"

    def make_module(self, problem: Problem, *, torch_scheduler: bool) -> "Module":
        return ManualModule(problem, torch_scheduler)

    def accumulation(self, problem: Problem) -> dict[str, Any]:  # noqa: ARG002
        return {}


class Module(Net, pl.LightningModule):
    """Lets Lightning call backward and the optimizer."""

    def __init__(self, problem: Problem, torch_scheduler: bool):
        super().__init__(batch_norm=problem.batch_norm, dropout=problem.dropout)
        self.load_state_dict(problem.make_model().state_dict())
        self.problem = problem
        self.torch_scheduler = torch_scheduler

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor | None:  # noqa: ARG002
        return self(**batch)["loss"]

    def configure_optimizers(self) -> Any:
        optimizer = self.problem.make_optimizer(self)
        if not self.torch_scheduler:
            return optimizer
        scheduler = self.problem.make_scheduler(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class ManualModule(Module):
    """Calls backward and the optimizer itself."""

    def __init__(self, problem: Problem, torch_scheduler: bool):
        super().__init__(problem, torch_scheduler)
        self.automatic_optimization = False

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        accumulate = self.problem.accumulate
        self.manual_backward(self(**batch)["loss"] / accumulate)
        if (batch_idx + 1) % accumulate == 0 or batch_idx + 1 == self.problem.batches:
            optimizer = self.optimizers()
            optimizer.step()
            optimizer.zero_grad()
            if self.torch_scheduler:
                self.lr_schedulers().step()


class SaveAt(pl.Callback):
    """Writes a checkpoint after an update. Lightning's own callback warns with manual optimization."""

    def __init__(self, update: int, file: Path):
        self.update = update
        self.file = file

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.update and not self.file.exists():
            trainer.save_checkpoint(self.file)


class Scaled(MixedPrecision):
    """A gradient scaler without autocast, so that only the scaler makes a difference."""

    def forward_context(self) -> Any:
        return nullcontext()


class StatefulLoader:
    """Batches that Lightning can resume in the middle of an epoch."""

    def __init__(self, batches: list[Any]):
        self.batches = batches
        self.first = 0
        self.position = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        first, self.first = self.first, 0
        for number in range(first, len(self.batches)):
            self.position = number + 1
            yield self.batches[number]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.first = state["position"] % len(self.batches)


ADAPTERS: tuple[Adapter, ...] = (
    OwnLoop(),
    OwnLoopFSDP2(),
    LightningAutomatic(),
    LightningManual(),
    Transformers(),
    Accelerate(),
)

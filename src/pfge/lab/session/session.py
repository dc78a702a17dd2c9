"""A session: the data, models and hardware that every stage of an experiment needs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pfge.ensemble import Ensemble
from pfge.lab.config.schema import ConfigError, Experiment
from pfge.lab.data import (
    Augmentation,
    Batch,
    DataPart,
    Splits,
    TrainingSource,
    evaluation_batches,
    training_batches,
)
from pfge.lab.data.pictures.single_inputs import resized_side
from pfge.lab.data.seeding import derive_seed
from pfge.lab.engine import Engine
from pfge.lab.models import build_model
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.kept_data import require_same_data
from pfge.lab.run.loggers import Log, open_log
from pfge.lab.run.progress import Reporter
from pfge.lab.session.ensemble_task import require_task
from pfge.lab.session.first_batches import FirstBatches
from pfge.lab.session.model_check import require_fitting_model
from pfge.lab.session.splits import load_splits
from pfge.methods import START, method_of
from pfge.metrics.position_scores import PositionScores
from pfge.storage.files import StorageError
from pfge.storage.manifest import MANIFEST
from pfge.storage.recorded_tensors import read_recorded
from pfge.storage.usage import Usage
from pfge.tasks import Regression, Task
from pfge.tasks.classification import require_classification
from pfge.weights import Weights, count_bytes, view_weights


@dataclass(frozen=True)
class Session:
    """An experiment set up on this machine."""

    experiment: Experiment
    folder: RunFolder
    engine: Engine
    splits: Splits
    reporter: Reporter
    written: dict[Path, Ensemble] = field(default_factory=dict)
    """Ensembles that this process has written and not measured yet, by their folder."""

    @classmethod
    def set_up(
        cls, experiment: Experiment, folder: RunFolder, engine: Engine, reporter: Reporter
    ) -> "Session":
        """Load the data of an experiment; progress is shown by the first process only.

        Raises:
            StorageError: The folder is of a run, or of an ensemble in one, that was made with other data.
        """
        reporter = reporter if engine.is_first else Reporter(quiet=True)
        splits = load_splits(experiment.data)
        require_same_data(RunFolder.of_ensemble(folder.path) or folder, experiment.data, splits)
        session = cls(experiment, folder, engine, splits, reporter)
        require_fitting_model(session)
        return session

    @cached_property
    def task(self) -> Task:
        """The task: that of the config, or else the data set's own."""
        return self.experiment.task.make() or self.splits.task

    @cached_property
    def outputs(self) -> int:
        """How many outputs the model has: one for each class or label, or what a regression needs."""
        names = self.splits.train.class_names
        if names and not isinstance(self.task, Regression):
            return len(names)
        _, targets = self.first_batch(1)
        numbers = targets.shape[1] if targets.ndim > 1 else 1
        return 2 * numbers if self.task == Regression(noise="predicted") else numbers

    @cached_property
    def usage(self) -> Usage:
        """What an ensemble's manifest says, so that the data is not needed to use it."""
        names, normalization = self.splits.train.class_names, self.splits.normalization
        inputs = self.first_inputs(1)
        return Usage(
            classes=names if names and not isinstance(self.task, Regression) else None,
            mean=normalization.mean if normalization else None,
            std=normalization.std if normalization else None,
            input_shape=tuple(inputs.shape[1:]) if _is_one_tensor_of_numbers(inputs) else None,
            resize=resized_side(self.splits.test, inputs.shape[2]) if normalization else None,
            outputs=self.outputs,
            channels=self.splits.channels,
        )

    @cached_property
    def has_positions(self) -> bool:
        """Whether an example has several predictions, as for its pixels or tokens."""
        with torch.random.fork_rng(), torch.no_grad():
            inputs, targets = self.first_batch(1)
            outputs = self.engine.forward(self.build_model().eval(), (inputs,))
            scores = self.task.score(self.task.predictions(outputs).cpu(), targets.cpu())
        return isinstance(scores, PositionScores)

    def require_one_class(self, what: str) -> None:
        """Raise a ValueError unless each example has one class, which `what` needs."""
        require_classification(self.task, what)
        if self.has_positions:
            raise ValueError(
                f"{what} needs one class for each example, and {self.experiment.data.name} has one for each "
                "position"
            )

    def build_model(self, **options: Any) -> nn.Module:
        """Return a new model; its initial weights depend on the caller's random state.

        Args:
            **options: Those that it has beside its settings', or in their place.
        """
        model = build_model(
            self.experiment.model.name,
            classes=self.outputs,
            channels=self.splits.channels,
            **self.experiment.model.options | options,
        )
        return self.engine.place(model)

    def open_log(self, work: str) -> Log | None:
        """Return the log of a path's loss and rates, if the experiment has one."""
        if not self.engine.is_first:
            return None
        return open_log(self.experiment.engine.logger, self.folder.logs, work)

    def first_inputs(self, count: int) -> Any:
        """Return the first test images as inputs, [N, C, H, W], or what other data has for inputs."""
        return self.first_batch(count)[0]

    def first_batch(self, count: int) -> Batch:
        """Return the first test images as inputs, and their targets."""
        # Of all test images, as one that cannot be read is replaced by another.
        batches = evaluation_batches(
            self.splits.test, self.splits.normalization, batch_size=count, device=self.engine.device
        )
        return next(iter(batches))

    def build_seeded_model(self, seed: int, **options: Any) -> nn.Module:
        """Return a new model whose initial weights depend on the seed."""
        with torch.random.fork_rng():
            torch.manual_seed(derive_seed(seed, "initial weights"))
            return self.build_model(**options)

    def batches(self, seed: int, purpose: str, *, whole: bool = False) -> TrainingSource:
        """Return training batches: this process's part of each, or each whole."""
        settings = self.experiment.data
        return training_batches(
            self.splits.train,
            self.splits.normalization,
            batch_size=settings.batch_size,
            seed=derive_seed(seed, purpose),
            augmentation=Augmentation(settings.crop_padding, settings.flip),
            share=(0, 1) if whole else self.engine.share,
            workers=settings.workers,
            device=self.engine.device,
            channels_last=self.experiment.engine.channels_last,
        )

    def make_ensemble(self, members: Sequence[Weights], **about: Any) -> Ensemble:
        """Return an ensemble of these members on the engine's device."""
        settings = self.experiment.model
        options = "".join(f", {name}={value!r}" for name, value in settings.options.items())
        model = f"{settings.name}(classes={self.outputs}{options})"
        ensemble = Ensemble(
            members,
            self.build_model,
            task=self.task,
            model=model,
            forward=self.engine.forward,
            usage=self.usage,
            **about,
        )
        return ensemble.to(self.engine.device)

    def load_ensemble(self, path: Path) -> Ensemble:
        """Return a saved ensemble on the engine's device; RUN/seed-N/ensembles/w0 is w0, an ensemble of one.

        Raises:
            StorageError: It is missing or damaged, or of another task than the experiment.
        """
        if not (path / MANIFEST).exists() and (file := RunFolder.start_weights_of(path)):
            return self.make_ensemble([read_recorded(file)], method=START, iterations=[0])
        method = method_of(path.name)
        if method and method.path in ("augmented", "start") and not path.exists():
            remedy = ", or a copy of it made by pfge views" if method.path == "augmented" else ""
            raise StorageError(
                f"{path} must be an ensemble folder, and {method.name} has none: it is one model in several "
                f"passes; give {path.with_name(method.base or START)}{remedy}"
            )
        ensemble = Ensemble.load(path, self.build_model, forward=self.engine.forward)
        return require_task(ensemble, self.task, path).to(self.engine.device)

    def in_batches(self, data: DataPart) -> Iterable[Batch]:
        """Return a part of the data in order, in batches for evaluation; can be read repeatedly."""
        settings = self.experiment.data
        return evaluation_batches(
            data,
            self.splits.normalization,
            batch_size=settings.evaluation_batch_size,
            workers=settings.workers,
            device=self.engine.device,
            channels_last=self.experiment.engine.channels_last,
        )

    def validation_for(self, purpose: str) -> DataPart:
        """Return the validation data; raise an error that names the purpose if there is none."""
        if not len(self.splits.validation):
            raise ConfigError(
                f"{purpose} needs validation data that the ensemble was not trained on, and this experiment "
                "has none; give a config with data.validation, or --set data.halve_test=true"
            )
        return self.splits.validation

    def batch_norm_batches(
        self, seed: int, images: int = 0, *, share: tuple[int, int] = (0, 1)
    ) -> Iterable[Batch]:
        """Return the training batches that BatchNorm is refreshed with, whole; can be read repeatedly.

        Args:
            seed: Decides which.
            images: About how many images at the most; 0 leaves it to data.batch_norm_images.
            share: Which of them: every n-th, beginning with a number.
        """
        source = self.batches(seed, "batch norm", whole=True)
        limits = [limit for limit in (self.experiment.data.batch_norm_images, images) if limit]
        wanted = [-(-limit // self.experiment.data.batch_size) for limit in limits]
        return FirstBatches(source, min([*wanted, source.per_epoch]), share)

    def with_fresh_batch_norm(self, weights: Weights, seed: int) -> Weights:
        """Return weights with BatchNorm statistics of their own; no random number of training is used."""
        with torch.random.fork_rng():
            fresh = self.make_ensemble([weights]).with_fresh_batch_norm(
                self.batch_norm_batches(seed, share=self.engine.share),
                across_processes=self.engine.share[1] > 1,
            )
        return fresh.members[0]

    def refresh_batch_norm(self, ensemble: Ensemble, seed: int, name: str, images: int = 0) -> Ensemble:
        """Return the ensemble with BatchNorm statistics of its own; `images` as of `batch_norm_batches`."""
        with self.reporter.task(name, len(ensemble)) as advance:
            return ensemble.with_fresh_batch_norm(
                self.batch_norm_batches(seed, images, share=self.engine.share),
                across_processes=self.engine.share[1] > 1,
                on_member=lambda done: advance(done, ""),
            )

    @cached_property
    def bytes_of_one(self) -> int:
        """The bytes of one model's weights."""
        with torch.random.fork_rng():
            return count_bytes(view_weights(self.build_model()))


def _is_one_tensor_of_numbers(inputs: Any) -> bool:
    return isinstance(inputs, torch.Tensor) and inputs.is_floating_point() and inputs.ndim > 1

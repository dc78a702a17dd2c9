"""A session: the data, models and hardware that every stage of an experiment needs."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pfge.ensemble import Ensemble
from pfge.lab.config.schema import ConfigError, DataSettings, EngineSettings, Experiment
from pfge.lab.data import (
    Augmentation,
    Batch,
    DataPart,
    Normalization,
    Splits,
    TrainingSource,
    evaluation_batches,
    halve_test,
    load_data,
    take,
    training_batches,
)
from pfge.lab.data.pictures.single_inputs import resized_side
from pfge.lab.data.seeding import derive_seed
from pfge.lab.engine import Engine
from pfge.lab.models import build_model
from pfge.lab.models.dropout import has_dropout
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.kept_data import keep_fingerprint, require_same_data
from pfge.lab.run.loggers import Log, open_log
from pfge.lab.run.progress import Reporter
from pfge.methods import METHODS, START, base_of
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
        splits = _load_splits(experiment.data)
        require_same_data(RunFolder.of_ensemble(folder.path) or folder, experiment.data, splits)
        session = cls(experiment, folder, engine, splits, reporter)
        session._require_fitting_model()
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
        _, targets = self._first_batch(1)
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
            inputs, targets = self._first_batch(1)
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
        return open_log(self.experiment.engine.logger, self.folder.path / "logs", work)

    def _require_fitting_model(self) -> None:
        """Call the model on an image, so that errors appear before the long work starts."""
        with torch.random.fork_rng(), torch.no_grad():
            model = self.build_model().eval()
            methods = [METHODS[base_of(row)] for row in self.experiment.ensemble.methods]
            augmented = [method.name for method in methods if method.path == "augmented"]
            if augmented and self.splits.normalization is None:
                raise ConfigError(
                    f"{augmented[0]} needs pictures, and data.name = {self.experiment.data.name!r} has none; "
                    "leave it out of ensemble.methods"
                )
            dropping = [method.name for method in methods if method.path == "start"]
            if dropping and not has_dropout(model):
                raise ConfigError(
                    f"{dropping[0]} needs a model with dropout, and model.name = "
                    f"{self.experiment.model.name!r} has none; leave it out of ensemble.methods, or give the "
                    "model dropout in model.options"
                )
            inputs, targets = self._first_batch(1)
            try:
                outputs = self.engine.forward(model, (inputs,))
            except (RuntimeError, TypeError, ValueError) as error:
                reason = str(error).splitlines()[0]
                raise ConfigError(
                    f"model.name = {self.experiment.model.name!r} must take the inputs of data.name = "
                    f"{self.experiment.data.name!r}, which are {_describe(inputs)}: {reason}"
                ) from None
            try:
                self.task.score(self.task.predictions(outputs).cpu(), targets.cpu())
            except (ValueError, RuntimeError) as error:
                reason = str(error).splitlines()[0]
                raise ConfigError(
                    f"model.name = {self.experiment.model.name!r} and data.name = "
                    f"{self.experiment.data.name!r} must fit the task {self.task}: {reason}; choose another "
                    "by task.name"
                ) from None

    def first_inputs(self, count: int) -> Any:
        """Return the first test images as inputs, [N, C, H, W], or what other data has for inputs."""
        return self._first_batch(count)[0]

    def _first_batch(self, count: int) -> Batch:
        chosen = self.splits.test.select(range(min(count, len(self.splits.test))))
        (batch,) = evaluation_batches(
            chosen, self.splits.normalization, batch_size=count, device=self.engine.device
        )
        return batch

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
        ensemble = Ensemble.load(path, self.build_model, forward=self.engine.forward)
        return self.require_task(ensemble, path).to(self.engine.device)

    def require_task(self, ensemble: Ensemble, path: Path) -> Ensemble:
        """Return the ensemble of a path, if it is of the experiment's task.

        Raises:
            StorageError: It is of another one.
        """
        if ensemble.task != self.task:
            raise StorageError(
                f"{path} has the task {ensemble.task}, and the experiment {self.task}; "
                "give the config of its run, or set task.name and task.options"
            )
        return ensemble

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
        return _FirstBatches(source, min([*wanted, source.per_epoch]), share)

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


@contextmanager
def open_session(experiment: Experiment, path: Path, reporter: Reporter) -> Iterator[Session]:
    """Set up an experiment in a run folder, which is locked while the context lasts."""
    works_here = experiment.engine.chosen_launcher.is_this_process
    engine = Engine(experiment.engine if works_here else EngineSettings(accelerator="cpu"))
    folder = RunFolder(path)
    with folder.opened(experiment) if engine.is_first else nullcontext():
        engine.wait_for_all()
        session = Session.set_up(experiment, folder, engine, reporter)
        engine.first_does(lambda: keep_fingerprint(folder, session.splits))
        yield session


@contextmanager
def open_run(
    path: Path, reporter: Reporter, *, overrides: Sequence[str] = (), trust_code: bool = False
) -> Iterator[Session]:
    """Set up the experiment of a run folder for work on its ensembles, which one process does.

    Args:
        path: The run folder, which is locked while the context lasts.
        reporter: Where progress is shown.
        overrides: Other settings than the run's, such as `data.root=/data`.
        trust_code: Whether the run's own config may name functions and paths, as of `load_run_config`.
    """
    folder = RunFolder(path)
    experiment = folder.load_experiment(overrides, trust_code=trust_code)
    with folder.opened(experiment):
        experiment = experiment.on_one_device()
        yield Session.set_up(experiment, folder, Engine(experiment.engine), reporter)


def _load_splits(settings: DataSettings) -> Splits:
    seed = settings.split_seed
    splits = load_data(
        settings.name,
        root=settings.root_folder,
        validation=settings.validation,
        seed=seed,
        download=settings.download,
        verify=settings.verify,
        image_size=settings.image_size or None,
        workers=settings.workers,
        normalization=Normalization(settings.mean, settings.std) if settings.mean else None,
    )
    if splits.normalization is None and (settings.crop_padding or settings.flip):
        raise ConfigError(
            f"data.crop_padding and data.flip are for pictures, and data.name = {settings.name!r} has none; "
            "leave them out"
        )
    train = take(splits.train, settings.train_images, seed, part="training data")
    if not settings.halve_test:
        test = take(splits.test, settings.test_images, seed, part="test data")
        return replace(splits, train=train, test=test)
    # Halved before taking fewer, so that an image is in the same half in small and in full runs.
    validation, test = (
        take(half, settings.test_images, seed, part="half of the test data")
        for half in halve_test(splits.test, seed)
    )
    return replace(splits, train=train, validation=validation, test=test)


def _is_one_tensor_of_numbers(inputs: Any) -> bool:
    return isinstance(inputs, torch.Tensor) and inputs.is_floating_point() and inputs.ndim > 1


def _describe(inputs: Any) -> str:
    """Return the shapes of inputs, without the batch."""
    if isinstance(inputs, dict):
        return ", ".join(f"{name} {_describe(value)}" for name, value in inputs.items())
    if isinstance(inputs, tuple):
        return ", ".join(map(_describe, inputs))
    return str(list(inputs.shape[1:]) if isinstance(inputs, torch.Tensor) else inputs)


class _FirstBatches:
    """The first batches of a source, or one process's share of them; can be iterated repeatedly."""

    def __init__(self, source: TrainingSource, count: int, share: tuple[int, int]):
        number, every = share
        self._source = source
        self._places = range(number, count, every)

    def __iter__(self) -> Iterator[Batch]:
        batches = self._source.starting_after(self._places.start, every=self._places.step)
        return islice(batches, len(self._places))

"""An experiment set up on this machine: data, model, hardware and run folder."""

import multiprocessing
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pfge.ensemble import Ensemble
from pfge.errors import InvalidValueError
from pfge.forward import has_entries
from pfge.lab.config.settings import ConfigError, DataSettings, EngineSettings, Experiment
from pfge.lab.config.toml import load_experiment
from pfge.lab.data import (
    Augmentation,
    Batch,
    DataError,
    DataPart,
    ImageSet,
    Normalization,
    Splits,
    TensorSet,
    TrainingBatches,
    evaluation_batches,
    load_data,
    take,
    training_batches,
    validation_from_test,
)
from pfge.lab.data.base import Fingerprint, derive_seed
from pfge.lab.data.single_inputs import resized_side
from pfge.lab.engine import Engine
from pfge.lab.models import build_model
from pfge.lab.models.networks import has_dropout
from pfge.lab.run.folder import RunFolder, require_unchanged_weights
from pfge.lab.run.progress import Log, Reporter, open_log
from pfge.lab.run.results import ComparisonRow, read_rows
from pfge.methods import METHODS, START, base_of, is_starred, method_of
from pfge.metrics.position_scores import PositionScores
from pfge.storage.ensemble_folder import MANIFEST
from pfge.storage.files import StorageError, read_json_object, read_recorded, write_json
from pfge.storage.record import InputSpec, is_small_input
from pfge.tasks import Regression, Task
from pfge.tasks.classification import require_classification
from pfge.weights import Weights, count_bytes, view_weights


class FirstBatches:
    """The first batches of a source, or the share of one rank; can be iterated repeatedly."""

    def __init__(self, source: TrainingBatches, count: int, share: tuple[int, int]):
        number, every = share
        self._source = source
        self._places = range(number, count, every)

    def __iter__(self) -> Iterator[Batch]:
        batches = self._source.starting_after(self._places.start, every=self._places.step)
        return islice(batches, len(self._places))


def require_task(ensemble: Ensemble, task: Task, path: Path) -> Ensemble:
    """Return the ensemble of a path if it has a task.

    Raises:
        StorageError: It has another task.
    """
    if ensemble.task != task:
        raise StorageError(
            f"{path} has the task {ensemble.task}, and the experiment {task}; "
            "give the config of its run, set task.name and task.options, or make it again by pfge pool "
            "--config"
        )
    return ensemble


def require_fitting_model(session: "Session") -> None:
    """Call the model on an image, so that errors appear before the long work starts."""
    with torch.random.fork_rng(), torch.no_grad():
        model = session.build_model().eval()
        _require_trained_parameters(session, model)
        methods = [METHODS[base_of(row)] for row in session.experiment.ensemble.methods]
        augmented = [method.name for method in methods if method.path == "augmented"]
        if augmented and session.splits.normalization is None:
            raise ConfigError(
                f"{augmented[0]} needs images, and data.name = {session.experiment.data.name!r} has other "
                "inputs; leave it out of ensemble.methods"
            )
        dropping = [method.name for method in methods if method.path == "start"]
        if dropping and not has_dropout(model):
            raise ConfigError(
                f"{dropping[0]} needs a model with dropout, and model.name = "
                f"{session.experiment.model.name!r} lacks it; leave it out of ensemble.methods, or give the "
                "model dropout in model.options"
            )
        inputs, targets = session.first_batch(1)
        outputs = _call(session, model, inputs)
        _require_finite_inputs(session, model)
        try:
            session.task.check_outputs(outputs)
            targets = session.task.targets_of((inputs, targets))
            session.task.score(session.task.predictions(outputs).cpu(), targets.cpu())
        except (ValueError, RuntimeError) as error:
            raise ConfigError(
                f"model.name = {session.experiment.model.name!r} and data.name = "
                f"{session.experiment.data.name!r} must fit the task {session.task}: {_first_line(error)}; "
                "choose another by task.name"
            ) from None


def _require_trained_parameters(session: "Session", model: nn.Module) -> None:
    parameters = [*model.parameters()]
    if not any(parameter.requires_grad for parameter in parameters):
        raise ConfigError(
            f"model.name = {session.experiment.model.name!r} must have parameters to train, got "
            f"{len(parameters)} of which all are frozen; leave requires_grad of some of them True"
        )


def _call(session: "Session", model: nn.Module, inputs: Any) -> Any:
    try:
        return session.engine.forward(model, (inputs,))
    except Exception as error:  # it may be the user's code
        raise ConfigError(
            f"model.name = {session.experiment.model.name!r} must take the inputs of data.name = "
            f"{session.experiment.data.name!r}, which are {_describe(inputs)}: {_first_line(error)}"
        ) from error  # --traceback shows the line


def _require_finite_inputs(session: "Session", model: nn.Module) -> None:
    """Refuse inputs with NaN or infinity that reach the outputs; a user's model may replace them."""
    splits = session.splits
    for purpose, part in (
        ("training", splits.train),
        ("validation", splits.validation),
        ("testing", splits.test),
    ):
        if not isinstance(part, TensorSet) or (place := part.first_non_finite()) is None:
            continue
        inputs = part.select([place]).to(session.engine.device).inputs
        if not session.task.predictions(_call(session, model, inputs)).isfinite().all():
            value = float(inputs[~inputs.isfinite()][0])
            raise DataError(
                f"inputs must be finite, got {value} in example {place} of the {len(part):,} for {purpose}, "
                f"counted from 0 after data.name = {session.experiment.data.name!r} was split; correct them, "
                "or leave such examples out"
            )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _describe(inputs: Any) -> str:
    """Return the shapes of inputs, without the batch."""
    if isinstance(inputs, dict):
        return ", ".join(f"{name} {_describe(value)}" for name, value in inputs.items())
    if has_entries(inputs):
        return ", ".join(map(_describe, inputs))
    return str(list(inputs.shape[1:]) if isinstance(inputs, torch.Tensor) else inputs)


def load_splits(settings: DataSettings) -> Splits:
    """Return the splits of an experiment, each reduced to the number of examples in the settings.

    Raises:
        ConfigError: A setting does not apply to the data.
    """
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
            f"data.crop_padding and data.flip apply to images, and data.name = {settings.name!r} has other "
            "inputs; leave them out"
        )
    if settings.crop_padding and not isinstance(splits.train, ImageSet):
        warnings.warn(
            "training ignores data.crop_padding for images that are not in memory, which are cropped at "
            f"random anyway, got {settings.crop_padding} with data.name = {settings.name!r}; only TTA "
            "uses it, so leave it out otherwise",
            stacklevel=2,
        )
    if settings.validation_from_test and len(splits.validation):
        warnings.warn(
            "data.validation_from_test makes validation data of the test data, so the other "
            f"{len(splits.validation):,} validation examples are not used at all; set data.validation to 0, "
            "or data.validation_from_test to false",
            stacklevel=2,
        )
    train = take(splits.train, settings.train_images, seed, part="training data")
    if not settings.validation_from_test:
        test = take(splits.test, settings.test_images, seed, part="test data")
        return replace(splits, train=train, test=test)
    # Halved before it is reduced: an image is in the same half in small and in full runs.
    validation, test = (
        take(half, settings.test_images, seed, part="half of the test data")
        for half in validation_from_test(splits.test, seed)
    )
    return replace(splits, train=train, validation=validation, test=test)


PARTS = {"train": "training data", "validation": "validation data", "test": "test data"}
DECIDING = (
    "name",
    "validation",
    "validation_from_test",
    "image_size",
    "split_seed",
    "train_images",
    "test_images",
)
"""Settings that select the data; a run with another value uses other data on purpose."""


def keep_fingerprint(folder: RunFolder, splits: Splits) -> None:
    """Write the fingerprint of the data, unless it exists or the run began without one."""
    if not folder.data.exists() and not folder.has_begun():
        write_json(folder.data, {part: asdict(getattr(splits, part).fingerprint()) for part in PARTS})


def require_same_data(folder: RunFolder, settings: DataSettings, splits: Splits) -> None:
    """Raise a StorageError if the same settings now give other data than the run's.

    Runs without a fingerprint are not checked.
    """
    if not folder.data.exists() or not folder.config.exists():
        return
    then = load_experiment(folder.config).data
    if any(getattr(then, name) != getattr(settings, name) for name in DECIDING):
        return
    kept = read_json_object(folder.data)
    differing = []
    for part, name in PARTS.items():
        before = _parse(folder, kept.get(part))
        if difference := before.difference(getattr(splits, part).fingerprint()):
            differing.append(f"{name}: {difference}")
    if differing:
        raise StorageError(
            f"{folder.path} was made with other data; {'; '.join(differing)}; restore its data, or give "
            f"another --out for a new run; if you know that the data is the same, remove {folder.data}"
        )


def kept_count(folder: RunFolder, part: str) -> int:
    """Return the number of examples in a split of a run: "train", "validation" or "test".

    Raises:
        StorageError: The run has no fingerprint.
    """
    if not folder.data.exists():
        raise StorageError(
            f"{folder.path} has no fingerprint of its data, which pfge compare writes when it starts; "
            f"run pfge compare --out {folder.path}"
        )
    return _parse(folder, read_json_object(folder.data).get(part)).count


def _parse(folder: RunFolder, found: Any) -> Fingerprint:
    kinds = {field.name: int if field.name == "count" else str for field in fields(Fingerprint)}
    is_one = isinstance(found, dict) and {name: type(value) for name, value in found.items()} == kinds
    if is_one:
        return Fingerprint(**found)
    raise StorageError(f"{folder.data} must hold the fingerprint of each part of the data; remove it")


@dataclass(frozen=True)
class Session:
    """An experiment set up on this machine."""

    experiment: Experiment
    folder: RunFolder
    engine: Engine
    splits: Splits
    reporter: Reporter

    @classmethod
    def set_up(
        cls, experiment: Experiment, folder: RunFolder, engine: Engine, reporter: Reporter
    ) -> "Session":
        """Load the data of an experiment; only rank 0 shows progress.

        Raises:
            StorageError: The folder belongs to a run that was made with other data.
        """
        reporter = reporter if engine.is_first else Reporter(quiet=True)
        splits = load_splits(experiment.data)
        require_same_data(RunFolder.of_ensemble(folder.path) or folder, experiment.data, splits)
        session = cls(experiment, folder, engine, splits, reporter)
        require_fitting_model(session)
        return session

    @cached_property
    def task(self) -> Task:
        """The task of the config, or the default of the data set."""
        return self.experiment.task.make() or self.splits.task

    @cached_property
    def outputs(self) -> int:
        """Number of outputs: one for each class, label or number, and for each predicted variance."""
        names = self.splits.train.class_names
        if names and not isinstance(self.task, Regression):
            return len(names)
        _, targets = self.first_batch(1)
        numbers = targets.shape[1] if targets.ndim > 1 else 1
        return 2 * numbers if self.task == Regression(noise="predicted") else numbers

    @cached_property
    def input_spec(self) -> InputSpec:
        """The inputs that ensembles expect, for their manifests: using one does not need the data."""
        names, normalization = self.splits.train.class_names, self.splits.normalization
        inputs = self.first_inputs(1)
        return InputSpec(
            classes=names if names and not isinstance(self.task, Regression) else None,
            mean=normalization.mean if normalization else None,
            std=normalization.std if normalization else None,
            input_shape=tuple(inputs.shape[1:]) if _is_one_small_tensor(inputs) else None,
            resize=resized_side(self.splits.test, inputs.shape[2]) if normalization else None,
            outputs=self.outputs,
            channels=self.splits.channels,
        )

    @cached_property
    def has_positions(self) -> bool:
        """Whether an example has several predictions, one for each pixel or token."""
        with torch.random.fork_rng(), torch.no_grad():
            inputs, targets = self.first_batch(1)
            outputs = self.engine.forward(self.build_model().eval(), (inputs,))
            scores = self.task.score(self.task.predictions(outputs).cpu(), targets.cpu())
        return isinstance(scores, PositionScores)

    def require_one_class(self, what: str) -> None:
        """Raise a ValueError, which names `what`, unless each example has one class."""
        require_classification(self.task, what)
        if self.has_positions:
            raise InvalidValueError(
                f"{what} needs one class for each example, and {self.experiment.data.name} has one for each "
                "position"
            )

    def build_model(self, **options: Any) -> nn.Module:
        """Return a new model; its initial weights depend on the caller's random state.

        Args:
            **options: Model options that add to or replace those in the settings.
        """
        model = build_model(
            self.experiment.model.name,
            classes=self.outputs,
            channels=self.splits.channels,
            **self.experiment.model.options | options,
        )
        return self.engine.place(model)

    def open_log(self, work: str) -> Log | None:
        """Return the log for the loss and rates of a path; None if the experiment has no logger."""
        if not self.engine.is_first:
            return None
        return open_log(self.experiment.engine.logger, self.folder.logs, work)

    def first_inputs(self, count: int) -> Any:
        """Return the inputs of the first test examples, such as [N, C, H, W] for images."""
        return self.first_batch(count)[0]

    def first_batch(self, count: int) -> Batch:
        """Return the inputs and targets of the first test examples."""
        # From the whole test set: an image that cannot be read is replaced by another.
        batches = evaluation_batches(
            self.splits.test, self.splits.normalization, batch_size=count, device=self.engine.device
        )
        return next(iter(batches))

    def build_seeded_model(self, seed: int, **options: Any) -> nn.Module:
        """Return a new model whose initial weights depend on the seed."""
        with torch.random.fork_rng():
            torch.manual_seed(derive_seed(seed, "initial weights"))
            return self.build_model(**options)

    def batches(self, seed: int, purpose: str, *, whole: bool = False) -> TrainingBatches:
        """Return training batches: the share of this rank in each, or whole batches."""
        settings = self.experiment.data
        return training_batches(
            self.splits.train,
            self.splits.normalization,
            batch_size=settings.batch_size,
            seed=derive_seed(seed, purpose),
            augmentation=Augmentation(settings.crop_padding, settings.flip),
            share=(0, 1) if whole else self.engine.rank_and_world_size,
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
            input_spec=self.input_spec,
            **about,
        )
        return ensemble.to(self.engine.device)

    def load_ensemble(self, path: Path) -> Ensemble:
        """Return a saved ensemble on the engine's device.

        Two folders of a run need not exist: RUN/seed-N/ensembles/w0 is w0, an ensemble of one, and
        RUN/seed-N/ensembles/METHOD-last has the last members of METHOD, as many as in the results.

        Raises:
            StorageError: It is missing or damaged, or has another task than the experiment.
        """
        is_saved = (path / MANIFEST).exists()
        if not is_saved and (file := RunFolder.start_weights_of(path)):
            return self.make_ensemble([read_recorded(file)], method=START, iterations=[0])
        if not is_saved and (run := RunFolder.of_ensemble(path)):
            for row in read_rows(run.results, ComparisonRow).rows:
                if is_starred(row.method) and run.ensemble(row.seed, row.method) == path.resolve():
                    return self.load_ensemble(run.ensemble(row.seed, base_of(row.method))).last(row.members)
        method = method_of(path.name)
        if method and method.path in ("augmented", "start") and not path.exists():
            remedy = ", or a copy of it made by pfge views" if method.path == "augmented" else ""
            raise StorageError(
                f"{path} does not exist: {method.name} is one model in several passes and is not saved; "
                f"give {path.with_name(method.base or START)}{remedy}"
            )
        ensemble = Ensemble.load(path, self.build_model, forward=self.engine.forward)
        return require_task(ensemble, self.task, path).to(self.engine.device)

    def in_batches(self, data: DataPart) -> Iterable[Batch]:
        """Return a split in order, in batches for evaluation; can be read repeatedly."""
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
        """Return the validation data; if it is empty, raise an error that names the purpose."""
        if not len(self.splits.validation):
            raise ConfigError(
                f"{purpose} needs validation data that the ensemble was not trained on, and this experiment "
                "lacks it; give a config with data.validation, or --set data.validation_from_test=true"
            )
        return self.splits.validation

    def batch_norm_batches(
        self, seed: int, images: int = 0, *, share: tuple[int, int] = (0, 1)
    ) -> Iterable[Batch]:
        """Return whole training batches for refreshing BatchNorm; can be read repeatedly.

        Args:
            seed: Seed of the choice.
            images: Approximate limit of images; 0 means data.batch_norm_images alone.
            share: Rank and world size; a rank gets every n-th batch.
        """
        source = self.batches(seed, "batch norm", whole=True)
        limits = [limit for limit in (self.experiment.data.batch_norm_images, images) if limit]
        wanted = [-(-limit // self.experiment.data.batch_size) for limit in limits]
        return FirstBatches(source, min([*wanted, source.per_epoch]), share)

    def with_fresh_batch_norm(self, weights: Weights, seed: int) -> Weights:
        """Return weights with fresh BatchNorm statistics; the random state of training does not change."""
        with torch.random.fork_rng():
            fresh = self.make_ensemble([weights]).with_fresh_batch_norm(
                self.batch_norm_batches(seed, share=self.engine.rank_and_world_size),
                across_processes=self.engine.rank_and_world_size[1] > 1,
            )
        return fresh.members[0]

    def refresh_batch_norm(self, ensemble: Ensemble, seed: int, name: str, images: int = 0) -> Ensemble:
        """Return the ensemble with fresh BatchNorm statistics; `batch_norm_batches` explains `images`."""
        with self.reporter.task(name, len(ensemble)) as advance:
            return ensemble.with_fresh_batch_norm(
                self.batch_norm_batches(seed, images, share=self.engine.rank_and_world_size),
                across_processes=self.engine.rank_and_world_size[1] > 1,
                on_member=lambda done: advance(done, ""),
            )

    @cached_property
    def bytes_of_one(self) -> int:
        """Number of bytes of one model's weights."""
        with torch.random.fork_rng():
            return count_bytes(view_weights(self.build_model()))


def _is_one_small_tensor(inputs: Any) -> bool:
    is_one = isinstance(inputs, torch.Tensor) and inputs.is_floating_point() and inputs.ndim > 1
    return is_one and is_small_input(inputs.shape[1:])


@contextmanager
def open_session(experiment: Experiment, path: Path, reporter: Reporter) -> Iterator[Session]:
    """Set up an experiment in a run folder, which is locked while the context lasts.

    Raises:
        StorageError: The run was made with another config, other data or another file of weights.
        ConfigError: This process is a starting worker, and the script that it imports calls this function.
    """
    _require_a_guard(experiment.engine.launcher)
    works_here = experiment.engine.chosen_launcher.is_this_process
    engine = Engine(experiment.engine if works_here else EngineSettings(accelerator="cpu"))
    folder = RunFolder(path)
    with folder.opened(experiment, more_seeds=True) if engine.is_first else nullcontext():
        engine.wait_for_all()
        # If w0 exists already, nothing else reads the file.
        require_unchanged_weights(folder, experiment.pretrain.weights)
        session = Session.set_up(experiment, folder, engine, reporter)
        engine.on_rank_zero(lambda: _keep(session))
        yield session


@contextmanager
def open_run(
    path: Path, reporter: Reporter, *, overrides: Sequence[str] = (), trust_code: bool = False
) -> Iterator[Session]:
    """Set up the experiment of a run folder for work of one process on its ensembles.

    Args:
        path: The run folder, which is locked while the context lasts.
        reporter: Shows progress.
        overrides: Settings that replace the run's, such as `data.root=/data`.
        trust_code: Whether the run's own config may name functions and paths, as in `load_run_config`.
    """
    folder = RunFolder(path)
    experiment = folder.load_experiment(overrides, trust_code=trust_code)
    with folder.opened(experiment):
        experiment = experiment.on_one_device()
        yield Session.set_up(experiment, folder, Engine(experiment.engine), reporter)


def _keep(session: Session) -> None:
    """Record the seeds and the data of the run, after all checks."""
    session.folder.keep_seeds(session.experiment)
    keep_fingerprint(session.folder, session.splits)


def _require_a_guard(launcher: str) -> None:
    """Raise a ConfigError in a worker that is importing the driver's script."""
    # multiprocessing itself uses this attribute to refuse processes that start processes.
    if not getattr(multiprocessing.current_process(), "_inheriting", False):
        return
    message = (
        "a script must not run an experiment while it is imported, as each worker of engine.launcher = "
        f"{launcher!r} does; put the call under if __name__ == '__main__':"
    )
    # Each worker would print a traceback, mostly of multiprocessing.
    sys.excepthook = lambda *_: print(f"pfge: error: {message}", file=sys.stderr)
    raise ConfigError(message)

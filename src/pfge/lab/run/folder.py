"""A run's folder: its config, which may come from a stranger, its lock, and its start weights."""

import errno
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import lock_descriptor

from pfge.lab.config.settings import ConfigError, Experiment, expand_user
from pfge.lab.config.toml import differences, load_experiment, to_toml
from pfge.lab.data import registry as data_registry
from pfge.lab.models import registry as model_registry
from pfge.lab.run.results import forget_lines, record_of_lines
from pfge.methods import START, base_of, is_starred
from pfge.storage.ensemble_folder import MANIFEST
from pfge.storage.files import (
    StorageError,
    checksum,
    is_leftover,
    make_folder,
    read_json_object,
    read_recorded,
    regular_only,
    remove_leftovers,
    seal_text,
    write_json,
    write_text,
)
from pfge.weights import Weights

LOADING_OPTIONS = ("weights", "pretrained", "checkpoint", "cache")
"""Prefixes of model options that make torchvision and timm read or download files."""


def load_run_config(
    file: Path, overrides: Sequence[str] = (), *, trust_code: bool = False, reads_data: bool = True
) -> Experiment:
    """Read the config of a run without letting it import code or read files outside of the run's folder.

    Settings that only training uses, such as pretrain.weights and engine.logger, have no effect on reading
    a run and are not checked. Work runs in this process, unless an override chooses a launcher.

    Args:
        file: The config, in the run's folder.
        overrides: Settings that the user gives, which may be anything, such as `data.root=/data`.
        trust_code: Whether the config may name functions, paths and trained weights. Missing data is
            downloaded only by an override all the same.
        reads_data: Whether the data will be read; settings of data that is not read have no effect.

    Raises:
        ConfigError: The config is not trusted and names such a thing; the message says which.
    """
    experiment = load_experiment(file, overrides)
    given = [override.partition("=")[0].strip() for override in overrides]

    def is_given(key: str) -> bool:
        return any(f"{key}.".startswith(f"{name}.") for name in given)

    if not is_given("data.download"):
        experiment = replace(experiment, data=replace(experiment.data, download=False))
    if not is_given("engine.launcher"):
        experiment = replace(experiment, engine=replace(experiment.engine, launcher="here"))
    if not is_given("engine.slurm"):  # its parameters may be commands
        experiment = replace(experiment, engine=replace(experiment.engine, slurm={}))
    found = [
        setting
        for setting in _reaching_out(experiment, file.parent)
        if not is_given(setting.key) and (reads_data or not setting.key.startswith("data."))
    ]
    if found and not trust_code:
        effects = ", and ".join(f"{setting.effect} {setting.key} = {setting.value!r}" for setting in found)
        raise ConfigError(
            f"{file} would {effects}; a run's own config may do that only if you trust it: add --trust-code, "
            f"or give {' '.join(f'--set {setting.key}=...' for setting in found)}"
        )
    return experiment


@dataclass(frozen=True)
class _Setting:
    """A setting that runs code or reads files outside of the run; `effect` is a verb phrase for messages."""

    effect: str
    key: str
    value: Any


def _reaching_out(experiment: Experiment, folder: Path) -> Iterator[_Setting]:
    """Yield the settings that run code or read files outside of the folder when the run is read."""
    model, data = experiment.model, experiment.data
    if model_registry.is_own_function(model.name):
        yield _Setting("import and call", "model.name", model.name)
    for option, value in model.options.items():
        if _may_load(option, value):
            # A name that is not an identifier is shown escaped, like a value.
            key, shown = (f".{option}", value) if option.isidentifier() else ("", {option: value})
            yield _Setting("load files by", f"model.options{key}", shown)
    if data_registry.is_own_function(data.name):
        yield _Setting("import and call", "data.name", data.name)
    named = data_registry.named_folder(data.name)
    if named is not None and not _is_inside(named, folder):
        yield _Setting("read files outside of the run by", "data.name", data.name)
    if data.root and not _is_inside(data.root, folder):
        yield _Setting("read files outside of the run by", "data.root", data.root)


def _may_load(option: str, value: Any) -> bool:
    if option.startswith(LOADING_OPTIONS):
        return bool(value)
    match value:
        case bool() | int() | float():
            return False
        case str():
            return not re.fullmatch(r"[\w-]*", value)  # a word is neither a path nor an address
        case list():
            return any(_may_load(option, item) for item in value)
        case dict():
            return any(_may_load(name, item) for name, item in value.items())
    return True


def _is_inside(path: str, folder: Path) -> bool:
    try:
        return Path(path).expanduser().resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # not a path, such as ~ of a user who does not exist
        return False


READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors of writing to a read-only file or folder."""
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""Errors of file systems without locks."""
_HELD: set[int] = set()
"""The locks of this process."""


def _leave_locks() -> None:
    """Close the locks in a forked process, such as one that reads data: it may outlive a killed parent."""
    while _HELD:
        os.close(_HELD.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks)


@contextmanager
def hold_lock(file: Path, message: str, *, patience: float = 0) -> Iterator[None]:
    """Hold the lock of a file while the context lasts.

    Args:
        file: Lock file, created if it is missing. A link is refused.
        message: Message of the error if another process holds the lock.
        patience: Seconds to wait for that process.

    Raises:
        StorageError: Another process holds it, or the file system has no locks.
    """
    lock = regular_only(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0))
    try:
        deadline = time.monotonic() + patience
        while not _take(lock, file):
            if time.monotonic() >= deadline:
                raise StorageError(message)
            time.sleep(0.05)
        _HELD.add(lock)
        yield
    finally:
        _HELD.discard(lock)
        os.close(lock)


def _take(lock: int, file: Path) -> bool:
    try:
        return lock_descriptor(lock, blocking=False)
    except OSError as error:
        raise StorageError(
            f"{file.parent} must be on a file system with locks, but {file.name} cannot be locked: "
            f"{error.strerror}; use a folder on a local disk, or mount the file system with locks (flock)"
        ) from None


def is_locked(file: Path) -> bool:
    """Return whether a process holds the lock of a file, as far as this user may know."""
    try:
        return _is_locked(file, os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in NO_LOCKS:
            return False
        if error.errno not in READ_ONLY:
            raise
    with suppress(OSError):  # on network file systems, only those who may write can lock
        return _is_locked(file, os.O_RDONLY)
    return False


def _is_locked(file: Path, mode: int) -> bool:
    lock = regular_only(file, mode)
    try:
        return not lock_descriptor(lock, blocking=False)
    finally:
        os.close(lock)


def read_scores(file: Path) -> Weights:
    """Return scores by name, such as `test.log_loss`, with examples along the first dimension.

    Raises:
        StorageError: The file is damaged or holds other tensors.
        OSError: It cannot be read.
    """
    scores = read_recorded(file)
    counts: dict[str, int] = {}
    for name, values in scores.items():
        part = name.partition(".")[0]
        count = len(values) if values.ndim and not values.is_complex() else -1
        if count < 0 or counts.setdefault(part, count) != count:
            raise StorageError(
                f"{file} must hold a number or a row of numbers for each example, got {name!r} of "
                f"{values.dtype} {list(values.shape)}"
            )
    return scores


def find_scores(file: Path) -> Weights:
    """Return scores by name; empty if the file is missing or cannot be used, as `problem_of_scores` tells."""
    try:
        return read_scores(file) if file.is_file() else {}
    except (StorageError, OSError):
        return {}


def problem_of_scores(file: Path) -> str:
    """Return why a file of scores cannot be used; "" if it can, or is missing."""
    try:
        if file.exists():
            read_scores(file)
    except (StorageError, OSError) as error:
        return f"scores of single examples are left out: {error}"
    return ""


CONFIG = "config.toml"
ENVIRONMENT = "environment.json"
LOCK = ".lock"
ENSEMBLES = "ensembles"
ENVIRONMENT_KEYS = (
    "command",
    "started",
    "python",
    "torch",
    "platform",
    "processor",
    "cores",
    "threads",
    "accelerators",
)
"""Keys of the record of hardware and versions."""
SEED = r"seed--?\d+"


class RunFolder:
    """Where one experiment keeps its config, its environment, its results and its ensembles.

    Attributes:
        path: The folder.
        config: The file of the experiment.
        environment: The record of hardware, versions and the command.
        data: The file of the data's fingerprint.
        weights: The record of the file of weights (pretrain.weights) that w0 was made from.
        results: The file of results, one per line.
        connectivity: The file of curves between members, one per line.
        formats: The file of ensembles in storage formats, one per line.
        units: The folder with the status of each unit of work while the run is not finished.
        logs: The folder of loss and rates along each path.
    """

    def __init__(self, path: Path):
        self.path = path
        self.config = path / CONFIG
        self.environment = path / ENVIRONMENT
        self.data = path / "data.json"
        self.weights = path / "weights.json"
        self.results = path / "results.jsonl"
        self.connectivity = path / "connectivity.jsonl"
        self.formats = path / "formats.jsonl"
        self.units = path / "units"
        self.logs = path / "logs"

    @classmethod
    def of_ensemble(cls, path: Path) -> "RunFolder | None":
        """Return the run of an ensemble; None unless it lies at RUN/seed-N/ensembles/METHOD."""
        parents = path.resolve().parents
        if len(parents) < 3 or parents[0].name != ENSEMBLES or not re.fullmatch(SEED, parents[1].name):
            return None
        run = cls(parents[2])
        return run if run.config.is_file() else None

    @classmethod
    def start_weights_of(cls, path: Path) -> Path | None:
        """Return the file of w0 for RUN/seed-N/ensembles/w0; None for another path or a missing file."""
        run = cls.of_ensemble(path)
        if run is None or path.name != START:
            return None
        file = path.resolve().parents[1] / run.w0(0).name
        return file if file.is_file() else None

    def load_experiment(
        self, overrides: Sequence[str] = (), *, trust_code: bool = False, reads_data: bool = True
    ) -> Experiment:
        """Return the experiment of the folder, for reading it; the arguments are those of `load_run_config`.

        Raises:
            StorageError: The folder does not have a run.
            ConfigError: The config names functions or paths, and is not trusted.
        """
        self.require_run()
        return load_run_config(self.config, overrides, trust_code=trust_code, reads_data=reads_data)

    def require_run(self) -> None:
        """Raise a StorageError unless the folder has a run."""
        if not self.config.exists():
            raise StorageError(f"{self.path} is not a run folder; make one by pfge compare --out {self.path}")

    def has_begun(self) -> bool:
        """Return whether there is work of any seed."""
        return bool(self._seeds())

    def seed_path(self, seed: int) -> Path:
        """Return the folder of one seed, which may not exist."""
        return self.path / f"seed-{seed}"

    def of_seed(self, seed: int) -> Path:
        """Return the folder of one seed, which exists."""
        folder = self.seed_path(seed)
        make_folder(folder)
        return folder

    def w0(self, seed: int, number: int = 1) -> Path:
        """Return the file of a seed's start weights; those numbered from 2 are a deep ensemble's."""
        return self.seed_path(seed) / ("w0.safetensors" if number == 1 else f"w0-{number}.safetensors")

    def ensemble(self, seed: int, method: str) -> Path:
        """Return the folder of a finished ensemble."""
        return self.seed_path(seed) / ENSEMBLES / _file_name(method)

    def has_ensemble(self, seed: int, method: str) -> bool:
        """Return whether there is a finished ensemble."""
        return (self.ensemble(seed, method) / MANIFEST).exists()

    def scores(self, seed: int, row: str) -> Path:
        """Return the file of the scores that a row's ensemble has for each example."""
        return self.seed_path(seed) / "scores" / f"{_file_name(row)}.safetensors"

    def curve(self, seed: int, method: str, first: int) -> Path:
        """Return the file of the bends of the curve from a member, counted from 1, to the next."""
        return self.seed_path(seed) / "curves" / f"{method}-{first}.bends"

    def is_in_use(self) -> bool:
        """Return whether a process has opened the folder."""
        return is_locked(self.path / LOCK)

    def require_same_config(self, experiment: Experiment, *, more_seeds: bool = False) -> None:
        """Raise a StorageError if the folder has a run whose results another config gave.

        Args:
            experiment: The config.
            more_seeds: Whether it may have seeds that the run does not have yet.
        """
        if not self.config.exists():
            return
        kept = load_experiment(self.config)
        if more_seeds and set(kept.seeds) <= set(experiment.seeds):
            kept = replace(kept, seeds=experiment.seeds)
        if differing := differences(kept, experiment):
            raise StorageError(
                f"{self.path} was made with another config, where this one has {'; '.join(differing[:3])}; "
                "run it with the same config, or give another --out"
            )

    def keep_seeds(self, experiment: Experiment) -> None:
        """Write the seeds of an experiment to the config of the run, which may have fewer."""
        kept = load_experiment(self.config)
        if kept.seeds != experiment.seeds:
            write_text(self.config, seal_text(to_toml(replace(kept, seeds=experiment.seeds))))

    @contextmanager
    def opened(self, experiment: Experiment, *, more_seeds: bool = False) -> Iterator[None]:
        """Lock the folder for this process, and remove what killed processes left in it.

        If an error ends a new run before it has made anything, the folder is empty again, so that the
        corrected config is not refused.

        Args:
            experiment: The config.
            more_seeds: Whether it may have seeds that the run does not have yet; `keep_seeds` writes them.

        Raises:
            StorageError: Another process holds it, it was made with another config, or part of it is a link.
        """
        self._refuse_links()
        self._make()
        message = f"{self.path} is in use by another process; wait for it, or give another --out"
        with hold_lock(self.path / LOCK, message):
            is_new = not self.config.exists()
            self.require_same_config(experiment, more_seeds=more_seeds)
            self._describe(experiment)
            remove_leftovers(self.path)
            for file in self._files_of_lines():
                forget_lines(file)
            for folder in self._seeds():
                remove_leftovers(folder, below=True)
            try:
                yield
            except (Exception, KeyboardInterrupt):
                if is_new and not self._has_made_anything():
                    self._empty()
                raise

    def _has_made_anything(self) -> bool:
        """Return whether a seed has a file, or a job of a cluster may still write one."""
        files = [below for seed in self._seeds() for below in seed.rglob("*") if not below.is_dir()]
        return bool(files) or any(map(is_locked, self.units.glob("*.lock")))

    def _empty(self) -> None:
        for folder in (*self._seeds(), self.units, self.logs):
            shutil.rmtree(folder, ignore_errors=True)
        # The config last: without it, the other files would be refused as those of a stranger.
        for file in (self.data, self.weights, self.environment, self.config):
            file.unlink(missing_ok=True)

    def _files_of_lines(self) -> list[Path]:
        return [self.results, self.connectivity, self.formats]

    def _seeds(self) -> list[Path]:
        """Return the existing folders of seeds."""
        return sorted(path for path in self.path.glob("seed-*") if re.fullmatch(SEED, path.name))

    def _refuse_links(self) -> None:
        """Refuse links in place of files that a run changes or removes: they lead out of its folder."""
        files = [self.path / LOCK, self.config, self.environment, self.data, self.weights, self.units]
        lines = self._files_of_lines()
        results = [*lines, *map(record_of_lines, lines)]
        seeds = self._seeds()
        for path in (*files, *results, *seeds, *(below for seed in seeds for below in seed.rglob("*"))):
            if path.is_symlink():
                raise StorageError(
                    f"{path} is a symbolic link, and a run changes files in its own folder only; put a copy "
                    "in its place, or give another --out"
                )

    def _make(self) -> None:
        ours = {LOCK, ENVIRONMENT}  # a process that was killed at once may have left no config
        found = {entry.name for entry in self.path.iterdir()} if self.path.is_dir() else set()
        if CONFIG not in found and any(name not in ours and not is_leftover(name) for name in found):
            raise StorageError(f"{self.path} holds other files and no run; give an empty or new --out")
        try:
            make_folder(self.path)
        except (FileExistsError, NotADirectoryError):
            raise StorageError(
                f"{self.path} must be a folder, but it is a file; give another --out"
            ) from None

    def _describe(self, experiment: Experiment) -> None:
        # w0 may come from another command; the environment describes the results.
        if not self.results.exists():
            write_json(self.environment, describe_environment())
        if not self.config.exists():
            write_text(self.config, seal_text(to_toml(experiment)))


def describe_environment() -> dict[str, Any]:
    """Return what a reader needs to judge or repeat a measurement."""
    values = (
        " ".join(["pfge", *sys.argv[1:]]),
        datetime.now(UTC).isoformat(timespec="seconds"),
        platform.python_version(),
        torch.__version__,
        platform.platform(),
        _processor(),
        os.cpu_count(),
        torch.get_num_threads(),
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    )
    return dict(zip(ENVIRONMENT_KEYS, values, strict=True))


def curve_checkpoint(method: str, first: int | str) -> str:
    """Return the file name of an unfinished curve's checkpoint; "*" for both matches all of them."""
    return f"curve-{method}-{first}.checkpoint"


def _file_name(row: str) -> str:
    return f"{base_of(row)}-last" if is_starred(row) else row


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def record_weights_hash(folder: RunFolder, path: Path, sha256: str) -> None:
    """Record the name and the hash of the file that w0 was made from, unless there is a record."""
    if not folder.weights.exists():
        write_json(folder.weights, {"file": path.name, "sha256": sha256})


def require_same_weights(folder: RunFolder, path: Path, sha256: str) -> None:
    """Raise a StorageError if the run began with another file; runs that do not say so are not checked."""
    if not folder.weights.exists():
        return
    kept = read_json_object(folder.weights).get("sha256")
    if kept != sha256:
        raise StorageError(
            f"{folder.path} began with weights of SHA-256 {kept}, and {path} has {sha256}; restore the file, "
            "or give another --out for a new run"
        )


def require_unchanged_weights(folder: RunFolder, setting: str) -> None:
    """Raise a StorageError if the file of pretrain.weights is there, and the run began with another."""
    path = expand_user(setting, "pretrain.weights")
    if setting and folder.weights.exists() and path.is_file():
        require_same_weights(folder, path, checksum(path))

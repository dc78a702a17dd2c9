"""Read the config of a run folder, which may come from an untrusted source."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pfge.lab.config.settings import ConfigError, Experiment
from pfge.lab.config.toml import load_experiment
from pfge.lab.data import registry as data_registry
from pfge.lab.models import registry as model_registry

LOADING_OPTIONS = ("weights", "pretrained", "checkpoint", "cache")
"""Prefixes of model options that make torchvision and timm read or download files."""


def load_run_config(
    file: Path, overrides: Sequence[str] = (), *, trust_code: bool = False, reads_data: bool = True
) -> Experiment:
    """Read the config of a run, which may import nothing and read nothing outside of the run's folder.

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

"""An experiment as TOML: read with overrides, written whole, compared setting by setting."""

import dataclasses
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pfge.lab.config.settings import ConfigError, Experiment, flatten
from pfge.lab.config.typed import FieldError, decode
from pfge.storage.files import BrokenSealError, UnreadableFileError, read_bounded, require_unbroken_text

LONGEST = 1_000_000
"""Bytes of a config."""

WITHOUT_EFFECT = (
    "data.root",
    "data.download",
    "data.workers",
    "engine.checkpoint_seconds",
    "engine.timeout",
    "engine.logger",
    "engine.launcher",
    "engine.cpus",
    "engine.gpus",
    "engine.memory",
    "engine.slurm",
)
"""Settings that may change when a run is continued, beside all of [connect] and [margins].

Curves are stored with their settings, and margins only change the words of reports.
"""


EARLIER_NAMES = {"data.halve_test": "data.validation_from_test"}
"""Settings that configs of earlier versions, such as those of finished runs, have under another name."""


def load_experiment(path: Path | None, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment, or take the default one, and apply overrides such as `ensemble.high=0.1`."""
    table: dict[str, Any] = {}
    if path is not None:
        try:
            text = read_bounded(path, LONGEST).decode()
            table = tomllib.loads(text)
        except FileNotFoundError:
            raise ConfigError(f"config file {path} does not exist; give the path of a .toml file") from None
        except UnreadableFileError as error:
            raise ConfigError(str(error)) from None
        except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
            raise ConfigError(f"{path} must be TOML: {error}") from None
        try:
            require_unbroken_text(text)
        except BrokenSealError as error:
            raise ConfigError(f"{path} is not as it was written: {error}") from None
        if not table:
            raise ConfigError(f"{path} has no setting; it may be truncated")
        _use_names_of_today(table)
    for override in overrides:
        _override(table, override)
    try:
        experiment: Experiment = decode(Experiment, table, is_toml=True)
    except FieldError as error:
        raise ConfigError(str(error)) from None
    return experiment


def differences(old: Experiment, new: Experiment) -> list[str]:
    """Return the settings of `new` that change the results compared with `old`, each with both values."""
    found = []
    for key, value in flatten(new).items():
        if key in WITHOUT_EFFECT or key.startswith(("connect.", "margins.")):
            continue
        if value != (before := flatten(old)[key]):
            found.append(f"{key} = {_toml(value)} (was {_toml(before)})")
    return found


def to_toml(experiment: Experiment) -> str:
    """Return the experiment as TOML, every setting written out."""
    tables = dataclasses.asdict(experiment)
    lines = [f"{key} = {_toml(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _use_names_of_today(table: dict[str, Any]) -> None:
    """Rename the settings of a config that an earlier version wrote; one that has both names is refused."""
    for before, now in EARLIER_NAMES.items():
        section, name = before.split(".")
        settings = table.get(section)
        if isinstance(settings, dict) and name in settings:
            if (new := now.split(".")[1]) in settings:
                raise ConfigError(f"{before} is called {now} now, and the config has both; remove {before}")
            settings[new] = settings.pop(name)


def _override(table: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals:
        raise ConfigError(
            f"an override is written key=value, got {override!r}; for example ensemble.high=0.1"
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()  # text without quotes, as on the command line
    if now := EARLIER_NAMES.get(key.strip()):
        raise ConfigError(f"{key.strip()} is called {now} now; write {now}={text.strip()}")
    *path, name = key.strip().split(".")
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{key.strip()!r} is not a setting: {part} is not a table")
    table[name] = value


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            # A JSON string is a valid TOML string, except for this character.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    raise ConfigError(
        f"a setting must be a string, a number, true or false, a list or a table, got {value!r}"
    )

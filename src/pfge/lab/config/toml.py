"""An experiment as TOML: read with overrides, written whole, compared setting by setting."""

import dataclasses
import difflib
import hashlib
import json
import re
import tomllib
import types
import typing
from pathlib import Path
from typing import Any, Literal

from pfge.lab.config.settings import ConfigError, Experiment, flatten
from pfge.storage.files import UnreadableFileError, is_large_int, read_bounded

LONGEST = 1_000_000
"""Bytes of a config."""

SEAL = "# sha256 of what follows: "
"""How the first line of a run's own config begins; configs of users and of older versions have none."""

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
"""Settings that a run may be continued with when they have changed, beside those in [connect] and [margins].

What is computed by the former keeps them itself; the latter only words reports.
"""


def load_experiment(path: Path | None, overrides: typing.Sequence[str] = ()) -> Experiment:
    """Read an experiment, or take the default one, and apply overrides such as `ensemble.high=0.1`."""
    table: dict[str, Any] = {}
    if path is not None:
        try:
            text = read_bounded(path, LONGEST).decode()
            table = tomllib.loads(text)
        except FileNotFoundError:
            raise ConfigError(f"there is no config file {path}; give the path of a .toml file") from None
        except UnreadableFileError as error:
            raise ConfigError(str(error)) from None
        except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
            raise ConfigError(f"{path} must be TOML: {error}") from None
        _require_as_written(path, text)
        if not table:
            raise ConfigError(f"{path} has no setting; it may be truncated")
    for override in overrides:
        _override(table, override)
    _require_small_numbers(table, "")
    experiment: Experiment = _parse(Experiment, table, "")
    return experiment


def _require_small_numbers(value: Any, key: str) -> None:
    match value:
        case dict():
            for name, item in value.items():
                _require_small_numbers(item, f"{key}.{name}" if key else name)
        case list():
            for item in value:
                _require_small_numbers(item, key)
        case _ if is_large_int(value):
            raise ConfigError(f"{key} must be a number of at most 64 bits, got {str(value)[:20]}...")


def seal_toml(text: str) -> str:
    """Return a config with the SHA-256 of its text in a first line, which `load_experiment` checks."""
    return f"{SEAL}{_digest(text)}\n{text}"


def is_sealed_toml(text: str) -> bool:
    """Return whether a config states the SHA-256 of its text, be it in a damaged line."""
    return re.match(rf"#.*(sha256|[0-9a-f]{{64}})|{SEAL}", text) is not None


def _require_as_written(path: Path, text: str) -> None:
    first, _, rest = text.partition("\n")
    if is_sealed_toml(text) and first != SEAL + _digest(rest):
        raise ConfigError(
            f"{path} is not as it was written: it does not have the SHA-256 that it states, so it is damaged "
            "or was edited; after an edit of your own, remove its first line"
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


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
    *path, name = key.strip().split(".")
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{key.strip()!r} is not a setting: {part} is not a table")
    table[name] = value


def _parse(kind: type[Any], table: Any, prefix: str) -> Any:
    if not isinstance(table, dict):
        raise ConfigError(f"{prefix.rstrip('.')} must be a table, got {table!r}")
    kinds = typing.get_type_hints(kind)
    for key in table:
        if key not in kinds:
            close = difflib.get_close_matches(key, kinds, n=1)
            hint = f"did you mean {prefix}{close[0]}? " if close else ""
            raise ConfigError(f"{prefix}{key} is not a setting; {hint}allowed: {', '.join(kinds)}")
    return kind(**{key: _convert(kinds[key], value, prefix + key) for key, value in table.items()})


def _convert(kind: Any, value: Any, key: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _parse(typing.cast("type[Any]", kind), value, f"{key}.")
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        if value not in arguments:
            raise ConfigError(f"{key} must be one of {', '.join(map(repr, arguments))}, got {value!r}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{key} must be a list, got {value!r}")
        return tuple(_convert(arguments[0], item, key) for item in value)
    if origin is dict:
        if not isinstance(value, dict):
            raise ConfigError(f"{key} must be a table, got {value!r}")
        return value
    allowed = arguments if origin is types.UnionType else (kind,)
    # bool is a subclass of int, but true is not a number here; an int is accepted as a float.
    if type(value) in allowed:
        return value
    if type(value) is int and float in allowed:
        return float(value)
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    raise ConfigError(f"{key} must be {' or '.join(names[item] for item in allowed)}, got {value!r}")


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
    raise ConfigError(f"a setting must be text, a number, true or false, a list or a table, got {value!r}")

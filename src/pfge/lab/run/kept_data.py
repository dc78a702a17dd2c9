"""The fingerprint of a run's data, which is kept in its folder: other data is refused."""

from dataclasses import asdict, fields
from typing import Any

from pfge.lab.config.schema import DataSettings
from pfge.lab.config.toml import load_experiment
from pfge.lab.data import Splits
from pfge.lab.data.fingerprint import Fingerprint
from pfge.lab.run.folder import RunFolder
from pfge.storage.files import StorageError, read_json_object, write_json

PARTS = {"train": "training data", "validation": "validation data", "test": "test data"}
DECIDING = (
    "name",
    "validation",
    "halve_test",
    "image_size",
    "split_seed",
    "train_images",
    "test_images",
)
"""The settings that decide what the data is; those who change one ask for other data."""


def keep_fingerprint(folder: RunFolder, splits: Splits) -> None:
    """Write the fingerprint of the data, unless there is one or the run began without."""
    if not folder.data.exists() and not folder.has_begun():
        write_json(folder.data, {part: asdict(getattr(splits, part).fingerprint()) for part in PARTS})


def require_same_data(folder: RunFolder, settings: DataSettings, splits: Splits) -> None:
    """Raise a StorageError if the data differs from that of the run, by the same settings.

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
            f"another --out for a new run; if you know that they are the same, remove {folder.data}"
        )


def kept_count(folder: RunFolder, part: str) -> int:
    """Return how many examples a part of a run's data has, "train", "validation" or "test".

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

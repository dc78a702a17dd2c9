"""Check files of runs, ensembles and checkpoints, as far as their digests reach."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pfge.lab.config.toml import load_experiment
from pfge.lab.run.folder import CONFIG, LOCK
from pfge.lab.run.results import (
    ComparisonRow,
    ConnectivityRow,
    FormatRow,
    ResultRow,
    read_rows,
    record_of_lines,
    unsealed_lines,
)
from pfge.packed import read_ensemble
from pfge.storage import load_checkpoint
from pfge.storage.ensemble_folder import ADAPTERS, MANIFEST, named_files, read_manifest, verify_file
from pfge.storage.files import (
    SUFFIX,
    StorageError,
    is_leftover,
    is_sealed,
    is_sealed_text,
    parse_json,
    read_bounded,
    read_json_object,
    read_tensors,
    record_of,
    require_as_recorded,
)

OLDER = "the file does not state a SHA-256, like files of older versions of pfge"
FOREIGN = "pfge does not record a SHA-256 of this file"
LINES: dict[str, type[ResultRow]] = {
    "results.jsonl": ComparisonRow,
    "connectivity.jsonl": ConnectivityRow,
    "formats.jsonl": FormatRow,
}


@dataclass(frozen=True)
class CheckedFile:
    """Result of checking one file.

    Attributes:
        path: The file.
        state: "whole" if the file is as it was written, "damaged" if it differs, "not covered" without a
            digest.
        reason: Explanation, unless the file is whole.
    """

    path: Path
    state: Literal["whole", "damaged", "not covered"]
    reason: str = ""


def verify(path: Path) -> list[CheckedFile]:
    """Check a file, or every file in a folder and below it.

    Args:
        path: A run folder, an ensemble, a checkpoint, or another file of pfge.

    Raises:
        StorageError: The path does not exist.
    """
    if not path.exists():
        raise StorageError(f"{path} does not exist; check the path")
    if not path.is_dir():
        return [_check(path)]
    found: list[CheckedFile] = []
    for parent, folders, names in os.walk(path):  # it does not follow links
        folders.sort()
        files = [Path(parent, name) for name in sorted(names) if name != LOCK and not is_leftover(name)]
        named = [*_check_ensemble(Path(parent))] if MANIFEST in names else []
        found += named
        done = {file.path for file in found}
        found += [_check(file) for file in files if file not in done]
    return found


def _check(path: Path) -> CheckedFile:
    """Check a file by the digest in it, or by the one beside it."""
    if path.is_symlink() or not path.is_file():
        return CheckedFile(path, "not covered", "it is a link, a pipe or a device")
    is_covered = _check_of(path)
    try:
        reason = is_covered(path) if is_covered else FOREIGN
    except Exception as error:  # whatever it is, the other files are checked all the same
        return CheckedFile(path, "damaged", _reason(error))
    return CheckedFile(path, "not covered", reason) if reason else CheckedFile(path, "whole")


def _reason(error: Exception) -> str:
    is_ours = isinstance(error, ValueError | OSError)
    return str(error) if is_ours else f"it cannot be read: {type(error).__name__}: {error}"


def _check_of(path: Path) -> Callable[[Path], str] | None:
    """Return the function that checks a file: it raises an error, or returns why a file is not covered."""
    if path.name.endswith(SUFFIX):
        return _check_record
    if path.name == CONFIG:
        return _check_config
    if path.suffix == ".jsonl":
        return _check_lines
    if path.suffix == ".json":
        return _check_json
    if path.suffix in (".checkpoint", ".bends"):
        return _check_checkpoint
    if path.suffix == ".safetensors":
        return _check_tensors
    return None


def _check_record(path: Path) -> str:
    require_as_recorded(path.with_name(path.name.removesuffix(SUFFIX)))
    return ""


def _check_config(path: Path) -> str:
    load_experiment(path)
    return "" if is_sealed_text(read_bounded(path).decode()) else OLDER


def _check_lines(path: Path) -> str:
    if path.name not in LINES:
        return FOREIGN
    if left_out := read_rows(path, LINES[path.name]).left_out:
        raise StorageError("; ".join(left_out))
    if lines := unsealed_lines(path):
        return f"{OLDER}: line {', '.join(map(str, lines))}"
    record = record_of_lines(path)
    return "" if record.exists() else f"{record.name} is missing, so missing lines are not noticed"


def _check_json(path: Path) -> str:
    read_json_object(path)
    return "" if is_sealed(parse_json(read_bounded(path))) else OLDER


def _check_checkpoint(path: Path) -> str:
    load_checkpoint(path)
    return ""


def _check_tensors(path: Path) -> str:
    if "checkpoint" in read_tensors(path)[1]:
        return _check_checkpoint(path)
    if require_as_recorded(path):
        return ""
    return f"{record_of(path).name} is missing"


def _check_ensemble(folder: Path) -> Iterator[CheckedFile]:
    """Yield the manifest of an ensemble and every file that it names."""
    manifest = _check(folder / MANIFEST)
    if manifest.state == "damaged":
        yield manifest
        return
    try:
        files = [*_check_entries(folder)]
    except ValueError as error:
        yield CheckedFile(folder / MANIFEST, "damaged", str(error))
        return
    if all(file.state == "whole" for file in files) and _is_read_here(folder):
        try:
            read_ensemble(folder)
        except Exception as error:
            manifest = CheckedFile(folder / MANIFEST, "damaged", _reason(error))
    yield manifest
    yield from files


def _check_entries(folder: Path) -> Iterator[CheckedFile]:
    for place, entry in named_files(folder, read_manifest(folder)):
        try:
            verify_file(place, entry, "one of its files")
        except (ValueError, OSError) as error:
            yield CheckedFile(place / entry.file, "damaged", str(error))
        else:
            yield CheckedFile(place / entry.file, "whole")


def _is_read_here(folder: Path) -> bool:
    return read_manifest(folder).get("format") != ADAPTERS

"""Which file of trained weights a run began with: every seed must begin with the same."""

from pathlib import Path

from pfge.lab.run.folder import RunFolder
from pfge.storage.files import StorageError, checksum, read_json_object, write_json


def keep_weights(folder: RunFolder, path: Path, sha256: str) -> None:
    """Write which file was used, unless that is known."""
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
    path = Path(setting).expanduser()
    if setting and folder.weights.exists() and path.is_file():
        require_same_weights(folder, path, checksum(path))

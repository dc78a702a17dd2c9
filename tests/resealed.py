"""JSON files that somebody edits and gives the right SHA-256 again."""

from pathlib import Path
from typing import Any

from pfge.storage.files import read_json_object, write_json


def edit_json(path: Path, **changes: Any) -> None:
    """Change entries of a JSON file as a forger would; an entry of None becomes null."""
    write_json(path, {**read_json_object(path), **changes})


def edit_manifest(folder: Path, **changes: Any) -> None:
    edit_json(folder / "manifest.json", **changes)

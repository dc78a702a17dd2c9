"""Packed members on disk: one safetensors file, and a manifest that is replaced last."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pfge.calibration import UNSCALED, Temperatures
from pfge.packed.bits import packed_size
from pfge.packed.packed_members import PackedMembers, PackedTensor, Stored
from pfge.packed.quantization import Quantized, count_groups
from pfge.storage import manifest as manifests
from pfge.storage.files import StorageError, read_tensors
from pfge.storage.usage import NO_USAGE, Usage

FORMAT = "pfge-packed-ensemble"
VERSION = 2  # of folders with components; all others have version 1
KIND = "packed"  # what the file's name begins with
LAYOUT = "layout"  # the key of the file's metadata

Spec = str | list[int] | None
"""How a part is stored: the name of its type, or its bits and group, or None for no part."""
MixSpec = list[Spec]
"""How components are stored: the type of the mix, and then each component."""


@dataclass(frozen=True)
class PackedFolder:
    """Packed members and what the manifest says of them."""

    members: PackedMembers
    method: str | None
    model: str | None
    iterations: Sequence[int | None]
    temperatures: Temperatures = UNSCALED
    task: dict[str, Any] | None = None
    usage: Usage = NO_USAGE

    def save(self, path: Path) -> None:
        """Write the members, which replace those in the folder at once, at the end."""
        entry = manifests.write_file(path, KIND, *self._file())
        manifests.commit_manifest(path, self._manifest(entry), [entry])

    def file_bytes(self) -> int:
        """Return the size of all files that `save` writes, without writing one."""
        entry = manifests.describe_file(KIND, *self._file())
        return manifests.total_bytes(self._manifest(entry), [entry])

    def _file(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return the tensors and the metadata of the file.

        Numbers of one kind lie in one tensor, a row a member, in the order of the layout: a header for
        every small tensor would take more bytes than the tensor.
        """
        layout = [
            [name, _type_name(t.dtype), list(t.shape), _spec(t.base), _spec_of_each(t)]
            for name, t in self.members.tensors.items()
        ]
        packed = list(self.members.tensors.values())
        tensors = _join("base", [[t.base] for t in packed if t.base is not None])
        tensors |= _join("each", [t.each for t in packed if t.each and t.mix is None])
        tensors |= _join("component", [[part] for t in packed if t.mix is not None for part in t.each])
        tensors |= _join("mix", [t.mix.unbind() for t in packed if t.mix is not None])
        return tensors, {LAYOUT: json.dumps(layout, separators=(",", ":"))}

    def _manifest(self, entry: manifests.FileEntry) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": 1 if all(t.mix is None for t in self.members.tensors.values()) else VERSION,
            "method": self.method,
            "model": self.model,
            "iterations": list(self.iterations),
            **manifests.temperature_entries(self.temperatures),
            **manifests.task_entries(self.task),
            **manifests.usage_entries(self.usage),
            **asdict(entry),
        }

    @classmethod
    def open(cls, path: Path, *, in_memory: bool = False) -> "PackedFolder":
        """Check the file byte by byte and map it into memory; a member is read when it is asked for.

        Args:
            path: The folder.
            in_memory: Whether to copy the file into memory instead, so that nothing depends on it later.

        Raises:
            StorageError: Something is missing, damaged or foreign; the message says which file,
                what was expected and what was found.
        """
        manifest = manifests.read_manifest(path)
        version = 1 if manifest.get("version") == 1 else VERSION
        manifests.require_format(path / manifests.MANIFEST, manifest, FORMAT, version)
        match manifest:
            case {
                "file": str(file),
                "bytes": int(size),
                "sha256": str(digest),
                "iterations": [*iterations],
            } if manifests.is_inside(file) and iterations:
                entry = manifests.FileEntry(file=file, bytes=size, sha256=digest)
                if in_memory:
                    tensors, metadata = manifests.read_verified(path, entry, "its members")
                else:
                    tensors, metadata = read_tensors(manifests.verify_file(path, entry, "its members"))
            case _:
                raise StorageError(
                    f"{path / manifests.MANIFEST} must give file, bytes, sha256 and iterations"
                )
        members = _parse_members(path / file, tensors, metadata, len(iterations))
        temperatures = manifests.read_temperatures(path / manifests.MANIFEST, manifest, len(iterations))
        method, model, task = (manifest.get(key) for key in ("method", "model", "task"))
        usage = Usage.from_manifest(path / manifests.MANIFEST, manifest.get("usage"))
        return cls(members, method, model, iterations, temperatures, task, usage)


def is_packed_folder(path: Path) -> bool:
    """Return whether a folder's manifest says that its members are packed."""
    return manifests.read_manifest(path).get("format") == FORMAT


def _join(name: str, parts: Sequence[Sequence[Stored]]) -> dict[str, Tensor]:
    """Return one tensor for each kind of numbers; entry [i][j] of the parts belongs to row j."""
    rows: dict[str, list[Tensor]] = {}
    for part in parts:
        split = [_split(stored) for stored in part]
        for kind in split[0]:
            rows.setdefault(f"{name}.{kind}", []).append(torch.stack([numbers[kind] for numbers in split]))
    return {key: torch.cat(columns, dim=1) for key, columns in rows.items()}


def _split(stored: Stored) -> dict[str, Tensor]:
    if isinstance(stored, Quantized):
        return {"codes": stored.codes, "steps": stored.steps}
    return {_type_name(stored.dtype): stored.reshape(-1)}


def _spec(stored: Stored | None) -> Spec:
    if isinstance(stored, Quantized):
        return [stored.bits, stored.group]
    return None if stored is None else _type_name(stored.dtype)


def _spec_of_each(tensor: PackedTensor) -> Spec | MixSpec:
    if tensor.mix is not None:
        return [_spec(tensor.mix), *map(_spec, tensor.each)]
    return _spec(tensor.each[0] if tensor.each else None)


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Streams:
    """The joined tensors of a file, taken apart in the order in which they were joined."""

    def __init__(self, file: Path, tensors: dict[str, Tensor]):
        self._file = file
        self._tensors = tensors
        self._taken: Counter[str] = Counter()

    def take(self, name: str, rows: int, spec: Any, count: int) -> tuple[Stored, ...]:
        match spec:
            case None:
                return ()
            case str(kind):
                return self._take(f"{name}.{kind}", rows, count)
            case [int(bits), int(group)] if 1 <= bits <= 8 and group >= 1:
                codes = self._take(f"{name}.codes", rows, packed_size(count, bits))
                steps = self._take(f"{name}.steps", rows, count_groups(count, group))
                parts = zip(codes, steps, strict=True)
                return tuple(Quantized(c, s, bits, group, count) for c, s in parts)
        raise StorageError(f"{self._file} must say how tensors are stored, found {spec!r}")

    def require_nothing_left(self) -> None:
        for name, tensor in self._tensors.items():
            if tensor.shape[1] != self._taken[name]:
                raise StorageError(
                    f"{self._file} must hold {self._taken[name]} numbers of {name}, found {tensor.shape[1]}"
                )

    def _take(self, name: str, rows: int, count: int) -> tuple[Tensor, ...]:
        start = self._taken[name]
        tensor = self._tensors.get(name)
        found = list(tensor.shape) if tensor is not None else None
        if tensor is None or tensor.ndim != 2 or len(tensor) != rows or tensor.shape[1] < start + count:
            raise StorageError(f"{self._file} must hold {rows} rows of {name}, found {found}")
        self._taken[name] += count
        return tensor[:, start : start + count].unbind()


def _parse_members(
    file: Path, tensors: dict[str, Tensor], metadata: dict[str, str], length: int
) -> PackedMembers:
    streams = _Streams(file, tensors)
    packed: dict[str, PackedTensor] = {}
    for row in _read_layout(file, metadata):
        match row:
            case [str(name), str(dtype), [*shape], base_spec, each_spec] if (
                isinstance(getattr(torch, dtype, None), torch.dtype)
                and all(isinstance(size, int) and size >= 0 for size in shape)
                and (base_spec, each_spec) != (None, None)
            ):
                base = streams.take("base", 1, base_spec, prod(shape))
                each, mix = _take_each(streams, length, each_spec, prod(shape))
                own = getattr(torch, dtype)
                packed[name] = PackedTensor(tuple(shape), own, base[0] if base else None, each, mix)
            case _:
                raise StorageError(f"{file} must give each tensor's name, type and shape, found {row!r}")
    streams.require_nothing_left()
    return PackedMembers(length, packed)


def _take_each(
    streams: _Streams, length: int, spec: Any, count: int
) -> tuple[tuple[Stored, ...], Tensor | None]:
    """Return what members add, or components and their mix."""
    match spec:
        case ["float16" as kind, *components] if 0 < len(components) <= length and None not in components:
            parts = tuple(streams.take("component", 1, component, count)[0] for component in components)
            rows = streams.take("mix", length, kind, len(components))
            return parts, torch.stack([row for row in rows if isinstance(row, Tensor)])
    return streams.take("each", length, spec, count), None


def _read_layout(file: Path, metadata: dict[str, str]) -> list[Any]:
    try:
        layout = json.loads(metadata.get(LAYOUT, ""))
    except ValueError as error:
        raise StorageError(f"{file} must hold a layout in JSON, but {error}") from None
    if not isinstance(layout, list):
        raise StorageError(f"{file} must list its tensors, found {type(layout).__name__}")
    return layout

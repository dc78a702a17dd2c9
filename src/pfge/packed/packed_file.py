"""Packed members on disk: one file of streams with a layout, and a manifest."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pfge.calibration import UNSCALED, Temperatures
from pfge.packed.codes import (
    STEP_TYPE,
    DamagedStreamError,
    Quantized,
    count_groups,
    deflate,
    deflate_text,
    inflate,
    inflate_text,
    loose_size,
    loosen,
    packed_size,
    tighten,
)
from pfge.packed.packed_members import PackedMembers, PackedTensor, Stored
from pfge.storage import manifest as manifests
from pfge.storage.files import (
    LARGEST_INT,
    TYPES_BY_NAME,
    StorageError,
    measure_parts,
    parse_json,
    read_tensors,
    tensor_file,
)
from pfge.storage.manifest import NO_USAGE, Usage
from pfge.views import Views

LAYOUT = "layout"  # the key of the file's metadata, or the name of a tensor in a deflated file

Spec = str | list[int] | None
"""How a part is stored: the name of its type, or its bits and group, or None for no part."""
MixSpec = list[Spec]
"""How components are stored: the type of the mix, and then each component."""


@dataclass(frozen=True)
class FileContent:
    """What is in a file.

    Args:
        tensors: Numbers of one kind lie in one tensor, a row a member, in the order of the layout: a header
            for every small tensor would take more bytes than the tensor.
        metadata: Of the file.
        deflated: Whether each such tensor, and the layout, is a stream of fewer bytes.
    """

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    deflated: bool

    @classmethod
    def of(cls, members: PackedMembers, *, deflated: bool) -> "FileContent":
        """Return the file of members."""
        layout = [
            [name, _type_name(t.dtype), list(t.shape), _spec(t.base), _spec_of_each(t)]
            for name, t in members.tensors.items()
        ]
        packed = list(members.tensors.values())
        split = _split_loosely if deflated else _split
        tensors = _join("base", [[t.base] for t in packed if t.base is not None], split)
        tensors |= _join("each", [t.each for t in packed if t.each and t.mix is None], split)
        tensors |= _join("component", [[part] for t in packed if t.mix is not None for part in t.each], split)
        tensors |= _join("mix", [t.mix.unbind() for t in packed if t.mix is not None], split)
        if not deflated:
            return cls(tensors, {LAYOUT: _compact_json(layout)}, deflated)
        streams = {name: [_type_name(t.dtype), list(t.shape)] for name, t in tensors.items()}
        about = deflate_text(_compact_json({"streams": streams, "tensors": layout}))
        return cls(
            {name: deflate(tensor) for name, tensor in tensors.items()} | {LAYOUT: about}, {}, deflated
        )

    @property
    def nbytes(self) -> int:
        """The bytes of the file."""
        return measure_parts(tensor_file(self.tensors, self.metadata))[0]

    def members(self, file: Path, length: int) -> PackedMembers:
        """Return the members.

        Args:
            file: Its path, for errors.
            length: How many members it must have.

        Raises:
            StorageError: It does not hold what its layout says, or the layout says too little.
        """
        tensors = self.tensors
        if self.deflated:
            tensors, layout = _inflate_streams(file, dict(tensors))
        elif not isinstance(layout := _read_json(file, self.metadata.get(LAYOUT, "")), list):
            raise StorageError(f"{file} must list its tensors, found {type(layout).__name__}")
        return _parse_members(file, _Streams(file, tensors, is_loose=self.deflated), layout, length)


def _compact_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _join(
    name: str, parts: Sequence[Sequence[Stored]], split: Callable[[Stored], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Return one tensor for each kind of numbers; entry [i][j] of the parts belongs to row j."""
    rows: dict[str, list[Tensor]] = {}
    for part in parts:
        found = [split(stored) for stored in part]
        for kind in found[0]:
            rows.setdefault(f"{name}.{kind}", []).append(torch.stack([numbers[kind] for numbers in found]))
    return {key: torch.cat(columns, dim=1) for key, columns in rows.items()}


def _split(stored: Stored) -> dict[str, Tensor]:
    if isinstance(stored, Quantized):
        return {"codes": stored.codes, "steps": stored.steps}
    return {_type_name(stored.dtype): stored.reshape(-1)}


def _split_loosely(stored: Stored) -> dict[str, Tensor]:
    """Return codes of each width apart, as they are not equally frequent, and steps."""
    if isinstance(stored, Quantized):
        codes = loosen(stored.codes, stored.bits, stored.count)
        return {_codes_of(stored.bits): codes, "steps": stored.steps}
    return _split(stored)


def _codes_of(bits: int) -> str:
    return f"codes of {bits} bits"


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

    def __init__(self, file: Path, tensors: dict[str, Tensor], *, is_loose: bool):
        self._file = file
        self._tensors = tensors
        self._is_loose = is_loose
        self._taken: Counter[str] = Counter()

    def take(self, name: str, rows: int, spec: Any, count: int) -> tuple[Stored, ...]:
        match spec:
            case None:
                return ()
            case str(kind) if kind in TYPES_BY_NAME:
                return self._take(f"{name}.{kind}", rows, count, TYPES_BY_NAME[kind])
            case [bits, group] if _is_count(bits) and _is_count(group) and 1 <= bits <= 8 and group >= 1:
                codes = self._take_codes(name, rows, bits, count)
                steps = self._take(f"{name}.steps", rows, count_groups(count, group), STEP_TYPE)
                parts = zip(codes, steps, strict=True)
                return tuple(Quantized(c, s, bits, group, count) for c, s in parts)
        raise StorageError(f"{self._file} must say how tensors are stored, found {spec!r}")

    def _take_codes(self, name: str, rows: int, bits: int, count: int) -> tuple[Tensor, ...]:
        if not self._is_loose:
            return self._take(f"{name}.codes", rows, packed_size(count, bits), torch.uint8)
        found = self._take(f"{name}.{_codes_of(bits)}", rows, loose_size(count, bits), torch.uint8)
        return tuple(tighten(codes, bits, count) for codes in found)

    def require_nothing_left(self) -> None:
        for name, tensor in self._tensors.items():
            # What was never taken may have any shape.
            if (found := tensor.shape[1] if tensor.ndim == 2 else list(tensor.shape)) != self._taken[name]:
                raise StorageError(
                    f"{self._file} must hold {self._taken[name]} numbers of {name}, found {found}"
                )

    def _take(self, name: str, rows: int, count: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        start = self._taken[name]
        tensor = self._tensors.get(name)
        found = list(tensor.shape) if tensor is not None else None
        if tensor is None or tensor.ndim != 2 or len(tensor) != rows or tensor.shape[1] < start + count:
            raise StorageError(f"{self._file} must hold {rows} rows of {name}, found {found}")
        if tensor.dtype != dtype:
            raise StorageError(f"{self._file} must hold {name} in {dtype}, found {tensor.dtype}")
        self._taken[name] += count
        return tensor[:, start : start + count].unbind()


def _inflate_streams(file: Path, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[Any]]:
    """Return the streams of a deflated file, and its layout."""
    try:
        about = inflate_text(tensors.pop(LAYOUT, torch.zeros(0)))
    except DamagedStreamError as error:
        raise StorageError(f"{file} must hold a layout in {error}") from None
    match _read_json(file, about):
        case {"streams": dict(streams), "tensors": [*layout]} if streams.keys() == tensors.keys():
            return {name: _inflate(file, name, tensors[name], streams[name]) for name in streams}, layout
    raise StorageError(f"{file} must list its streams, {', '.join(sorted(tensors))}, and its tensors")


def _inflate(file: Path, name: str, stream: Tensor, spec: Any) -> Tensor:
    match spec:
        case [str(kind), [rows, columns]] if kind in TYPES_BY_NAME and _is_shape([rows, columns]):
            try:
                return inflate(stream, TYPES_BY_NAME[kind], (rows, columns))
            except DamagedStreamError as error:
                raise StorageError(f"{file} must hold of {name} {error}") from None
    raise StorageError(f"{file} must give the type and shape of {name}, found {spec!r}")


def _parse_members(file: Path, streams: _Streams, layout: list[Any], length: int) -> PackedMembers:
    packed: dict[str, PackedTensor] = {}
    for row in layout:
        match row:
            case [str(name), str(dtype), [*shape], base_spec, each_spec] if (
                dtype in TYPES_BY_NAME and _is_shape(shape) and (base_spec, each_spec) != (None, None)
            ):
                base = streams.take("base", 1, base_spec, prod(shape))
                each, mix = _take_each(streams, length, each_spec, prod(shape))
                own = TYPES_BY_NAME[dtype]
                packed[name] = PackedTensor(tuple(shape), own, base[0] if base else None, each, mix)
            case _:
                raise StorageError(f"{file} must give each tensor's name, type and shape, found {row!r}")
    streams.require_nothing_left()
    return PackedMembers(length, packed)


def _is_shape(sizes: list[Any]) -> bool:
    """Return whether a tensor can have such sizes; torch multiplies them, those of 0 counted as 1."""
    return all(map(_is_count, sizes)) and prod(max(1, size) for size in sizes) <= LARGEST_INT


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST_INT  # True is an int to Python, but not to torch


def _take_each(
    streams: _Streams, length: int, spec: Any, count: int
) -> tuple[tuple[Stored, ...], Tensor | None]:
    """Return what members add, or components and their mix."""
    match spec:
        # Members may be fewer than components: some of the ensemble's may have been left out.
        case ["float16" as kind, *components] if components and None not in components:
            parts = tuple(streams.take("component", 1, component, count)[0] for component in components)
            rows = streams.take("mix", length, kind, len(components))
            return parts, torch.stack([row for row in rows if isinstance(row, Tensor)])
    return streams.take("each", length, spec, count), None


def _read_json(file: Path, text: str) -> Any:
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{file} must hold a layout in JSON, but {error}") from None


FORMAT = "pfge-packed-ensemble"
VERSION = 3
"""Of folders that are deflated. Of others, those with components have version 2, and those without 1."""
KIND = "packed"  # what the file's name begins with


@dataclass(frozen=True)
class PackedFolder:
    """Packed members and what the manifest says of them.

    A file that is deflated takes fewer bytes, and is read into memory whole; any other is mapped. Members
    whose form was chosen for a size, which have components, are deflated if that is smaller; `deflated`
    overrides this.
    """

    members: PackedMembers
    method: str | None
    model: str | None
    iterations: Sequence[int | None]
    temperatures: Temperatures = UNSCALED
    task: dict[str, Any] | None = None
    usage: Usage = NO_USAGE
    views: Views | None = None
    deflated: bool | None = None

    @property
    def _has_components(self) -> bool:
        return any(tensor.mix is not None for tensor in self.members.tensors.values())

    def save(self, path: Path) -> None:
        """Write the members, which replace those in the folder at once, at the end."""
        content = self._content()
        entry = manifests.write_file(path, KIND, content.tensors, content.metadata)
        manifests.commit_manifest(path, self._manifest(entry, content), [entry])

    def file_bytes(self) -> int:
        """Return the size of all files that `save` writes, without writing one."""
        content = self._content()
        entry = manifests.describe_file(KIND, content.tensors, content.metadata)
        return manifests.total_bytes(self._manifest(entry, content), [entry])

    def _content(self) -> FileContent:
        deflated = self._has_components if self.deflated is None else self.deflated
        made = FileContent.of(self.members, deflated=deflated)
        if self.deflated is None and deflated:
            return min(made, FileContent.of(self.members, deflated=False), key=lambda content: content.nbytes)
        return made

    def _manifest(self, entry: manifests.FileEntry, content: FileContent) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION if content.deflated else 2 if self._has_components else 1,
            "method": self.method,
            "model": self.model,
            "iterations": list(self.iterations),
            **manifests.temperature_entries(self.temperatures),
            **manifests.task_entries(self.task),
            **manifests.usage_entries(self.usage),
            **manifests.views_entries(self.views),
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
        version = found if (found := manifest.get("version")) in (1, 2) else VERSION
        manifests.require_format(path / manifests.MANIFEST, manifest, FORMAT, version)
        match manifest:
            case {
                "file": str(file),
                "bytes": int(size),
                "sha256": str(digest),
                "iterations": [*iterations],
            } if manifests.is_inside(file) and iterations and all(map(_is_iteration, iterations)):
                manifests.require_few_members(path / manifests.MANIFEST, len(iterations))
                entry = manifests.FileEntry(file=file, bytes=size, sha256=digest)
                if in_memory:
                    tensors, metadata = manifests.read_verified(path, entry, "its members")
                else:
                    tensors, metadata = read_tensors(manifests.verify_file(path, entry, "its members"))
            case _:
                raise StorageError(
                    f"{path / manifests.MANIFEST} must give file, bytes, sha256 and iterations"
                )
        content = FileContent(tensors, metadata, deflated=version == VERSION)
        members = content.members(path / file, len(iterations))
        temperatures = manifests.read_temperatures(path / manifests.MANIFEST, manifest, len(iterations))
        method, model, task = (manifest.get(key) for key in ("method", "model", "task"))
        usage = Usage.from_manifest(path / manifests.MANIFEST, manifest.get("usage"))
        views = manifests.read_views(path / manifests.MANIFEST, manifest)
        return cls(members, method, model, iterations, temperatures, task, usage, views)


def _is_iteration(value: object) -> bool:
    return value is None or type(value) is int


def is_packed_folder(path: Path) -> bool:
    """Return whether a folder's manifest says that its members are packed."""
    return manifests.read_manifest(path).get("format") == FORMAT

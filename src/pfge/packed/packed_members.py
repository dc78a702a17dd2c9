"""Packed members, of which one at a time is unpacked, and the file that holds them."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

from pfge.errors import InvalidValueError
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
    quantize,
    tighten,
)
from pfge.storage.ensemble_folder import (
    MANIFEST,
    EnsembleFolder,
    FileEntry,
    Members,
    commit_manifest,
    describe_file,
    is_iteration,
    read_manifest,
    read_verified,
    require_few_members,
    require_format,
    total_bytes,
    verify_file,
    write_file,
)
from pfge.storage.files import (
    LARGEST_INT,
    TYPES_BY_NAME,
    StorageError,
    measure_parts,
    parse_json,
    read_tensors,
    tensor_file,
)
from pfge.storage.record import EnsembleRecord
from pfge.weights import Weights, count_bytes, require_same_layout, view_weights

LARGEST_CHANGE = 0.1
"""Largest relative change of a positive number that is stored in few bits."""
Stored = Tensor | Quantized
"""A tensor's numbers as they are, perhaps in a narrower type, or quantized."""


@dataclass(frozen=True)
class PackedTensor:
    """One tensor of all members: a base that they share, and a delta for each.

    Args:
        shape: Shape of the tensor.
        dtype: The model's own type, in which members have the tensor.
        base: Numbers that all members share; None without a base.
        each: Delta of each member; empty if all members equal the base.
        mix: Factors [members, components]. If given, `each` holds components instead of deltas, and the delta
            of member k is the sum over j of mix[k, j] times component j.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    base: Stored | None
    each: tuple[Stored, ...]
    mix: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is stored."""
        parts = [*self.each, self.base, self.mix]
        return sum(stored.nbytes for stored in parts if stored is not None)

    @property
    def is_quantized(self) -> bool:
        """Whether the base or any delta or component is quantized."""
        return isinstance(self.base, Quantized) or any(isinstance(part, Quantized) for part in self.each)

    def of(self, index: slice) -> "PackedTensor":
        """Return the tensor of some of the members."""
        if self.mix is not None:
            return replace(self, mix=self.mix[index])
        return replace(self, each=self.each[index])

    def member(self, index: int) -> Tensor:
        """Return the tensor of one member."""
        if self.mix is not None:
            values = (
                torch.zeros(prod(self.shape)) if self.base is None else numbers_of(self.base).float().clone()
            )
            for factor, part in zip(self.mix[index].tolist(), self.each, strict=True):
                values.add_(numbers_of(part).float(), alpha=factor)
        elif self.base is None:
            values = numbers_of(self.each[index])
        elif not self.each:
            values = numbers_of(self.base)
        else:
            values = numbers_of(self.base).float() + numbers_of(self.each[index]).float()
        if self.dtype.is_floating_point and self.dtype.itemsize == 1:  # larger numbers would become NaN
            largest = torch.finfo(self.dtype).max
            values = values.float().clamp(-largest, largest)
        return values.to(self.dtype).view(self.shape)

    def in_type(self, dtype: torch.dtype) -> "PackedTensor":
        """Return the tensor with another type; numbers that the type holds exactly are stored in it."""
        base = None if self.base is None else _in_type(self.base, dtype)
        return replace(self, dtype=dtype, base=base, each=tuple(_in_type(part, dtype) for part in self.each))


def _in_type(stored: Stored, dtype: torch.dtype) -> Stored:
    if isinstance(stored, Quantized):
        return stored
    found = stored.to(dtype)
    return found if torch.equal(found.to(stored.dtype), stored) else stored


def numbers_of(stored: Stored) -> Tensor:
    """Return stored numbers as a flat tensor."""
    return stored.numbers() if isinstance(stored, Quantized) else stored.reshape(-1)


class PackedMembers(Members):
    """Members of which only the packed form is kept in memory.

    Args:
        length: Number of members.
        tensors: Every tensor of the members, by name.
    """

    def __init__(self, length: int, tensors: dict[str, PackedTensor]):
        self.tensors = tensors
        self._length = length

    def __len__(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        """Bytes of all packed tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def unpacked_nbytes(self) -> int:
        """Bytes of all members once they are unpacked; tensors without differences count once."""
        one = self[0]
        same = count_bytes({name: one[name] for name, tensor in self.tensors.items() if not tensor.each})
        return same + len(self) * (count_bytes(one) - same)

    @property
    def is_quantized(self) -> bool:
        """Whether any tensor is stored in codes of 1 to 8 bits."""
        return any(tensor.is_quantized for tensor in self.tensors.values())

    @property
    def has_components(self) -> bool:
        """Whether the members share components of any tensor, as widths chosen for a size give them."""
        return any(tensor.mix is not None for tensor in self.tensors.values())

    @overload
    def __getitem__(self, index: int) -> Weights: ...
    @overload
    def __getitem__(self, index: slice) -> "PackedMembers": ...
    def __getitem__(self, index: int | slice) -> "Weights | PackedMembers":
        if isinstance(index, int):
            position = range(self._length)[index]
            return {name: tensor.member(position) for name, tensor in self.tensors.items()}
        chosen = {name: tensor.of(index) for name, tensor in self.tensors.items()}
        return PackedMembers(len(range(self._length)[index]), chosen)

    @torch.no_grad()
    def load_into(self, model: nn.Module, index: int) -> None:
        """Write one member into a model, tensor by tensor, so that no second model is in memory.

        Raises:
            ValueError: The model and the members differ; the model is left as it was.
        """
        live = view_weights(model)
        self.require_fit(live)
        for name, tensor in live.items():
            tensor.copy_(self.tensors[name].member(index))

    def require_fit(self, live: Weights) -> None:
        """Raise a ValueError unless a model's tensors have the names and shapes of the members'."""
        layout = {name: torch.empty(tensor.shape, device="meta") for name, tensor in self.tensors.items()}
        require_same_layout(live, layout, "the model", "the weights")

    def with_tensors(self, fresh: Sequence[Weights]) -> "PackedMembers":
        """Return the members with small tensors of each replaced; quantized matrices and filters stay.

        Args:
            fresh: Tensors with new values, for each member.
        """
        replaced = {
            name: _pack_as_before(old, [weights[name] for weights in fresh])
            for name, old in self.tensors.items()
            if name in fresh[0] and not (old.is_quantized and len(old.shape) >= 2)
        }
        return PackedMembers(self._length, self.tensors | replaced)

    def write(self, path: Path, record: EnsembleRecord, *, deflated: bool | None = None) -> None:
        """Write the members and their record to a folder, replacing the ensemble there in the last step.

        Args:
            path: The folder.
            record: Attributes of the ensemble.
            deflated: Whether the file is deflated. It then takes fewer bytes, and is read into memory whole;
                any other file is mapped. If None, members with components are deflated if that is smaller.
        """
        content = self._content(deflated)
        entry = write_file(path, KIND, content.tensors, content.metadata)
        commit_manifest(path, self._manifest(record, entry, content), [entry])

    def file_bytes(self, record: EnsembleRecord) -> int:
        """Return the size of all files that `write` makes, without making one."""
        content = self._content(None)
        entry = describe_file(KIND, content.tensors, content.metadata)
        return total_bytes(self._manifest(record, entry, content), [entry])

    def _content(self, deflated: bool | None) -> "FileContent":
        if deflated is not None or not self.has_components:
            return FileContent.of(self, deflated=bool(deflated))
        both = (FileContent.of(self, deflated=deflated) for deflated in (True, False))
        return min(both, key=lambda content: content.nbytes)

    def _manifest(self, record: EnsembleRecord, entry: FileEntry, content: "FileContent") -> dict[str, Any]:
        version = VERSION if content.deflated else 2 if self.has_components else 1
        return record.to_manifest(FORMAT, version, {"iterations": list(record.iterations)}, asdict(entry))


def require_packed(members: Sequence[Weights], what: str) -> PackedMembers:
    """Return packed members with their type, or raise a ValueError that names what needs them."""
    if not isinstance(members, PackedMembers):
        raise InvalidValueError(f"{what} needs packed members; compress the ensemble first")
    return members


def as_packed(members: Sequence[Weights]) -> PackedMembers:
    """Return packed members as they are, and others with every tensor in its own type."""
    if isinstance(members, PackedMembers):
        return members
    whole = list(members)
    tensors = {name: pack_as_is([member[name] for member in whole], 32) for name in whole[0]}
    return PackedMembers(len(whole), tensors)


def pack_as_is(tensors: Sequence[Tensor], bits: int) -> PackedTensor:
    """Return one tensor of all members unquantized, once if it is the same in all of them.

    Args:
        tensors: The tensor of each member; all are stored in the type of the first.
        bits: 32 for that type, 16 for float16 where its precision and range suffice.
    """
    first = tensors[0]
    alike = [tensor.to(first.dtype) for tensor in tensors]  # a file holds one type for all members
    if all(torch.equal(first, other) for other in alike[1:]):
        return PackedTensor(tuple(first.shape), first.dtype, _own(first, first.dtype), ())
    narrow = bits == 16 and all(map(fits_float16, alike))
    stored = tuple(_own(tensor, torch.float16 if narrow else first.dtype) for tensor in alike)
    return PackedTensor(tuple(first.shape), first.dtype, None, stored)


def pack_differences(tensors: Sequence[Tensor], bits: int, group: int) -> PackedTensor:
    """Return one tensor of all members as their mean and a delta of few bits for each.

    A tensor without negative numbers, such as variances, is kept in float16 instead if a number would become
    negative, or if a positive number would change by more than a tenth.

    Args:
        tensors: The tensor of each member.
        bits: Width of the deltas, from 1 to 8 bits.
        group: Number of neighbors that share a step.
    """
    first = tensors[0]
    if all(torch.equal(first, other) for other in tensors[1:]):
        return pack_as_is(tensors, 32)
    mean = torch.stack([tensor.detach().to("cpu", torch.float32) for tensor in tensors]).mean(dim=0)
    base = _own(mean, torch.float16 if fits_float16(mean) else torch.float32)
    each = (quantize(tensor.to("cpu", torch.float32) - base.float(), bits, group) for tensor in tensors)
    packed = PackedTensor(tuple(first.shape), first.dtype, base, tuple(each))
    if all(bool((tensor >= 0).all()) for tensor in tensors):
        pairs = ((packed.member(k), tensor.cpu()) for k, tensor in enumerate(tensors))
        if any(_is_spoiled(found, expected) for found, expected in pairs):
            return pack_as_is(tensors, 16)
    return packed


def _is_spoiled(found: Tensor, expected: Tensor) -> bool:
    """Return whether any number has become negative, or a positive one has changed too much."""
    # Zeros, such as the variance of a dead channel, have no relative change, and must not hide others.
    changes = (found / expected - 1).abs()[expected > 0]
    return bool((found < 0).any() or (changes > LARGEST_CHANGE).any())


def _pack_as_before(old: PackedTensor, tensors: Sequence[Tensor]) -> PackedTensor:
    if old.each and isinstance(part := old.each[0], Quantized):
        return pack_differences(tensors, part.bits, part.group)
    return pack_as_is(tensors, bits=16 if _is_narrowed(old) else 32)


def fits_float16(tensor: Tensor) -> bool:
    """Return whether float16 is narrower and loses no more than its rounding of the largest entry."""
    if not tensor.is_floating_point() or tensor.dtype.itemsize <= 2:
        return False
    if not tensor.numel():
        return True
    # False for numbers that overflow to infinity, and if all entries are so small that they vanish.
    lost = (tensor.half().to(tensor.dtype) - tensor).abs().max()
    return bool(lost <= tensor.abs().max() * 2**-11)


def _own(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.detach().to("cpu", dtype, copy=True).contiguous()


def _is_narrowed(tensor: PackedTensor) -> bool:
    return any(isinstance(part, Tensor) and part.dtype != tensor.dtype for part in tensor.each)


LAYOUT = "layout"  # key in the file's metadata, or name of a tensor in a deflated file

Spec = str | list[int] | None
"""How numbers are stored: the name of their type, or their bits and group, or None without any."""
MixSpec = list[Spec]
"""How components are stored: the type of the mix, followed by each component."""


@dataclass(frozen=True)
class FileContent:
    """The tensors and metadata of a file of packed members.

    Args:
        tensors: One tensor for each kind of numbers, with a row for each member, in the order of the layout.
            A header for every small tensor would take more bytes than the tensor.
        metadata: The file's metadata.
        deflated: Whether each such tensor, and the layout, is a stream of fewer bytes.
    """

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    deflated: bool

    @classmethod
    def of(cls, members: PackedMembers, *, deflated: bool) -> "FileContent":
        """Return the content of the file for these members."""
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
        """Bytes of the file."""
        return measure_parts(tensor_file(self.tensors, self.metadata))[0]

    def members(self, file: Path, length: int) -> PackedMembers:
        """Return the members.

        Args:
            file: Path of the file, for errors.
            length: Number of members that the file must hold.

        Raises:
            StorageError: The tensors do not match the layout, or the layout is incomplete.
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
    """Return one tensor for each kind of numbers; entry [i][j] of `parts` belongs to row j."""
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
    """Return steps, and codes under a name for their width, because their frequencies depend on it."""
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
    """The joined tensors of a file, split in the order in which they were joined."""

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
        raise StorageError(f"{self._file} must give a type or bits and group for each tensor, found {spec!r}")

    def _take_codes(self, name: str, rows: int, bits: int, count: int) -> tuple[Tensor, ...]:
        if not self._is_loose:
            return self._take(f"{name}.codes", rows, packed_size(count, bits), torch.uint8)
        found = self._take(f"{name}.{_codes_of(bits)}", rows, loose_size(count, bits), torch.uint8)
        return tuple(tighten(codes, bits, count) for codes in found)

    def require_nothing_left(self) -> None:
        for name, tensor in self._tensors.items():
            # A tensor that was never split may have any shape.
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
    """Return the inflated tensors of a deflated file, and its layout."""
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
                raise StorageError(f"{file}: the stream {name} must hold {error}") from None
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
    """Return whether a tensor can have these sizes; torch multiplies them, counting 0 as 1."""
    return all(map(_is_count, sizes)) and prod(max(1, size) for size in sizes) <= LARGEST_INT


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST_INT  # True is an int to Python, but not to torch


def _take_each(
    streams: _Streams, length: int, spec: Any, count: int
) -> tuple[tuple[Stored, ...], Tensor | None]:
    """Return the members' deltas, or components and their mix."""
    match spec:
        # An ensemble from which members were left out may have fewer members than components.
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
"""Version of deflated folders. Others have version 2 if they have components, and 1 if they do not."""
KIND = "packed"  # the start of the file's name


def read_ensemble(path: Path, *, in_memory: bool = False) -> tuple[Members | list[Weights], EnsembleRecord]:
    """Check a folder whole, packed or not, and return its members and its record.

    Args:
        path: The folder.
        in_memory: Whether to copy all members into memory, so that nothing depends on the files later.
            Otherwise each member is read from disk, or from a mapped file, when it is needed.

    Raises:
        StorageError: A file is missing, damaged or foreign; the message gives the file, the expected value
            and the one that was found.
    """
    manifest = read_manifest(path)
    if manifest.get("format") == FORMAT:
        return _read_packed(path, manifest, in_memory=in_memory)
    folder = EnsembleFolder.open(path, manifest)
    return folder.members_in_memory() if in_memory else folder.members(), folder.record


def _read_packed(
    path: Path, manifest: dict[str, Any], *, in_memory: bool
) -> tuple[PackedMembers, EnsembleRecord]:
    file = path / MANIFEST
    version = found if (found := manifest.get("version")) in (1, 2) else VERSION
    require_format(file, manifest, FORMAT, version)
    iterations = manifest.get("iterations")
    if not isinstance(iterations, list) or not iterations or not all(map(is_iteration, iterations)):
        raise StorageError(f"{file} must give the iteration of each member, at least one, in `iterations`")
    require_few_members(file, len(iterations))
    entry = FileEntry.parse(file, manifest)
    if in_memory:
        tensors, metadata = read_verified(path, entry, "its members")
    else:
        tensors, metadata = read_tensors(verify_file(path, entry, "its members"))
    content = FileContent(tensors, metadata, deflated=version == VERSION)
    members = content.members(path / entry.file, len(iterations))
    return members, EnsembleRecord.from_manifest(file, manifest, iterations)

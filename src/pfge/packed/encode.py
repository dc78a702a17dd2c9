"""Pack members: one shared base, and a few bits for the difference of each member."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pfge.errors import InvalidValueError
from pfge.packed.codes import Quantized, quantize, quantized_size
from pfge.packed.packed_members import (
    PackedMembers,
    PackedTensor,
    Stored,
    fits_float16,
    numbers_of,
    pack_as_is,
    pack_differences,
)
from pfge.rounding import ROUNDING
from pfge.weights import Weights, find_non_finite, require_same_layout

MIX_TYPE = torch.float16  # its entries are about from -1 to 1


def find_components(deltas: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the mix [members, count] and the components [count, numbers], the largest first.

    Args:
        deltas: Deltas of the members, [members, numbers].
        count: Number of components to keep, at most one for each member.
    """
    if not 1 <= count <= len(deltas):
        raise InvalidValueError(
            f"count must be from 1 to {len(deltas)}, a component for each member, got {count}"
        )
    wide = deltas.double()
    vectors = torch.linalg.eigh(wide @ wide.T).eigenvectors.flip(1)[:, :count]
    # Both signs are eigenvectors. All machines make the largest entry positive; of entries that are equal up
    # to rounding, the first one counts.
    sizes = vectors.abs()
    is_largest = sizes >= (1 - ROUNDING) * sizes.max(dim=0).values
    largest = vectors.gather(0, is_largest.to(torch.uint8).argmax(dim=0, keepdim=True))
    vectors = vectors * torch.where(largest < 0, -1, 1)
    return vectors.to(MIX_TYPE), (vectors.T @ wide).float()


def keep_spread(mix: Tensor, components: Tensor, deltas: Tensor) -> Tensor:
    """Return a mix that is scaled so that members differ from each other as much as before.

    Leaving components out, and rounding with the least squared error, brings members nearer to each other.
    An ensemble gains from their differences, while the errors of many members average out. The mean over
    members, such as the error of the base, is not scaled: it may be much larger than the differences.

    Args:
        mix: Mix from `find_components`.
        components: Components after quantization.
        deltas: Deltas of the members, [members, numbers].
    """
    before, after = ((rows - rows.mean(dim=0)).norm().item() for rows in (deltas, mix.float() @ components))
    factor = before / after if after > 0 else 1.0
    alike = mix.float().mean(dim=0)
    return (alike + factor * (mix.float() - alike)).to(MIX_TYPE)


def mix_size(members: int, components: int) -> int:
    """Return the bytes of a mix."""
    return members * components * MIX_TYPE.itemsize


BASE_BITS = (*range(2, 9), 16, 32, None)
SMALL_BITS = (*range(2, 9), 16, 32)
SMALL_GROUP = 64  # numbers of a small tensor that share a step


@dataclass(frozen=True)
class PackSettings:
    """How members are packed.

    Args:
        base_bits: Bits for each number of the base: 2 to 8, 16 or 32. None packs each member by itself,
            without a base.
        group: Number of neighbors in a delta that share a step; None for one step per output channel. The
            base always has one step per output channel.
        small_bits: Bits for tensors other than matrices and filters: 32 for the tensor's own type, 16 for
            float16 where its precision and range suffice, 2 to 8 for their mean and a delta for each member.

    Example:
        >>> import torch, pfge
        >>> from pfge.compression import PackSettings
        >>> members = [{"weight": torch.full((4, 64), 1 + k / 100)} for k in range(4)]
        >>> ensemble = pfge.Ensemble(members, lambda: torch.nn.Linear(64, 4, bias=False))
        >>> alone = PackSettings(base_bits=None)  # each member by itself: 4 * (256 + 4 * 2) bytes
        >>> pfge.compress(ensemble, pfge.Bits(8), settings=alone).nbytes
        1056
    """

    base_bits: int | None = 8
    group: int | None = 64
    small_bits: int = 32

    def __post_init__(self) -> None:
        if self.base_bits not in BASE_BITS:
            raise InvalidValueError(f"base_bits must be 2 to 8, 16, 32 or None, got {self.base_bits}")
        if self.small_bits not in SMALL_BITS:
            raise InvalidValueError(f"small_bits must be 2 to 8, 16 or 32, got {self.small_bits}")
        if self.group is not None and self.group < 1:
            raise InvalidValueError(f"group must be at least 1 number or None, got {self.group}")

    def require_delta_bits(self, bits: int) -> None:
        """Refuse a width that deltas cannot have. Without a base, deltas are the members themselves."""
        if self.base_bits is None and bits == 16:
            return
        if not 1 <= bits <= 8:
            rule = "1 to 8, or 16 without a base" if self.base_bits is None else "1 to 8"
            raise InvalidValueError(f"delta_bits must be {rule}, got {bits}")

    def group_of(self, tensor: Tensor) -> int:
        """Return the number of neighbors in a tensor's deltas that share a step."""
        return self.group or _channel(tensor)


@dataclass(frozen=True)
class TensorForm:
    """How one matrix or filter of all members is packed.

    Args:
        bits: Width of the deltas, or a tuple with the width of each component that members share.
        settings: Settings of the base and of the groups.
    """

    bits: int | tuple[int, ...]
    settings: PackSettings

    def size(self, tensor: Tensor, members: int) -> int:
        """Return the bytes of the base and of all deltas or components, if their widths are 1 to 8 bits."""
        base = base_size(tensor, self.settings.base_bits)
        if isinstance(self.bits, int):
            return base + members * delta_size(tensor, self.bits, self.settings)
        components = sum(delta_size(tensor, bits, self.settings) for bits in self.bits)
        return base + components + mix_size(members, len(self.bits))


@dataclass(frozen=True)
class CommonTensors:
    """The means of members, and the tensors that all of them have in common.

    Args:
        means: Mean of each matrix and filter, in float32.
        identical: Names of tensors that are the same in all members, and so are stored once.
    """

    means: Weights
    identical: frozenset[str]


def is_packed(tensor: Tensor) -> bool:
    """Return whether a tensor is a matrix or a filter; all others are small."""
    return tensor.is_floating_point() and tensor.ndim >= 2


@torch.no_grad()
def find_common(members: Sequence[Weights], settings: PackSettings) -> CommonTensors:
    """Read all members once, and refuse members that cannot be packed."""
    if not len(members):
        raise InvalidValueError(
            "compressing needs at least one member, but the ensemble is empty; collect or load some"
        )
    first = members[0]
    identical = set(first)
    means = {name: torch.zeros(t.shape) for name, t in first.items() if is_packed(t)}
    for number, member in enumerate(members, 1):
        require_same_layout(first, member, "member 1", f"member {number}")
        if bad := find_non_finite(member):
            raise InvalidValueError(
                f"members must be finite to be compressed, but {bad} of member {number} has NaN or "
                "infinity; leave the member out, or register a constant mask with persistent=False"
            )
        if bad := find_non_finite(_in_types_of(first, member)):
            raise InvalidValueError(
                f"members are compressed in the types of member 1, but {bad} of member {number} is not "
                f"finite in {first[bad].dtype}; put a member of a wider type first"
            )
        identical = {name for name in identical if torch.equal(first[name], member[name])}
        for name, mean in means.items():
            mean.lerp_(member[name].to("cpu", torch.float32), 1 / number)
    if len(members) == 1 and settings.base_bits is None:
        identical -= means.keys()  # without a base, nothing holds them
    return CommonTensors(means, frozenset(identical))


def _in_types_of(first: Weights, member: Weights) -> Weights:
    """Return a member's tensors whose types differ from the first member's, converted to its types."""
    return {
        name: tensor.to(first[name].dtype)
        for name, tensor in member.items()
        if tensor.dtype != first[name].dtype
    }


def pack_base(mean: Tensor, bits: int | None) -> Stored | None:
    """Return the base of one tensor at a width."""
    match bits:
        case None:
            return None
        case int() if bits <= 8:
            return quantize(mean, bits, _channel(mean))
        case 16 if fits_float16(mean):
            return mean.half()
    return mean.clone()


def base_numbers(mean: Tensor, bits: int | None) -> Tensor:
    """Return the base with its rounding, or zeros without a base."""
    base = pack_base(mean, bits)
    return torch.zeros_like(mean) if base is None else numbers_of(base).float().view(mean.shape)


@torch.no_grad()
def pack_members(
    members: Sequence[Weights],
    delta_bits: int | Mapping[str, int | TensorForm],
    settings: PackSettings,
    common: CommonTensors | None = None,
) -> PackedMembers:
    """Return members packed. Deltas are differences from the packed base, and so compensate for its error.

    Args:
        members: Weights of each member.
        delta_bits: Width of every delta, or the width or `TensorForm` of each matrix and filter by name.
        settings: All other settings.
        common: Result of `find_common`, if it was called before.
    """
    common = common or find_common(members, settings)
    differing = [name for name in common.means if name not in common.identical]
    given = dict.fromkeys(differing, delta_bits) if isinstance(delta_bits, int) else dict(delta_bits)
    if given.keys() != set(differing):
        names = sorted(given.keys() ^ set(differing))
        raise InvalidValueError(
            f"delta_bits must give a width to each matrix and filter that differs between members, and to "
            f"no other tensor; add or remove {names[:5]}"
        )
    forms = {
        n: form if isinstance(form, TensorForm) else TensorForm(form, settings) for n, form in given.items()
    }
    for form in forms.values():
        for bits in (form.bits,) if isinstance(form.bits, int) else form.bits:
            form.settings.require_delta_bits(bits)
    mixed = {name for name, form in forms.items() if not isinstance(form.bits, int)}
    bases = {
        name: base_numbers(common.means[name], form.settings.base_bits)
        for name, form in forms.items()
        if form.bits != 16 and name not in mixed
    }
    widths = {name: form.bits for name, form in forms.items() if isinstance(form.bits, int)}
    deltas: dict[str, list[Stored]] = {name: [] for name in bases}
    kept: dict[str, list[Tensor]] = {
        name: [] for name in members[0] if name not in bases and (name in forms or name not in common.means)
    }
    for member in members:
        for name, base in bases.items():
            deltas[name].append(pack_delta(member[name], base, widths[name], forms[name].settings))
        for name, numbers in kept.items():
            numbers.append(member[name])
    tensors: dict[str, PackedTensor] = {}
    for name, like in members[0].items():
        if name in mixed:
            tensors[name] = _pack_mixed(kept.pop(name), common.means[name], forms[name])
        elif name in kept:
            tensors[name] = pack_small(kept[name], 16 if name in forms else settings.small_bits)
        elif name in common.identical and settings.base_bits in (32, None):
            tensors[name] = pack_as_is([like], 32)
        else:
            base_bits = forms[name].settings.base_bits if name in forms else settings.base_bits
            shared_part = pack_base(common.means[name], base_bits)
            parts = tuple(deltas.get(name, ()))
            tensors[name] = PackedTensor(tuple(like.shape), like.dtype, shared_part, parts)
    return PackedMembers(len(members), tensors)


def _pack_mixed(tensors: Sequence[Tensor], mean: Tensor, form: TensorForm) -> PackedTensor:
    """Return one tensor of all members as a base and components that members share."""
    if isinstance(form.bits, int):
        raise TypeError(f"components have a width each, got {form.bits}")
    base = pack_base(mean, form.settings.base_bits)
    numbers = base_numbers(mean, form.settings.base_bits)
    deltas = torch.stack([(t.to("cpu", torch.float32) - numbers).reshape(-1) for t in tensors])
    mix, rows = find_components(deltas, len(form.bits))
    group = form.settings.group_of(mean)
    each = tuple(quantize(row, bits, group) for row, bits in zip(rows, form.bits, strict=True))
    mix = keep_spread(mix, torch.stack([part.numbers() for part in each]), deltas)
    return PackedTensor(tuple(mean.shape), tensors[0].dtype, base, each, mix)


def pack_small(tensors: Sequence[Tensor], bits: int) -> PackedTensor:
    """Return one small tensor of all members at the width of `PackSettings.small_bits`."""
    if bits > 8 or not tensors[0].is_floating_point():
        return pack_as_is(tensors, bits)
    return pack_differences(tensors, bits, SMALL_GROUP)


def pack_delta(tensor: Tensor, base: Tensor, bits: int, settings: PackSettings) -> Quantized:
    """Return one member's delta from the base of a tensor, in 1 to 8 bits."""
    return quantize(tensor.to("cpu", torch.float32) - base, bits, settings.group_of(tensor))


def delta_size(tensor: Tensor, bits: int, settings: PackSettings) -> int:
    """Return the bytes of one member's delta of 1 to 8 bits."""
    return quantized_size(tensor.numel(), bits, settings.group_of(tensor))


def base_size(tensor: Tensor, bits: int | None) -> int:
    """Return the bytes of the base of a tensor that fits float16."""
    if bits is None:
        return 0
    return quantized_size(tensor.numel(), bits, _channel(tensor)) if bits <= 8 else tensor.numel() * bits // 8


def _channel(tensor: Tensor) -> int:
    """Return the number of weights in an output channel."""
    return max(1, tensor.numel() // max(1, tensor.shape[0]))

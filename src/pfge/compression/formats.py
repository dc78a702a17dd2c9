"""How members can be stored: as they are, or packed, and the bytes that each way takes."""

from dataclasses import dataclass

from torch import Tensor

from pfge.ensemble import Ensemble
from pfge.packed import PackSettings, pack_members
from pfge.packed.encode import TensorForm, base_size, is_packed
from pfge.weights import Weights, count_bytes


@dataclass(frozen=True)
class StorageFormat:
    """How members are stored.

    Args:
        name: For people.
        settings: As of `compress`; None for members as they are.
        bits: Of what each member adds.
    """

    name: str
    settings: PackSettings | None = None
    bits: int = 32

    def store(self, ensemble: Ensemble) -> Ensemble:
        """Return an ensemble in this format, as `compress` would make it."""
        if self.settings is None:
            return ensemble
        packed = pack_members(ensemble.members, self.bits, self.settings)
        return ensemble.with_members(packed, temperatures=ensemble.temperatures)

    def size(self, layout: Weights, members: int) -> int:
        """Return the bytes of so many members, as `compress` would make them.

        Tensors that are no floating-point numbers, such as counters, are taken to be the same in all
        members, and are stored once if members are packed. Small tensors are taken to fit float16.

        Args:
            layout: Tensors of one member's shapes and types; their values do not matter.
            members: How many.
        """
        if self.settings is None:
            return members * count_bytes(layout)
        total = 0
        for tensor in layout.values():
            if not is_packed(tensor):
                total += _small_size(tensor, members, self.settings)
            elif members == 1 and self.settings.base_bits is not None:
                total += base_size(tensor, self.settings.base_bits)
            else:
                total += TensorForm(self.bits, self.settings).size(tensor, members)
        return total


def _small_size(tensor: Tensor, members: int, settings: PackSettings) -> int:
    own = tensor.numel() * tensor.element_size()
    if members == 1 or not tensor.is_floating_point():
        return own
    return members * min(own, tensor.numel() * settings.small_bits // 8)


FORMATS = (
    StorageFormat("float32"),
    StorageFormat("int8", PackSettings(base_bits=None, group=None, small_bits=16), 8),
    StorageFormat("int8 base + 3 bits", PackSettings(small_bits=16), 3),
    StorageFormat("int8 base + 1 bit", PackSettings(small_bits=16), 1),
)
"""Widest first; packed members have BatchNorm, biases and the like in float16, as these are much of a small
delta. "int8 base + 3 bits" is what `pfge compress --small-bits 16` makes."""
FORMATS_ALONE = FORMATS[:2]
"""Those without a base, for members that lie far apart."""
FORMATS_OF_ONE = (FORMATS[0], StorageFormat("int8 base", PackSettings(small_bits=16)))
"""One member adds nothing to the base."""


def formats_of(members: int) -> tuple[StorageFormat, ...]:
    """Return the formats that so many members can be stored in; the first is as they are."""
    return FORMATS if members > 1 else FORMATS_OF_ONE

"""Members in few bits: a base that they share, and a delta for each."""

from pfge.packed.codes import Quantized
from pfge.packed.encode import PackSettings, pack_members
from pfge.packed.packed_members import (
    PackedMembers,
    PackedTensor,
    as_packed,
    read_ensemble,
    require_packed,
)

__all__ = [
    "PackSettings",
    "PackedMembers",
    "PackedTensor",
    "Quantized",
    "as_packed",
    "pack_members",
    "read_ensemble",
    "require_packed",
]

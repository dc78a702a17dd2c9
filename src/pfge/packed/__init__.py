"""Members in few bits: a base that they share, and what each adds to it."""

from pfge.packed.encode import PackSettings, pack_members
from pfge.packed.packed_folder import PackedFolder, is_packed_folder
from pfge.packed.packed_members import PackedMembers, PackedTensor
from pfge.packed.quantization import Quantized

__all__ = [
    "PackSettings",
    "PackedFolder",
    "PackedMembers",
    "PackedTensor",
    "Quantized",
    "is_packed_folder",
    "pack_members",
]

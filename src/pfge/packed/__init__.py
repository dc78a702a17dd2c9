"""Members in few bits: a base that they share, and what each adds to it."""

from pfge.packed.encode import PackSettings, pack_members
from pfge.packed.folder import PackedFolder, is_packed_folder
from pfge.packed.members import PackedMembers, PackedTensor
from pfge.packed.quantize import Quantized

__all__ = [
    "PackSettings",
    "PackedFolder",
    "PackedMembers",
    "PackedTensor",
    "Quantized",
    "is_packed_folder",
    "pack_members",
]

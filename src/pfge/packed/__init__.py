"""Members in few bits: a base that they share, and what each adds to it."""

from pfge.packed.codes import Quantized
from pfge.packed.encode import PackSettings, pack_members
from pfge.packed.packed_file import PackedFolder, is_packed_folder
from pfge.packed.packed_members import PackedMembers, PackedTensor

__all__ = [
    "PackSettings",
    "PackedFolder",
    "PackedMembers",
    "PackedTensor",
    "Quantized",
    "is_packed_folder",
    "pack_members",
]

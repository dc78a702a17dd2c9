"""The bytes of a safetensors file, without a copy of the tensors.

The library's own writer chooses the name of its temporary file, which a kill leaves behind, and the order of
metadata is random. Apart from that order the bytes are the same.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

# In the order of a file: those of wide numbers first, so that all numbers lie at multiples of their size.
_TYPES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
TYPES_BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in _TYPES}
"""The types of numbers that a file can hold, by their names in torch."""
_PLACES = {dtype: place for place, dtype in enumerate(_TYPES)}


def tensor_file(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """Yield a safetensors file in parts.

    Raises:
        ValueError: The format does not have such a tensor.
    """
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.dtype not in _TYPES:
            raise ValueError(
                f"a safetensors file holds dense tensors of numbers, got {name!r} of {tensor.dtype} and "
                f"{tensor.layout} on {tensor.device}; convert it first"
            )
    names = sorted(tensors, key=lambda name: (_PLACES[tensors[name].dtype], name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        start, end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": _TYPES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        yield raw_bytes(tensors[name])


def raw_bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's numbers in order, the low byte first; what lies so in main memory is not copied."""
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    raw = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)  # a lone number may have any stride
    if sys.byteorder == "big":
        width = tensor.element_size() // (2 if tensor.is_complex() else 1)
        raw = raw.reshape(-1, width).flip(1).reshape(-1)
    return raw.numpy().data

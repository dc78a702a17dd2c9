"""A nested state of tensors and plain values as one safetensors file: atomic, checksummed, no pickle."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pfge.storage.files import StorageError, read_tensors, write_tensors

FORMAT = "pfge-checkpoint-1"


def save_checkpoint(path: Path | str, state: Any) -> None:
    """Write a state, such as `trajectory.state_dict()` gives, replacing an older file atomically.

    Args:
        path: The file.
        state: Dicts (keys: strings or integers), lists and tuples of tensors, numbers, strings,
            booleans and None.

    Example:
        >>> import torch, pfge
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters())
        >>> trajectory = pfge.Trajectory(model, optimizer, None, [pfge.SWA(cycle=2)])
        >>> pfge.save_checkpoint("run.checkpoint", trajectory.state_dict())
        >>> trajectory.load_state_dict(pfge.load_checkpoint("run.checkpoint"))
    """
    tensors: dict[str, Tensor] = {}
    tree = _encode(state, tensors, "state")
    metadata = {"format": FORMAT, "tree": json.dumps(tree), "sha256": _digest(tensors)}
    write_tensors(Path(path), tensors, metadata)


def load_checkpoint(path: Path | str) -> Any:
    """Read back what `save_checkpoint` wrote, bit for bit; nothing in the file is executed.

    Args:
        path: The file.

    Raises:
        StorageError: The file is missing, damaged or not a checkpoint.

    Example:
        >>> import torch, pfge
        >>> pfge.save_checkpoint("run.checkpoint", {"iteration": 3, "points": [torch.ones(2), None]})
        >>> pfge.load_checkpoint("run.checkpoint")
        {'iteration': 3, 'points': [tensor([1., 1.]), None]}
    """
    tensors, metadata = read_tensors(Path(path))
    if metadata.get("format") != FORMAT:
        raise StorageError(f"{path} must have format {FORMAT!r}, found {metadata.get('format')!r}")
    if _digest(tensors) != metadata.get("sha256"):
        raise StorageError(f"{path} is corrupted: its tensors do not have the SHA-256 it states")
    return _decode(json.loads(metadata["tree"]), tensors)


# JSON knows neither tensors, nor tuples, nor integer keys (an optimizer's state has them), so
# every container and tensor is written as [kind, content].


def _encode(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    match value:
        case Tensor():
            key = f"{len(tensors)}:{name}"
            tensors[key] = _own_memory(value, tensors)
            return ["tensor", key]
        case dict():
            for key in value:
                if type(key) not in (str, int):
                    raise TypeError(f"a checkpoint's keys must be strings or integers, got {key!r} in {name}")
            pairs = [[key, _encode(item, tensors, f"{name}.{key}")] for key, item in value.items()]
            return ["dict", pairs]
        case list() | tuple():
            items = [_encode(item, tensors, f"{name}.{index}") for index, item in enumerate(value)]
            return [type(value).__name__ if type(value) in (list, tuple) else "tuple", items]
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(
        f"a checkpoint holds tensors, numbers, strings, booleans, None, dicts, lists and tuples, "
        f"got {type(value).__name__} in {name}"
    )


def _own_memory(value: Tensor, others: dict[str, Tensor]) -> Tensor:
    tensor = value.detach().cpu().contiguous()
    start = tensor.untyped_storage().data_ptr()
    # The file format refuses two entries that share memory.
    shares = any(start == other.untyped_storage().data_ptr() for other in others.values())
    return tensor.clone() if shares else tensor


def _decode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    match tree:
        case ["tensor", name]:
            return tensors[name]
        case ["dict", pairs]:
            return {key: _decode(item, tensors) for key, item in pairs}
        case ["list", items]:
            return [_decode(item, tensors) for item in items]
        case ["tuple", items]:
            return tuple(_decode(item, tensors) for item in items)
    return tree


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()

"""A nested state of tensors and plain values as one safetensors file: atomic, checksummed, no pickle."""

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor, distributed

from pfge.errors import InvalidTypeError, InvalidValueError
from pfge.sharding import any_split, whole
from pfge.storage.files import StorageError, raw_bytes, read_tensors, write_tensors

FORMAT = "pfge-checkpoint-2"
KEY = "checkpoint"
"""The one key of the file's metadata; its text is the format, the SHA-256 and the tree, a line each."""
FORMAT_BEFORE = "pfge-checkpoint-1"  # under a key "format"; its digest left out the tree
MAX_DEPTH = 100


def save_checkpoint(path: Path | str, state: Any) -> None:
    """Write a state, such as `trajectory.state_dict()` gives, replacing an older file atomically.

    Tensors that are split among processes (FSDP2) are put together: all processes must call this, and that of
    rank 0 writes. Any number of processes can load the file.

    Args:
        path: The file.
        state: Dicts (keys: strings or integers), lists and tuples of tensors, numbers, strings,
            booleans and None, nested at most 100 deep. A tensor at several places, as a frozen parameter is
            in all members, is written once, and is one tensor again when it is loaded.

    Example:
        >>> import torch, pfge
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters())
        >>> trajectory = pfge.Trajectory(model, optimizer, None, [pfge.SWA(cycle=2)])
        >>> pfge.save_checkpoint("run.checkpoint", trajectory.state_dict())
        >>> trajectory.load_state_dict(pfge.load_checkpoint("run.checkpoint"))
    """
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_encode(state, tensors, {}, "state", MAX_DEPTH))
    if any_split(tensors):
        tensors = {name: whole(tensor).cpu() for name, tensor in tensors.items()}
        if distributed.get_rank():
            return
    write_tensors(Path(path), tensors, {KEY: f"{FORMAT}\n{_digest(tree, tensors)}\n{tree}"})


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
    if metadata.get("format") == FORMAT_BEFORE:
        raise StorageError(
            f"{path} was written by an older version of pfge; delete it to start that stage again, or finish "
            "with that version"
        )
    form, digest, tree = [*metadata.get(KEY, "").split("\n", 2), "", ""][:3]
    if form != FORMAT:
        raise StorageError(f"{path} must be a checkpoint of format {FORMAT!r}, found {form!r}")
    if _digest(tree, tensors) != digest:
        raise StorageError(f"{path} is corrupted: its content does not have the SHA-256 that it states")
    try:
        used: set[str] = set()
        state = _decode(json.loads(tree), tensors, used, MAX_DEPTH)
        if unused := tensors.keys() - used:
            raise InvalidValueError(f"nothing refers to the tensor {min(unused)!r}")
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path} must hold a state as save_checkpoint writes it, but {error}") from None
    return state


# JSON knows neither tensors, nor tuples, nor integer keys (an optimizer's state has them), so
# every container and tensor is written as [kind, content].


def _encode(value: Any, tensors: dict[str, Tensor], keys: dict[int, str], name: str, depth: int) -> Any:
    """Return the tree; its tensors are put into the dict, each object once, and their keys by identity."""
    if not depth:
        raise InvalidValueError(
            f"a checkpoint must be nested at most {MAX_DEPTH} deep, got more in {name[:60]}"
        )
    match value:
        case Tensor():
            # Its id is not given to another meanwhile, as the dict holds the tensor.
            key = keys.setdefault(id(value), f"{len(tensors)}:{name}")
            tensors[key] = value
            return ["tensor", key]
        case dict():
            for key in value:
                if type(key) not in (str, int):
                    raise InvalidTypeError(
                        f"a checkpoint's keys must be strings or integers, got {key!r} in {name}"
                    )
            pairs = [
                [key, _encode(item, tensors, keys, f"{name}.{key}", depth - 1)] for key, item in value.items()
            ]
            return ["dict", pairs]
        case list() | tuple():
            items = [_encode(item, tensors, keys, f"{name}.{i}", depth - 1) for i, item in enumerate(value)]
            return ["list" if type(value) is list else "tuple", items]
        case None | bool() | int() | float() | str():
            return value
    raise InvalidTypeError(
        f"a checkpoint holds tensors, numbers, strings, booleans, None, dicts, lists and tuples, "
        f"got {type(value).__name__} in {name}"
    )


def _decode(tree: Any, tensors: dict[str, Tensor], used: set[str], depth: int) -> Any:
    """Return the state; the names of its tensors are added to `used`."""
    if not depth:
        raise InvalidValueError(f"it is nested more than {MAX_DEPTH} deep")
    match tree:
        case ["tensor", str(name)] if name in tensors:
            used.add(name)
            return tensors[name]  # not a copy: what was one tensor is one again, also where it is written to
        case ["dict", [*pairs]]:
            state = {}
            for pair in pairs:
                match pair:
                    case [str() | int() as key, item] if type(key) is not bool and key not in state:
                        state[key] = _decode(item, tensors, used, depth - 1)
                    case _:
                        raise InvalidValueError(
                            f"a dict must have pairs of different keys, found {str(pair)[:60]}"
                        )
            return state
        case ["list", [*items]]:
            return [_decode(item, tensors, used, depth - 1) for item in items]
        case ["tuple", [*items]]:
            return tuple(_decode(item, tensors, used, depth - 1) for item in items)
        case None | bool() | int() | float() | str():
            return tree
    raise InvalidValueError(
        f"its tree holds {str(tree)[:60]}, which is neither a value nor one of its tensors"
    )


def _digest(tree: str, tensors: dict[str, Tensor]) -> str:
    """Return the SHA-256 of everything that a checkpoint says."""
    names = sorted(tensors)
    layout = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    digest = hashlib.sha256(json.dumps([tree, layout]).encode())
    for name in names:
        digest.update(raw_bytes(tensors[name]))
    return digest.hexdigest()

"""Checkpoints of any trainer as weights, matched to the model by name."""

import re
import warnings
import zipfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pfge.collectors import RunningMean
from pfge.errors import InvalidValueError
from pfge.lab.models.packages import describe_new_head, other_head
from pfge.storage.ensemble_folder import is_inside
from pfge.storage.files import StorageError, open_regular, read_json_object, read_tensors
from pfge.weights import (
    Weights,
    find_non_finite,
    is_averaged,
    load_weights,
    require_same_layout,
    view_weights,
)

SUFFIXES = (".safetensors", ".pt", ".pth", ".th", ".ckpt", ".bin")
WRAPPED_UNDER = ("state_dict", "model_state_dict", "model")
PREFIXES = ("module.", "_orig_mod.")
AVERAGED_COUNTER = "n_averaged"
MOST_TIMES = 8
"""Largest ratio of the bytes of tensors to the bytes of their file; views of one tensor may overlap."""


def load_start_weights(model: nn.Module, path: Path, classes: int | None = None) -> list[str]:
    """Load a checkpoint file into a model, and return the names of tensors that were left out.

    Only a head with another number of classes than the model's is left out, with a warning that names its
    tensors. Everything else must fit.

    The file has a plain state dict, or one under `state_dict`, `model_state_dict` or `model`. The prefixes of
    DDP and torch.compile, and one of a trainer's own, are removed. BatchNorm's batch counters may be missing.

    Args:
        model: The model to load into.
        path: The file.
        classes: Number of the model's classes; None for other tasks, which leave nothing out.

    Raises:
        StorageError: The file cannot be read, does not fit or has NaN; the message lists names.
    """
    live = view_weights(model)
    weights = without_outer_modules(read_start_weights(path), live, path)
    head = other_head(weights, live, classes) if classes else []
    if head:
        trained = len(weights[head[0]])
        weights |= {name: live[name] for name in head}
        warnings.warn(describe_new_head(str(path), head, trained, classes or 0), stacklevel=2)
    # Attention masks contain infinities by design.
    finite = {name: tensor for name, tensor in live.items() if tensor.isfinite().all()}
    load_weights(model, fit_to_model(weights, model, path))
    if (bad := find_non_finite(finite)) is not None:
        raise StorageError(
            f"{path} must hold finite weights, but {bad} has NaN or infinity; give another file"
        )
    return head


def fit_to_model(weights: Weights, model: nn.Module, path: Path) -> Weights:
    """Return a checkpoint's weights under the names of a model: one name for each tensor, with counters.

    Args:
        weights: The weights of the checkpoint.
        model: The model that they must fit.
        path: The checkpoint, for error messages.

    Raises:
        StorageError: Names or shapes differ, or integers stand where the model has floating-point weights, or
            the other way around.
    """
    live, names = view_weights(model), model.state_dict().keys()
    weights = without_outer_modules(weights, live, path)
    # If a tensor has two names, the entry under the first fills both.
    fitted = {name: tensor for name, tensor in weights.items() if name in live or name not in names}
    for name, tensor in live.items():
        if name.endswith(".num_batches_tracked"):
            fitted.setdefault(name, torch.zeros_like(tensor))
    try:
        require_same_layout(live, fitted, "the model", "the weights")
    except ValueError as error:
        raise StorageError(f"{path} does not fit the model: {error}") from None
    for name in live:
        if is_averaged(live[name]) != is_averaged(fitted[name]):
            raise StorageError(
                f"{path} does not fit the model: {name} is of {live[name].dtype} there and of "
                f"{fitted[name].dtype} here; convert it first"
            )
    return fitted


def read_start_weights(path: Path) -> Weights:
    """Return the tensors of a checkpoint file by canonical name."""
    if path.suffix not in SUFFIXES:
        raise StorageError(f"a checkpoint's name must end in {', '.join(SUFFIXES)}, got {path.name}")
    if not path.is_file():
        raise StorageError(f"checkpoint {path} does not exist; check the path")
    state: Any = read_tensors(path)[0] if path.suffix == ".safetensors" else _read_torch(path)
    for key in WRAPPED_UNDER:
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not state:
        raise StorageError(f"{path} must hold a state dict, found {type(state).__name__}")
    others = [str(name) for name, value in state.items() if not isinstance(value, Tensor)]
    if others:
        raise StorageError(
            f"{path} must hold tensors by name, plainly or under {' or '.join(map(repr, WRAPPED_UNDER))}, "
            f"found other values: {', '.join(others[:5])}"
        )
    for name, tensor in state.items():
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            raise StorageError(
                f"{path} must hold dense tensors of numbers, got {name} of {tensor.dtype} and "
                f"{tensor.layout} on {tensor.device}; convert it first"
            )
    size = sum(tensor.nbytes for tensor in {place_of(tensor): tensor for tensor in state.values()}.values())
    if size > MOST_TIMES * path.stat().st_size:
        raise StorageError(
            f"{path} must hold its tensors whole, but {path.stat().st_size:,} bytes stand for {size:,}; save "
            "copies of tensors that were expanded"
        )
    return without_wrappers({str(name): tensor.detach() for name, tensor in state.items()}, path)


def place_of(tensor: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    """Return a key that two names of one tensor share."""
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def without_wrappers(weights: Weights, path: Path) -> Weights:
    """Return a checkpoint's tensors without the prefixes and counters of modules that wrapped the model.

    DDP and torch.compile put a prefix before every name. A prefix that only some tensors have belongs to the
    model. torch's AveragedModel has a counter beside its model.

    Raises:
        StorageError: Two tensors would have the same name.
    """
    names = {name: name.replace("._orig_mod.", ".") for name in weights}
    for counter in {AVERAGED_COUNTER} & weights.keys():
        if len(names) > 1 and all(name.startswith("module.") for name in names if name != counter):
            del names[counter]
    while prefix := _common_prefix(names.values()):
        names = {name: shown.removeprefix(prefix) for name, shown in names.items()}
    found = {shown: weights[name] for name, shown in names.items()}
    if len(found) < len(names):
        raise StorageError(
            f"{path} must name every tensor once, but names differ only in _orig_mod; save the state_dict() "
            "of the model before torch.compile"
        )
    return found


def without_outer_modules(weights: Weights, live: Weights, path: Path) -> Weights:
    """Return the tensors of a model that is an attribute of the saved module.

    A LightningModule has its model in an attribute, such as `net`. Tensors outside of it, such as the weights
    of a loss, are left out. If any tensor already has a name of the model, nothing changes.

    Args:
        weights: The weights of the checkpoint.
        live: The weights of the model.
        path: The checkpoint, for error messages.

    Raises:
        StorageError: Several attributes have all the names of the model.
    """
    names = [name for name in live if not name.endswith(".num_batches_tracked")]
    if not names or live.keys() & weights.keys():
        return weights
    found = [name.removesuffix(names[0]) for name in weights if name.endswith(f".{names[0]}")]
    prefixes = [prefix for prefix in found if all(prefix + name in weights for name in names)]
    if len(prefixes) > 1:
        raise StorageError(
            f"{path} must hold the model once, but has its tensors under {', '.join(prefixes)}; save only "
            "the one to use"
        )
    if not prefixes:
        return weights
    return {name.removeprefix(prefixes[0]): t for name, t in weights.items() if name.startswith(prefixes[0])}


def _common_prefix(names: Collection[str]) -> str:
    """Return a wrapper's prefix that all names have, or ""."""
    return next((p for p in PREFIXES if names and all(name.startswith(p) for name in names)), "")


def _require_stored(path: Path) -> None:
    """Refuse a compressed archive: torch.save does not compress, and a small archive can hold gigabytes."""
    with open_regular(path) as file:
        if not zipfile.is_zipfile(file):
            return
        archive = zipfile.ZipFile(file)
        compressed = [entry for entry in archive.infolist() if entry.compress_type != zipfile.ZIP_STORED]
        size = sum(entry.file_size for entry in archive.infolist())
    if compressed or size > path.stat().st_size:
        raise StorageError(
            f"{path} must be as torch.save writes it, not compressed, but its {path.stat().st_size:,} bytes "
            f"hold {size:,}; save its state_dict() again, best as .safetensors"
        )


def _read_torch(path: Path) -> Any:
    try:
        _require_stored(path)
        with open_regular(path) as file:
            return torch.load(file, map_location="cpu", weights_only=True)
    except StorageError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in the reader
        if found := re.search(r"GLOBAL (\S+)", str(error)):
            raise StorageError(
                f"{path} holds {found[1]} beside tensors and plain values, and is not loaded because loading "
                "would run code from it; save its state_dict() alone, best as .safetensors"
            ) from None
        raise StorageError(
            f"{path} must be a whole checkpoint written by torch.save, but cannot be read "
            f"({type(error).__name__}); it may be truncated or another kind of file"
        ) from None


INDEX = "model.safetensors.index.json"
IN_FOLDERS = ("model.safetensors", "pytorch_model.bin", "weights.safetensors")
"""File names of the weights in a checkpoint folder, by trainer."""


def read_checkpoint(path: Path) -> Weights:
    """Return the weights of a checkpoint: a file, or a folder of the Hugging Face Trainer.

    Raises:
        StorageError: The checkpoint cannot be read, or it has no weights or weights that are not finite.
    """
    weights = _read_folder(path) if path.is_dir() else read_start_weights(path)
    for name, tensor in weights.items():
        if tensor.is_floating_point() and tensor.element_size() == 1:
            raise StorageError(
                f"{path} must hold numbers of 16 bits or more, got {name} of {tensor.dtype}; convert it first"
            )
    if not any(map(is_averaged, weights.values())):
        raise StorageError(
            f"{path} must hold a model's weights, but has no floating-point tensors; give the file of the "
            "model"
        )
    if (bad := find_non_finite(weights)) is not None:
        raise StorageError(f"{path} must hold finite weights, but {bad} has NaN or infinity; leave it out")
    return weights


def read_as_member(path: Path) -> Weights:
    """Return the weights of a checkpoint with one name for each tensor, as ensemble members have.

    A tensor with two names in a file of torch.save, such as tied embeddings, keeps the first.
    """
    found: Weights = {}
    known = set()
    for name, tensor in read_checkpoint(path).items():
        if place_of(tensor) not in known or not tensor.numel():
            found[name] = tensor
        known.add(place_of(tensor))
    return found


def average_checkpoints(
    paths: Sequence[Path],
    *,
    read: Callable[[Path], Weights] = read_checkpoint,
    on_file: Callable[[int], None] | None = None,
) -> Weights:
    """Return the mean of checkpoints, m = (w_1 + ... + w_K) / K; two of them are in memory at a time.

    Floating-point tensors are averaged in float32 or wider and returned in the type of the first checkpoint.
    Integer tensors come from the last checkpoint.

    Args:
        paths: One or more checkpoints.
        read: Returns the weights of a checkpoint.
        on_file: Called with the number of checkpoints that are done.

    Raises:
        StorageError: A checkpoint cannot be read, differs from the first in a name or shape, or has values
            that the types of the first cannot hold.
    """
    if not paths:
        raise InvalidValueError("averaging needs at least one checkpoint, got 0; give some")
    first = read(paths[0])
    types = {name: tensor.to("meta") for name, tensor in first.items()}
    mean = RunningMean(first, counted=True)
    del first
    for number, path in enumerate(paths[1:], 2):
        weights = read(path)
        require_like_first(types, weights, paths[0], path)
        mean.add(weights)
        del weights  # before the next one is read
        if on_file is not None:
            on_file(number)
    return mean.weights()


def require_like_first(first: Weights, other: Weights, first_path: Path, path: Path) -> None:
    """Raise a StorageError unless a checkpoint has the names and shapes of the first, and fits its types."""
    try:
        require_same_layout(first, other, str(first_path), str(path))
    except ValueError as error:
        raise StorageError(f"checkpoints must be of one architecture, but {error}") from None
    for name, tensor in other.items():
        kind = first[name].dtype
        if tensor.dtype != kind and is_averaged(first[name]) and not tensor.to(kind).isfinite().all():
            raise StorageError(
                f"{path} must fit the types of {first_path}, but {name} has a value too large for {kind}; "
                "give a float32 checkpoint first"
            )


def _read_folder(folder: Path) -> Weights:
    if (folder / INDEX).is_file():
        return _read_parts(folder)
    for name in IN_FOLDERS:
        if (folder / name).is_file():
            return read_start_weights(folder / name)
    raise StorageError(
        f"{folder} must hold a checkpoint, {', '.join(IN_FOLDERS)} or {INDEX}, but has none; give the file"
    )


def _read_parts(folder: Path) -> Weights:
    """Return the tensors of a checkpoint in several files, which an index lists."""
    places = read_json_object(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(map(_is_file_name, places.values())):
        raise StorageError(f"{folder / INDEX} must map each tensor to a file in its folder, under weight_map")
    weights: Weights = {}
    for file in sorted(set(places.values())):
        weights |= read_tensors(folder / file)[0]
    if missing := sorted(places.keys() - weights):
        raise StorageError(f"{folder} must hold every tensor of {INDEX}, but lacks {', '.join(missing[:5])}")
    return without_wrappers(weights, folder)


def _is_file_name(value: object) -> bool:
    return isinstance(value, str) and is_inside(value)

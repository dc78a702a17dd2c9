"""Checkpoints that lie on disk, of any trainer, as weights: read one after another, never all at once."""

from collections.abc import Callable, Sequence
from pathlib import Path

from pfge.collectors import RunningMean
from pfge.finite import find_non_finite
from pfge.lab.training.import_weights import place_of, read_start_weights, without_wrappers
from pfge.storage.files import StorageError, read_json_object, read_tensors
from pfge.storage.manifest import is_inside
from pfge.weights import Weights, is_averaged, require_same_layout

INDEX = "model.safetensors.index.json"
IN_FOLDERS = ("model.safetensors", "pytorch_model.bin", "weights.safetensors")
"""The names that trainers give to the weights in a folder of a checkpoint."""


def read_checkpoint(path: Path) -> Weights:
    """Return the weights of a checkpoint: a file, or the folder of the Hugging Face Trainer.

    Raises:
        StorageError: It cannot be read, has no weights, or weights that are not finite.
    """
    weights = _read_folder(path) if path.is_dir() else read_start_weights(path)
    for name, tensor in weights.items():
        if tensor.is_floating_point() and tensor.element_size() == 1:
            raise StorageError(
                f"{path} must hold numbers of 16 bits or more, got {name} of {tensor.dtype}; convert it first"
            )
    if not any(map(is_averaged, weights.values())):
        raise StorageError(
            f"{path} must hold a model's weights, but has no real numbers; give the model's own file"
        )
    if (bad := find_non_finite(weights)) is not None:
        raise StorageError(f"{path} must hold finite weights, but {bad} has NaN or infinity; leave it out")
    return weights


def read_as_member(path: Path) -> Weights:
    """Return the weights of a checkpoint under one name each, as a model's members have them.

    Of a tensor that torch.save wrote under two names, such as tied embeddings, the first one stays.
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

    Numbers are averaged in float32 or wider and returned in the type of the first checkpoint. Tensors of
    integers are those of the last.

    Args:
        paths: One or more.
        read: Returns the weights of each.
        on_file: Called with how many are done.

    Raises:
        StorageError: One cannot be read, differs from the first in a name or shape, or has values that the
            types of the first cannot hold.
    """
    if not paths:
        raise ValueError("averaging needs at least one checkpoint, got none")
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

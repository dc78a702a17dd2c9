"""Data sets by name."""

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from pfge.lab.config.settings import expand_user
from pfge.lab.data.base import DataError, Normalization
from pfge.lab.data.datasets import DatasetSplits
from pfge.lab.data.in_memory import ImageSet, TensorSet
from pfge.lab.data.packaged import load_breast_cancer, load_diabetes, load_digits, load_mnist1d
from pfge.lab.data.published import (
    CIFAR10,
    CIFAR100,
    FASHION_MNIST,
    MNIST,
    Cifar,
    IdxData,
    load_cifar,
    load_idx,
)
from pfge.lab.data.splits import Splits, split
from pfge.lab.user_functions import import_function, in_one_line, is_out_of_memory
from pfge.tasks import DEFAULT_TASK, Regression, Task


def default_root() -> Path:
    """Return the folder that holds data sets: `$PFGE_DATA`, or `~/.cache/pfge`."""
    if given := os.environ.get("PFGE_DATA"):
        return Path(given)
    try:
        return Path.home() / ".cache" / "pfge"
    except RuntimeError:
        raise DataError(
            "data lies in the home folder, which is unknown because HOME is not set; set HOME, "
            "PFGE_DATA or data.root to a folder"
        ) from None


def load_data(
    name: str,
    *,
    root: Path | None = None,
    validation: int | float = 0,
    seed: int = 0,
    download: bool = False,
    verify: bool = True,
    normalization: Normalization | None = None,
    image_size: int | None = None,
    workers: int = 0,
) -> Splits:
    """Return a data set split into training, validation and test.

    Args:
        name: A built-in name; `folder:PATH` or `stream:PATH` for folders of class folders, read into
            memory, or again in each epoch; or `package.module:function` for a function without
            arguments that returns `Splits` or `DatasetSplits`.
        root: The folder that holds the data sets; `default_root()` if None.
        validation: The number of validation images (int) or their share (float), taken out of the
            training data. Data that comes with a validation part keeps its own.
        seed: Decides the choice of validation images.
        download: Whether missing files may be downloaded.
        verify: Whether files must have their published md5.
        normalization: Replaces the data set's own, for weights trained with another; for pictures only.
        image_size: Height and width of pictures from folders; 32 in memory and 224 streamed if None.
        workers: Processes that read the targets of a user's Dataset.
    """
    folder = named_folder(name)
    if name in _BUILT_IN:
        splits = _BUILT_IN[name](_Request(root, download, verify, image_size))
    elif folder is not None:
        kind = name.partition(":")[0]
        splits = _FROM_PATH[kind](_Request(expand_user(folder, "data.name"), download, verify, image_size))
    elif is_own_function(name):
        splits = _call(name, workers)
    else:
        raise DataError(_unknown(name))
    for part, data in (("training", splits.train), ("test", splits.test)):
        if len(data) == 0:
            raise DataError(f"the {part} data of {name!r} is empty; give at least one item")
    if len(splits.validation) == 0:
        parts = split(splits.train, splits.test, splits.normalization, validation=validation, seed=seed)
        splits = replace(parts, task=splits.task)
    if normalization is None:
        return splits
    if splits.normalization is None:
        raise DataError(
            f"data.mean and data.std are for pictures, and {name!r} has other inputs; leave them out"
        )
    return replace(splits, normalization=normalization)


def named_folder(name: str) -> str | None:
    """Return the path in the name of data such as `folder:PATH`, if it has one."""
    kind, colon, path = name.partition(":")
    return path if colon and kind in _FROM_PATH else None


def is_own_function(name: str) -> bool:
    """Return whether the name of data is a function to import, `package.module:function`."""
    return ":" in name and named_folder(name) is None


@dataclass(frozen=True)
class _Request:
    given_root: Path | None
    download: bool
    verify: bool
    image_size: int | None

    @property
    def root(self) -> Path:
        """The folder of the data; only data that is read from files needs one."""
        return self.given_root or default_root()


def _digits(_: _Request) -> Splits:
    train, test = load_digits()
    return _without_validation(train, test, Normalization.measure(train.images))


def _cifar(cifar: Cifar, request: _Request) -> Splits:
    train, test = load_cifar(cifar, request.root, download=request.download, verify=request.verify)
    return _without_validation(train, test, cifar.normalization)


def _idx(data: IdxData, request: _Request) -> Splits:
    train, test = load_idx(data, request.root, download=request.download, verify=request.verify)
    return _without_validation(train, test, data.normalization)


def _mnist1d(request: _Request) -> Splits:
    train, validation, test = load_mnist1d(request.root)
    return Splits(train=train, validation=validation, test=test)


def _table(load: Callable[[], tuple[TensorSet, TensorSet]], task: Task, _: _Request) -> Splits:
    train, test = load()
    return Splits(train=train, validation=train.select([]), test=test, task=task)


def _imagenet(request: _Request) -> Splits:
    _require_pillow()
    from pfge.lab.data.pictures import stream_imagenet

    return stream_imagenet(request.root, size=request.image_size or 224)


def _folder(request: _Request) -> Splits:
    _require_pillow()
    from pfge.lab.data.pictures import load_folders

    return load_folders(request.root, size=request.image_size or 32)


def _stream(request: _Request) -> Splits:
    _require_pillow()
    from pfge.lab.data.pictures import stream_folders

    return stream_folders(request.root, size=request.image_size or 224)


_Loader: TypeAlias = Callable[[_Request], Splits]

_BUILT_IN: dict[str, _Loader] = {
    "digits": _digits,
    "cifar10": partial(_cifar, CIFAR10),
    "cifar100": partial(_cifar, CIFAR100),
    "mnist": partial(_idx, MNIST),
    "fashion-mnist": partial(_idx, FASHION_MNIST),
    "imagenet": _imagenet,
    "mnist1d": _mnist1d,
    "breast_cancer": partial(_table, load_breast_cancer, DEFAULT_TASK),
    "diabetes": partial(_table, load_diabetes, Regression()),
}
_FROM_PATH: dict[str, _Loader] = {"folder": _folder, "stream": _stream}


def _without_validation(train: ImageSet, test: ImageSet, normalization: Normalization) -> Splits:
    return Splits(train=train, validation=train.select([]), test=test, normalization=normalization)


def _require_pillow() -> None:
    if find_spec("PIL") is None:
        raise DataError('pictures from folders need Pillow; pip install "pfge[lab]"')


def _unknown(name: str) -> str:
    close = get_close_matches(name, _BUILT_IN, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    patterns = ", ".join([*(f"{kind}:PATH" for kind in _FROM_PATH), "package.module:function"])
    return f"unknown data set {name!r}; {hint}Allowed: {', '.join(_BUILT_IN)}, {patterns}"


def _call(name: str, workers: int) -> Splits:
    try:
        function = import_function(name, "data")
    except ValueError as error:
        raise DataError(str(error)) from error
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise DataError(
            f"data {name!r} must be a function without required arguments, but {error}; give arguments "
            "defaults"
        ) from error
    try:
        made = function()
    except (ValueError, OSError):
        raise  # these say what to do
    except Exception as error:  # it is the user's code
        if is_out_of_memory(error):
            raise
        raise DataError(f"data {name!r} cannot be made: {in_one_line(error)}; correct its code") from error
    match made:
        case Splits():
            return made
        case DatasetSplits():
            return made.opened(workers)
    raise DataError(
        f"{name!r} must return Splits or DatasetSplits of pfge.lab.data, got {type(made).__name__}"
    )

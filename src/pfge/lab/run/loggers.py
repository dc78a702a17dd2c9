"""Log loss and rate along a path: as CSV, in TensorBoard, or with a user's own logger."""

import re
from pathlib import Path
from typing import Protocol, cast

from pfge.lab.config.schema import ConfigError
from pfge.lab.user_functions import import_function

KINDS = ("csv", "tensorboard", "package.module:function")


class Log(Protocol):
    """The methods that Fabric's loggers and many others have."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Log numbers of an iteration."""

    def finalize(self, status: str) -> None:
        """Write everything to disk."""


def open_log(kind: str, folder: Path, work: str) -> Log | None:
    """Return the log of a piece of work; a run that is continued gets a new version beside the old one.

    Args:
        kind: "csv", "tensorboard", "" for none, or a function of your own that is called with the folder
            and the name, as `package.module:function`.
        folder: Where logs are kept, a folder for each piece of work.
        work: What it is called, as "seed 1: PFGE".
    """
    name = re.sub(r"[^a-z0-9]+", "-", work.lower()).strip("-")
    if not kind:
        return None
    # Fabric is imported where it is needed, because that takes seconds.
    if kind == "csv":
        from lightning_fabric.loggers.csv_logs import CSVLogger

        # Written at once, so that a killed process loses nothing.
        return cast(Log, CSVLogger(folder, name, flush_logs_every_n_steps=1))
    if kind == "tensorboard":
        from lightning_fabric.loggers.tensorboard import TensorBoardLogger

        try:
            return cast(Log, TensorBoardLogger(folder, name))
        except ModuleNotFoundError:
            raise ConfigError(
                "engine.logger = 'tensorboard' needs the package tensorboard; pip install tensorboard, or "
                "choose csv"
            ) from None
    if ":" not in kind:
        raise ConfigError(f"engine.logger must be one of {', '.join(KINDS)}, got {kind!r}")
    try:
        make_log = import_function(kind, "engine.logger")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return cast(Log, make_log(folder, name))

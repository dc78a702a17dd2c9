"""Collecting in a Lightning Trainer: `Trainer(callbacks=[CollectWeights(...)])`."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from inspect import Parameter, signature
from typing import Any

from torch import nn

from pfge.collectors.base import Collector, require_own_weights
from pfge.errors import InvalidValueError, MisuseError
from pfge.integrations.collecting import Collecting, checked, warn_if_untested
from pfge.schedules import Schedule
from pfge.storage.files import StorageError

if find_spec("lightning") is not None:
    from lightning.pytorch import Callback, LightningModule, Trainer

    PACKAGE = "lightning"
else:
    from pytorch_lightning import Callback, LightningModule, Trainer

    PACKAGE = "pytorch-lightning"

VAR_POSITIONAL, VAR_KEYWORD = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
TESTED = ("2.5", "2.6")
STRATEGIES = {"SingleDeviceStrategy", "DDPStrategy"}
OF_THE_CLI = {"_instantiator", "_class_path"}
"""What LightningCLI adds to hparams for itself; no constructor knows them."""


class CollectWeights(Collecting, Callback):
    """Collects weights while `Trainer.fit` runs; `ensemble()` is what was collected.

    Works with automatic and manual optimization, accumulation and mixed precision. Its state is part
    of Lightning's checkpoints, and `fit(ckpt_path=...)` continues with the same members.

    Args:
        schedule: The learning rate for each update, or None to leave the rates to the module's own
            scheduler. Do not return a scheduler from `configure_optimizers` beside one that is given here.
        collectors: One collector or several; see `Trajectory`.
        optimizer: Index of the module's optimizer to follow; required if there are several.
        validate: The collector, one of `collectors`, whose mean so far the module has while it is validated,
            once there is one; None to validate the weights in training. Checkpoints hold the latter.
        batches: Training data, over which BatchNorm statistics are computed before each such validation.
        forward: Calls the module on one of them; see `refresh_batch_norm`.
    """

    def __init__(
        self,
        schedule: Schedule | None,
        collectors: Sequence[Collector] | Collector,
        *,
        optimizer: int | None = None,
        validate: Collector | None = None,
        batches: Iterable[Any] | None = None,
        forward: Callable[[nn.Module, Any], Any] | None = None,
    ):
        warn_if_untested(PACKAGE, TESTED)
        super().__init__(schedule, collectors)
        if validate is not None and validate not in self.collectors:
            found = ", ".join(map(str, self.collectors))
            raise InvalidValueError(
                f"validate must be one of the collectors {found}, got {validate}; add it to them"
            )
        self.optimizer = optimizer
        self.validate = validate
        self.batches = batches
        self.forward = forward
        self._applied = ExitStack()
        self._stage: str | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a strategy that does not keep whole weights in every process."""
        strategy = type(trainer.strategy)
        if not STRATEGIES & {kind.__name__ for kind in strategy.__mro__}:
            raise InvalidValueError(
                f"CollectWeights works where every process has the whole weights, got {strategy.__name__}; "
                'use strategy="ddp", a single device, or fully_shard in a loop of your own'
            )
        self._stage = stage

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state when training begins; ignore it if the checkpoint is only tested."""
        # Lightning restores callbacks also where no training follows, and the next fit() may be another one.
        if self._stage in (None, "fit"):
            super().load_state_dict(state)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Follow the optimizer, which exists from here on."""
        found = len(trainer.optimizers)
        if self.optimizer not in range(found) and (self.optimizer is not None or found != 1):
            raise InvalidValueError(
                f"CollectWeights follows one of the module's {found} optimizers, got "
                f"optimizer={self.optimizer}; pass its index"
            )
        self.attach(pl_module, trainer.optimizers[self.optimizer or 0])

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the mean so far into the module, if it is validated while it trains and there is a mean."""
        if self.validate is None or not self._hooks:
            return
        try:
            applied = self.validate.applied(pl_module, self.batches, forward=self.forward)
        except StorageError:  # a folder of members is damaged
            raise
        except ValueError:  # nothing was collected yet
            return
        self._applied.enter_context(applied)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the module's own weights back, before checkpoints are written."""
        self._applied.close()

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Refuse a checkpoint of the mean, from which training would go on as if it were its own weights."""
        try:
            require_own_weights(pl_module)
        except RuntimeError:
            raise MisuseError(
                "a checkpoint holds the weights in training, and while the module is validated it has those "
                f"of {self.validate}; save it in on_validation_end or later"
            ) from None

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Put the module's own weights back and stop following; what was collected stays."""
        self._applied.close()
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stop following; what was collected stays."""
        self._stop()

    def constructor(self, model: nn.Module) -> Callable[[], nn.Module]:
        """Return a function that constructs the module from `hparams`, as `load_from_checkpoint` does."""
        hparams: Any = getattr(model, "hparams", {})
        kinds = {name: parameter.kind for name, parameter in signature(type(model)).parameters.items()}
        named = {name for name, kind in kinds.items() if kind not in (VAR_POSITIONAL, VAR_KEYWORD)}
        name = str(getattr(model, "_hparams_name", None))
        # One argument may hold all of them, as of `save_hyperparameters(config)`.
        given = {name: hparams} if hparams and name in named else hparams
        takes = named | ({*given} - OF_THE_CLI if VAR_KEYWORD in kinds.values() else set())
        arguments = {key: value for key, value in given.items() if key in takes}
        return checked(partial(type(model), **arguments), "call save_hyperparameters() in its constructor")

    def _stop(self) -> None:
        self.detach()
        self._stage = None
        self._loaded = None  # of a training that failed before it began

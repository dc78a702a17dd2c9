"""The learning rates of an optimizer's groups, of which a schedule gives the largest."""

import warnings
from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer


class GroupRates:
    """Sets the rates of all groups from the largest of them; their ratios stay as they were.

    Args:
        optimizer: Whose rates are set. The ratios are those of its rates, or of its initial rates if a torch
            scheduler has changed them.
        is_scheduled: Whether the rates will be set; if not, the optimizer may choose them itself.
        overrides_scheduler: Whether rates that something else changes are overridden without a warning.

    Attributes:
        ratios: Of each group's rate to the largest.

    Raises:
        ValueError: Rates are to be set, and the optimizer has none.
    """

    def __init__(self, optimizer: Optimizer, *, is_scheduled: bool, overrides_scheduler: bool = False):
        self._optimizer = optimizer
        self._overrides_scheduler = overrides_scheduler
        self._first = _rates_at_start(optimizer, is_scheduled=is_scheduled)
        self._set: list[float] | None = None
        self.ratios = _ratios(self._first)

    def set(self, largest: float) -> None:
        """Set the rates of all groups."""
        for group, ratio in zip(self._optimizer.param_groups, self.ratios, strict=True):
            if isinstance(group["lr"], Tensor):  # capturable optimizers keep the rate on the device
                group["lr"].fill_(largest * ratio)
            else:
                group["lr"] = largest * ratio
        self._set = self._plain_rates()

    def resume(self, ratios: Sequence[float]) -> None:
        """Continue with the ratios of an earlier run."""
        self.ratios = list(ratios)
        self._set = None

    def add_groups(self, *, begun: bool) -> None:
        """Note the ratios of groups that were added to the optimizer since the last update.

        Args:
            begun: Whether there was an update; before it, the rates are still the optimizer's own.
        """
        known, groups = len(self.ratios), self._optimizer.param_groups
        if len(groups) <= known:
            return
        if not begun or not known:
            self._first = _rates_at_start(self._optimizer, is_scheduled=True)
            self.ratios = _ratios(self._first)
            return
        # Not to the rate of now: the same line of code would mean another ratio in each part of a cycle.
        largest = max(self._first)
        new = [min(float(group["lr"]) / largest, 1.0) if largest else 1.0 for group in groups[known:]]
        self.ratios = [*self.ratios, *new]

    def warn_of_changes(self, iteration: int) -> None:
        """Warn once if the rates are no longer those that were set at an iteration."""
        if self._overrides_scheduler or self._set is None:
            return
        if (found := self._plain_rates()) != self._set:
            self._overrides_scheduler = True  # one warning is enough
            warnings.warn(
                f"the learning rates were {self._set} at update {iteration} and are now {found}: "
                "something else sets them too, probably a torch scheduler, and is overridden; remove it, or "
                "pass schedule=None to keep its rates",
                stacklevel=3,
            )

    def _plain_rates(self) -> list[float]:
        """Return the rates that are numbers; to read one from a device would wait for the device.

        Those of groups that were added since the last update are left out.
        """
        groups = self._optimizer.param_groups[: len(self.ratios)]
        return [group["lr"] for group in groups if not isinstance(group["lr"], Tensor)]


def _rates_at_start(optimizer: Optimizer, *, is_scheduled: bool) -> list[float]:
    """Return the rate of each group, before a torch scheduler changed it if one did."""
    if any(group.get("lr") is None for group in optimizer.param_groups):  # it chooses its rates itself
        if not is_scheduled:
            return []
        raise ValueError(
            "a schedule needs an optimizer with a learning rate, got None; pass schedule=None to let the "
            "optimizer choose its rates"
        )
    now = [float(group["lr"]) for group in optimizer.param_groups]
    if not all("initial_lr" in group for group in optimizer.param_groups):
        return now
    # A scheduler may have brought all groups to one rate, such as 0.
    first = [float(group["initial_lr"]) for group in optimizer.param_groups]
    if is_scheduled:
        _warn_of_other_ratios(_ratios(now), _ratios(first))
    return first


def _warn_of_other_ratios(now: list[float], first: list[float]) -> None:
    if any(abs(a - b) > 1e-6 for a, b in zip(now, first, strict=True)):
        warnings.warn(
            f"the rates of the parameter groups have the ratios {now}, and had {first} before a scheduler "
            "changed them; the latter are used; remove initial_lr from the groups to use the former",
            stacklevel=5,
        )


def _ratios(rates: Sequence[float]) -> list[float]:
    largest = max(rates, default=0.0)
    return [rate / largest if largest else 1.0 for rate in rates]

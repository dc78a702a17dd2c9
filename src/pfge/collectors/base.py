"""What a collector is: something that watches a trajectory and keeps weights."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from pfge.weights import Weights, find_non_finite


@dataclass(frozen=True)
class Restart:
    """A collector's request that the trajectory go on from other weights."""

    weights: Weights
    clear_momentum: bool = True


class Collector(ABC):
    """Watches a trajectory's weights, as plain dicts of tensors, and keeps some as members."""

    steers: ClassVar[bool] = False
    """Whether it may return a `Restart`; a trajectory takes one such collector at most."""

    @abstractmethod
    def begin(self, weights: Weights, buffers: Collection[str] = ()) -> None:
        """Take note of the start point, before the first update.

        Args:
            weights: The start point; live tensors, to be copied by whoever keeps them.
            buffers: The names that are not parameters. Their mean may mean nothing (the unit
                vectors of a spectral norm), so averages take the latest value.
        """

    @abstractmethod
    def due(self, iteration: int) -> bool:
        """Tell whether the weights after this iteration are wanted."""

    @final
    def observe(self, iteration: int, weights: Weights) -> Restart | None:
        """Look at the weights after an iteration; keep nothing that is not finite.

        Raises:
            ValueError: The weights hold NaN or infinity; what was kept before stays.
        """
        if not self.due(iteration):
            return None
        if (name := find_non_finite(weights)) is not None:
            raise ValueError(
                f"{self} collects finite weights only, but {name} holds NaN or infinity at iteration "
                f"{iteration}; lower the learning rate, or resume from an earlier checkpoint"
            )
        return self._take(iteration, weights)

    @abstractmethod
    def _take(self, iteration: int, weights: Weights) -> Restart | None:
        """Use finite weights at an iteration that is due."""

    @abstractmethod
    def members(self) -> Sequence[Weights]:
        """Return the members so far, oldest first."""

    @property
    @abstractmethod
    def iterations(self) -> Sequence[int | None]:
        """The iteration of each member so far; None where it belongs to no single one."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return all that resuming needs; live tensors, like an optimizer's."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` gave, in place of `begin`."""

    @abstractmethod
    def __str__(self) -> str:
        """Return the constructor call, for messages and manifests."""

    def last_use(self, iterations: int) -> int:
        """Return the last of that many iterations that serves a member: all, unless members are periods."""
        return iterations


def require_cycle(cycle: int, phase: int) -> None:
    """Raise a ValueError unless `phase` is a place in a `cycle` of at least one iteration."""
    if cycle < 1:
        raise ValueError(f"cycle must be at least 1 iteration, got {cycle}")
    if not 0 <= phase < cycle:
        raise ValueError(f"phase must be from 0 to cycle - 1 = {cycle - 1}, got {phase}")

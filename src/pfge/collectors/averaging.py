"""SWA and EMA: collectors that keep one running average of the weights."""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

import torch

from pfge.averages import Move
from pfge.collectors.base import Collector, require_cycle
from pfge.errors import InvalidValueError, MisuseError
from pfge.schedules import require_whole
from pfge.weights import Weights, accumulator, describe_weights, shared_part, to_cpu, without


class RunningMean:
    """A running mean of weights, in one copy of them.

    The mean m of n points takes one more, w, by m = m + (w - m) / (n + 1), in float32 at least: in bfloat16,
    with 8 bits of precision, the change would soon round to nothing.

    Args:
        start: Weights that give the names, shapes and types.
        counted: Whether `start` is the first to be averaged or only gives the layout.
        copied: Names that take the latest value instead of the mean.

    Attributes:
        count: Number of points in the mean.
        copied: Names that take the latest value.

    Example:
        >>> import torch
        >>> from pfge.collectors import RunningMean
        >>> mean = RunningMean({"w": torch.tensor(0.0)}, counted=True)
        >>> mean.add({"w": torch.tensor(3.0)})
        >>> mean.add({"w": torch.tensor(6.0)})
        >>> mean.weights(), mean.count
        ({'w': tensor(3.)}, 3)
    """

    def __init__(self, start: Weights, *, counted: bool, copied: Collection[str] = ()):
        self.count = int(counted)
        self.copied = frozenset(copied)
        self._types = {name: tensor.dtype for name, tensor in start.items()}
        shared = shared_part(start)
        wide = accumulator(without(start, shared))
        self._mean = {name: shared[name] if name in shared else wide[name] for name in start}
        self._move: Move | None = None

    def __repr__(self) -> str:
        return f"RunningMean({describe_weights(self._mean)}, count={self.count})"

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle or a copy needs: a move leads to the tensors of a model in training."""
        return vars(self) | {"_move": None}

    def add(self, weights: Weights) -> None:
        """Count one more point."""
        self._go_towards(weights, 1 / (self.count + 1))

    def decay(self, weights: Weights, kept: float) -> None:
        """Move to kept * mean + (1 - kept) * weights instead."""
        self._go_towards(weights, 1 - kept)

    def _go_towards(self, weights: Weights, fraction: float) -> None:
        if self._move is None or not self._move.leads_to(weights):
            self._move = Move(self._mean, weights, self.copied)
        self._move.make(fraction)
        self.count += 1

    def restart(self, *, counted: bool) -> None:
        """Forget what was averaged, and start from the mean as `weights` gives it."""
        for name, tensor in self._mean.items():
            if tensor.dtype != self._types[name]:  # the trajectory goes on from the rounded mean
                tensor.copy_(tensor.to(self._types[name]))
        self.count = int(counted)

    def wide(self) -> Weights:
        """Return the mean as it is accumulated; it shares memory with this object."""
        return self._mean

    def weights(self) -> Weights:
        """Return the mean in the weights' own types; it may share memory with this object."""
        types = self._types
        return {n: t if t.dtype == types[n] else t.to(types[n]) for n, t in self._mean.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return all that resuming needs."""
        types = {name: str(kind).removeprefix("torch.") for name, kind in self._types.items()}
        return {"count": self.count, "mean": self._mean, "copied": sorted(self.copied), "types": types}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "RunningMean":
        """Return the mean that gave this state."""
        mean = cls(state["mean"], counted=False, copied=state["copied"])
        mean.count = state["count"]
        mean._types = {name: getattr(torch, kind) for name, kind in state["types"].items()}
        return mean


class AveragingCollector(Collector):
    """A collector whose only member is one mean of the weights.

    A subclass defines `due` and `update`, which adds weights to the mean. The rest is here.

    Args:
        average_start: Whether the start point counts in the mean.

    Example:
        An average in which later points count more: the newest of t points has the share 2 / (t + 1), as in
        the polynomial-decay averaging of Shamir and Zhang (ICML 2013).

        >>> import torch
        >>> from pfge.collectors import AveragingCollector
        >>> class PolynomialAverage(AveragingCollector):
        ...     def __init__(self, every):
        ...         super().__init__(average_start=False)
        ...         self.every = every
        ...
        ...     def due(self, iteration):
        ...         return iteration % self.every == 0
        ...
        ...     def update(self, mean, weights):
        ...         points = mean.count + 1
        ...         mean.decay(weights, kept=1 - 2 / (points + 1))
        >>> collector = PolynomialAverage(every=1)
        >>> collector.begin({"w": torch.tensor(9.0)})
        >>> collector.observe(1, {"w": torch.tensor(3.0)})
        >>> collector.observe(2, {"w": torch.tensor(6.0)})
        >>> collector, collector.members()
        (PolynomialAverage(every=1), [{'w': tensor(5.)}])
    """

    averages = True

    def __init__(self, *, average_start: bool):
        self.average_start = average_start
        self._mean: RunningMean | None = None
        self._last: int | None = None

    def begin(self, weights: Weights, buffers: Collection[str] = ()) -> None:
        """Begin at the start point."""
        self._mean = RunningMean(weights, counted=self.average_start, copied=buffers)
        self._last = None

    def needs_low_rate(self, iteration: int) -> bool:  # noqa: ARG002
        """Return False: a mean over a whole path has points at all rates."""
        return False

    def collect(self, iteration: int, weights: Weights) -> None:
        """Add the weights to the mean."""
        if self._mean is None:
            raise MisuseError(f"{self} must begin before it observes; call begin(weights) first")
        self.update(self._mean, weights)
        self._last = iteration

    @abstractmethod
    def update(self, mean: RunningMean, weights: Weights) -> None:
        """Add the weights to the mean, by one of its methods."""

    def members(self) -> Sequence[Weights]:
        """Return the mean as the only member.

        Raises:
            ValueError: Nothing was averaged yet, so the mean would be the start point.
        """
        if self._mean is None or self._last is None:
            raise InvalidValueError(
                f"{self} has averaged nothing yet; train on until an iteration that is due"
            )
        return [to_cpu(self._mean.weights())]

    @property
    def iterations(self) -> Sequence[int | None]:
        """The iteration of the last point in the mean."""
        return [] if self._last is None else [self._last]

    def state_dict(self) -> dict[str, Any]:
        """Return all that resuming needs."""
        return {"last": self._last, "mean": self._mean and self._mean.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._last = state["last"]
        self._mean = state["mean"] and RunningMean.from_state(state["mean"])


class SWA(AveragingCollector):
    """Keep the mean of the weights at the end of every cycle: one member.

    With w_0 the start point and w_i the weights after iteration i, the mean after n cycles of c iterations is

        (w_0 + w_c + w_2c + ... + w_nc) / (n + 1)

    Args:
        cycle: Iterations between two averaged points (the paper's c).
        phase: Position in the cycle at which they are averaged: iterations i with i mod cycle = phase.
        average_start: Whether the start point counts once in the mean, as in the paper.

    References:
        Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", UAI 2018.
        Guo, Jin, Liu, "PFGE: Parsimonious Fast Geometric Ensembling of DNNs", ICIC 2023, Algorithm 1.

    Example:
        The mean of the start 0 and of the points 6 and 12:

        >>> import torch
        >>> from pfge import SWA
        >>> collector = SWA(cycle=2)
        >>> collector.begin({"w": torch.tensor(0.0)})
        >>> for iteration in range(1, 5):
        ...     collector.observe(iteration, {"w": torch.tensor(3.0 * iteration)})
        >>> collector.members()
        [{'w': tensor(6.)}]
    """

    def __init__(self, cycle: int, *, phase: int = 0, average_start: bool = True):
        require_cycle(cycle, phase)
        super().__init__(average_start=average_start)
        self.cycle = cycle
        self.phase = phase

    def due(self, iteration: int) -> bool:
        """Return whether a point of the cycle is reached."""
        return iteration % self.cycle == self.phase

    def needs_low_rate(self, iteration: int) -> bool:
        """Return whether the weights are averaged here."""
        return self.due(iteration)

    def update(self, mean: RunningMean, weights: Weights) -> None:
        """Count the weights in the mean."""
        mean.add(weights)


class EMA(AveragingCollector):
    """Keep an exponential moving average of the weights, from the start point on: one member.

    At each update of the mean m, with the weights w of that iteration:

        m = decay * m + (1 - decay) * w,    m = w_0 at the start

    A point loses half of its share after log(1/2) / log(decay) updates: 693 with a decay of 0.999.

    Args:
        decay: Fraction of the old mean that each update keeps.
        every: Iterations between two updates of the mean.

    References:
        Tarvainen, Valpola, "Mean teachers are better role models", NeurIPS 2017.

    Example:
        From the start 0 to 0.5 * 0 + 0.5 * 4 = 2, and then to 0.5 * 2 + 0.5 * 8 = 5:

        >>> import torch
        >>> from pfge import EMA
        >>> collector = EMA(decay=0.5)
        >>> collector.begin({"w": torch.tensor(0.0)})
        >>> collector.observe(1, {"w": torch.tensor(4.0)})
        >>> collector.observe(2, {"w": torch.tensor(8.0)})
        >>> collector.members()
        [{'w': tensor(5.)}]
    """

    def __init__(self, decay: float, *, every: int = 1):
        if not 0 <= decay < 1:
            raise InvalidValueError(f"decay must be at least 0 and below 1, got {decay}; 0.999 is usual")
        require_whole(every=every)
        if every < 1:
            raise InvalidValueError(f"every must be at least 1 iteration, got {every}")
        super().__init__(average_start=True)
        self.decay = decay
        self.every = every

    def due(self, iteration: int) -> bool:
        """Return whether the mean moves at this iteration."""
        return iteration % self.every == 0

    def update(self, mean: RunningMean, weights: Weights) -> None:
        """Move the mean towards the weights."""
        mean.decay(weights, self.decay)

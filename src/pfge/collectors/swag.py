"""SWAG: a Gaussian around the SWA mean, and samples of it (Maddox et al., 2019)."""

import hashlib
from collections.abc import Collection, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from pfge.collectors.averaging import RunningMean
from pfge.collectors.base import Collector, constructor_call, require_cycle
from pfge.errors import InvalidValueError, MisuseError
from pfge.sharding import any_split, split_like, whole
from pfge.storage.ensemble_folder import LazyMembers
from pfge.weights import Weights, accumulator, copy_weights, is_averaged, shared_part, to_cpu, without

USUAL_VAR_CLAMP = 1e-30


class SWAG(Collector):
    """Fit a Gaussian to the weights at the end of every cycle; its samples are the members.

    With n points w_i, their mean m and the mean m_i of the first i, a sample has

        mean        m
        covariance  scale * (diag(v) + D D^T / (k - 1))

    where v is the variance of the points and the k columns of D are the deviations w_i - m_i of the last
    k = min(n, rank) points. It holds rank + 2 copies of the weights, the deviations in main memory. Buffers
    are not random: they have the latest value. Of complex weights, the real and the imaginary part are two
    weights.

    Args:
        cycle: Iterations between two points.
        phase: Position in the cycle at which they are collected: iterations i with i mod cycle = phase.
        rank: Number of deviations that are kept.
        samples: Number of members.
        scale: Factor on the whole covariance; 0.5 is the published choice.
        var_clamp: The smallest variance of one weight.
        seed: Sample k is a function of (seed, k) and the Gaussian alone.

    References:
        Maddox et al., "A Simple Baseline for Bayesian Uncertainty in Deep Learning", NeurIPS 2019.

    Example:
        Without any spread, each sample is the mean of the points 1 and 3. The start does not count:

        >>> import torch
        >>> from pfge import SWAG
        >>> collector = SWAG(cycle=1, samples=2, scale=0.0)
        >>> collector.begin({"w": torch.tensor(9.0)})
        >>> collector.observe(1, {"w": torch.tensor(1.0)})
        >>> collector.observe(2, {"w": torch.tensor(3.0)})
        >>> list(collector.members())
        [{'w': tensor(2.)}, {'w': tensor(2.)}]
    """

    averages = True

    def __init__(
        self,
        cycle: int,
        *,
        phase: int = 0,
        rank: int = 20,
        samples: int = 20,
        scale: float = 0.5,
        var_clamp: float = USUAL_VAR_CLAMP,
        seed: int = 0,
    ):
        require_cycle(cycle, phase)
        for name, value, least in (("rank", rank, 0), ("samples", samples, 1), ("scale", scale, 0)):
            if name != "scale" and not isinstance(value, int):
                raise InvalidValueError(f"{name} must be a whole number, got {value!r}; round it to an int")
            if value < least:
                raise InvalidValueError(f"{name} must be at least {least}, got {value}")
        self.cycle = cycle
        self.phase = phase
        self.rank = rank
        self.samples = samples
        self.scale = scale
        self.var_clamp = var_clamp
        self.seed = seed
        self._mean: RunningMean | None = None
        self._squares: Weights = {}  # sums of squared deviations from the running mean (Welford)
        self._deviations: list[Weights] = []

    def begin(self, weights: Weights, buffers: Collection[str] = ()) -> None:
        """Start without points; w0 does not count."""
        self._mean = RunningMean(weights, counted=False, copied=buffers)
        self._squares = {}
        self._start_squares(self._mean, weights)
        self._deviations = []

    def due(self, iteration: int) -> bool:
        """Return whether a point of the cycle is reached."""
        return iteration % self.cycle == self.phase

    def _start_squares(self, mean: RunningMean, weights: Weights) -> None:
        """Start the squares of random tensors without any: all at the start, unfrozen ones later."""
        frozen = shared_part(weights).keys()
        fixed = mean.copied | frozen | self._squares.keys()
        random = {name: tensor for name, tensor in without(weights, fixed).items() if is_averaged(tensor)}
        self._squares |= {name: _as_real(tensor).zero_() for name, tensor in accumulator(random).items()}

    @torch.no_grad()
    def collect(self, iteration: int, weights: Weights) -> None:  # noqa: ARG002
        """Count the weights as a point of the Gaussian."""
        if self._mean is None:
            raise MisuseError(f"{self} must begin before it observes; call begin(weights) first")
        self._mean.add(weights)
        self._start_squares(self._mean, weights)
        count, mean = self._mean.count, self._mean.wide()
        deviation = {name: _as_real(weights[name] - mean[name]) for name in self._squares}
        for name, tensor in deviation.items():
            # Welford's product of the deviations from the old and the new mean, by the new one alone.
            growth = count / (count - 1) if count > 1 else 0.0
            squares = split_like(tensor, self._squares[name]).to(tensor.device)
            self._squares[name] = squares.addcmul_(tensor, tensor, value=growth)
        deviation = {name: whole(tensor).cpu() for name, tensor in deviation.items()}
        self._deviations = [*self._deviations, deviation][-self.rank :] if self.rank else []

    def members(self) -> Sequence[Weights]:
        """Return the samples, each drawn when it is asked for and always the same.

        Tensors that are split among processes (FSDP2) are put together here, so all processes must call this.
        Then each process can draw samples by itself.

        Raises:
            ValueError: There are fewer than two points, so the Gaussian has no spread.
        """
        if self._mean is None or self._mean.count < 2:
            points = self._mean.count if self._mean else 0
            raise InvalidValueError(f"{self} needs 2 points or more to sample from, has {points}; train on")
        return LazyMembers(self.samples, self._put_together()._sample)

    def mean_so_far(self) -> Weights:
        """Return the mean of the Gaussian.

        Raises:
            ValueError: Nothing was collected yet.
        """
        if self._mean is None or not self._mean.count:
            raise InvalidValueError(
                f"{self} has collected nothing yet; train on until an iteration that is due"
            )
        return to_cpu(self._mean.weights())

    def _put_together(self) -> "SWAG":
        """Return the same Gaussian without tensors that are split among processes."""
        if self._mean is None or not any_split(self._mean.wide()):
            return self
        together = copy(self)
        mean = {name: whole(tensor).cpu() for name, tensor in self._mean.wide().items()}
        together._mean = RunningMean.from_state(self._mean.state_dict() | {"mean": mean})
        together._squares = copy_weights(self._squares, "cpu")
        return together

    def _sample(self, index: int) -> Weights:
        if self._mean is None:
            raise MisuseError(f"{self} must begin before it is sampled")
        sample = to_cpu(self._mean.weights())
        mean = self._mean.wide()
        columns = len(self._deviations)
        # One vector for all tensors: the low-rank part correlates weights of different layers.
        shared = _normal((columns,), f"{self.seed}/{index}")
        for name, squares in self._squares.items():
            variance = (squares.cpu() / self._mean.count).clamp(min=self.var_clamp)
            noise = variance.sqrt() * _normal(tuple(squares.shape), f"{self.seed}/{index}/{name}")
            if columns > 1:
                for weight, deviation in zip(shared, self._deviations, strict=True):
                    if name in deviation:  # it is not in those of points at which it was frozen
                        noise += weight / (columns - 1) ** 0.5 * deviation[name]
            noise = torch.view_as_complex(noise.contiguous()) if sample[name].is_complex() else noise
            sample[name] = (mean[name].cpu() + self.scale**0.5 * noise).to(sample[name].dtype)
        return sample

    @property
    def iterations(self) -> Sequence[int | None]:
        """None for each sample: it belongs to no single iteration. Empty while there are too few points."""
        return [None] * self.samples if self._mean is not None and self._mean.count > 1 else []

    def pending_description(self) -> str | None:
        """Return that a second point is missing, if there is only one."""
        return "1 of the 2 points that a sample needs" if self._mean and self._mean.count == 1 else None

    def state_dict(self) -> dict[str, Any]:
        """Return all that resuming needs."""
        mean = self._mean and self._mean.state_dict()
        return {"mean": mean, "squares": self._squares, "deviations": self._deviations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._mean = state["mean"] and RunningMean.from_state(state["mean"])
        self._squares = copy_weights(state["squares"])
        self._deviations = [copy_weights(deviation) for deviation in state["deviations"]]

    def __repr__(self) -> str:
        names = ["cycle", "phase", "rank", "samples", "scale", "seed"]
        # Manifests and checkpoints name it only where it is not the usual one.
        names += ["var_clamp"] if self.var_clamp != USUAL_VAR_CLAMP else []
        return constructor_call(self, names)


def _as_real(tensor: Tensor) -> Tensor:
    """Return a complex tensor with its parts in one more dimension, and others as they are."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _normal(shape: tuple[int, ...], key: str) -> Tensor:
    """Return standard normal numbers that depend on the key alone."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 2**63
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))

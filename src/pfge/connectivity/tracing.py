"""What a model is worth along a curve, and how well that connects the ends."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from statistics import fmean
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pfge.batch_norm import refresh_batch_norm
from pfge.connectivity.curves import Curve, require_values, use_with_weights
from pfge.errors import InvalidValueError
from pfge.forward import keep_modes
from pfge.weights import find_non_finite, require_same_layout, view_weights


@dataclass(frozen=True)
class AlongCurve:
    """The extremes and the mean of a quantity over the points of a trace.

    Attributes:
        max: The largest value.
        min: The smallest.
        mean: Over the points.

    Example:
        >>> from pfge.connectivity import CurveTrace
        >>> trace = CurveTrace(t=(0.0, 0.5, 1.0), values={"loss": (1.0, 4.0, 1.0)}, squared_norms=(1, 1, 1))
        >>> trace.statistics("loss")
        AlongCurve(max=4.0, min=1.0, mean=2.0)
    """

    max: float
    min: float
    mean: float


@dataclass(frozen=True)
class CurveTrace:
    """Quantities at points of a curve.

    Attributes:
        t: Where the points are, from 0 to 1.
        values: Each quantity at each point, by its name.
        squared_norms: The squared norm of the tensors on the curve at each point.

    Example:
        >>> from pfge.connectivity import CurveTrace
        >>> trace = CurveTrace(t=(0.0, 1.0), values={"loss": (1.0, 2.0)}, squared_norms=(4.0, 8.0))
        >>> trace.of("loss")
        (1.0, 2.0)
        >>> trace.with_penalty("loss", weight_decay=0.5).of("loss")
        [2.0, 4.0]
    """

    t: Sequence[float]
    values: Mapping[str, Sequence[float]]
    squared_norms: Sequence[float]

    def of(self, quantity: str) -> Sequence[float]:
        """Return one quantity at each point."""
        if quantity not in self.values:
            raise InvalidValueError(
                f"a trace has what was evaluated, {', '.join(self.values)}, got {quantity!r}"
            )
        return self.values[quantity]

    def statistics(self, quantity: str) -> AlongCurve:
        """Return the maximum, the minimum and the mean of a quantity over the points."""
        values = self.of(quantity)
        return AlongCurve(max(values), min(values), fmean(values))

    def with_penalty(self, quantity: str, weight_decay: float) -> "CurveTrace":
        """Return the trace with weight_decay / 2 times the squared norm added to a quantity."""
        pairs = zip(self.of(quantity), self.squared_norms, strict=True)
        penalized = [value + weight_decay / 2 * norm for value, norm in pairs]
        return replace(self, values={**self.values, quantity: penalized})


def mode_connectivity(trace: CurveTrace, quantity: str = "train_loss") -> float:
    """Return how the inside of a curve compares with its ends, where it differs most from them.

    It is, at the traced t where its absolute value is largest,

        (L(0) + L(1)) / 2 - L(t)

    Below 0 there is a barrier, near 0 the ends are connected, above 0 the inside is better than the ends.

    Args:
        trace: Of a curve that was fitted.
        quantity: L: a loss, or an error as in the measure's first definition.

    References:
        Yang et al., "Taxonomizing Local Versus Global Structure in Neural Network Loss Landscapes",
        NeurIPS 2021.

    Example:
        >>> from pfge.connectivity import CurveTrace, mode_connectivity
        >>> values = {"train_loss": (1.0, 4.0, 1.5, 2.0)}
        >>> trace = CurveTrace(t=(0.0, 0.3, 0.7, 1.0), values=values, squared_norms=(1, 1, 1, 1))
        >>> mode_connectivity(trace)  # (1 + 2) / 2 - 4: a barrier at t = 0.3
        -2.5
    """
    values = trace.of(quantity)
    mean_of_ends = (values[0] + values[-1]) / 2
    return max((mean_of_ends - value for value in values), key=abs)


def trace_curve(
    curve: Curve,
    model: nn.Module,
    evaluate: Callable[[nn.Module], Mapping[str, float]],
    points: int = 61,
    *,
    refresh: Iterable[Any] | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    on_point: Callable[[int], None] | None = None,
) -> CurveTrace:
    """Evaluate a model at points of a curve that are equally far apart in t; the ends are the first and last.

    The model is in evaluation mode meanwhile, and is left exactly as it was.

    Args:
        curve: Fitted, or a straight line.
        model: Of the architecture that the ends belong to.
        evaluate: Returns quantities such as train_loss and test_error, called without gradients.
        points: How many.
        refresh: Training inputs, read once for each point: BatchNorm's statistics there are theirs. Needed
            if the model has BatchNorm.
        forward: Calls the model on one of them, as in `refresh_batch_norm`.
        on_point: Called with the number of points done.

    Raises:
        ValueError: A quantity or the curve is not finite; the message names the point.

    Example:
        >>> import torch
        >>> from pfge.connectivity import Bezier, trace_curve
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> line = Bezier({"weight": torch.tensor([[1.0]])}, {"weight": torch.tensor([[3.0]])}, bends=0)
        >>> trace = trace_curve(line, model, lambda model: {"loss": model.weight.item() ** 2}, points=3)
        >>> trace.t, trace.of("loss")
        ([0.0, 0.5, 1.0], [1.0, 4.0, 9.0])
    """
    if points < 2:
        raise InvalidValueError(f"points must be at least 2, the ends, got {points}")
    require_same_layout(view_weights(model), curve.start, "the model", "the curve")
    _require_refresh(model, refresh)
    places = [index / (points - 1) for index in range(points)]
    found: list[dict[str, float]] = []
    for number, t in enumerate(places, 1):
        try:
            found.append(_measure(curve, t, model, evaluate, refresh, forward))
        except ValueError as error:
            raise InvalidValueError(f"point {number} of {points} (t = {t:.4f}): {error}") from error
        if on_point is not None:
            on_point(number)
    values = {quantity: [at_one[quantity] for at_one in found] for quantity in found[0]}
    return CurveTrace(places, values, [_squared_norm(curve, t) for t in places])


def _measure(
    curve: Curve,
    t: float,
    model: nn.Module,
    evaluate: Callable[[nn.Module], Mapping[str, float]],
    refresh: Iterable[Any] | None,
    forward: Callable[[nn.Module, Any], Any] | None,
) -> dict[str, float]:
    if name := find_non_finite(curve.trained_at(t)):
        raise InvalidValueError(
            f"the curve holds NaN or infinity in {name}; fit it with a lower learning rate"
        )

    def measure(model: nn.Module) -> dict[str, float]:
        model.eval()
        if refresh is not None:
            refresh_batch_norm(model, refresh, forward=forward)
        values = dict(evaluate(model))
        weights = curve.at(t)
        require_values(model, {name: weights[name] for name in curve.names})
        return values

    with keep_modes(model), torch.no_grad():
        values = use_with_weights(model, curve.at(t), measure)
    for quantity, value in values.items():
        if not isfinite(value):
            raise InvalidValueError(f"{quantity} is {value}; fit the curve with a lower learning rate")
    return values


def _squared_norm(curve: Curve, t: float) -> float:
    weights = curve.at(t)
    tensors = [weights[name] for name in curve.names]
    wide = [tensor.to(torch.promote_types(tensor.dtype, torch.float64)) for tensor in tensors]
    return float(sum(torch.linalg.vector_norm(tensor).square() for tensor in wide))


def _require_refresh(model: nn.Module, refresh: Iterable[Any] | None) -> None:
    if isinstance(refresh, Iterator):
        raise InvalidValueError(
            "refresh is read once for each point, got an iterator, which is read only once; "
            "pass a list or a DataLoader"
        )
    has_statistics = any(isinstance(m, _BatchNorm) and m.track_running_stats for m in model.modules())
    if refresh is None and has_statistics:
        raise InvalidValueError(
            "a model with BatchNorm has no statistics of its own along a curve, got no refresh; "
            "pass training inputs as refresh="
        )

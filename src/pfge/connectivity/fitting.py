"""Fit the bends of a curve, measure a model along it, and tell how well it connects its ends."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from statistics import fmean
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from pfge.batch_norm import refresh_batch_norm
from pfge.connectivity.curves import Curve, require_values, use_with_weights
from pfge.errors import InvalidValueError
from pfge.forward import keep_modes, repeat_batches
from pfge.schedules import Schedule
from pfge.weights import buffer_names, find_non_finite, require_same_layout, trained_names, view_weights

Batch = TypeVar("Batch")


def fit_curve(
    curve: Curve,
    model: nn.Module,
    batches: Iterable[Batch],
    loss: Callable[[nn.Module, Batch], Tensor],
    *,
    optimizer: Optimizer,
    iterations: int,
    generator: torch.Generator,
    weight_decay: float = 0.0,
    schedule: Schedule | None = None,
    after: int = 0,
    on_update: Callable[[int, Tensor], None] | None = None,
) -> None:
    """Minimize the expected loss at a random point of the curve, one point a batch.

    With weights w(t) on the curve, the loss L of a batch, and the weight decay a, the bends minimize

        E[L(w(t)) + a / 2 * |w(t)|^2],    t uniform from 0 to 1

    The model is in training mode meanwhile, and is left exactly as it was; its own weights play no part.

    Args:
        curve: Its bends are trained; its ends stay. It is fast if they are on the model's device and in its
            memory order.
        model: A model of the ends' architecture.
        batches: Read again from its start as often as needed, as a DataLoader or a list can be.
        loss: Returns the scalar to minimize from the model and a batch.
        optimizer: One over `curve.parameters()`.
        iterations: Number of updates.
        generator: Draws t for each of them, from 0 to 1; on the CPU.
        weight_decay: Adds weight_decay / 2 times the squared norm of the point on the curve to the loss,
            whereas an optimizer's own would pull the bends.
        schedule: The learning rate for each iteration; None leaves the optimizer's.
        after: Number of updates that the curve has had, if this continues them.
        on_update: Called after each update with its iteration and its loss without the penalty.

    Raises:
        ValueError: The optimizer is over other tensors than the bends, and nothing has changed; or the loss
            is not finite, and the bends are those of the update before.

    References:
        Garipov et al., "Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs", NeurIPS 2018.

    Example:
        The loss is lowest on a circle. The straight line between two of its points crosses a barrier; a
        fitted curve goes around it.

        >>> import torch
        >>> from pfge.connectivity import Bezier, fit_curve, mode_connectivity, trace_curve
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> def loss(model, batch):
        ...     return (model.weight.square().sum() - 1) ** 2
        >>> def barrier(curve):
        ...     trace = trace_curve(curve, model, lambda model: {"loss": loss(model, None).item()}, points=5)
        ...     return round(mode_connectivity(trace, "loss"), 2)
        >>> curve = Bezier({"weight": torch.tensor([[1.0, 0.0]])}, {"weight": torch.tensor([[0.0, 1.0]])})
        >>> barrier(curve)
        -0.25
        >>> optimizer = torch.optim.SGD(curve.parameters(), lr=0.5)
        >>> generator = torch.Generator().manual_seed(0)
        >>> fit_curve(curve, model, [None], loss, optimizer=optimizer, iterations=200, generator=generator)
        >>> abs(barrier(curve)) < 0.01
        True
    """
    _require_fitting(curve, model)
    _require_bends(optimizer, curve)
    endless = repeat_batches(batches)
    with keep_modes(model):
        model.train()
        for iteration in range(after + 1, after + iterations + 1):
            t = float(torch.rand((), generator=generator, dtype=torch.float64))
            first = iteration == after + 1
            value = _set_gradients(curve, t, model, loss, next(endless), weight_decay, checked=first)
            if not torch.isfinite(value):
                raise InvalidValueError(
                    f"the loss became {value.item()} at iteration {iteration} and t = {t:.4f}; "
                    "lower the learning rate"
                )
            if schedule is not None:
                for group in optimizer.param_groups:
                    group["lr"] = schedule(iteration)
            optimizer.step()
            if on_update is not None:
                on_update(iteration, value)


def _set_gradients(
    curve: Curve,
    t: float,
    model: nn.Module,
    loss: Callable[[nn.Module, Batch], Tensor],
    batch: Batch,
    weight_decay: float,
    *,
    checked: bool,
) -> Tensor:
    """Give each bend its gradient for one batch at one point, and return the loss there."""
    point = curve.trained_at(t)
    for tensor in point.values():
        tensor.requires_grad_()
    # A forward pass in training writes into buffers, which are therefore copies.
    buffers = buffer_names(model)
    others = {n: x.clone() if n in buffers else x for n, x in curve.untrained_at(t).items()}

    def measure(model: nn.Module) -> Tensor:
        value = loss(model, batch)
        if checked:
            require_values(model, curve.trained_at(t))
        return value

    value = use_with_weights(model, others | point, measure)
    # By the chain rule a bend's gradient is its coefficient times the point's, so autograd ends at the point.
    gradients = torch.autograd.grad(value, list(point.values()), materialize_grads=True)
    with torch.no_grad():
        total = torch._foreach_add(_wide(gradients), _wide(point.values()), alpha=weight_decay)
        for coefficient, bend in zip(curve.coefficients(t)[1:-1], curve.bends, strict=True):
            scaled = torch._foreach_mul(total, coefficient)
            for tensor, gradient in zip(bend.values(), scaled, strict=True):
                tensor.grad = gradient
    return value.detach()


def _wide(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors in the types that bends have."""
    return [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]


def _require_fitting(curve: Curve, model: nn.Module) -> None:
    if not curve.bends:
        raise InvalidValueError("a curve needs a bend to be fitted, got bends=0, a straight line")
    require_same_layout(view_weights(model), curve.start, "the model", "the curve")
    trained = trained_names(model)
    for name in sorted(trained.symmetric_difference(curve.names)):
        found = "is trained and not on it" if name in trained else "is on it and not trained"
        raise InvalidValueError(
            f"a curve must have exactly the trained tensors of its model, but {name} {found}; "
            "construct the curve with trained=trained_names(model)"
        )
    for name in sorted(curve.start.keys() - buffer_names(model) - set(curve.names)):
        if not torch.equal(curve.start[name], curve.end[name]):
            raise InvalidValueError(
                f"a frozen parameter must be the same in both ends, but {name} differs; "
                "unfreeze it, and construct the curve with it"
            )


def _require_bends(optimizer: Optimizer, curve: Curve) -> None:
    """Raise a ValueError unless an optimizer is over the bends: others would be stepped, bends would not."""
    given = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
    bends = {id(tensor) for tensor in curve.parameters()}
    if given != bends:
        others = len(given - bends)
        raise InvalidValueError(
            f"an optimizer must be over the tensors of the bends and no others, got one without "
            f"{len(bends - given)} of {len(bends)} and with {others} other{'' if others == 1 else 's'}; "
            "give the optimizer curve.parameters()"
        )


@dataclass(frozen=True)
class AlongCurve:
    """The extremes and the mean of a quantity over the points of a trace.

    Attributes:
        max: The largest value.
        min: The smallest.
        mean: Mean over the points.

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
        t: Position of each point, from 0 to 1.
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
                f"a trace has the quantities {', '.join(self.values)}, got {quantity!r}; choose one of these"
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
        trace: Trace of a fitted curve.
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
        curve: A fitted curve, or a straight line.
        model: A model of the ends' architecture.
        evaluate: Returns quantities such as train_loss and test_error, called without gradients.
        points: Number of points, ends included.
        refresh: Training inputs for BatchNorm statistics, read once for each point. Needed if the model has
            BatchNorm.
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
        raise InvalidValueError(f"points must be at least 2 (the ends), got {points}")
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
            "refresh is read once for each point, got an iterator, which can be read only once; "
            "pass a list or a DataLoader"
        )
    has_statistics = any(isinstance(m, _BatchNorm) and m.track_running_stats for m in model.modules())
    if refresh is None and has_statistics:
        raise InvalidValueError(
            "BatchNorm needs fresh statistics at each point of a curve; pass training inputs as refresh="
        )

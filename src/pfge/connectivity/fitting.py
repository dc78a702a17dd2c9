"""Train the bends of a curve, so that the mean loss along it becomes small."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pfge.connectivity.curves import Curve, require_values, use_with_weights
from pfge.errors import InvalidValueError
from pfge.forward import keep_modes, repeat_batches
from pfge.schedules import Schedule
from pfge.weights import buffer_names, require_same_layout, trained_names, view_weights

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
        model: Of the architecture that the ends belong to.
        batches: Read again from its start as often as needed, as a DataLoader or a list can be.
        loss: Returns the scalar to minimize from the model and a batch.
        optimizer: One over `curve.parameters()`.
        iterations: How many updates to make.
        generator: Draws t for each of them, from 0 to 1; on the CPU.
        weight_decay: Adds weight_decay / 2 times the squared norm of the point on the curve to the loss,
            whereas an optimizer's own would pull the bends.
        schedule: The learning rate for each iteration; None leaves the optimizer's.
        after: How many updates the curve has had, if this continues them.
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
            f"a curve must be over what its model trains, but {name} {found}; "
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

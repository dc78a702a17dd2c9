"""Curves between two points of weight space, and planes through three."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from math import comb
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pfge.errors import InvalidValueError
from pfge.weights import (
    Weights,
    canonical_name,
    copy_weights,
    describe_weights,
    in_memory_order_of,
    is_averaged,
    require_same_layout,
    unwrap,
    view_weights,
)

Result = TypeVar("Result")


def use_with_weights(model: nn.Module, weights: Weights, action: Callable[[nn.Module], Result]) -> Result:
    """Run an action on a model that holds other weights meanwhile, and return its result.

    The model's own tensors are not written.

    Args:
        model: The model.
        weights: All its parameters and persistent buffers by canonical name. The action may write into
            them; gradients reach them. Best in the model's own memory order, else they are copied into it.
        action: Function of the model.
    """
    module = unwrap(model)
    tensors: Weights = {}
    for name, parameter in module.named_parameters():
        tensors[f"module.{name}"] = in_memory_order_of(parameter, weights[canonical_name(name)])
    for name, buffer in module.named_buffers():
        given = weights.get(canonical_name(name))  # members do not hold temporary ones
        tensors[f"module.{name}"] = buffer.clone() if given is None else in_memory_order_of(buffer, given)
    result: Result = functional_call(_Holder(module, lambda: action(model)), tensors, ())
    return result


def require_values(model: nn.Module, weights: Weights) -> None:
    """Raise a ValueError if a call has changed one of these parameters of a model."""
    live = view_weights(model)
    for name, tensor in weights.items():
        if not torch.equal(live[name], tensor.to(live[name].device)):
            raise InvalidValueError(
                f"a forward pass must leave the model's parameters as they are, but it changed {name}; "
                "change it in the training loop, or make it a buffer"
            )


class _Holder(nn.Module):
    """Makes an action the forward pass of a module, as functional_call wants it."""

    def __init__(self, module: nn.Module, action: Callable[[], Any]):
        super().__init__()
        self.module = module
        self.action = action

    def forward(self) -> Any:
        return self.action()


class Curve(ABC):
    """A path from a start to an end that is pulled by the bends between them.

    A point of the curve is a weighted sum of the start, the bends and the end, w_0, w_1, ..., w_n:

        w(t) = sum over k of coefficients(t)[k] * w_k,    0 <= t <= 1

    The bends begin on the straight line, at equal distances, so that an untrained curve is that line.
    Without bends it stays the line. Tensors that are not on the curve are those of the nearer end.
    A curve of your own is a subclass with its own `coefficients`.

    Args:
        start: The weights at t = 0; copied.
        end: The weights at t = 1; copied.
        bends: Number of points that pull the curve.
        trained: Names of the tensors that are on the curve, as `trained_names(model)` gives them; None
            is every floating-point tensor, which is right for a model without buffers and frozen parts.

    Attributes:
        names: The tensors on the curve.
        bends: Each bend's tensors by name, in float32 at least; give `parameters()` to an optimizer.

    References:
        Garipov et al., "Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs", NeurIPS 2018.

    Example:
        A straight line that is slow at both ends:

        >>> import torch
        >>> from pfge.connectivity import Curve
        >>> class SmoothLine(Curve):
        ...     def coefficients(self, t):
        ...         share = t * t * (3 - 2 * t)
        ...         return [1 - share, share]
        >>> line = SmoothLine({"w": torch.tensor(0.0)}, {"w": torch.tensor(8.0)}, bends=0)
        >>> [line.at(t)["w"].item() for t in (0, 0.25, 0.5, 1)]
        [0.0, 1.25, 4.0, 8.0]
    """

    def __init__(
        self, start: Weights, end: Weights, bends: int = 1, *, trained: Collection[str] | None = None
    ):
        if bends < 0:
            raise InvalidValueError(f"bends must be at least 0, got {bends}; 0 is the straight line")
        require_same_layout(start, end, "the start", "the end")
        if trained is not None and (strangers := sorted(set(trained) - start.keys())):
            raise InvalidValueError(
                f"trained must name tensors of the ends, got {strangers[0]!r}; use trained_names(model)"
            )
        # clone keeps the memory order, on which the speed of a model depends
        self.start = {name: tensor.detach().clone() for name, tensor in start.items()}
        self.end = {name: tensor.detach().clone() for name, tensor in end.items()}
        self.names = [
            name
            for name, tensor in start.items()
            if is_averaged(tensor) and (trained is None or name in trained)
        ]
        if not self.names:
            raise InvalidValueError(
                "a curve needs a trained floating-point tensor, and these ends have none; check trained="
            )
        on_curve = set(self.names)
        self._untrained = [
            {name: tensor for name, tensor in weights.items() if name not in on_curve}
            for weights in (self.start, self.end)
        ]
        first, last = self._wide(self.start), self._wide(self.end)
        between = [list(torch._foreach_lerp(first, last, k / (bends + 1))) for k in range(1, bends + 1)]
        self._nodes: list[list[Tensor]] = [first, *between, last]
        self.bends = [
            {name: tensor.requires_grad_() for name, tensor in zip(self.names, bend, strict=True)}
            for bend in between
        ]

    def __repr__(self) -> str:
        ends = f"{describe_weights(self.start)}, {describe_weights(self.end)}"
        return f"{type(self).__name__}({ends}, bends={len(self.bends)})"

    @abstractmethod
    def coefficients(self, t: float) -> list[float]:
        """Return the coefficients of the start, each bend and the end at t; their sum is 1."""

    def at(self, t: float) -> Weights:
        """Return the point at t: the start at 0 and the end at 1, both bit for bit."""
        require_on_curve(t)
        if t in (0, 1):  # a rounding dtype would lose the exact end
            return copy_weights(self.end if t else self.start)
        return copy_weights(self.untrained_at(t)) | self.trained_at(t)

    @torch.no_grad()
    def trained_at(self, t: float) -> Weights:
        """Return the tensors on the curve alone, at t, as new memory in the types of the ends."""
        require_on_curve(t)
        counted = [(c, node) for c, node in zip(self.coefficients(t), self._nodes, strict=True) if c]
        (coefficient, node), *others = counted
        point = list(torch._foreach_mul(node, coefficient))
        for coefficient, node in others:
            torch._foreach_add_(point, node, alpha=coefficient)
        return {
            name: tensor.to(self.start[name].dtype) for name, tensor in zip(self.names, point, strict=True)
        }

    def untrained_at(self, t: float) -> Weights:
        """Return the tensors that are not on the curve: the nearer end's own, not copies."""
        return self._untrained[t > 0.5]

    def parameters(self) -> list[Tensor]:
        """Return the tensors of all bends, for an optimizer."""
        return [tensor for bend in self.bends for tensor in bend.values()]

    def state_dict(self) -> dict[str, Any]:
        """Return the kind of the curve and its bends, live; `save_checkpoint` writes it."""
        return {"kind": type(self).__name__, "bends": self.bends}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the bends of a curve of the same kind.

        Raises:
            ValueError: It is another kind of curve, or one over other tensors; nothing has changed.
        """
        kind = type(self).__name__
        found = f"{state['kind']} with {len(state['bends'])} bends"
        if found != (wanted := f"{kind} with {len(self.bends)} bends"):
            raise InvalidValueError(
                f"this curve is a {wanted}, got the state of a {found}; construct the same one"
            )
        for bend, saved in zip(self.bends, state["bends"], strict=True):
            require_same_layout(bend, saved, "the curve", "the state")
        for bend, saved in zip(self.bends, state["bends"], strict=True):
            for name, tensor in bend.items():
                tensor.copy_(saved[name])

    def _wide(self, weights: Weights) -> list[Tensor]:
        tensors = [weights[name] for name in self.names]
        return [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]


class Bezier(Curve):
    """A smooth curve that bends towards its bends without passing through them; see `Curve`.

    With n - 1 bends, w_1 to w_(n-1), the coefficients are the Bernstein polynomials:

        w(t) = sum over k from 0 to n of binomial(n, k) * t^k * (1 - t)^(n - k) * w_k

    With one bend that is (1 - t)^2 * start + 2 t (1 - t) * bend + t^2 * end, as in the paper.

    References:
        Garipov et al., "Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs", NeurIPS 2018.

    Example:
        >>> import torch
        >>> from pfge.connectivity import Bezier
        >>> curve = Bezier({"w": torch.tensor(0.0)}, {"w": torch.tensor(4.0)})
        >>> curve.at(0.5)["w"].item()  # the bend begins on the straight line
        2.0
        >>> _ = curve.bends[0]["w"].data.fill_(6.0)
        >>> curve.at(0.5)["w"].item()  # 0 / 4 + 6 / 2 + 4 / 4
        4.0
    """

    def coefficients(self, t: float) -> list[float]:
        """Return the Bernstein polynomials at t."""
        degree = len(self.bends) + 1
        return [comb(degree, k) * t**k * (1 - t) ** (degree - k) for k in range(degree + 1)]


class PolygonalChain(Curve):
    """Straight pieces from bend to bend, each as long in t as the others; see `Curve`.

    With n - 1 bends there are n pieces; on the piece from w_k to w_(k+1), where k <= n t <= k + 1:

        w(t) = (k + 1 - n t) * w_k + (n t - k) * w_(k+1)

    References:
        Garipov et al., "Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs", NeurIPS 2018.

    Example:
        >>> import torch
        >>> from pfge.connectivity import PolygonalChain
        >>> curve = PolygonalChain({"w": torch.tensor(0.0)}, {"w": torch.tensor(4.0)})
        >>> _ = curve.bends[0]["w"].data.fill_(6.0)
        >>> [curve.at(t)["w"].item() for t in (0, 0.25, 0.5, 0.75, 1)]
        [0.0, 3.0, 6.0, 5.0, 4.0]
    """

    def coefficients(self, t: float) -> list[float]:
        """Return the shares of the two points that t is between."""
        pieces = len(self.bends) + 1
        piece = min(int(t * pieces), pieces - 1)
        share = t * pieces - piece
        return [0.0] * piece + [1 - share, share] + [0.0] * (pieces - 1 - piece)


def require_on_curve(t: float) -> None:
    """Raise a ValueError unless t is from 0 to 1."""
    if not 0 <= t <= 1:
        raise InvalidValueError(f"t must be from 0 (the start) to 1 (the end), got {t}")


class Plane:
    """The plane through three points, the first at (0, 0) and the second on the first axis.

    The axes are orthonormal (Gram-Schmidt): with u = w_2 - w_1 and v = w_3 - w_1,

        e_1 = u / |u|,    e_2 = (v - (v . e_1) e_1) / |v - (v . e_1) e_1|

    so that distances on the plane are those in weight space.

    Args:
        points: Three points that are not on one line.
        trained: Names of the tensors that count, as `trained_names(model)` gives them; None is every
            floating-point tensor. Others are those of the first point, on the whole plane.

    References:
        Garipov et al., "Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs", NeurIPS 2018.

    Example:
        >>> import torch
        >>> from pfge.connectivity import Plane
        >>> points = [{"w": torch.tensor(w)} for w in ([1.0, 0.0, 0.0], [3.0, 0.0, 0.0], [2.0, 1.0, 0.0])]
        >>> plane = Plane(tuple(points))
        >>> [plane.coordinates(point) for point in points]
        [(0.0, 0.0), (2.0, 0.0), (1.0, 1.0)]
        >>> plane.at(1.0, 1.0)
        {'w': tensor([2., 1., 0.])}
        >>> plane.distance({"w": torch.tensor([2.0, 1.0, 5.0])})
        5.0
    """

    def __init__(self, points: tuple[Weights, Weights, Weights], *, trained: Collection[str] | None = None):
        origin, second, third = points
        for number, point in ((2, second), (3, third)):
            require_same_layout(origin, point, "point 1", f"point {number}")
        self._origin = origin
        self.names = [n for n, t in origin.items() if is_averaged(t) and (trained is None or n in trained)]
        along = self._from_origin(second)
        width = along.norm()
        self._first = along / width
        across = self._from_origin(third)
        aside = across - (across @ self._first) * self._first
        height = aside.norm()
        if not (width > 0 and height > 1e-6 * across.norm()):
            raise InvalidValueError(
                "a plane needs three points that are not on one line, and these three are; choose other "
                "members"
            )
        self._second = aside / height

    def __repr__(self) -> str:
        return f"Plane(({', '.join(3 * [describe_weights(self._origin)])}))"

    def coordinates(self, weights: Weights) -> tuple[float, float]:
        """Return the coordinates of a point, or of its projection if it is not on the plane."""
        difference = self._from_origin(weights)
        return (difference @ self._first).item(), (difference @ self._second).item()

    def distance(self, weights: Weights) -> float:
        """Return the distance of a point from the plane."""
        difference = self._from_origin(weights)
        x, y = self.coordinates(weights)
        return float((difference - x * self._first - y * self._second).norm())

    def at(self, x: float, y: float) -> Weights:
        """Return the weights at coordinates."""
        flat = x * self._first + y * self._second
        point = dict(self._origin)
        start = 0
        for name in self.names:
            tensor = self._origin[name]
            offset = flat[start : start + tensor.numel()].view(tensor.shape)
            point[name] = (tensor.double() + offset.to(tensor.device)).to(tensor.dtype)
            start += tensor.numel()
        return point

    def _from_origin(self, weights: Weights) -> Tensor:
        """Return the difference from the first point, as one float64 vector."""
        return torch.cat(
            [(weights[n].double() - self._origin[n].double()).flatten() for n in self.names]
        ).cpu()

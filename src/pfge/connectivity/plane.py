"""A plane through three points of weight space, with coordinates in which distances are true."""

from collections.abc import Collection

import torch
from torch import Tensor

from pfge.errors import InvalidValueError
from pfge.weights import Weights, describe_weights, is_averaged, require_same_layout


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
                "a plane needs three points that are not on one line, got points whose distances do not "
                "span one; choose other members"
            )
        self._second = aside / height

    def __repr__(self) -> str:
        return f"Plane(({', '.join(3 * [describe_weights(self._origin)])}))"

    def coordinates(self, weights: Weights) -> tuple[float, float]:
        """Return where a point is, or its shadow, if it is not on the plane."""
        way = self._from_origin(weights)
        return (way @ self._first).item(), (way @ self._second).item()

    def distance(self, weights: Weights) -> float:
        """Return how far a point is from the plane."""
        way = self._from_origin(weights)
        x, y = self.coordinates(weights)
        return float((way - x * self._first - y * self._second).norm())

    def at(self, x: float, y: float) -> Weights:
        """Return the weights at coordinates."""
        flat = x * self._first + y * self._second
        point = dict(self._origin)
        start = 0
        for name in self.names:
            tensor = self._origin[name]
            way = flat[start : start + tensor.numel()].view(tensor.shape)
            point[name] = (tensor.double() + way.to(tensor.device)).to(tensor.dtype)
            start += tensor.numel()
        return point

    def _from_origin(self, weights: Weights) -> Tensor:
        """Return the way from the first point, as one float64 vector."""
        return torch.cat(
            [(weights[n].double() - self._origin[n].double()).flatten() for n in self.names]
        ).cpu()

"""Choose how each tensor is packed, so that every byte removes as much error as possible."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import NamedTuple

import torch
from torch import Tensor

from pfge.packed.encode import (
    CommonTensors,
    PackSettings,
    TensorForm,
    base_numbers,
    find_components,
    is_packed,
    pack_delta,
    pack_members,
    pack_small,
)
from pfge.rounding import is_lower
from pfge.weights import Weights

_SAMPLED_MEMBERS = 2  # their errors are much alike
_SAMPLED_NUMBERS = 1 << 14  # of each tensor


def sample_members(members: Sequence[Weights]) -> list[Weights]:
    """Return the first members, as a sample of all."""
    return [members[number] for number in range(min(_SAMPLED_MEMBERS, len(members)))]


def sample_channels(tensors: Sequence[Tensor], mean: Tensor) -> slice | Tensor:
    """Return a sample of a tensor's output channels.

    The sample is the first channels. If members equal the base there, as in pruned channels, no width would
    gain anything; the sample is then spread evenly over the channels in which members differ from the base.
    """
    count = max(1, _SAMPLED_NUMBERS // max(1, mean.numel() // max(1, mean.shape[0])))
    base = (
        mean if len(tensors) > 1 else torch.zeros_like(mean)
    )  # a single member is only packed without a base
    first = slice(count)
    if count >= len(mean) or any(bool(_differ(tensor[first], base[first]).any()) for tensor in tensors):
        return first
    differing = torch.stack([_differ(tensor, base).flatten(1).any(dim=1) for tensor in tensors]).any(dim=0)
    places = differing.nonzero()[:, 0]
    if len(places) <= count:
        return places if len(places) else first
    return places[torch.arange(count) * len(places) // count]


def _differ(tensor: Tensor, base: Tensor) -> Tensor:
    return tensor.to("cpu", torch.float32) != base


WIDEST = 8
SMALL = "small tensors"
"""Name for all tensors other than matrices and filters, which have one width together."""


@dataclass(frozen=True)
class Choices:
    """Settings of `PackSettings` to choose from for each tensor, in addition to the width of its deltas."""

    base_bits: tuple[int | None, ...] = (4, 5, 6, 7, 8)
    groups: tuple[int | None, ...] = (None, 64)
    small_bits: tuple[int, ...] = (4, 5, 6, 8, 16, 32)
    mixed: bool = True  # components that members share, instead of a delta for each

    @classmethod
    def of(cls, settings: PackSettings | None) -> "Choices":
        """Return all choices, or the single one of given settings."""
        if settings is None:
            return cls()
        return cls((settings.base_bits,), (settings.group,), (settings.small_bits,), mixed=False)

    @property
    def usual(self) -> PackSettings:
        """The widest settings, for everything that is not chosen tensor by tensor."""
        return PackSettings(self.base_bits[-1], self.groups[0], self.small_bits[-1])


@dataclass(frozen=True)
class Plan:
    """How all tensors are packed."""

    forms: Mapping[str, TensorForm]
    settings: PackSettings


class _Point(NamedTuple):
    size: int
    error: float
    form: TensorForm | int  # of a matrix or filter; of small tensors, their bits


class Ladder:
    """Plans from the smallest to the most exact one; each rung improves the form of one tensor.

    For each tensor, the forms that no other form dominates are on the lower convex hull of error over bytes.
    The next rung has the steepest slope, as in minimizing error + lambda * bytes for lambda falling from
    infinity to 0.

    An error is a tensor's squared error over its squared norm, times the tensor's weight. With equal weights,
    all tensors count alike, whatever their number of weights, because a layer passes the relative error of
    its weights on to all later layers.

    Args:
        members: Members to pack.
        common: Result of `find_common`.
        choices: Settings to choose from.

    Attributes:
        smallest: Bytes of the tensors on the first rung.
        largest: Bytes of the tensors on the last rung.
    """

    def __init__(self, members: Sequence[Weights], common: CommonTensors, choices: Choices):
        self._choices = choices
        means = {name: mean for name, mean in common.means.items() if name not in common.identical}
        self._hulls = {
            name: _lower_hull(points) for name, points in _points_of_tensors(members, means, choices).items()
        }
        if points := _points_of_small(members, choices):
            self._hulls[SMALL] = _lower_hull(points)
        lowest = self.at(0)
        self.smallest = pack_members(members, lowest.forms, lowest.settings, common).nbytes
        self.largest = self.smallest + sum(hull[-1].size - hull[0].size for hull in self._hulls.values())
        self._order = self._order_of_upgrades({})

    def weighted(self, weights: Mapping[str, float]) -> "Ladder":
        """Return the ladder with other weights of each tensor's error, and of `SMALL`."""
        other = copy(self)
        other._order = self._order_of_upgrades(weights)
        return other

    @property
    def top(self) -> int:
        """Number of the last rung, where every tensor has its most exact form."""
        return len(self._order)

    def at(self, rung: int) -> Plan:
        """Return the plan on a rung."""
        places = dict.fromkeys(self._hulls, 0)
        for name in self._order[:rung] if rung else ():
            places[name] += 1
        return self._plan(places)

    def within(self, budget: int) -> Plan:
        """Return the plan that uses a budget best, skipping rungs that no longer fit."""
        left = budget - self.smallest
        places, full = dict.fromkeys(self._hulls, 0), set()
        for name in self._order:
            hull, place = self._hulls[name], places[name]
            if name not in full and (cost := hull[place + 1].size - hull[place].size) <= left:
                places[name] += 1
                left -= cost
            else:
                full.add(name)
        return self._plan(places)

    def first_satisfying(self, serves: Callable[[Plan], bool]) -> int | None:
        """Return the first rung that serves, found by bisection; None if not even the top does."""
        if not serves(self.at(self.top)):
            return None
        low, high = 0, self.top
        while low < high:
            middle = (low + high) // 2
            if serves(self.at(middle)):
                high = middle
            else:
                low = middle + 1
        return high

    def _plan(self, places: Mapping[str, int]) -> Plan:
        forms: dict[str, TensorForm] = {}
        settings = self._choices.usual
        for name, place in places.items():
            form = self._hulls[name][place].form
            if isinstance(form, TensorForm):
                forms[name] = form
            else:
                settings = replace(settings, small_bits=form)
        return Plan(forms, settings)

    def _order_of_upgrades(self, weights: Mapping[str, float]) -> list[str]:
        upgrades = []
        for name, hull in self._hulls.items():
            weight = weights.get(name, 1.0)
            for place, (point, better) in enumerate(pairwise(hull)):
                slope = weight * (better.error - point.error) / (better.size - point.size)
                upgrades.append((slope, name, place))
        # Along a hull slopes rise towards 0, so the upgrades of a tensor keep their order.
        return [name for _, name, _ in sorted(upgrades, key=lambda upgrade: (upgrade[0], upgrade[2]))]


@torch.no_grad()
def _points_of_tensors(
    members: Sequence[Weights], means: Weights, choices: Choices
) -> dict[str, list[_Point]]:
    whole = list(members) if choices.mixed else sample_members(members)
    found: dict[str, list[_Point]] = {}
    for name, mean in means.items():
        channels = sample_channels([member[name] for member in whole], mean)
        part = mean[channels]
        tensors = [member[name][channels].to("cpu", torch.float32) for member in whole]
        measure = _errors_of_components if choices.mixed else _errors_of_deltas
        found[name] = [
            _Point(form.size(mean, len(members)), error, form)
            for form, error in measure(tensors, part, choices)
        ]
    return found


def _errors_of_deltas(
    tensors: list[Tensor], mean: Tensor, choices: Choices
) -> Iterator[tuple[TensorForm, float]]:
    for base_bits, group in product(choices.base_bits, choices.groups):
        settings, base = PackSettings(base_bits, group), base_numbers(mean, base_bits)
        for bits in range(1, WIDEST + 1):
            errors = [
                relative_error(base + pack_delta(t, base, bits, settings).numbers().view(base.shape), t)
                for t in tensors
            ]
            yield TensorForm(bits, settings), sum(errors) / len(errors)


def _errors_of_components(
    tensors: list[Tensor], mean: Tensor, choices: Choices
) -> Iterator[tuple[TensorForm, float]]:
    """Yield the best widths of components for each total number of bits, with the error.

    Each bit goes to the component in which it removes most error. The relative error of a component at a
    width is estimated by that of the first component, because their distributions are similar.
    """
    size = sum(float(tensor.square().sum()) for tensor in tensors) or 1.0
    energies = {}
    for base_bits in choices.base_bits:
        base = base_numbers(mean, base_bits)
        deltas = torch.stack([(tensor - base).reshape(-1) for tensor in tensors])
        _, components = find_components(deltas, len(tensors))
        energies[base_bits] = components.double().square().sum(dim=1) / size
    first = components[0].view(mean.shape)  # with the widest base
    for group in choices.groups:
        settings = PackSettings(group=group)
        packed = [pack_delta(first, torch.zeros_like(first), b, settings) for b in range(1, WIDEST + 1)]
        left = [1.0, *(relative_error(p.numbers().view(first.shape), first) for p in packed)]
        for base_bits, of_components in energies.items():
            for widths, error in _widen(of_components.tolist(), left):
                yield TensorForm(widths, PackSettings(base_bits, group)), error


def _widen(energies: list[float], left: list[float]) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield widths of components, each with one more bit than the last, and the error.

    One bit of one component comes first even if it gains nothing, because every tensor needs a form.
    """
    gains = [
        (energy * (left[width] - left[width + 1]), component, width)
        for component, energy in enumerate(energies)
        for width in range(WIDEST)
    ]
    widths, error = [0] * len(energies), sum(energies)
    if not any(gain > 0 for gain, _, width in gains if width == 0):
        yield (1,), error
    for gain, component, width in sorted(gains, key=lambda found: (-found[0], found[2])):
        if gain > 0 and width == widths[component]:
            widths[component] += 1
            error -= gain
            yield tuple(filter(None, widths)), max(0.0, error)


@torch.no_grad()
def _points_of_small(members: Sequence[Weights], choices: Choices) -> list[_Point]:
    names = [name for name, tensor in members[0].items() if not is_packed(tensor)]
    whole = list(members) if names else []
    points = []
    for bits in choices.small_bits if names else ():
        packed = {name: pack_small([member[name] for member in whole], bits) for name in names}
        size = sum(tensor.nbytes for tensor in packed.values())
        error = sum(
            relative_error(packed[name].member(number), member[name])
            for name in names
            for number, member in enumerate(sample_members(whole))
            if packed[name].each
        ) / len(sample_members(whole))
        points.append(_Point(size, error, bits))
    return points


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the squared error of a tensor over its squared size."""
    expected = expected.to("cpu", torch.float32)
    size = max(float(expected.square().sum()), torch.finfo(torch.float32).tiny)
    return float((found.float() - expected).square().sum()) / size


def _lower_hull(points: Sequence[_Point]) -> list[_Point]:
    """Return the points that minimize error + lambda * bytes for some lambda, the smallest first."""
    hull: list[_Point] = []
    for point in sorted(points, key=lambda point: (point.size, point.error)):
        if hull and not is_lower(point.error, hull[-1].error, scale=0):
            continue  # larger, and no better than by rounding
        while len(hull) > 1 and _slope(hull[-2], point) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(point)
    return hull


def _slope(first: _Point, second: _Point) -> float:
    return (second.error - first.error) / (second.size - first.size)

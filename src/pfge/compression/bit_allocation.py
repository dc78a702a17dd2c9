"""How many bits each tensor's deltas get: more where a byte removes more error."""

from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace

import torch

from pfge.packed.encode import PackSettings, Shared, base_numbers, delta_size, pack_delta, pack_members
from pfge.weights import Weights

WIDEST = 8
_SAMPLED = 4  # members that stand for all of them: their errors are much alike


class Ladder:
    """Widths of all tensors from 1 bit to 8, each rung one bit for one tensor.

    A tensor's error counts relative to its size, whatever its share of the weights: a layer passes
    the relative error of its weights on to all layers behind it. The next bit goes where it
    removes most error for a byte.

    Args:
        members: What is packed.
        shared: As from `find_shared`.
        settings: All but the widths.
    """

    def __init__(self, members: Sequence[Weights], shared: Shared, settings: PackSettings):
        means = {name: mean for name, mean in shared.means.items() if name not in shared.identical}
        errors = _relative_errors(members, means, settings)
        self._lowest = dict.fromkeys(means, 1)
        self.smallest = pack_members(members, self._lowest, settings, shared).nbytes
        # What a bit costs depends on the tensor alone.
        self._costs = {
            name: len(members) * (delta_size(mean, 2, settings) - delta_size(mean, 1, settings))
            for name, mean in means.items()
        }
        self._order = _order_of_upgrades(errors, self._costs)

    @property
    def top(self) -> int:
        """The last rung, where every width is 8 bits."""
        return len(self._order)

    def at(self, rung: int) -> dict[str, int]:
        """Return the widths on a rung."""
        widths = dict(self._lowest)
        for name in self._order[:rung]:
            widths[name] += 1
        return widths

    def within(self, budget: int) -> dict[str, int]:
        """Return the widths that use a budget best, skipping bits that no longer fit."""
        left = budget - self.smallest
        widths, full = dict(self._lowest), set()
        for name in self._order:
            if self._costs[name] > left:
                full.add(name)
            if name not in full:
                widths[name] += 1
                left -= self._costs[name]
        return widths

    def widest_within(self, budget: int) -> dict[str, int]:
        """Return the largest width that fits the budget when all tensors have the same."""
        extra = (budget - self.smallest) // max(1, sum(self._costs.values()))
        return dict.fromkeys(self._lowest, min(WIDEST, 1 + extra))

    def lowest_that(self, serves: Callable[[dict[str, int]], bool]) -> int | None:
        """Return the lowest rung found to serve, by bisection; None if not even the top does."""
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


@torch.no_grad()
def _relative_errors(
    members: Sequence[Weights], means: Weights, settings: PackSettings
) -> dict[str, list[float]]:
    """Return each tensor's squared error over its squared size, for widths from 1 to 8."""
    errors = {name: [0.0] * WIDEST for name in means}
    bases = {name: base_numbers(mean, settings.base_bits) for name, mean in means.items()}
    for index in range(0, len(members), -(-len(members) // _SAMPLED)):
        member = members[index]
        for name, base in bases.items():
            tensor = member[name].to("cpu", torch.float32)
            size = max(float(tensor.square().sum()), torch.finfo(torch.float32).tiny)
            for bits in range(1, WIDEST + 1):
                delta = pack_delta(tensor, base, bits, settings).numbers().view(base.shape)
                errors[name][bits - 1] += float((base + delta - tensor).square().sum()) / size
    return errors


def _order_of_upgrades(errors: dict[str, list[float]], costs: dict[str, int]) -> list[str]:
    def upgrade(name: str, bits: int) -> tuple[float, int, str]:
        gain = errors[name][bits - 1] - errors[name][bits] if bits < WIDEST else -torch.inf
        return -gain / max(1, costs[name]), bits, name

    waiting = [upgrade(name, 1) for name in errors]
    heapify(waiting)
    order = []
    while waiting and waiting[0][1] < WIDEST:
        _, bits, name = waiting[0]
        order.append(name)
        heapreplace(waiting, upgrade(name, bits + 1))
    return order

"""The paper's Algorithms 1-3 for one float: plain transcriptions that the collectors must equal.

SGD is written out as torch defines it (velocity = momentum * velocity + gradient; w -= rate * velocity).
"""

from collections.abc import Callable
from dataclasses import dataclass

Gradient = Callable[[float, int], float]
Rate = Callable[[int], float]


@dataclass
class Walker:
    """SGD with momentum on one float."""

    w: float
    gradient: Gradient
    rate: Rate
    momentum: float
    velocity: float | None = None

    def step(self, i: int) -> None:
        gradient = self.gradient(self.w, i)
        self.velocity = gradient if self.velocity is None else self.momentum * self.velocity + gradient
        self.w -= self.rate(i) * self.velocity


def reference_rate(i: int, c: int, low: float, high: float) -> float:
    """The rate of the authors' and FGE's programs, which count the iterations before the update."""
    t = (i - 1) % c / c
    return high * (1 - 2 * t) + low * 2 * t if t < 0.5 else low * (2 - 2 * t) + high * (2 * t - 1)


def algorithm_1_swa(walker: Walker, n: int, c: int) -> float:
    w_swa = walker.w
    for i in range(1, n + 1):
        walker.step(i)
        if i % c == 0:
            w_swa = (w_swa * (i / c) + walker.w) / (i / c + 1)
    return w_swa


def algorithm_2_fge(walker: Walker, n: int, c: int) -> list[float]:
    members = []
    for i in range(1, n + 1):
        walker.step(i)
        if i % c == 0:
            members.append(walker.w)
    return members


def algorithm_3_pfge(walker: Walker, n: int, c: int, p: int, *, clear_momentum: bool) -> list[float]:
    members = []
    w_swa = walker.w
    recorded = 0
    for i in range(1, n + 1):
        walker.step(i)
        j = i - recorded * p
        if j % c == 0:
            w_swa = (w_swa * (j / c) + walker.w) / (j / c + 1)
        if i % p == 0:
            members.append(w_swa)
            walker.w = w_swa
            recorded = i // p
            if clear_momentum:
                walker.velocity = None
    return members


def reference_pfge(walker: Walker, epochs: int, c: int, p: int, batches: int) -> list[float]:
    """The authors' program's rule, in epochs counted from 0 over all periods; it requires an even c.

    Mid-cycle points are averaged, the start is left out, and each restart has a new SGD.
    """
    members = []
    mean, points = 0.0, 0
    for epoch in range(epochs):
        for batch in range(batches):
            walker.step(epoch * batches + batch + 1)
        if epoch % c + 1 == c // 2:
            mean += (walker.w - mean) / (points + 1)
            points += 1
        if (epoch + 1) % p == 0:
            members.append(mean)
            walker.w, walker.velocity = mean, None
            mean, points = 0.0, 0
    return members

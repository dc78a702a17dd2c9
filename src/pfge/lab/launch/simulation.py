"""How long units take on some workers, without running them; workers may fail."""

import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True)
class SimulatedUnit:
    """A unit of which only its time counts.

    Attributes:
        name: Differs from that of every other unit.
        seconds: How long it takes without a failure.
        needs: The names of the units that must be done before; others than those simulated are done.
    """

    name: Hashable
    seconds: float
    needs: Sequence[Hashable] = ()


@dataclass(frozen=True)
class Failures:
    """How workers fail: at random, independently, at a constant rate.

    Attributes:
        mean_seconds: Between two failures of a worker at work.
        lost_seconds: Work since the last checkpoint, and the time to begin again, at the most.
        seed: Of the random numbers.
    """

    mean_seconds: float
    lost_seconds: float
    seed: int = 0


def simulate(
    units: Sequence[SimulatedUnit], workers: int, failures: Failures | None = None
) -> dict[Hashable, float]:
    """Return when each unit ends, in seconds.

    A free worker takes the first unit whose needs are done, as a driver gives them out. A unit whose worker
    fails continues from its last checkpoint. That a unit may start early is not counted.

    Args:
        units: Each after those that it needs.
        workers: How many units run at once.
        failures: If there are any.

    >>> simulate([SimulatedUnit("w0", 10), SimulatedUnit("a", 5, ["w0"]), SimulatedUnit("b", 7, ["w0"])], 2)
    {'w0': 10.0, 'a': 15.0, 'b': 17.0}
    """
    chosen = random.Random(failures.seed) if failures else None
    known = {unit.name for unit in units}
    blocked = {unit.name: sum(need in known for need in unit.needs) for unit in units}
    needed_by: dict[Hashable, list[Hashable]] = {}
    for unit in units:
        for need in unit.needs:
            needed_by.setdefault(need, []).append(unit.name)
    places = {unit.name: place for place, unit in enumerate(units)}
    ready = [places[unit.name] for unit in units if not blocked[unit.name]]
    running: list[tuple[float, int]] = []
    ends: dict[Hashable, float] = {}
    now = 0.0
    while ready or running:
        while ready and len(running) < workers:
            place = heappop(ready)
            heappush(running, (now + _duration(units[place].seconds, failures, chosen), place))
        now, place = heappop(running)
        ended = units[place].name
        ends[ended] = now
        for name, count in Counter(needed_by.get(ended, ())).items():
            blocked[name] -= count
            if not blocked[name]:
                heappush(ready, places[name])
    return ends


def _duration(seconds: float, failures: Failures | None, chosen: random.Random | None) -> float:
    """Return how long a unit takes, with what its failures cost."""
    if failures is None or chosen is None:
        return float(seconds)
    done = taken = 0.0
    while True:
        until_failure = chosen.expovariate(1 / failures.mean_seconds)
        if done + until_failure >= seconds:
            return taken + seconds - done
        taken += until_failure + chosen.uniform(0, failures.lost_seconds)
        done += until_failure

"""A unit of work: a part of an experiment that one process does, and that is never done twice."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pfge.lab.session import Session


@dataclass(frozen=True)
class Unit:
    """A part of an experiment. Its results are files, which also tell whether it is done.

    Attributes:
        name: Differs from that of every other unit of the experiment.
        is_done: Returns whether its results are there.
        run: Makes them, and continues where a killed process stopped.
        needs: The names of the units that must be done before.
        early: A file that is enough in place of all that it needs, as soon as it exists.
        iterations: Updates that it trains for, at the most.
        by_driver: Whether it is too short for a process of its own.
    """

    name: str
    is_done: Callable[[], bool]
    run: Callable[[Session], None]
    needs: tuple[str, ...] = ()
    early: Path | None = None
    iterations: int = 0
    by_driver: bool = False

    def may_start(self, open_units: Mapping[str, object]) -> bool:
        """Return whether none of what it needs is among the units that are still open."""
        waits = any(name in open_units for name in self.needs)
        return not waits or (self.early is not None and self.early.exists())


def units_to_run(units: Sequence[Unit]) -> list[Unit]:
    """Return the units that are not done and that the end of the experiment needs, in their order.

    What only a finished unit needed may have been removed since, and is not made again.
    """
    by_name = {unit.name: unit for unit in units}
    needed = {name for unit in units for name in unit.needs}
    found: set[str] = set()
    open_ends = [unit for unit in units if unit.name not in needed]
    while open_ends:
        unit = open_ends.pop()
        if unit.name not in found and not unit.is_done():
            found.add(unit.name)
            open_ends += [by_name[name] for name in unit.needs]
    return [unit for unit in units if unit.name in found]


def is_to_run(units: Sequence[Unit], name: str) -> bool:
    """Return whether one of the units is among those of `units_to_run`, without looking at all of them."""
    (unit,) = (unit for unit in units if unit.name == name)
    if unit.is_done():
        return False
    needing = [other.name for other in units if name in other.needs]
    return not needing or any(is_to_run(units, other) for other in needing)


def longest_chains(units: Sequence[Unit]) -> dict[str, int]:
    """Return the iterations of the longest chain that begins with each unit, itself and what needs it.

    Args:
        units: Each after those that it needs.
    """
    after = dict.fromkeys((unit.name for unit in units), 0)
    chains: dict[str, int] = {}
    for unit in reversed(units):
        chains[unit.name] = unit.iterations + after[unit.name]
        for need in set(unit.needs) & after.keys():
            after[need] = max(after[need], chains[unit.name])
    return chains

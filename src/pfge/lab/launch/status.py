"""How far the units of a run are, as its folder tells."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pfge.lab.launch.marks import Marks
from pfge.lab.launch.worker import Unit, units_to_run
from pfge.lab.run.folder import RunFolder


@dataclass(frozen=True)
class UnitStatus:
    """How far a unit is.

    Attributes:
        name: The unit's.
        state: "done" also if nothing needs it any more.
        note: How far it is, why it failed, or what it waits for.
    """

    name: str
    state: Literal["done", "running", "waiting", "failed"]
    note: str = ""


def find_states(folder: RunFolder, units: Sequence[Unit]) -> list[UnitStatus]:
    """Return how far each unit is; any process may ask, while others work."""
    marks = Marks(folder)
    to_run = {unit.name: unit for unit in units_to_run(units)}
    return [_find_state(marks, unit, to_run) for unit in units]


def _find_state(marks: Marks, unit: Unit, to_run: dict[str, Unit]) -> UnitStatus:
    if unit.name not in to_run:
        return UnitStatus(unit.name, "done")
    if marks.is_running(unit.name):
        return UnitStatus(unit.name, "running", marks.progress(unit.name))
    if (reason := marks.failure(unit.name)) is not None:
        return UnitStatus(unit.name, "failed", reason)
    needs = [] if unit.may_start(to_run) else [name for name in unit.needs if name in to_run]
    return UnitStatus(unit.name, "waiting", f"for {', '.join(needs)}" if needs else "")

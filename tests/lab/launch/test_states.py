"""The state of each unit, from the files of a run."""

from pathlib import Path

import pytest

from pfge.lab.launch.units import Unit, UnitState, UnitStatus, find_states
from pfge.lab.run.folder import RunFolder


def unit(name: str, *needs: str, done: bool = False) -> Unit:
    return Unit(name, lambda: done, lambda _: None, needs)


def test_a_unit_is_done_running_waiting_or_failed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    status = UnitStatus(folder)
    units = [
        unit("a", done=True),
        unit("no longer needed"),
        unit("saved", "no longer needed", done=True),
        unit("b", "a"),
        unit("c", "a", "saved"),
        unit("d", "a"),
        unit("e", "b", "c", "d"),
    ]
    with pytest.raises(ValueError, match="too high"), status.held("c"):
        raise ValueError("the rate is too high")
    with status.held("b"):
        status.note_progress("b", "10/20, loss 0.5")
        found = find_states(folder, units)
    assert found == [
        UnitState("a", "done"),
        UnitState("no longer needed", "done"),
        UnitState("saved", "done"),
        UnitState("b", "running", "10/20, loss 0.5"),
        UnitState("c", "failed", "the rate is too high"),
        UnitState("d", "waiting"),
        UnitState("e", "waiting", "for b, c, d"),
    ]

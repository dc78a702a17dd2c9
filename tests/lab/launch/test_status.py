"""How far units are, as the files of a run tell."""

from pathlib import Path

import pytest

from pfge.lab.launch.marks import Marks
from pfge.lab.launch.status import UnitStatus, find_states
from pfge.lab.launch.worker import Unit
from pfge.lab.run.folder import RunFolder


def unit(name: str, *needs: str, done: bool = False) -> Unit:
    return Unit(name, lambda: done, lambda _: None, needs)


def test_a_unit_is_done_running_waiting_or_failed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    marks = Marks(folder)
    units = [
        unit("a", done=True),
        unit("no longer needed"),
        unit("saved", "no longer needed", done=True),
        unit("b", "a"),
        unit("c", "a", "saved"),
        unit("d", "a"),
        unit("e", "b", "c", "d"),
    ]
    with pytest.raises(ValueError, match="too high"), marks.held("c"):
        raise ValueError("the rate is too high")
    with marks.held("b"):
        marks.note_progress("b", "10/20, loss 0.5")
        found = find_states(folder, units)
    assert found == [
        UnitStatus("a", "done"),
        UnitStatus("no longer needed", "done"),
        UnitStatus("saved", "done"),
        UnitStatus("b", "running", "10/20, loss 0.5"),
        UnitStatus("c", "failed", "the rate is too high"),
        UnitStatus("d", "waiting"),
        UnitStatus("e", "waiting", "for b, c, d"),
    ]

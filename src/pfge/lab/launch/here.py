"""Run the units of an experiment in this process, one after another."""

from collections.abc import Sequence
from contextlib import nullcontext

from pfge.lab.launch.marks import Marks
from pfge.lab.launch.unit import Unit, units_to_run
from pfge.lab.session import Session


def run_here(session: Session, units: Sequence[Unit]) -> None:
    """Run what is not done; the first error ends it."""
    marks = Marks(session.folder)
    to_run = units_to_run(units)
    session.engine.wait_for_all()  # no process writes before all have checked
    for unit in to_run:
        with marks.held(unit.name) if session.engine.is_first else nullcontext():
            unit.run(session)
        session.engine.wait_for_all()

"""Run units in a process that has nothing but the experiment and their names."""

from collections.abc import Callable

from pfge.lab.config.schema import Experiment
from pfge.lab.launch.marks import Marks
from pfge.lab.launch.unit import Unit
from pfge.lab.run.folder import RunFolder
from pfge.lab.session import Session

MakeUnits = Callable[[Experiment, RunFolder, int], list[Unit]]
"""Returns the units of an experiment in a run folder, for a number of iterations in an epoch."""


def iterations_per_epoch(session: Session) -> int:
    """Return how many iterations an epoch has."""
    return session.batches(session.experiment.seeds[0], "ensembling").per_epoch


def run_unit(session: Session, make_units: MakeUnits, name: str) -> None:
    """Run a unit of an experiment, unless it is done by now.

    The run folder itself is locked by the driver, the unit by this process.
    """
    units = make_units(session.experiment, session.folder, iterations_per_epoch(session))
    unit = next(unit for unit in units if unit.name == name)
    with Marks(session.folder).held(name):
        if not unit.is_done():
            unit.run(session)

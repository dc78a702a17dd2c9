"""Run the units of an experiment where the settings say."""

from pfge.lab.config.schema import ConfigError
from pfge.lab.launch.here import run_here
from pfge.lab.launch.marks import Marks
from pfge.lab.launch.processes import run_in_processes
from pfge.lab.launch.worker import MakeUnits, iterations_per_epoch
from pfge.lab.session import Session


def launch(session: Session, make_units: MakeUnits) -> None:
    """Run all units that are not done, where `engine.launcher` says.

    Args:
        session: The experiment, whose run folder this process has locked.
        make_units: A function of a module, which workers call too.

    Raises:
        UnitsMissingError: Some failed three times; all others are done.
        ConfigError: Workers are wanted for units that have several processes themselves.
    """
    engine = session.experiment.engine
    units = make_units(session.experiment, session.folder, iterations_per_epoch(session))
    if engine.workers == 1:
        run_here(session, units)
    elif session.engine.share[1] > 1:
        raise ConfigError(
            f"engine.launcher = {engine.launcher!r} is for units of one process each, got "
            f"{session.engine.share[1]} processes; set engine.devices and engine.nodes to 1, or "
            "engine.launcher to here"
        )
    else:
        run_in_processes(session, units, make_units, engine.workers)
    session.engine.first_does(Marks(session.folder).remove)

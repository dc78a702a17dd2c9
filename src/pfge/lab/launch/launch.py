"""Launch the units of a comparison."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from pfge.lab.config.settings import ConfigError
from pfge.lab.launch.driver import drive
from pfge.lab.launch.marks import Marks
from pfge.lab.launch.processes import processes
from pfge.lab.launch.ray_tasks import ray_tasks
from pfge.lab.launch.slurm_jobs import slurm_jobs
from pfge.lab.launch.worker import MakeUnits, Pool, Unit, Work, units_to_run
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


def launch(sessions: Sequence[Session], make_units: MakeUnits) -> None:
    """Run all units that are not done, where `engine.launcher` says.

    Args:
        sessions: Experiments, whose run folders this process has locked; they share the workers.
        make_units: A function of a module, which workers call too.

    Raises:
        UnitsMissingError: Some failed three times; all others are done.
        ConfigError: Workers are wanted for units that have several processes themselves.
    """
    several = len(sessions) > 1
    works = [Work.of(session, make_units, session.experiment.name if several else "") for session in sessions]
    launcher = sessions[0].experiment.engine.chosen_launcher
    try:
        if launcher.is_this_process:
            for work in works:
                run_here(work.session, work.units)
        elif any(units_to_run(work.units) for work in works):
            for session in sessions:
                _require_one_process(session)
            pool, threads = _choose_pool(works)
            with pool as workers:
                drive(works, workers, threads)
    finally:
        for work in works:
            if work.session.engine.is_first and not units_to_run(work.units):
                Marks(work.session.folder).remove()
    for session in sessions:
        session.engine.wait_for_all()


def _choose_pool(works: Sequence[Work]) -> tuple[AbstractContextManager[Pool], Callable[[Work], int]]:
    """Return the workers, and how many threads a unit of an experiment has."""
    launcher = works[0].session.experiment.engine.chosen_launcher
    if launcher.kind == "here":
        share = max(torch.get_num_threads() // launcher.processes, 1)
        return processes(launcher.processes), lambda _: share
    experiments = [work.session.experiment for work in works]
    if launcher.kind == "ray":
        pool = ray_tasks(launcher.address, experiments)
    else:
        pool = slurm_jobs(works[0].session.folder.units, is_local=launcher.is_local)
    return pool, lambda work: work.session.experiment.engine.cpus


def _require_one_process(session: Session) -> None:
    engine, count = session.experiment.engine, session.engine.rank_and_world_size[1]
    if count > 1 or str(engine.devices) not in ("1", "auto") or engine.nodes != 1:
        raise ConfigError(
            f"engine.launcher = {engine.launcher!r} is for units of one process each, got engine.devices = "
            f"{engine.devices}, engine.nodes = {engine.nodes} and {count} processes; set engine.devices and "
            "engine.nodes to 1, or engine.launcher to here"
        )

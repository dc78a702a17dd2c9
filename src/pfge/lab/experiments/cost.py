"""What a comparison will cost: its units, their iterations, and the hours that they take."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median

from pfge.forward import call_model
from pfge.lab.config.schema import Experiment
from pfge.lab.engine import Engine
from pfge.lab.experiments.comparison_units import comparison_units
from pfge.lab.launch.simulation import SimulatedUnit, simulate
from pfge.lab.launch.unit import Unit, units_to_run
from pfge.lab.launch.worker import iterations_per_epoch
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.progress import Reporter
from pfge.lab.session import Session
from pfge.lab.training.optimizers import make_optimizer

WARM_UP, TIMED = 2, 5
"""Training steps."""


@dataclass(frozen=True)
class Cost:
    """What is left to do of a comparison.

    Attributes:
        units: Those that are not done.
        done: How many are.
        step: Seconds of one iteration on this machine.
    """

    units: Sequence[Unit]
    done: int
    step: float

    @property
    def iterations(self) -> int:
        """The updates of all units."""
        return sum(unit.iterations for unit in self.units)

    def seconds(self, workers: int) -> float:
        """Return how long training takes with some workers, each as fast as one alone."""
        return seconds_of_all([self], workers)


def find_cost(experiment: Experiment, path: Path, reporter: Reporter) -> Cost:
    """Return what is left to do, after timing a few steps; nothing is written.

    Raises:
        StorageError: The folder has a run of another config, or of other data.
    """
    folder = RunFolder(path)
    folder.require_same_config(experiment, more_seeds=True)
    session = Session.set_up(experiment, folder, Engine(experiment.engine), reporter)
    units = comparison_units(experiment, folder, iterations_per_epoch(session))
    to_run = units_to_run(units)
    return Cost(to_run, len(units) - len(to_run), _time_step(session))


def seconds_of_all(costs: Sequence[Cost], workers: int) -> float:
    """Return how long the training of experiments takes that share workers, each as fast as one alone."""
    ends = simulate(
        [
            SimulatedUnit((number, unit.name), cost.step * unit.iterations, [(number, n) for n in unit.needs])
            for number, cost in enumerate(costs)
            for unit in cost.units
        ],
        workers,
    )
    return max(ends.values(), default=0.0)


def _time_step(session: Session) -> float:
    settings = session.experiment.ensemble
    model = session.build_seeded_model(0)
    optimizer = make_optimizer(model, settings, rate=settings.low)
    wrapped = session.engine.wrap(model, optimizer)
    model.train()
    seconds = []
    source = session.batches(0, "timing").starting_after(0)
    for batch in islice(source, WARM_UP + TIMED):
        before = time.perf_counter()
        optimizer.zero_grad()
        loss = session.task.loss(call_model(wrapped, batch), batch[1])
        session.engine.backward(loss)
        optimizer.step()
        loss.item()  # waits for the device
        seconds.append(time.perf_counter() - before)
    return median(seconds[WARM_UP:])

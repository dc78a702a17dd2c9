"""Estimate the cost of a comparison: time an iteration, and simulate its units on some workers."""

import random
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from pathlib import Path
from statistics import median

from pfge.forward import call_model
from pfge.lab.config.settings import Experiment
from pfge.lab.engine import Engine
from pfge.lab.experiments.compare import comparison_units
from pfge.lab.launch.units import Unit, units_to_run
from pfge.lab.launch.worker import iterations_per_epoch
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.progress import Reporter
from pfge.lab.session import Session
from pfge.lab.training.pretrain import make_optimizer

WARM_UP, TIMED = 2, 5
"""Numbers of training steps before and while time is measured."""


@dataclass(frozen=True)
class Cost:
    """The open units of a comparison, and the time of an iteration.

    Attributes:
        units: Units that are not done.
        done: Number of units that are done.
        step: Seconds of one iteration on this machine.
        data: Description of the sizes of the splits.
    """

    units: Sequence[Unit]
    done: int
    step: float
    data: str = ""

    @property
    def iterations(self) -> int:
        """Number of updates of all open units."""
        return sum(unit.iterations for unit in self.units)

    def seconds(self, workers: int) -> float:
        """Return the seconds of training with some workers, if each is as fast as one alone."""
        return seconds_of_all([self], workers)


def find_cost(experiment: Experiment, path: Path, reporter: Reporter) -> Cost:
    """Return the cost of the open units after timing a few steps; nothing is written.

    Raises:
        StorageError: The folder has a run with another config or other data.
    """
    folder = RunFolder(path)
    folder.require_same_config(experiment, more_seeds=True)
    session = Session.set_up(experiment, folder, Engine(experiment.engine), reporter)
    units = comparison_units(experiment, folder, iterations_per_epoch(session))
    to_run = units_to_run(units)
    return Cost(to_run, len(units) - len(to_run), _time_step(session), session.splits.sizes)


def seconds_of_all(costs: Sequence[Cost], workers: int) -> float:
    """Return the seconds of training of experiments that share workers, each as fast as one alone."""
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


@dataclass(frozen=True)
class SimulatedUnit:
    """The duration of a unit and its place in the graph.

    Attributes:
        name: Unique among the units.
        seconds: Duration without failures.
        needs: Names of the units that must be done first; names that are not simulated count as done.
    """

    name: Hashable
    seconds: float
    needs: Sequence[Hashable] = ()


@dataclass(frozen=True)
class Failures:
    """How workers fail: at random, independently, at a constant rate.

    Attributes:
        mean_seconds: Mean time between two failures of a working worker.
        lost_seconds: Longest time that a failure costs: work since the last checkpoint, and the restart.
        seed: Seed of the random numbers.
    """

    mean_seconds: float
    lost_seconds: float
    seed: int = 0


def simulate(
    units: Sequence[SimulatedUnit], workers: int, failures: Failures | None = None
) -> dict[Hashable, float]:
    """Return the time at which each unit ends, in seconds.

    A free worker gets the first unit whose needs are done, as from a driver. A unit whose worker fails
    continues from its last checkpoint. Early starts are not simulated.

    Args:
        units: Each unit after those that it needs.
        workers: Number of units that run at once.
        failures: How workers fail; None means never.

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
    """Return the duration of a unit with its failures."""
    if failures is None or chosen is None:
        return float(seconds)
    done = taken = 0.0
    while True:
        until_failure = chosen.expovariate(1 / failures.mean_seconds)
        if done + until_failure >= seconds:
            return taken + seconds - done
        taken += until_failure + chosen.uniform(0, failures.lost_seconds)
        done += until_failure

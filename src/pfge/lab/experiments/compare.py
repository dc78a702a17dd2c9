"""Run comparisons: every method from the same w0, with equal rates and iterations."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from pfge.lab.config.schema import Experiment
from pfge.lab.engine import has_other_processes
from pfge.lab.experiments.comparison_units import comparison_units, row_order, start_units
from pfge.lab.launch.driver import UnitsMissingError
from pfge.lab.launch.launch import launch
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.progress import Reporter
from pfge.lab.run.result_lines import put_in_order, require_rows
from pfge.lab.run.results import ComparisonRow
from pfge.lab.session import Session, open_session
from pfge.lab.training.optimizers import require_optimizers, try_optimizers


def compare(experiment: Experiment, path: Path, reporter: Reporter) -> list[ComparisonRow]:
    """Run or continue a comparison in a folder, and return all its results.

    Raises:
        UnitsMissingError: Parts of it failed again and again; the results of all others are in the folder.
    """
    (rows,) = compare_all([(experiment, path)], reporter)
    return rows


def compare_all(
    experiments: Sequence[tuple[Experiment, Path]], reporter: Reporter
) -> list[list[ComparisonRow]]:
    """Run or continue comparisons, each in its folder, which share the workers; return the results of each.

    In this process, they run one after another, and one that fails does not keep the others from running. If
    each has several processes, the first that fails ends all: a process that does not see the failure would
    meet others in the next experiment while it is still in this one.

    Raises:
        UnitsMissingError: As of `compare`.
    """
    if len(experiments) > 1 and experiments[0][0].engine.chosen_launcher.is_this_process:
        return _compare_one_by_one(experiments, reporter)
    with ExitStack() as stack:
        sessions = _open_all(stack, experiments, reporter)
        for session in sessions:
            require_rows(session.folder.results, ComparisonRow, session.task)
        try:
            launch(sessions, comparison_units)
        except UnitsMissingError:
            _put_in_order(sessions)
            raise
        sessions[0].engine.first_does(lambda: _put_in_order(sessions))
    return [require_rows(session.folder.results, ComparisonRow) for session in sessions]


def find_all_w0(experiments: Sequence[tuple[Experiment, Path]], reporter: Reporter) -> None:
    """Train or load w0 for every seed of experiments, each in its folder, where `engine.launcher` says.

    Raises:
        UnitsMissingError: As of `compare`.
    """
    with ExitStack() as stack:
        sessions = _open_all(stack, experiments, reporter)
        launch(sessions, start_units)


def _open_all(
    stack: ExitStack, experiments: Sequence[tuple[Experiment, Path]], reporter: Reporter
) -> list[Session]:
    """Open a session in each folder; in a new run, optimizers that cannot be made are refused."""
    for experiment, path in experiments:
        # Before the data is read, which may take long.
        if not RunFolder(path).has_begun():
            require_optimizers(experiment)
    sessions = [
        stack.enter_context(open_session(experiment, path, reporter)) for experiment, path in experiments
    ]
    for session in sessions:
        if not session.folder.has_begun():
            try_optimizers(session)
    return sessions


def _compare_one_by_one(
    experiments: Sequence[tuple[Experiment, Path]], reporter: Reporter
) -> list[list[ComparisonRow]]:
    found, missing = [], []
    for experiment, path in experiments:
        reporter.say(f"{experiment.name}, in {path}")
        try:
            found.append(compare(experiment, path, reporter))
        except (ValueError, OSError) as error:
            if has_other_processes():
                raise
            reporter.say(f"{experiment.name}: failed: {error}")
            missing.append(f"{experiment.name} is not finished: {error}")
    if missing:
        raise UnitsMissingError("; ".join(missing))
    return found


def _put_in_order(sessions: Sequence[Session]) -> None:
    for session in sessions:
        put_in_order(session.folder.results, ComparisonRow, row_order(session.experiment))

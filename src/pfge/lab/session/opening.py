"""Sessions in run folders, which are locked while they last."""

import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from pfge.lab.config.schema import ConfigError, EngineSettings, Experiment
from pfge.lab.engine import Engine
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.kept_data import keep_fingerprint
from pfge.lab.run.kept_weights import require_unchanged_weights
from pfge.lab.run.progress import Reporter
from pfge.lab.session.session import Session


@contextmanager
def open_session(experiment: Experiment, path: Path, reporter: Reporter) -> Iterator[Session]:
    """Set up an experiment in a run folder, which is locked while the context lasts.

    Raises:
        StorageError: The run was made with another config, other data or another file of weights.
        ConfigError: This is a worker that starts, and the script that it imports calls this at once.
    """
    _require_a_guard(experiment.engine.launcher)
    works_here = experiment.engine.chosen_launcher.is_this_process
    engine = Engine(experiment.engine if works_here else EngineSettings(accelerator="cpu"))
    folder = RunFolder(path)
    with folder.opened(experiment, more_seeds=True) if engine.is_first else nullcontext():
        engine.wait_for_all()
        # Where w0 is in the run already, nothing else would read the file.
        require_unchanged_weights(folder, experiment.pretrain.weights)
        session = Session.set_up(experiment, folder, engine, reporter)
        engine.first_does(lambda: _keep(session))
        yield session


@contextmanager
def open_run(
    path: Path, reporter: Reporter, *, overrides: Sequence[str] = (), trust_code: bool = False
) -> Iterator[Session]:
    """Set up the experiment of a run folder for work on its ensembles, which one process does.

    Args:
        path: The run folder, which is locked while the context lasts.
        reporter: Where progress is shown.
        overrides: Other settings than the run's, such as `data.root=/data`.
        trust_code: Whether the run's own config may name functions and paths, as of `load_run_config`.
    """
    folder = RunFolder(path)
    experiment = folder.load_experiment(overrides, trust_code=trust_code)
    with folder.opened(experiment):
        experiment = experiment.on_one_device()
        yield Session.set_up(experiment, folder, Engine(experiment.engine), reporter)


def _keep(session: Session) -> None:
    """Write what the run is of, after all of it was checked."""
    session.folder.keep_seeds(session.experiment)
    keep_fingerprint(session.folder, session.splits)


def _require_a_guard(launcher: str) -> None:
    """Raise a ConfigError in a worker that is just importing the driver's script."""
    # The only sign of it, which multiprocessing itself uses to refuse processes that start processes.
    if not getattr(multiprocessing.current_process(), "_inheriting", False):
        return
    message = (
        "a script must not run an experiment while it is imported, as each worker of engine.launcher = "
        f"{launcher!r} does; put the call under if __name__ == '__main__':"
    )
    # A traceback would come from each worker, and most of its lines are of multiprocessing.
    sys.excepthook = lambda *_: print(f"pfge: error: {message}", file=sys.stderr)
    raise ConfigError(message)

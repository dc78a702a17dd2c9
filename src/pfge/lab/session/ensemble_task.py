"""Whether a saved ensemble is of the task of an experiment."""

from pathlib import Path

from pfge.ensemble import Ensemble
from pfge.storage.files import StorageError
from pfge.tasks import Task


def require_task(ensemble: Ensemble, task: Task, path: Path) -> Ensemble:
    """Return the ensemble of a path, if it is of a task.

    Raises:
        StorageError: It is of another one.
    """
    if ensemble.task != task:
        raise StorageError(
            f"{path} has the task {ensemble.task}, and the experiment {task}; "
            "give the config of its run, set task.name and task.options, or make it again by pfge pool "
            "--config"
        )
    return ensemble

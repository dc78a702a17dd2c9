"""Run units as jobs of a Slurm cluster, through submitit."""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from pfge.errors import InvalidValueError
from pfge.lab.config.settings import EngineSettings
from pfge.lab.launch.worker import Executor, Worker, WorkerTask

MINUTES = 24 * 60
"""Time limit of a job if engine.slurm has no timeout_min; a job that reaches it is queued again."""
MOST_TIMEOUTS = 1000
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_ATTEMPTS = 60.0
"""Pause before a refused job is submitted again: Slurm may be busy or restarting."""


class SlurmError(InvalidValueError):
    """submitit or Slurm is missing, or Slurm refuses a job."""


@contextmanager
def slurm_jobs(folder: Path, *, is_local: bool) -> Iterator[Executor]:
    """Submit units to a Slurm cluster, which decides how many jobs run at once.

    Args:
        folder: Folder for the files of submitit, on a file system that all nodes share.
        is_local: Whether to try out jobs as processes of this machine, as many as it has cores.

    Raises:
        SlurmError: submitit is not installed.
    """
    submitit = _import_submitit()
    folder.mkdir(exist_ok=True)
    # A new folder each time: submitit unpickles files in it, and a run folder may come from a stranger.
    files = Path(tempfile.mkdtemp(prefix="submitit-", dir=folder)).absolute()
    yield _SlurmJobs(submitit, files, is_local=is_local)


class _SlurmJobs:
    def __init__(self, submitit: Any, files: Path, *, is_local: bool):
        self.size = (os.cpu_count() or 1) if is_local else 1_000_000
        self._cluster = "local" if is_local else "slurm"
        self._submitit = submitit
        self._files = files
        self._has_accepted = False

    def start(self, tasks: Sequence[WorkerTask]) -> "list[_SlurmJob | _NotSubmitted]":
        needs = [task.experiment.engine for task in tasks]
        numbers = sorted(range(len(tasks)), key=lambda number: needs.index(needs[number]))
        jobs: dict[int, _SlurmJob | _NotSubmitted] = {}
        for engine, array in groupby(numbers, key=lambda number: needs[number]):
            chosen = list(array)
            submitted = self._try_to_submit(engine, [tasks[number] for number in chosen])
            jobs |= dict(zip(chosen, submitted, strict=True))
        return [jobs[number] for number in range(len(tasks))]

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def _try_to_submit(
        self, engine: EngineSettings, tasks: Sequence[WorkerTask]
    ) -> "Sequence[_SlurmJob | _NotSubmitted]":
        try:
            jobs = self._submit(engine, tasks)
        except SlurmError as error:
            if not self._has_accepted:
                raise  # the settings are wrong, or Slurm is missing: nothing is lost
            return [_NotSubmitted(error) for _ in tasks]
        self._has_accepted = True
        return jobs

    def _submit(self, engine: EngineSettings, tasks: Sequence[WorkerTask]) -> list["_SlurmJob"]:
        """Submit units with the same resources as one array."""
        limits = {f"{cluster}_max_num_timeout": MOST_TIMEOUTS for cluster in ("slurm", "local")}
        try:
            executor = self._submitit.AutoExecutor(self._files, cluster=self._cluster, **limits)
            executor.update_parameters(**_parameters(engine))
            with executor.batch():
                jobs = [executor.submit(RequeuedTask(task)) for task in tasks]
        except (RuntimeError, NameError, TypeError, ValueError, AssertionError, OSError) as error:
            reason = " ".join(str(error).split())[:500]
            raise SlurmError(
                f"Slurm refuses the job: {reason}; check engine.cpus, engine.gpus, engine.memory and "
                "engine.slurm"
            ) from None
        return [_SlurmJob(job) for job in jobs]


class RequeuedTask:
    """A task as a job, which is queued again when it is preempted or reaches its time limit."""

    def __init__(self, task: WorkerTask):
        self._task = task

    def __call__(self) -> bool:
        """Run the task."""
        return Worker().run(self._task)

    def checkpoint(self) -> Any:
        """Return the same task, to be queued again: it continues from the files in the run folder."""
        return _import_submitit().helpers.DelayedSubmission(self)


class _SlurmJob:
    def __init__(self, job: Any):
        self._job = job
        self._looked = float("-inf")

    def is_over(self) -> bool:
        if (now := time.monotonic()) - self._looked < SECONDS_BETWEEN_LOOKS:
            return False  # each look is a request to the shared file system
        self._looked = now
        return bool(self._job.done())

    def ending(self) -> str:
        return f"its job {self._job.job_id} ended in state {self._job.state}"

    def stop(self) -> None:
        self._job.cancel(check=False)


class _NotSubmitted:
    """A task that Slurm refused after accepting others; it is over when it may be tried again."""

    def __init__(self, error: SlurmError):
        self._error = error
        self._until = time.monotonic() + SECONDS_BETWEEN_ATTEMPTS

    def is_over(self) -> bool:
        return time.monotonic() >= self._until

    def ending(self) -> str:
        return str(self._error)

    def stop(self) -> None:
        pass


def _parameters(engine: EngineSettings) -> dict[str, Any]:
    needed = {"timeout_min": MINUTES, "cpus_per_task": engine.cpus}
    asked = {"gpus_per_node": engine.gpus, "mem_gb": engine.memory}
    return needed | {name: value for name, value in asked.items() if value} | engine.slurm


def _import_submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise SlurmError('engine.launcher = "slurm" needs submitit; pip install "pfge[slurm]"') from None
    return submitit

"""Run units as Ray tasks, on this machine or on a cluster."""

import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from pfge.errors import InvalidValueError
from pfge.lab.config.settings import EngineSettings, Experiment
from pfge.lab.launch.worker import Executor, Worker, WorkerTask

SECONDS_TO_ANSWER = 5.0
"""Time after which an address counts as unreachable."""
GB = 1_000_000_000


class RayError(InvalidValueError):
    """Ray is missing or unreachable, or no node has the resources of a unit."""


@contextmanager
def ray_tasks(address: str, experiments: Sequence[Experiment]) -> Iterator[Executor]:
    """Connect to a Ray cluster, where tasks wait until a node has the resources in [engine].

    Args:
        address: HOST:PORT of a cluster; "" means RAY_ADDRESS, or a new cluster on this machine.
        experiments: Experiments whose settings in [engine] name the resources of each unit.

    Raises:
        RayError: Ray is not installed, the address does not answer, or no node has the resources of a unit.
    """
    address = address or os.environ.get("RAY_ADDRESS", "")
    if ":" in address:
        _require_answer(address)
    ray = _import_ray(address)
    _connect(ray, address)
    try:
        for experiment in experiments:
            _require_enough(experiment.engine, ray.nodes())
        yield _RayTasks(ray)
    finally:
        ray.shutdown()


class _RayTasks:
    size = 1_000_000  # Ray decides how many run at once

    def __init__(self, ray: Any):
        self._ray = ray
        self._run = ray.remote(_run)

    def start(self, tasks: Sequence[WorkerTask]) -> list["_RayTask"]:
        return [_RayTask(self._ray, self._submit(task)) for task in tasks]

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def _submit(self, task: WorkerTask) -> Any:
        engine = task.experiment.engine
        remote = self._run.options(
            name=task.unit.name,
            num_cpus=engine.cpus,
            num_gpus=engine.gpus,
            memory=int(engine.memory * GB) or None,
            max_retries=0,  # the driver counts attempts
        )
        return remote.remote(task)


class _RayTask:
    def __init__(self, ray: Any, result: Any):
        self._ray = ray
        self._result = result

    def is_over(self) -> bool:
        return bool(self._ray.wait([self._result], timeout=0)[0])

    def ending(self) -> str:
        try:
            self._ray.get(self._result)
        except self._ray.exceptions.RayError as error:
            return f"Ray reports {type(error).__name__}"
        return "its task ended"

    def stop(self) -> None:
        self._ray.cancel(self._result, force=True)


@cache
def _worker() -> Worker:
    """Return the worker of this process, in which Ray runs one task after another."""
    return Worker()


def _run(task: WorkerTask) -> bool:
    return _worker().run(task)


def _import_ray(address: str) -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a warning
    if address:
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "5")  # seconds to wait if another program answers
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default of 15 is meant for background work
    try:
        import ray
    except ImportError:
        raise RayError('engine.launcher = "ray" needs Ray; pip install "pfge[ray]"') from None
    return ray


def _connect(ray: Any, address: str) -> None:
    try:
        ray.init(
            address=address or "local",
            include_dashboard=None if address else False,
            logging_level=logging.ERROR,
            log_to_driver=False,  # units write their status to files
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RayError(f"cannot connect to a Ray cluster at {address or 'this machine'}: {reason}") from None


def _require_answer(address: str) -> None:
    host, _, port = address.rpartition(":")
    if "/" in address or not port.isdecimal():
        raise RayError(
            f"the address of a Ray cluster must be HOST:PORT, such as 10.0.0.1:6379, got {address}; give the "
            "one that ray start --head prints as RAY_ADDRESS or --launcher ray:HOST:PORT"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError, UnicodeError) as error:  # UnicodeError: the host name is malformed
        raise RayError(
            f"no Ray cluster answers at {address}: {error}; start one with ray start --head, or give the "
            "address that it prints as --launcher ray:HOST:PORT"
        ) from None


def _require_enough(engine: EngineSettings, nodes: Sequence[dict[str, Any]]) -> None:
    """Raise a RayError unless a node has all resources of a unit."""
    needed = {"CPU": engine.cpus, "GPU": engine.gpus, "memory": engine.memory * GB}
    having = [node["Resources"] for node in nodes if node["Alive"]]
    if any(all(node.get(name, 0) >= amount for name, amount in needed.items()) for node in having):
        return
    most = {name: max((node.get(name, 0) for node in having), default=0) for name in needed}
    raise RayError(
        f"each part needs engine.cpus = {engine.cpus}, engine.gpus = {engine.gpus} and engine.memory = "
        f"{engine.memory:g} GB, but no node of the Ray cluster has all three; nodes have at most "
        f"{most['CPU']:g}, {most['GPU']:g} and {most['memory'] / GB:.1f} GB; lower them, or add a node"
    )

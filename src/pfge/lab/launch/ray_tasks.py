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
from pfge.lab.launch.worker import Order, Pool, Worker

SECONDS_TO_ANSWER = 5.0
"""After that, an address is taken for unreachable."""
GB = 1_000_000_000


class RayError(InvalidValueError):
    """Ray is missing or cannot be reached, or no node has what a unit needs."""


@contextmanager
def ray_tasks(address: str, experiments: Sequence[Experiment]) -> Iterator[Pool]:
    """Give a Ray cluster; tasks wait in it until a node has the resources of [engine].

    Args:
        address: HOST:PORT of a cluster; "" takes that of RAY_ADDRESS, or starts one on this machine.
        experiments: Their settings in [engine] say what each unit needs.

    Raises:
        RayError: Ray is not installed, the address does not answer, or no node has what a unit needs.
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
        self._carry_out = ray.remote(_carry_out)

    def start(self, orders: Sequence[Order]) -> list["_RayTask"]:
        return [_RayTask(self._ray, self._submit(order)) for order in orders]

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def _submit(self, order: Order) -> Any:
        engine = order.experiment.engine
        task = self._carry_out.options(
            name=order.unit,
            num_cpus=engine.cpus,
            num_gpus=engine.gpus,
            memory=int(engine.memory * GB) or None,
            max_retries=0,  # the driver counts attempts
        )
        return task.remote(order)


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
    """Return the worker of this process, which Ray uses for one task after another."""
    return Worker()


def _carry_out(order: Order) -> bool:
    return _worker().carry_out(order)


def _import_ray(address: str) -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a change to come
    if address:
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "5")  # seconds, where something else answers
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 is for what runs beside the work itself
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
            log_to_driver=False,  # units tell by their marks
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RayError(f"there is no Ray cluster at {address or 'this machine'}: {reason}") from None


def _require_answer(address: str) -> None:
    host, _, port = address.rpartition(":")
    if "/" in address or not port.isdecimal():
        raise RayError(
            f"the address of a Ray cluster must be HOST:PORT, such as 10.0.0.1:6379, got {address}; give the "
            "one that ray start --head prints as RAY_ADDRESS or --launcher ray:HOST:PORT"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError, UnicodeError) as error:  # the last is of names
        raise RayError(
            f"there is no Ray cluster at {address}: {error}; start one by ray start --head, or give the "
            "address that it prints as --launcher ray:HOST:PORT"
        ) from None


def _require_enough(engine: EngineSettings, nodes: Sequence[dict[str, Any]]) -> None:
    """Raise a RayError unless a node has all that a unit needs."""
    needed = {"CPU": engine.cpus, "GPU": engine.gpus, "memory": engine.memory * GB}
    having = [node["Resources"] for node in nodes if node["Alive"]]
    if any(all(node.get(name, 0) >= amount for name, amount in needed.items()) for node in having):
        return
    most = {name: max((node.get(name, 0) for node in having), default=0) for name in needed}
    raise RayError(
        f"no node of the Ray cluster has what each part needs, engine.cpus = {engine.cpus}, engine.gpus = "
        f"{engine.gpus} and engine.memory = {engine.memory:g} GB; the most that a node has is "
        f"{most['CPU']:g}, {most['GPU']:g} and {most['memory'] / GB:.1f} GB; lower them, or add a node"
    )

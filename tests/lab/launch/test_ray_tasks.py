"""Units as Ray tasks: the bytes are those of one process, and what cannot work is said in a line."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pfge.lab.config.settings import EngineSettings
from pfge.lab.launch import ray_tasks as module
from pfge.lab.launch.ray_tasks import RayError
from tests.lab.tiny import outcome, run, tiny

RUN = """
import sys
from pathlib import Path
import torch
from tests.lab.tiny import run, tiny

torch.set_num_threads(1)
run(tiny(*sys.argv[2:]), Path(sys.argv[1]))
"""
METHODS = "ensemble.methods=['SWA','PFGE']"
ROOT = Path(__file__).parents[3]


def run_in_process(folder: Path, *settings: str) -> None:
    """Run a comparison in a process of its own, as Ray changes the one that uses it."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN, str(folder), *settings]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=300)


@pytest.mark.slow
def test_ray_makes_the_bytes_of_one_process(tmp_path: Path) -> None:
    """As Slurm does, which test_killed_jobs.py shows with a job that is preempted."""
    pytest.importorskip("ray")
    run_in_process(tmp_path / "there", METHODS, "engine.launcher=ray")
    run(tiny(METHODS), tmp_path / "here")
    assert len(outcome(tmp_path / "here")) == 16
    assert outcome(tmp_path / "there") == outcome(tmp_path / "here")
    names = [sorted(path.name for path in (tmp_path / run).iterdir()) for run in ("here", "there")]
    assert names[0] == names[1]
    state = json.loads((tmp_path / "there" / "environment.json").read_text())
    assert state["threads"] == 1


def test_without_ray_a_line_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RayError, match=r'engine.launcher = "ray" needs Ray; pip install "pfge\[ray\]"'):
        run(tiny(METHODS, "engine.launcher=ray"), tmp_path)
    assert not (tmp_path / "seed-1").exists()


def test_an_address_without_a_cluster_is_told_at_once(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        before = time.monotonic()
        with pytest.raises(
            RayError, match=rf"no Ray cluster answers at 127.0.0.1:{port}: .*; start one with"
        ):
            run(tiny(METHODS, f"engine.launcher=ray:127.0.0.1:{port}"), tmp_path)
    assert time.monotonic() - before < 20  # of which most is the data
    assert not (tmp_path / "seed-1").exists()


@pytest.mark.parametrize("address", ["http://127.0.0.1:8265/", "http://127.0.0.1:8265", "127.0.0.1:port"])
def test_an_address_that_is_none_is_told_with_what_one_looks_like(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    message = (
        rf"must be HOST:PORT, such as 10\.0\.0\.1:6379, got {address}; give the one that ray start --head"
    )
    with pytest.raises(RayError, match=message):
        run(tiny(METHODS, "engine.launcher=ray"), tmp_path)
    assert not (tmp_path / "seed-1").exists()


def test_a_host_that_no_machine_can_have_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "a..b:6379")
    with pytest.raises(RayError, match=r"no Ray cluster answers at a\.\.b:6379: .*"):
        run(tiny(METHODS, "engine.launcher=ray"), tmp_path)


def node(*, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"Alive": alive, "Resources": resources}


def test_needs_that_no_node_has_are_refused() -> None:
    nodes = [node(CPU=4, memory=8e9), node(CPU=2, GPU=1, memory=64e9), node(alive=False, CPU=99, memory=1e15)]
    module._require_enough(EngineSettings(cpus=2, gpus=1, memory=60), nodes)
    module._require_enough(EngineSettings(cpus=4), nodes)
    with pytest.raises(RayError) as caught:  # each is there, but not in one node
        module._require_enough(EngineSettings(cpus=4, gpus=1, memory=60.5), nodes)
    assert str(caught.value) == (
        "each part needs engine.cpus = 4, engine.gpus = 1 and engine.memory = 60.5 GB, but no node of the "
        "Ray cluster has all three; nodes have at most 4, 1 and 64.0 GB; lower them, or add a node"
    )

import os
import sys
from pathlib import Path

# The suite itself runs on every core: libraries, and processes that tests start, use one thread each.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings

from pfge.lab.data import load_data
from pfge.tasks import KNOWN, Metric
from tests.made_once import made_once
from tests.tasks.fractions import Fractions

# Fixed examples and no deadline: a slow or busy machine must not decide whether a test passes.
settings.register_profile("pfge", deadline=None, derandomize=True)
settings.load_profile("pfge")
sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))  # what builds and checks the site
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each worker, which gets an equal part of the list, begin with its slow tests.

    At the end, quick tests are easily shared; of two slow ones that one worker has left, none is.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]

    def part(tests: list[pytest.Item], worker: int) -> list[pytest.Item]:
        return tests[worker * len(tests) // workers : (worker + 1) * len(tests) // workers]

    items[:] = [item for worker in range(workers) for item in part(slow, worker) + part(quick, worker)]


@pytest.fixture(scope="session")
def signals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data with the signals of MNIST-1D, which take seconds to generate."""
    return made_once(tmp_path_factory, "signals", lambda folder: load_data("mnist1d", root=folder))


@pytest.fixture
def fractions(monkeypatch: pytest.MonkeyPatch) -> Fractions:
    """A second task that configs and files of results know, with a column in tables."""
    mse = Metric("mse", "MSE", "lower", lambda s: s.brier.mean().item(), score="brier", is_main=True)
    monkeypatch.setattr(Fractions, "metrics", (mse,))
    monkeypatch.setitem(KNOWN, "Fractions", Fractions)
    return Fractions()

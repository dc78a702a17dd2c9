import os
import sys
from pathlib import Path

# The suite itself runs on every core: libraries, and processes that tests start, use one thread each.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings

from pfge.tasks import Metric
from pfge.tasks.manifest import KNOWN
from tests.tasks.fractions import Fractions

# Fixed examples and no deadline: a slow or busy machine must not decide whether a test passes.
settings.register_profile("pfge", deadline=None, derandomize=True)
settings.load_profile("pfge")
sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))  # what builds and checks the site
torch.set_num_threads(1)


@pytest.fixture
def fractions(monkeypatch: pytest.MonkeyPatch) -> Fractions:
    """A second task that configs and files of results know, with a column in tables."""
    mse = Metric("mse", "MSE", "lower", lambda s: s.brier.mean().item(), score="brier", is_main=True)
    monkeypatch.setattr(Fractions, "metrics", (mse,))
    monkeypatch.setitem(KNOWN, "Fractions", Fractions)
    return Fractions()

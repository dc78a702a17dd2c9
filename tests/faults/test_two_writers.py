"""Two processes that save to one ensemble folder: the result is the ensemble of one of them, whole."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from pfge import Ensemble, Weights
from tests.faults.harness import ROOT, start_child, wait_for
from tests.toys import make_mlp

RACES = 20


def members(writer: int) -> list[Weights]:
    """Return two members of 2 MB that are all of the writer's number."""
    return [{"a": torch.full((500_000,), float(writer)), "b": torch.full((1,), float(k))} for k in range(2)]


def race(folder: Path) -> None:
    """Let two forked processes save at once, again and again, and look at what is there after each race."""
    for number in range(RACES):
        path = folder / str(number)
        ensembles = [Ensemble(members(writer), make_mlp, method=str(writer)) for writer in (1, 2)]
        children = [start_child(partial(ensemble.save, path)) for ensemble in ensembles]
        if [wait_for(child) for child in children] != [0, 0]:
            raise SystemExit(f"a writer failed in race {number}")
        found = Ensemble.load(path, make_mlp)
        for k, member in enumerate(found.members):
            if {*member["a"].tolist()} != {float(found.method)} or member["b"].item() != k:
                raise SystemExit(f"race {number} made a mixture")
        if len(list(path.iterdir())) != 3:
            raise SystemExit(f"race {number} left files behind")


@pytest.mark.slow
def test_two_writers_of_a_folder_do_not_mix(tmp_path: Path) -> None:
    # A process of its own: forking this one, whose threads are pytest's, could stop it for ever.
    code = f"from tests.faults.test_two_writers import *; race(Path({str(tmp_path)!r}))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.iterdir())) == RACES

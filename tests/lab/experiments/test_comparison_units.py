"""The units of a comparison: what each needs, and that none depends on where another was run."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from pfge.lab.config.settings import Experiment
from pfge.lab.experiments.compare import comparison_units
from pfge.lab.launch.units import Unit
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.progress import Reporter
from pfge.lab.session import open_session
from tests.lab.tiny import LENGTH, PERIOD, PRETRAINING, Stopped, counted_steps, outcome, run, tiny

PER_EPOCH = 20


def units_of(experiment: Experiment, folder: Path) -> dict[str, Unit]:
    return {unit.name: unit for unit in comparison_units(experiment, RunFolder(folder), PER_EPOCH)}


def run_some(experiment: Experiment, folder: Path, *names: str) -> None:
    with open_session(experiment, folder, Reporter(quiet=True)) as session:
        for name in names:
            units_of(experiment, folder)[name].run(session)


def test_a_comparison_is_a_small_graph(tmp_path: Path) -> None:
    experiment = tiny("ensemble.methods=['SWA','PFGE','Star','DeepEnsemble']")
    units = units_of(experiment, tmp_path)
    before = "seed 1: "
    found = {
        name.removeprefix(before): [need.removeprefix(before) for need in unit.needs]
        for name, unit in units.items()
    }
    periods = [f"Star, period {number}" for number in range(1, 5)]
    starts = [f"start {number}" for number in range(2, 5)]
    rows = ["w0", "SWA", "PFGE", "Star", "DeepEnsemble"]
    assert found == {
        "w0": [],
        "measure w0": ["w0"],
        "shared path": ["w0"],
        "measure SWA": ["shared path"],
        "PFGE": ["shared path"],
        "measure PFGE": ["PFGE"],
        **{period: ["w0"] for period in periods},
        "Star": periods,
        "measure Star": ["Star"],
        **{start: [] for start in starts},
        "DeepEnsemble": ["w0", *starts],
        "measure DeepEnsemble": ["DeepEnsemble"],
        "tidy": [f"measure {row}" for row in rows],
    }
    with counted_steps() as steps:
        run(experiment, tmp_path)
    assert sum(unit.iterations for unit in units.values()) == steps[0]
    assert steps[0] == 4 * PRETRAINING + LENGTH + (LENGTH - PERIOD) + LENGTH
    assert all(unit.is_done() for unit in units.values() if unit.name.startswith("seed 1: measure"))
    assert units["seed 1: tidy"].is_done()


@pytest.mark.slow
def test_a_path_that_left_the_shared_one_is_not_disturbed_by_it(tmp_path: Path) -> None:
    """PFGE is under way when the shared path, which was killed, begins again before the fork."""
    methods = "ensemble.methods=['FGE','PFGE']"
    rarely, often = (tiny(methods, f"engine.checkpoint_seconds={seconds}") for seconds in ("1e9", "0"))
    run(rarely, tmp_path / "whole")
    folder = tmp_path / "apart"
    with pytest.raises(Stopped), counted_steps(stop_after=PRETRAINING + PERIOD + 1):
        run(rarely, folder)
    assert units_of(rarely, folder)["seed 1: PFGE"].may_start({"seed 1: shared path": None})
    with pytest.raises(Stopped), counted_steps(stop_after=PERIOD + 2):
        run_some(often, folder, "seed 1: PFGE")
    run_some(rarely, folder, "seed 1: shared path")
    with counted_steps() as steps:
        run_some(often, folder, "seed 1: PFGE")
    assert steps == [LENGTH - PERIOD - (PERIOD + 1)]
    run(rarely, folder)
    assert outcome(folder) == outcome(tmp_path / "whole")


def make_period(folder: Path, number: int) -> None:
    torch.set_num_threads(1)
    copy = folder.parent / f"{number}"
    run_some(STAR, copy, "seed 1: w0", f"seed 1: Star, period {number}")
    (copy / "seed-1" / "periods" / f"Star-{number}").rename(folder / "seed-1" / "periods" / f"Star-{number}")


STAR = tiny("ensemble.methods=['Star']", "data.flip=true", "data.crop_padding=1")


@pytest.mark.slow
def test_a_star_made_by_two_processes_is_that_of_one_bit_for_bit(tmp_path: Path) -> None:
    run(STAR, tmp_path / "whole")
    folder = tmp_path / "apart"
    run_some(STAR, folder, "seed 1: w0")
    (folder / "seed-1" / "periods").mkdir()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        list(pool.map(make_period, [folder] * 4, [4, 3, 2, 1]))
    with counted_steps() as steps:
        run(STAR, folder)
    assert steps == [0]
    assert outcome(folder) == outcome(tmp_path / "whole")

"""What a comparison will cost, before it is run."""

from pathlib import Path

import pytest

from pfge.lab.experiments.cost import find_cost, seconds_of_all
from pfge.lab.run.progress import Reporter
from pfge.storage.files import StorageError
from tests.lab.tiny import LENGTH, PERIOD, PRETRAINING, Stopped, counted_steps, run, tiny


def test_a_dry_run_counts_what_is_left_and_writes_nothing(tmp_path: Path) -> None:
    experiment = tiny("ensemble.methods=['SWA','PFGE']", "seeds=[1,2]")
    cost = find_cost(experiment, tmp_path / "run", Reporter(quiet=True))
    assert not (tmp_path / "run").exists()
    assert cost.iterations == 2 * (PRETRAINING + LENGTH + LENGTH - PERIOD)
    assert cost.step > 0
    assert cost.seconds(2) == pytest.approx(cost.seconds(1) / 2)
    assert seconds_of_all([cost, cost], 1) == pytest.approx(2 * cost.seconds(1))
    assert seconds_of_all([cost, cost], 4) == pytest.approx(cost.seconds(2))
    with pytest.raises(Stopped), counted_steps(stop_after=PRETRAINING + 5):
        run(experiment, tmp_path / "run")
    left = find_cost(experiment, tmp_path / "run", Reporter(quiet=True))
    assert left.iterations == cost.iterations - PRETRAINING
    assert left.done == 2  # w0 is there, and measured


def test_a_dry_run_in_a_folder_of_another_config_is_refused(tmp_path: Path) -> None:
    run(tiny("ensemble.methods=[]"), tmp_path)
    with pytest.raises(StorageError, match=r"was made with another config, where this one has seeds = \[4\]"):
        find_cost(tiny("ensemble.methods=[]", "seeds=[4]"), tmp_path, Reporter(quiet=True))

"""What a comparison will cost, before it is run."""

from pathlib import Path

import pytest

from pfge.lab.experiments.cost import count_rounds, find_cost
from pfge.lab.launch.unit import Unit
from pfge.lab.run.progress import Reporter
from pfge.storage.files import StorageError
from tests.lab.tiny import LENGTH, PERIOD, PRETRAINING, Stopped, counted_steps, run, tiny


def unit(name: str, iterations: int, *needs: str) -> Unit:
    return Unit(name, lambda: False, lambda _: None, needs, iterations=iterations)


@pytest.mark.parametrize(("workers", "rounds"), [(1, 60), (2, 40), (3, 30), (9, 30)])
def test_workers_share_what_does_not_wait(workers: int, rounds: int) -> None:
    """With two, b runs beside a, c and then e: 10 + 10 + 5 + 15; with more, w0 and b take the longest."""
    units = [unit("w0", 10), unit("a", 10, "w0"), unit("b", 20, "w0"), unit("c", 5, "a"), unit("d", 0, "c")]
    assert count_rounds([*units, unit("e", 15, "w0")], workers) == rounds


def test_a_dry_run_counts_what_is_left_and_writes_nothing(tmp_path: Path) -> None:
    experiment = tiny("ensemble.methods=['SWA','PFGE']", "seeds=[1,2]")
    cost = find_cost(experiment, tmp_path / "run", Reporter(quiet=True))
    assert not (tmp_path / "run").exists()
    assert cost.iterations == 2 * (PRETRAINING + LENGTH + LENGTH - PERIOD)
    assert cost.step > 0
    assert cost.seconds(2) == pytest.approx(cost.seconds(1) / 2)
    with pytest.raises(Stopped), counted_steps(stop_after=PRETRAINING + 5):
        run(experiment, tmp_path / "run")
    left = find_cost(experiment, tmp_path / "run", Reporter(quiet=True))
    assert left.iterations == cost.iterations - PRETRAINING
    assert left.done == 2  # w0 is there, and measured


def test_a_dry_run_in_a_folder_of_another_config_is_refused(tmp_path: Path) -> None:
    run(tiny("ensemble.methods=[]"), tmp_path)
    with pytest.raises(StorageError, match=r"was made with another config, where this one has seeds = \[4\]"):
        find_cost(tiny("ensemble.methods=[]", "seeds=[4]"), tmp_path, Reporter(quiet=True))

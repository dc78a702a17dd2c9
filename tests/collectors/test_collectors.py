import copy
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfge import (
    EMA,
    FGE,
    PFGE,
    SWA,
    SWAG,
    Collector,
    Constant,
    Ensemble,
    Restart,
    StorageError,
    Trajectory,
    Weights,
    load_checkpoint,
    save_checkpoint,
)
from pfge.collectors import Star
from pfge.collectors.averaging import AveragingCollector
from pfge.weights import copy_weights
from tests.toys import Scalar, advance, assert_same_weights, make_mlp, make_sgd, train


def point(value: float) -> Weights:
    return {"w": torch.tensor(value, dtype=torch.float64)}


def show(collector: Collector, values: list[float], start: float = 0.0) -> None:
    collector.begin(point(start))
    for iteration, value in enumerate(values, 1):
        collector.observe(iteration, point(value))


def test_swa_can_leave_the_start_out() -> None:
    swa = SWA(1, average_start=False)
    show(swa, [2.0, 4.0], start=100.0)
    assert swa.members()[0]["w"].item() == 3.0


def test_phase_moves_the_points_within_the_cycle() -> None:
    fge = FGE(4, phase=2)
    show(fge, [float(i) for i in range(1, 11)])
    assert [member["w"].item() for member in fge.members()] == [2.0, 6.0, 10.0]
    assert fge.iterations == [2, 6, 10]


def test_ema_of_a_worked_example() -> None:
    # 0 -> 0.5 * 0 + 0.5 * 4 = 2 -> 0.5 * 2 + 0.5 * 8 = 5
    ema = EMA(0.5)
    show(ema, [4.0, 8.0])
    assert ema.members()[0]["w"].item() == 5.0


def test_ema_can_skip_iterations() -> None:
    ema = EMA(0.5, every=2)
    show(ema, [100.0, 8.0, 100.0])
    assert ema.members()[0]["w"].item() == 4.0


@pytest.mark.parametrize("make", [lambda: SWA(3), lambda: EMA(0.9, every=3)])
def test_an_average_that_was_never_updated_is_an_error(make: Callable[[], Collector]) -> None:
    collector = make()
    show(collector, [1.0, 2.0])
    with pytest.raises(ValueError, match="has averaged nothing yet"):
        collector.members()


def test_a_member_does_not_change_with_later_training() -> None:
    swa = SWA(1)
    show(swa, [2.0])
    member = swa.members()[0]
    swa.observe(2, point(50.0))
    assert member["w"].item() == 1.0


@pytest.mark.parametrize(
    "make", [lambda c: SWA(c), lambda c: FGE(c), lambda c: SWAG(c), lambda c: PFGE(c, 8)]
)
@pytest.mark.parametrize("cycle", [0, -2])
def test_a_cycle_without_iterations_is_refused(make: Callable[[int], Collector], cycle: int) -> None:
    with pytest.raises(ValueError, match=f"cycle must be at least 1 iteration, got {cycle}"):
        make(cycle)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SWA(2.5), "cycle must be a whole number of iterations, got 2.5; round it"),
        (lambda: FGE(64 / 12), "cycle must be a whole number of iterations, got 5.33"),
        (lambda: SWAG(4.0), "cycle must be a whole number of iterations, got 4.0; round it"),
        (lambda: PFGE(2.5, 5.0), "cycle must be a whole number of iterations, got 2.5; round it"),
        (lambda: PFGE(2, 5.0), "period must be a whole number of iterations, got 5.0; round it"),
        (lambda: FGE(4, phase=0.5), "phase must be a whole number of iterations, got 0.5; round it"),
        (lambda: EMA(0.9, every=2.5), "every must be a whole number of iterations, got 2.5; round it"),
        (lambda: Star(10, tail=0.3 * 10), "tail must be a whole number of iterations, got 3.0; round it"),
        (lambda: FGE(float("nan")), "cycle must be a whole number of iterations, got nan"),
    ],
)
def test_a_number_of_iterations_that_is_not_whole_is_refused(
    make: Callable[[], Collector], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_number_of_iterations_may_be_an_integer_of_numpy() -> None:
    fge = FGE(np.int64(2))
    show(fge, [1.0, 2.0, 3.0, 4.0])
    assert fge.iterations == [2, 4]


def test_a_phase_outside_the_cycle_is_refused() -> None:
    with pytest.raises(ValueError, match="phase must be from 0 to cycle - 1 = 3, got 4"):
        SWA(4, phase=4)


@pytest.mark.parametrize("period", [0, -1])
def test_a_period_without_iterations_is_refused(period: int) -> None:
    with pytest.raises(ValueError, match=f"period must be at least 1 iteration, got {period}"):
        PFGE(2, period)


def test_a_period_that_averages_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="period must reach the first averaged point, at 5 iterations"):
        PFGE(5, 4)


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_that_never_moves_or_overshoots_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match=f"decay must be at least 0 and below 1, got {decay}"):
        EMA(decay)


def test_a_period_that_is_no_multiple_of_the_cycle_warns_of_exactly_what_will_happen() -> None:
    expected = (
        r"period=10 is not a multiple of cycle=4: each member averages iterations 4, 8 of its period "
        r"and its start; the last 2 iterations of each period are unused; choose a multiple of 4"
    )
    with pytest.warns(UserWarning, match=expected):
        PFGE(4, 10)


def test_what_the_warning_says_is_what_happens() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pfge = PFGE(4, 10)
    show(pfge, [float(i) for i in range(1, 11)])
    assert pfge.members()[0]["w"].item() == (0 + 4 + 8) / 3


@pytest.mark.parametrize(("collector", "expected"), [(PFGE(2, 4), 8), (PFGE(2, 20), 0), (FGE(3), 10)])
def test_the_last_iteration_of_any_use_is_known(collector: Collector, expected: int) -> None:
    assert collector.last_used_iteration(10) == expected


def test_a_collector_of_a_user_overrides_public_methods_only() -> None:
    for kind in (Collector, AveragingCollector):
        assert kind.__abstractmethods__
        assert not [name for name in kind.__abstractmethods__ if name.startswith("_")]


class Largest(Collector):
    """A user's own: keeps the point with the largest weight, and sends the path back there each time."""

    steers = True

    def __init__(self, every: int):
        self.every = every
        self._best: tuple[int, Weights] | None = None

    def begin(self, weights: Weights, buffers: Collection[str] = ()) -> None:  # noqa: ARG002
        self._best = None

    def due(self, iteration: int) -> bool:
        return iteration % self.every == 0

    def collect(self, iteration: int, weights: Weights) -> Restart:
        if self._best is None or weights["w"] > self._best[1]["w"]:
            self._best = iteration, copy_weights(weights)
        return Restart(self._best[1])

    def members(self) -> list[Weights]:
        return [] if self._best is None else [self._best[1]]

    @property
    def iterations(self) -> list[int | None]:
        return [] if self._best is None else [self._best[0]]

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best = state["best"]


def test_a_collector_of_a_user_collects_steers_and_resumes(tmp_path: Path) -> None:
    def start() -> tuple[Largest, Trajectory]:
        model, largest = Scalar(0.0), Largest(every=2)
        return largest, Trajectory(model, torch.optim.SGD(model.parameters()), Constant(1.0), [largest])

    def go_on(trajectory: Trajectory, steps: list[float]) -> None:
        for step in steps:
            trajectory.model.w.grad = torch.tensor(-step, dtype=torch.float64)
            trajectory.before_update()
            trajectory.optimizer.step()
            trajectory.after_update()

    largest, trajectory = start()
    # 1, 3 is kept; 2, 0 goes back to 3; 4, 5 is kept.
    go_on(trajectory, [1.0, 2.0, -1.0])
    save_checkpoint(tmp_path / "state", trajectory.state_dict())
    largest, trajectory = start()
    trajectory.load_state_dict(load_checkpoint(tmp_path / "state"))
    assert str(largest) == "Largest(every=2)"
    go_on(trajectory, [-2.0])
    assert trajectory.model.w.item() == 3.0
    go_on(trajectory, [1.0, 1.0])
    assert [member["w"].item() for member in largest.members()] == [5.0]
    assert largest.iterations == [6]


def test_weights_that_are_not_finite_never_reach_a_collector_of_a_user() -> None:
    largest = Largest(every=1)
    with pytest.raises(ValueError, match=r"Largest\(every=1\) needs finite weights, but w holds NaN"):
        show(largest, [1.0, float("nan")])
    assert largest.iterations == [1]


def test_members_on_disk_equal_members_in_memory(tmp_path: Path) -> None:
    on_disk, in_memory = PFGE(2, 4, store=tmp_path / "members"), PFGE(2, 4)
    train(make_mlp(), [on_disk], 8)
    train(make_mlp(), [in_memory], 8)
    for one, two in zip(on_disk.members(), in_memory.members(), strict=True):
        assert_same_weights(one, two)


def test_members_on_disk_are_an_ensemble_while_the_run_goes_on(tmp_path: Path) -> None:
    fge = FGE(2, store=tmp_path)
    trajectory = train(make_mlp(), [fge], 4)
    ensemble = Ensemble.load(tmp_path, make_mlp)
    assert ensemble.iterations == [2, 4]
    assert ensemble.method == "FGE(cycle=2, phase=0)"
    advance(trajectory, 2)
    assert len(Ensemble.load(tmp_path, make_mlp)) == 3


@pytest.mark.parametrize("stop", range(9))
def test_resuming_with_members_on_disk_makes_later_ones_again(tmp_path: Path, stop: int) -> None:
    run = train(make_mlp(), [PFGE(2, 4, store=tmp_path)], stop)
    state = copy.deepcopy(run.state_dict())
    advance(run, 8 - stop)  # the crash comes later than the checkpoint
    expected = [dict(member) for member in Ensemble.load(tmp_path, make_mlp).members]
    model = make_mlp(1)
    resumed = Trajectory(model, make_sgd(model), run.schedule, [PFGE(2, 4, store=tmp_path)])
    if not stop:
        with pytest.raises(StorageError, match="must be empty at the start of a run, but holds 2 members"):
            resumed.before_update()
        return
    resumed.load_state_dict(state)
    assert resumed.collectors[0].iterations == [4, 8][: stop // 4]
    advance(resumed, 8 - stop)
    found = Ensemble.load(tmp_path, make_mlp).members
    assert len(found) == 2
    for one, two in zip(found, expected, strict=True):
        assert_same_weights(one, two)


def test_a_checkpoint_and_a_folder_of_different_runs_are_refused(tmp_path: Path) -> None:
    state = train(make_mlp(), [FGE(2, store=tmp_path / "one")], 4).state_dict()
    train(make_mlp(), [FGE(2, store=tmp_path / "two")], 2)
    other = train(make_mlp(), [FGE(2, store=tmp_path / "two")], 0)
    with pytest.raises(
        StorageError, match=r"must hold the members of iterations \[2, 4\].*holds those of \[2\]"
    ):
        other.load_state_dict(state)


def test_a_store_in_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(StorageError, match="holds other files and no ensemble"):
        FGE(2, store=tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "precious"

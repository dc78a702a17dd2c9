"""A fork listens for PFGE up to its first restart; a second trajectory goes on from there."""

from pathlib import Path

import pytest
import torch

from pfge import FGE, PFGE, Trajectory, load_checkpoint, save_checkpoint
from pfge.lab.training.resumable import Fork
from pfge.weights import Weights, copy_weights, view_weights
from tests.toys import advance, assert_same_weights, make_mlp, make_sgd, train

CYCLE, PERIOD, LENGTH = 2, 4, 16


def branched(clear_momentum: bool, file: Path) -> tuple[list[Weights], list[Weights]]:
    """Return the members of FGE and of PFGE where the two share the first period."""
    fge = FGE(CYCLE)
    fork = Fork(PFGE(CYCLE, PERIOD, clear_momentum=clear_momentum))
    shared = train(make_mlp(), [fge, fork], 0)
    for _ in range(LENGTH):
        advance(shared, 1)
        if state := fork.state(shared):
            save_checkpoint(file, state)
    pfge = PFGE(CYCLE, PERIOD, clear_momentum=clear_momentum)
    own = train(make_mlp(), [pfge], 0)
    own.load_state_dict(load_checkpoint(file))
    assert own.iteration == PERIOD
    advance(own, LENGTH - PERIOD)
    return list(fge.members()), list(pfge.members())


@pytest.mark.parametrize("clear_momentum", [True, False])
def test_members_are_those_of_two_separate_runs(clear_momentum: bool, tmp_path: Path) -> None:
    fge, pfge = FGE(CYCLE), PFGE(CYCLE, PERIOD, clear_momentum=clear_momentum)
    train(make_mlp(), [fge], LENGTH)
    train(make_mlp(), [pfge], LENGTH)
    shared = branched(clear_momentum, tmp_path / "fork.checkpoint")
    for members, alone in zip(shared, (fge.members(), pfge.members()), strict=True):
        assert len(members) == len(alone)
        for member, other in zip(members, alone, strict=True):
            assert_same_weights(member, other)


def test_a_branch_does_not_bend_the_shared_path() -> None:
    plain, watched = make_mlp(), make_mlp()
    train(plain, [], LENGTH)
    train(watched, [Fork(PFGE(CYCLE, PERIOD))], LENGTH)
    assert_same_weights(view_weights(watched), view_weights(plain))


def test_a_branch_may_share_a_trajectory_with_a_collector_that_steers() -> None:
    model = make_mlp()
    trajectory = Trajectory(model, make_sgd(model), None, [PFGE(CYCLE, PERIOD), Fork(PFGE(CYCLE, PERIOD))])
    assert [collector.steers for collector in trajectory.collectors] == [True, False]


def test_the_second_path_begins_at_the_first_restart_and_is_told_once() -> None:
    fork = Fork(PFGE(CYCLE, PERIOD))
    shared = train(make_mlp(), [fork], 0)
    told = []
    for iteration in range(1, LENGTH + 1):
        advance(shared, 1)
        if fork.state(shared) is not None:
            told.append(iteration)
    assert told == [PERIOD]


def test_nothing_is_wanted_after_the_first_restart() -> None:
    fork = Fork(PFGE(CYCLE, PERIOD))
    train(make_mlp(), [fork], LENGTH)
    assert [i for i in range(1, LENGTH + 1) if fork.due(i)] == []
    assert (len(fork.members()), fork.iterations) == (1, [PERIOD])


def test_up_to_the_first_restart_the_collector_decides_what_is_wanted() -> None:
    fork = Fork(PFGE(CYCLE, PERIOD))
    fork.begin(view_weights(make_mlp()))
    assert [i for i in range(1, PERIOD + 1) if fork.due(i)] == [2, 4]


@pytest.mark.parametrize("clear_momentum", [True, False])
def test_momentum_goes_along_unless_it_is_to_be_cleared(clear_momentum: bool) -> None:
    fork = Fork(PFGE(CYCLE, PERIOD, clear_momentum=clear_momentum))
    shared = train(make_mlp(), [fork], PERIOD)
    state = fork.state(shared)
    assert state is not None
    assert bool(state["optimizer"]["state"]) is not clear_momentum
    assert shared.optimizer.state  # the shared path keeps its own either way


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5, 15])
def test_a_shared_run_resumes_at_any_iteration(stop: int, tmp_path: Path) -> None:
    states = []
    fork = Fork(PFGE(CYCLE, PERIOD, store=tmp_path / "members"))
    shared = train(make_mlp(), [fork], stop)
    states.append(fork.state(shared))
    save_checkpoint(tmp_path / "shared", shared.state_dict())

    fork = Fork(PFGE(CYCLE, PERIOD, store=tmp_path / "members"))
    shared = train(make_mlp(), [fork], 0)
    shared.load_state_dict(load_checkpoint(tmp_path / "shared"))
    for _ in range(LENGTH - stop):
        advance(shared, 1)
        states.append(fork.state(shared))
    (restart,) = [copy_weights(state["weights"]) for state in states if state]

    alone = PFGE(CYCLE, PERIOD)
    train(make_mlp(), [alone], PERIOD)
    assert_same_weights(restart, dict(alone.members()[0]))


def test_weights_that_are_not_finite_are_refused_for_the_collector() -> None:
    fork = Fork(PFGE(CYCLE, PERIOD))
    weights = {"w": torch.zeros(3)}
    fork.begin(weights)
    with pytest.raises(ValueError, match="at iteration 2"):
        fork.observe(2, {"w": torch.tensor([0.0, torch.nan, 0.0])})


def test_a_branch_uses_as_many_iterations_as_its_collector() -> None:
    assert Fork(PFGE(CYCLE, PERIOD)).last_used_iteration(18) == 16


def test_a_branch_is_named_after_its_collector() -> None:
    assert str(Fork(FGE(3))) == "Fork(FGE(cycle=3, phase=0))"

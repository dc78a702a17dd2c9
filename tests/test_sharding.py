"""Models that FSDP2 splits between two processes give what one process gives."""

from pathlib import Path

import pytest
import torch
from torch import nn

from pfge import FGE, SWA, Collector, Constant, Trajectory, load_checkpoint
from pfge.collectors import Star
from pfge.sharding import any_split, is_split, split_like, whole
from pfge.weights import load_weights
from tests.processes import launch_two
from tests.sharded_processes import ITERATIONS, STOP, loss_of, make_adam, make_collectors, make_net
from tests.toys import make_mlp, make_sgd

RANKS = (0, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes wrote."""
    path = tmp_path_factory.mktemp("sharded")
    launch_two("-m", "tests.sharded_processes", str(path))
    return path


def advance_alone(trajectory: Trajectory, iterations: int) -> None:
    for _ in range(iterations):
        trajectory.optimizer.zero_grad()
        loss_of(trajectory.model, trajectory.iteration + 1).backward()
        trajectory.before_update()
        trajectory.optimizer.step()
        trajectory.after_update()


def start_alone(*collectors: Collector) -> Trajectory:
    model = make_net()
    return Trajectory(model, make_adam(model), Constant(0.01), collectors or make_collectors())


def members_of(trajectory: Trajectory) -> list[list[dict[str, torch.Tensor]]]:
    return [list(collector.members()) for collector in trajectory.collectors]


@pytest.mark.slow
def test_members_are_those_of_one_process(folder: Path) -> None:
    alone = start_alone()
    advance_alone(alone, ITERATIONS)
    for rank in RANKS:
        # The mean over 16 examples is summed in another order than that of two means over 8.
        torch.testing.assert_close(
            load_checkpoint(folder / f"whole {rank}"), members_of(alone), rtol=1e-4, atol=1e-6
        )


@pytest.mark.slow
def test_a_resumed_training_has_the_same_members(folder: Path) -> None:
    for rank in RANKS:
        resumed, expected = (load_checkpoint(folder / f"{name} {rank}") for name in ("resumed", "whole"))
        torch.testing.assert_close(resumed, expected, rtol=0, atol=0)


@pytest.mark.slow
def test_one_process_resumes_what_two_have_begun(folder: Path) -> None:
    alone = start_alone()
    alone.load_state_dict(load_checkpoint(folder / "state"))
    assert alone.iteration == STOP
    advance_alone(alone, ITERATIONS - STOP)
    torch.testing.assert_close(members_of(alone), load_checkpoint(folder / "whole 0"), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_all_processes_refuse_weights_that_are_not_finite_in_one(folder: Path) -> None:
    for rank, where in zip(RANKS, ("3.bias", "another process's part of the weights"), strict=True):
        text = (folder / f"error {rank}").read_text()
        assert text.startswith(
            f"[1] FGE(cycle=1, phase=0) collects finite weights only, but {where} holds NaN"
        )


@pytest.mark.slow
def test_weights_are_loaded_where_whole_parameters_were_left_behind(folder: Path) -> None:
    model = make_net()
    with torch.no_grad():
        load_weights(model, {name: torch.full(p.shape, 0.5) for name, p in model.named_parameters()})
        expected = loss_of(model, 0)
    found = [load_checkpoint(folder / f"loaded {rank}") for rank in RANKS]
    assert torch.equal(found[0]["loss"], expected)
    sizes = [parts["sizes"] for parts in found]
    assert [parts["0.weight"] for parts in sizes] == [(4, 4), (3, 4)]
    assert [parts["3.bias"] for parts in sizes] == [(1,), (0,)]


@pytest.mark.slow
def test_a_restart_from_the_start_point_is_that_of_one_process(folder: Path) -> None:
    star = Star(4, tail=2)
    advance_alone(start_alone(star), ITERATIONS)
    for rank in RANKS:
        found = load_checkpoint(folder / f"star {rank}")
        torch.testing.assert_close(found, list(star.members()), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_average_is_applied_and_the_models_own_weights_come_back(folder: Path) -> None:
    swa = SWA(1)
    alone = start_alone(swa)
    advance_alone(alone, 2)
    with swa.applied(alone.model), torch.no_grad():
        expected = [loss_of(alone.model, 0)]
    with torch.no_grad():
        expected += [loss_of(alone.model, 0)]
    for rank in RANKS:
        torch.testing.assert_close(
            load_checkpoint(folder / f"applied {rank}"), expected, rtol=1e-4, atol=1e-6
        )


def test_an_ordinary_tensor_is_whole() -> None:
    tensor = torch.ones(2)
    assert not is_split(tensor)
    assert not any_split({"w": tensor})
    assert whole(tensor) is tensor
    assert split_like(torch.zeros(2), tensor) is tensor


def test_a_zero_3_model_is_refused() -> None:
    model = make_mlp()
    model[0].weight.ds_id = 0
    with pytest.raises(ValueError, match=r"cannot follow DeepSpeed with ZeRO-3, .*; use DDP or .*fully_s"):
        Trajectory(model, make_sgd(model), None, [FGE(1)])


def test_a_deepspeed_optimizer_is_refused() -> None:
    class ZeroOptimizer(torch.optim.SGD):
        pass

    ZeroOptimizer.__module__ = "deepspeed.runtime.zero.stage_1_and_2"
    model = make_mlp()
    with pytest.raises(ValueError, match=r"cannot follow DeepSpeed, .*; use DDP or .*fully_shard"):
        Trajectory(model, ZeroOptimizer(model.parameters(), lr=0.1), None, [FGE(1)])


def test_the_first_fsdp_is_refused() -> None:
    class FullyShardedDataParallel(nn.Sequential):
        pass

    model = nn.Sequential(FullyShardedDataParallel(make_mlp()))
    with pytest.raises(ValueError, match=r"takes models of FSDP2, got .*; use torch.*fully_shard"):
        Trajectory(model, make_sgd(model), None, [FGE(1)])

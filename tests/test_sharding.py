"""Models that FSDP2 splits between two processes give what one process gives."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from pfge import FGE, SWA, SWAG, Collector, Constant, Trajectory, load_checkpoint
from pfge.collectors import Star
from pfge.sharding import any_split, is_split, split_like, whole
from pfge.weights import load_weights
from tests.made_once import made_once
from tests.processes import fork_two
from tests.sharded_processes import (
    CYCLE,
    ITERATIONS,
    STOP,
    advance_together,
    loss_of,
    make_adam,
    make_averages,
    make_collectors,
    make_net,
    make_net_with_a_frozen_layer,
    unfreeze,
)
from tests.toys import make_batch, make_mlp, make_sgd

RANKS = (0, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes wrote."""
    return made_once(tmp_path_factory, "sharded", partial(fork_two, "tests.sharded_processes"))


def start_alone(*collectors: Collector) -> Trajectory:
    model = make_net()
    return Trajectory(model, make_adam(model), Constant(0.01), collectors or make_collectors())


def members_of(trajectory: Trajectory) -> list[list[dict[str, torch.Tensor]]]:
    return [list(collector.members()) for collector in trajectory.collectors]


@pytest.mark.slow
def test_members_are_those_of_one_process(folder: Path) -> None:
    alone = start_alone()
    advance_together(alone, ITERATIONS)
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
    advance_together(alone, ITERATIONS - STOP)
    torch.testing.assert_close(members_of(alone), load_checkpoint(folder / "whole 0"), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_all_processes_refuse_weights_that_are_not_finite_in_one(folder: Path) -> None:
    for rank, where in zip(RANKS, ("3.bias", "another process's part of the weights"), strict=True):
        text = (folder / f"error {rank}").read_text()
        assert text.startswith(f"[1] FGE(cycle=1, phase=0) needs finite weights, but {where} holds NaN")


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
    advance_together(start_alone(star), ITERATIONS)
    for rank in RANKS:
        for name in ("whole", "resumed"):
            found = load_checkpoint(folder / f"star {name} {rank}")["members"]
            torch.testing.assert_close(found, list(star.members()), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_in_a_block_all_processes_can_have_the_batch_norm_of_all_examples(folder: Path) -> None:
    found = [load_checkpoint(folder / f"batch norm {rank}") for rank in RANKS]
    expected = make_batch(0)[0].mean(0)
    for own, refreshed, came_back in found:
        torch.testing.assert_close(refreshed, expected)
        assert came_back
        assert not torch.equal(own, refreshed)
    assert not torch.equal(found[0][0], found[1][0])  # with DDP, those of training are each process's own


@pytest.mark.slow
def test_a_process_keeps_its_part_of_the_start_point_alone(folder: Path) -> None:
    for name in ("whole", "resumed"):
        sizes = [load_checkpoint(folder / f"star {name} {rank}")["sizes"] for rank in RANKS]
        assert [parts["0.weight"] for parts in sizes] == [[4, 4], [3, 4]]
        assert [len(parts) for parts in sizes] == [6, 6]


@pytest.mark.slow
def test_training_begins_with_a_frozen_layer_after_an_evaluation(folder: Path) -> None:
    model, fge = make_net(), FGE(1)
    model[2].requires_grad_(False)
    advance_together(Trajectory(model, make_adam(model), Constant(0.01), [fge]), 3)
    for rank in RANKS:
        found = load_checkpoint(folder / f"evaluated {rank}")
        torch.testing.assert_close(found, list(fge.members()), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_members_are_those_after_the_update_where_parameters_are_left_whole(folder: Path) -> None:
    fge = FGE(1)
    advance_together(start_alone(fge), 3)
    for rank in RANKS:
        found = load_checkpoint(folder / f"left whole {rank}")
        torch.testing.assert_close(found, list(fge.members()), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unfrozen", "unfrozen, resumed"])
def test_what_is_not_split_and_unfrozen_later_is_averaged(name: str, folder: Path) -> None:
    model = make_net_with_a_frozen_layer()
    alone = Trajectory(model, make_adam(model), Constant(0.01), make_averages())
    advance_together(alone, 2)
    unfreeze(alone)
    advance_together(alone, 4)
    for rank in RANKS:
        found = load_checkpoint(folder / f"{name} {rank}")
        torch.testing.assert_close(found, members_of(alone), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_one_process_draws_samples_that_all_have_asked_for(folder: Path) -> None:
    swag = SWAG(CYCLE, rank=2, samples=2)
    advance_together(start_alone(swag), ITERATIONS)
    torch.testing.assert_close(load_checkpoint(folder / "drawn"), list(swag.members()), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_distance_is_that_of_the_whole_weights_in_each_process(folder: Path) -> None:
    expected = torch.cat([p.detach().double().flatten() for p in make_net().parameters()]).norm().item()
    for rank in RANKS:
        assert load_checkpoint(folder / f"distance {rank}") == pytest.approx([expected] * 3)


@pytest.mark.slow
def test_a_zero_redundancy_optimizer_is_refused(folder: Path) -> None:
    for rank in RANKS:
        text = (folder / f"zero {rank}").read_text()
        assert "can clear at a restart, got ZeroRedundancyOptimizer, which" in text
        assert text.endswith("fully_shard(model), which splits its state as well")


@pytest.mark.slow
def test_the_average_is_applied_and_the_models_own_weights_come_back(folder: Path) -> None:
    swa = SWA(1)
    alone = start_alone(swa)
    advance_together(alone, 2)
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


def test_an_optimizer_with_its_state_in_another_one_is_refused() -> None:
    class ZeroRedundancyOptimizer(torch.optim.SGD):
        pass

    class Wrapped(ZeroRedundancyOptimizer):
        pass

    model = make_mlp()
    with pytest.raises(ValueError, match=r"got Wrapped, which keeps it in another .*; use a torch optimizer"):
        Trajectory(model, Wrapped(model.parameters(), lr=0.1), None, [FGE(1)])


def test_the_first_fsdp_is_refused() -> None:
    class FullyShardedDataParallel(nn.Sequential):
        pass

    model = nn.Sequential(FullyShardedDataParallel(make_mlp()))
    with pytest.raises(ValueError, match=r"takes models of FSDP2, got .*; use torch.*fully_shard"):
        Trajectory(model, make_sgd(model), None, [FGE(1)])

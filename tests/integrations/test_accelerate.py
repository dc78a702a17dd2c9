from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator, DistributedType
from accelerate.optimizer import AcceleratedOptimizer
from torch.optim.lr_scheduler import ExponentialLR

from pfge import FGE, PFGE, Collector, Constant, Trajectory
from pfge.integrations.accelerate import CollectWeights, require_supported
from pfge.trajectory import unwrap_optimizer
from tests.toys import (
    advance,
    assert_same_weights,
    classification_loss,
    make_batch,
    make_mlp,
    make_sgd,
    train,
)


def start(*collectors: Collector) -> tuple[CollectWeights, Accelerator, Any, Any]:
    accelerator = Accelerator(cpu=True)
    model = make_mlp()
    model, optimizer = accelerator.prepare(model, make_sgd(model))
    collecting = CollectWeights(accelerator, model, optimizer, None, collectors)
    return collecting, accelerator, model, optimizer


def test_a_loop_gains_an_ensemble_by_one_line() -> None:
    collecting, accelerator, model, optimizer = start(FGE(2))
    for number in range(6):
        optimizer.zero_grad()
        accelerator.backward(classification_loss(model, make_batch(number)))
        optimizer.step()
    ensemble = collecting.ensemble(make_mlp)
    assert ensemble.iterations == [2, 4, 6]
    assert ensemble.method == "FGE(cycle=2, phase=0)"


def test_an_optimizer_that_was_prepared_twice_is_looked_through() -> None:
    Accelerator(cpu=True)
    model = make_mlp()
    optimizer = make_sgd(model)
    assert unwrap_optimizer(model, AcceleratedOptimizer(AcceleratedOptimizer(optimizer))) is optimizer
    assert unwrap_optimizer(model, optimizer) is optimizer


def test_a_plain_trajectory_follows_a_prepared_optimizer() -> None:
    expected, found = PFGE(2, 4), PFGE(2, 4)
    train(make_mlp(), [expected], 8)
    accelerator = Accelerator(cpu=True)
    model = make_mlp()
    model, optimizer = accelerator.prepare(model, make_sgd(model))
    trajectory = Trajectory(model, optimizer, Constant(0.05), [found])
    advance(trajectory, 8)
    assert found.iterations == [4, 8]
    for one, two in zip(found.members(), expected.members(), strict=True):
        assert_same_weights(one, two)


def test_a_plain_trajectory_counts_the_steps_of_an_accumulation_of_many_batches() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=30)
    model = make_mlp()
    model, optimizer = accelerator.prepare(model, make_sgd(model))
    trajectory = Trajectory(model, optimizer, None, [fge := FGE(1)])
    for number in range(60):
        with accelerator.accumulate(model):
            accelerator.backward(classification_loss(model, make_batch(number)))
            trajectory.before_update()
            optimizer.step()
            trajectory.after_update()
            optimizer.zero_grad()
    assert fge.iterations == [1, 2]


def test_a_state_with_another_period_is_refused(tmp_path: Path) -> None:
    _, accelerator, model, optimizer = start(PFGE(1, 2))
    accelerator.backward(classification_loss(model, make_batch(0)))
    optimizer.step()
    accelerator.save_state(str(tmp_path / "state"))
    _, other, _, _ = start(PFGE(1, 3))
    with pytest.raises(ValueError, match=r"the state is of the collectors.*period=2.*got.*period=3"):
        other.load_state(str(tmp_path / "state"))


def test_a_scheduler_that_is_overridden_is_warned_of() -> None:
    accelerator = Accelerator(cpu=True)
    model = make_mlp()
    model, optimizer = accelerator.prepare(model, make_sgd(model))
    CollectWeights(accelerator, model, optimizer, Constant(0.05), [FGE(1)])
    scheduler = ExponentialLR(optimizer.optimizer, 0.5)
    accelerator.backward(classification_loss(model, make_batch(0)))
    optimizer.step()
    scheduler.step()
    with pytest.warns(UserWarning, match=r"learning rates were .* at update 1 and are now .*; remove it"):
        optimizer.step()


REFUSED = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA")


@pytest.mark.parametrize("kind", REFUSED)
def test_what_splits_the_weights_or_is_not_known_is_refused(kind: str) -> None:
    with pytest.raises(
        ValueError,
        match=f"every process has the whole weights, got {kind}; use DDP, or .*fully_shard in",
    ):
        require_supported(DistributedType(kind))


@pytest.mark.parametrize("kind", ["NO", "MULTI_CPU", "MULTI_GPU"])
def test_what_keeps_whole_weights_is_accepted(kind: str) -> None:
    require_supported(DistributedType(kind))

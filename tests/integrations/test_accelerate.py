from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator, DistributedType
from accelerate.optimizer import AcceleratedOptimizer
from torch.optim.lr_scheduler import ExponentialLR

from pfge import FGE, PFGE, Collector, Constant
from pfge.integrations.accelerate import CollectWeights, require_supported, unwrap_optimizer
from tests.toys import classification_loss, make_batch, make_mlp, make_sgd


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
    optimizer = make_sgd(make_mlp())
    assert unwrap_optimizer(AcceleratedOptimizer(AcceleratedOptimizer(optimizer))) is optimizer
    assert unwrap_optimizer(optimizer) is optimizer


def test_a_state_with_another_period_is_refused(tmp_path: Path) -> None:
    _, accelerator, model, optimizer = start(PFGE(1, 2))
    accelerator.backward(classification_loss(model, make_batch(0)))
    optimizer.step()
    accelerator.save_state(str(tmp_path / "state"))
    _, other, _, _ = start(PFGE(1, 3))
    with pytest.raises(ValueError, match=r"resumes with the collectors it had.*period=2.*got.*period=3"):
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

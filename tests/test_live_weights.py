"""Views of a model in training against a new walk over its modules."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from pfge import FGE, PFGE, SWA, Collector, Trajectory, load_checkpoint, save_checkpoint
from pfge.trajectory import LiveWeights
from pfge.weights import shared_part, view_weights
from tests.toys import assert_same_weights, make_mlp


def replace_layer(model: nn.Module) -> None:
    model[0] = nn.Linear(4, 8)


def replace_parameter(model: nn.Module) -> None:
    model[4].weight = nn.Parameter(torch.ones(3, 8))


def replace_buffer(model: nn.Module) -> None:
    model[1].running_mean = torch.ones(8)


def tie(model: nn.Module) -> None:
    model[1].bias = model[0].bias


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.to(torch.float64),
        lambda model: model[0].weight.data.copy_(torch.ones(8, 4)),
        lambda model: setattr(model[0].weight, "data", torch.ones(8, 4)),
        lambda model: torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.ones(8, 4))),
        replace_layer,
        replace_parameter,
        replace_buffer,
        tie,
        lambda model: model.append(nn.Linear(3, 2)),
        lambda model: model.register_buffer("scale", torch.ones(1)),
        lambda model: model[2].register_parameter("slope", nn.Parameter(torch.ones(1))),
        lambda model: model[0].register_parameter("bias", None),
        lambda model: weight_norm(model[0]),
        lambda model: model.__setitem__(0, torch.compile(model[0])),
    ],
)
def test_live_weights_are_those_that_the_model_has_now(change: Callable[[nn.Module], object]) -> None:
    model = make_mlp()
    live = LiveWeights(model)
    live.view()
    change(model)
    assert_same_weights(live.view(), view_weights(model))
    live.view()["4.bias"].fill_(7.0)
    assert model[4].bias.tolist() == [7.0, 7.0, 7.0]


def test_live_weights_walk_the_modules_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_mlp()
    live = LiveWeights(model)
    monkeypatch.setattr(nn.Module, "named_modules", lambda *_: pytest.fail("walked again"))
    assert_same_weights(live.view(), dict(model.state_dict()))


def test_views_have_the_same_tensors_while_these_stay_in_place() -> None:
    model = make_mlp()
    live = LiveWeights(model)
    before, after = live.view(), live.view()
    assert before is not after
    assert all(before[name] is after[name] for name in before)


def test_a_value_that_is_not_finite_is_found_when_it_appears_and_gone_with_it() -> None:
    model = make_mlp()
    live = LiveWeights(model)
    live.view()
    assert live.find_non_finite() is None
    with torch.no_grad():
        model[4].bias[1] = math.inf
    assert live.find_non_finite() == "4.bias"
    model[4].bias.data = torch.zeros(3)
    live.view()
    assert live.find_non_finite() is None


def test_a_frozen_parameter_that_becomes_non_finite_is_found() -> None:
    model = make_mlp()
    model[0].weight.requires_grad_(False)
    live = LiveWeights(model)
    live.freeze()
    live.view()
    assert live.find_non_finite() is None
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    live.view()
    assert live.find_non_finite() == "0.weight"


def test_a_parameter_that_is_replaced_before_training_begins_is_shared_while_frozen() -> None:
    model = make_mlp()
    live = LiveWeights(model)
    model[0].weight = nn.Parameter(torch.ones(8, 4), requires_grad=False)
    live.freeze()
    shared = shared_part(live.view())
    assert shared.keys() == {"0.weight"}
    assert shared["0.weight"].tolist() == [[1.0] * 4] * 8


class Masked(nn.Module):
    """Attends to the past alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))
        self.register_buffer("largest", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def make_masked(collector: Collector) -> Trajectory:
    model = Masked()
    return Trajectory(model, torch.optim.SGD(model.parameters(), lr=0.1), None, [collector])


def make_two_updates(trajectory: Trajectory) -> Trajectory:
    for _ in range(2):
        trajectory.optimizer.zero_grad()
        trajectory.model(torch.ones(3, 4)).square().mean().backward()
        trajectory.before_update()
        trajectory.optimizer.step()
        trajectory.after_update()
    return trajectory


def resume(trajectory: Trajectory, collector: Collector, path: Path) -> Trajectory:
    save_checkpoint(path, trajectory.state_dict())
    resumed = make_masked(collector)
    resumed.load_state_dict(load_checkpoint(path))
    return resumed


def test_a_buffer_that_was_infinite_at_the_start_is_collected_as_it_is(tmp_path: Path) -> None:
    first = make_two_updates(make_masked(PFGE(1, 2)))
    resumed = resume(first, collector := PFGE(1, 2), tmp_path / "state")
    make_two_updates(resumed)
    for member in collector.members():
        assert torch.equal(member["mask"], first.model.mask)
        assert member["layer.weight"].isfinite().all()
    assert len(collector.members()) == 2


@pytest.mark.parametrize("resumed", [False, True])
def test_a_buffer_that_becomes_infinite_beside_a_mask_is_found(resumed: bool, tmp_path: Path) -> None:
    trajectory = make_two_updates(make_masked(FGE(2)))
    trajectory.model.largest.fill_(math.inf)
    if resumed:
        trajectory = resume(trajectory, FGE(2), tmp_path / "state")
    with pytest.raises(ValueError, match="needs finite weights, but largest holds NaN or infinity"):
        make_two_updates(trajectory)


def test_a_sparse_buffer_is_refused_with_the_remedy() -> None:
    model = nn.Linear(4, 2)
    model.register_buffer("adjacency", torch.eye(8).to_sparse())
    with pytest.raises(ValueError, match=r"dense tensors only, but adjacency .*persistent=False"):
        Trajectory(model, torch.optim.SGD(model.parameters()), None, [SWA(1)])
    model.register_buffer("adjacency", torch.eye(8).to_sparse(), persistent=False)
    assert LiveWeights(model).view().keys() == {"weight", "bias"}

"""PFGE and its ensemble work on whatever model a user brings."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations

from pfge import PFGE, SWA, SWAG, Ensemble, Weights
from pfge.weights import view_weights
from tests.toys import advance, make_batch, make_mlp, train


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


def check(
    build: Callable[[], nn.Module], wrap: Callable[[nn.Module], nn.Module] = lambda m: m
) -> list[Weights]:
    """Train with PFGE, predict with the members, and check the last one against the live model."""
    pfge = PFGE(2, 4)
    model = seeded(build)
    train(wrap(model), [pfge], 8)
    members = pfge.members()
    assert len(members) == 2
    # The run has just restarted from the last member, so the model is that member.
    live = view_weights(model)
    assert members[1].keys() == live.keys()
    for name, tensor in live.items():
        assert torch.equal(members[1][name], tensor), name
    inputs = make_batch(99)[0]
    probabilities = Ensemble(members, build).predict_members(inputs)
    assert torch.allclose(probabilities[1], model.eval()(inputs).detach().float().softmax(1), atol=1e-6)
    return list(members)


class WithBuffers(nn.Module):
    """Counts its calls, has a mask, and replaces one buffer instead of writing into it."""

    calls: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = make_mlp()
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("mask", torch.tensor([True, False, True, True]))
        self.register_buffer("scale", torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls = self.calls + 1
            self.scale = self.scale * 1.001
        return self.body(x * self.mask) * self.scale


def test_batch_norm() -> None:
    members = check(make_mlp)
    assert members[0]["1.num_batches_tracked"].item() == 4


def test_integer_and_boolean_buffers_and_buffers_that_are_replaced() -> None:
    members = check(WithBuffers)
    assert [member["calls"].item() for member in members] == [4, 8]
    assert members[0]["mask"].dtype == torch.bool
    assert members[1]["scale"].item() == pytest.approx(1.001**8)


def test_bf16_models_have_bf16_members() -> None:
    def build() -> nn.Module:
        return nn.Sequential(Cast(torch.bfloat16), make_mlp().bfloat16(), Cast(torch.float32))

    members = check(build)
    assert members[0]["1.0.weight"].dtype == torch.bfloat16


class Cast(nn.Module):
    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)


class Tied(nn.Module):
    """Two layers that are one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())[:, :3]


def test_tied_parameters_are_averaged_once_and_stay_tied() -> None:
    members = check(Tied)
    assert "second.weight" not in members[0]
    swa, model = SWA(1), seeded(Tied)
    trajectory = train(model, [swa], 0)
    path = [model.first.weight.detach().clone()]
    for _ in range(3):
        advance(trajectory, 1)
        path.append(model.first.weight.detach().clone())
    torch.testing.assert_close(swa.members()[0]["first.weight"], torch.stack(path).mean(0))
    assert model.second.weight is model.first.weight


def test_frozen_parameters_do_not_move() -> None:
    def build() -> nn.Module:
        model = make_mlp()
        model[0].weight.requires_grad_(False)
        return model

    start = seeded(build)[0].weight
    for member in check(build):
        assert torch.equal(member["0.weight"], start)


def test_weight_norm() -> None:
    def build() -> nn.Module:
        return nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3)))

    assert "0.parametrizations.weight.original0" in check(build)[0]


def test_spectral_norm_keeps_its_unit_vectors() -> None:
    def build() -> nn.Module:
        return nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 3)))

    for member in check(build):
        assert member["0.parametrizations.weight.0._u"].norm().item() == pytest.approx(1, abs=1e-6)


def test_swag_samples_of_batch_norm_have_no_random_statistics() -> None:
    swag = SWAG(1, samples=2)
    model = make_mlp()
    train(model, [swag], 4)
    for member in swag.members():
        assert torch.equal(member["1.running_var"], model[1].running_var)
        assert not torch.equal(member["0.weight"], model[0].weight)


@pytest.mark.slow
def test_compiled_models() -> None:
    members = check(make_mlp, lambda model: torch.compile(model))
    assert set(members[0]) == set(make_mlp().state_dict())


def test_names_inside_a_partly_compiled_model_are_canonical() -> None:
    model = make_mlp()
    names = set(view_weights(model))
    model[0] = torch.compile(model[0])
    assert set(view_weights(model)) == names


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_ddp_wrapped_models() -> None:
    wrapped, alone = PFGE(2, 4), PFGE(2, 4)
    train(DistributedDataParallel(make_mlp()), [wrapped], 8)
    train(make_mlp(), [alone], 8)
    for one, two in zip(wrapped.members(), alone.members(), strict=True):
        assert one.keys() == two.keys()
        for name in one:
            torch.testing.assert_close(one[name], two[name])


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
        lambda model: torch.optim.RMSprop(model.parameters(), lr=0.01),
        lambda model: torch.optim.SGD(
            [{"params": model[0].parameters()}, {"params": model[4].parameters(), "lr": 0.001}], lr=0.01
        ),
    ],
    ids=["adamw", "rmsprop", "groups"],
)
def test_other_optimizers_and_groups(make_optimizer: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    pfge = PFGE(2, 4)
    trajectory = train(make_mlp(), [pfge], 8, make_optimizer=make_optimizer)
    assert pfge.iterations == [4, 8]
    assert not trajectory.optimizer.state  # the restart at 8 made it a new optimizer
    assert not torch.equal(pfge.members()[0]["0.weight"], pfge.members()[1]["0.weight"])

"""A model that the user's factory returns, and that is in use elsewhere, stays as it is."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from pfge import Bits, Ensemble, Weights, compress, fit_cascade
from pfge.compression import Distillation, distil
from pfge.forward import ModuleFactory, OwnedModel
from pfge.weights import copy_weights, load_weights, view_weights
from tests.toys import assert_same_weights, make_batch, make_mlp, make_sgd

X, Y = make_batch(7, size=20)
CPU = torch.device("cpu")


def members_of(model: nn.Module, count: int = 3) -> list[Weights]:
    """Weights near those of a model, but for the parameters that are frozen."""
    noise = torch.Generator().manual_seed(0)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return [
        {
            name: t + 0.03 * torch.randn(t.shape, generator=noise) if name in trained else t.clone()
            for name, t in view_weights(model).items()
        }
        for _ in range(count)
    ]


def state_of(model: nn.Module) -> dict[str, Any]:
    """All of a model that a prediction could change, down to which tensors the optimizer has."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {
        "values": [(name, tensor.tolist()) for name, tensor in tensors],
        "objects": [(name, id(tensor), tensor.data_ptr(), tensor.requires_grad) for name, tensor in tensors],
        "modes": [(name, module.training) for name, module in model.named_modules()],
        "hooks": [len(module._forward_hooks) for module in model.modules()],
    }


class Adapted(nn.Module):
    """A frozen layer and a trained low-rank addition to it, as LoRA has them."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 3).requires_grad_(False)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        base: Tensor = self.base(x)
        return base + self.up(self.down(x))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.norm, self.decode = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.decode(self.norm(self.encode(x)).relu()))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.LSTM(2, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.memory(x.view(2, -1, 2))[0][-1]))


def normed() -> nn.Module:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 3))
    model(X)  # in training, tensors that were computed from others may be kept
    return model


KINDS: list[Callable[[], nn.Module]] = [make_mlp, Adapted, Tied, Recurrent, normed]


def predict(ensemble: Ensemble) -> None:
    ensemble.predict(X)


def evaluate(ensemble: Ensemble) -> None:
    ensemble.evaluate([(X, Y)])


def calibrate(ensemble: Ensemble) -> None:
    ensemble.calibrated([(X, Y)]).predict(X)


def refresh(ensemble: Ensemble) -> None:
    ensemble.with_fresh_batch_norm([X]).predict(X)


def make_module(ensemble: Ensemble) -> None:
    ensemble.as_module()(X)


def pack(ensemble: Ensemble) -> None:
    packed = compress(ensemble, Bits(4))
    packed.predict(X)
    distil(ensemble, packed, [X], Distillation(iterations=2)).predict(X)


def cascade(ensemble: Ensemble) -> None:
    fit_cascade(ensemble, [(X, Y)], max_accuracy_loss=0.1).predict(ensemble, X)


USES = [predict, evaluate, calibrate, refresh, make_module, pack, cascade]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.filterwarnings("ignore:the temperature stays 1")
def test_a_model_in_training_is_as_before_after_an_ensemble_used_it(
    use: Callable[[Ensemble], None],
) -> None:
    model = make_mlp().train()
    model[1].eval()  # frozen for training
    model[0].bias.requires_grad_(False)
    optimizer = make_sgd(model)
    before = state_of(model)
    use(Ensemble(members_of(model), lambda: model))
    assert state_of(model) == before
    assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], model.parameters(), strict=True))


@pytest.mark.parametrize("make_model", KINDS, ids=lambda kind: kind.__name__)
def test_the_copy_of_a_model_in_use_predicts_what_new_models_do(make_model: Callable[[], nn.Module]) -> None:
    model = make_model().train()
    before, members = state_of(model), members_of(model)
    pooled = torch.zeros(())
    for member in members:
        load_weights(alone := make_model().eval(), member)
        pooled = pooled + alone(X).softmax(dim=1) / len(members)
    ensemble = Ensemble(members, lambda: model)
    torch.testing.assert_close(ensemble.predict(X), pooled.detach())
    torch.testing.assert_close(ensemble.as_module()(X), pooled.detach())
    assert state_of(model) == before


def test_distillation_trains_beside_a_model_in_use_as_beside_a_new_one() -> None:
    model = make_mlp()
    members, found = members_of(model), []
    for factory in (lambda: model, make_mlp):
        ensemble = Ensemble(members, factory)
        packed = compress(ensemble, Bits(2))
        found.append(distil(ensemble, packed, [X], Distillation(iterations=5)).predict(X))
    assert torch.equal(*found)
    assert not torch.equal(found[0], packed.predict(X))


CACHED = functools.cache(make_mlp)
SHARED = make_mlp(1)
ACTIVATION = nn.Dropout(0.5)


def wrapper_of_a_model_in_use() -> nn.Module:
    return nn.Sequential(SHARED, nn.Softplus())


def new_layer_with_a_parameter_in_use() -> nn.Module:
    layer = nn.Linear(4, 8)
    layer.weight = SHARED[0].weight
    return nn.Sequential(layer, nn.Linear(8, 3))


def new_parameter_in_memory_in_use() -> nn.Module:
    layer = nn.Linear(4, 8)
    layer.weight = nn.Parameter(SHARED[0].weight)
    return nn.Sequential(layer, nn.Linear(8, 3))


def new_model_with_a_dropout_in_use() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), ACTIVATION)


@pytest.mark.parametrize(
    ("factory", "used"),
    [
        (CACHED, CACHED()),
        (wrapper_of_a_model_in_use, SHARED),
        (new_layer_with_a_parameter_in_use, SHARED),
        (new_parameter_in_memory_in_use, SHARED),
        (new_model_with_a_dropout_in_use, ACTIVATION),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_part_that_is_in_use_is_noticed(factory: Callable[[], nn.Module], used: nn.Module) -> None:
    before = state_of(used.train())
    Ensemble(members_of(factory()), factory).predict(X)
    assert state_of(used) == before


def test_a_factory_of_new_models_is_called_twice_at_first_and_then_once_for_each_ensemble() -> None:
    made: list[nn.Module] = []

    def make() -> nn.Module:
        made.append(nn.Linear(4, 3))
        return made[-1]

    ensemble = Ensemble([copy_weights(view_weights(nn.Linear(4, 3)))], make)
    torch.manual_seed(0)
    ensemble.predict(X)
    drawn = torch.rand(1)
    ensemble.predict(X)
    assert len(made) == 2
    ensemble.uncalibrated().predict(X)
    assert len(made) == 3
    torch.manual_seed(0)
    make()
    assert torch.equal(drawn, torch.rand(1)), "the second call drew from the user's random state"


def test_new_models_are_used_as_they_are_and_not_copied() -> None:
    made: list[nn.Module] = []

    def make() -> nn.Module:
        made.append(nn.Linear(4, 3))
        return made[-1]

    assert ModuleFactory(make).new(CPU) is made[1]


def test_a_model_that_was_handed_over_is_used_in_place_and_copied_for_a_second_module() -> None:
    factory = ModuleFactory(OwnedModel(model := nn.Linear(4, 3)))
    assert factory.resident(CPU) is model
    copied = factory.new(CPU)
    assert copied is not model
    assert_same_weights(view_weights(copied), view_weights(model))


def test_a_copy_has_no_gradients_and_no_memory_of_the_model() -> None:
    model = nn.Linear(4, 3)
    model(X).sum().backward()
    copied = ModuleFactory(lambda: model).new(CPU)
    assert all(parameter.grad is None for parameter in copied.parameters())
    assert {p.data_ptr() for p in copied.parameters()}.isdisjoint(p.data_ptr() for p in model.parameters())


class Scaled(nn.Module):
    """Its function refers to the model, which a copy cannot change."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(1)), nn.Linear(4, 3)
        self.activate = lambda x: self.scale * x

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.activate(self.layer(x)))


def test_a_model_in_use_whose_copy_would_use_its_weights_is_refused() -> None:
    members = members_of(Scaled())
    model = Scaled()
    with pytest.raises(ValueError, match=r"activate of Scaled is a function .*return a new model"):
        Ensemble(members, lambda: model).predict(X)
    load_weights(alone := Scaled(), members[0])
    found = Ensemble(members[:1], Scaled).predict(X)
    torch.testing.assert_close(found, alone(X).softmax(dim=1).detach())


def test_a_hook_that_refers_to_the_model_is_refused_too() -> None:
    model = make_mlp()
    model[0].register_forward_hook(lambda *_: model[1].weight.sum() and None)
    with pytest.raises(ValueError, match="a forward hook of 0 is a function that refers to the model"):
        Ensemble(members_of(model), lambda: model).predict(X)


def test_two_new_models_are_never_in_memory_at_once() -> None:
    alive: list[weakref.ref[nn.Module]] = []

    def make() -> nn.Module:
        assert [ref for ref in alive if ref() is not None] == []
        alive.append(weakref.ref(model := nn.Linear(4, 3)))
        return model

    ModuleFactory(make).new(CPU)
    assert len(alive) == 2

"""An ensemble as a module answers what the ensemble predicts, in every form."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pfge import Ensemble, Weights
from pfge.calibration import CalibrateBy, Temperatures
from pfge.ensemble_module import EnsembleModule, Form
from pfge.packed import PackSettings, pack_members
from pfge.weights import copy_weights, view_weights
from tests.tasks.cases import CASES
from tests.toys import assert_same_weights, make_batch, make_mlp

X = make_batch(7, size=20)[0]
BOTH: tuple[CalibrateBy, CalibrateBy] = ("pooled", "members")
HOT = Temperatures(1.7, (0.5, 1.0, 2.0), weights=(0.6, 0.1, 0.3))


def mlp_members(count: int = 3) -> list[Weights]:
    return [copy_weights(view_weights(make_mlp(seed))) for seed in range(count)]


def packed(ensemble: Ensemble) -> Ensemble:
    widths = {"0.weight": 3, "4.weight": 1}
    members = pack_members(ensemble.members, widths, PackSettings(group=5, small_bits=16))
    return ensemble.with_members(members, temperatures=ensemble.temperatures)


def assert_same(found: Tensor, expected: Tensor, tolerance: float = 1e-6) -> None:
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def smallest(temperature: Any) -> float:
    """Return the smallest of all temperatures: of members, of labels, or the only one."""
    return min(map(smallest, temperature)) if isinstance(temperature, tuple) else temperature or 1.0


@pytest.mark.parametrize("form", ["loop", "vmap"])
@pytest.mark.parametrize("name", CASES)
def test_each_task_is_predicted_as_the_ensemble_does(name: str, form: Any) -> None:
    case = CASES[name]
    pooled, each = (
        case.ensemble().calibrated([(case.inputs, case.targets)], by=by).temperatures for by in BOTH
    )
    # Fixed noise has one variance, fitted for the members or for their mean.
    both = pooled if case.task.needs_calibration else Temperatures(pooled.pooled, each.members)
    ensemble = case.ensemble().with_members(case.members(), temperatures=both)
    # Logits of float32 are divided by both temperatures in turn, which are small here, and so is their
    # rounding. How the products of vmap are rounded depends on the processor.
    sharpened = smallest(both.pooled) * smallest(both.members)
    tolerance = max(1e-6, torch.finfo(torch.float32).eps / sharpened)
    assert_same(ensemble.as_module(form=form)(case.inputs), ensemble.predict(case.inputs), tolerance)


@pytest.mark.parametrize("form", ["loop", "vmap", "packed"])
def test_packed_members_are_predicted_in_every_form(form: Any) -> None:
    ensemble = packed(Ensemble(mlp_members(), make_mlp, temperatures=HOT))
    assert_same(ensemble.as_module(form=form)(X), ensemble.predict(X))


def test_packed_members_stay_packed_in_memory() -> None:
    ensemble = packed(Ensemble(mlp_members(), make_mlp))
    module = ensemble.as_module(form="packed")
    assert sum(tensor.nbytes for tensor in module.state_dict().values()) == ensemble.nbytes


def test_packed_needs_packed_members() -> None:
    with pytest.raises(ValueError, match='form="packed" needs packed members'):
        Ensemble(mlp_members(), make_mlp).as_module(form="packed")


def test_no_members_are_refused() -> None:
    with pytest.raises(ValueError, match="an ensemble needs a member to predict"):
        Ensemble([], make_mlp).as_module()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["loop", "vmap", "packed"])
def test_torch_export_takes_it_for_any_size_of_batch(form: Any, tmp_path: Path) -> None:
    ensemble = packed(Ensemble(mlp_members(), make_mlp, temperatures=HOT))
    module = ensemble.as_module(form=form)
    sizes = {0: torch.export.Dim("batch")}
    program = torch.export.export(module, (X,), dynamic_shapes=((sizes,),))
    torch.export.save(program, tmp_path / "e.pt2")
    found = torch.export.load(tmp_path / "e.pt2").module()(X[:3])
    assert_same(found, ensemble.predict(X[:3]))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["loop", "vmap", "packed"])
def test_torch_compile_makes_one_graph_of_it(form: Any) -> None:
    ensemble = packed(Ensemble(mlp_members(), make_mlp, temperatures=HOT))
    module = torch.compile(ensemble.as_module(form=form), fullgraph=True, backend="aot_eager")
    assert_same(module(X), ensemble.predict(X))


@pytest.mark.slow
def test_torch_compile_generates_code_that_predicts_the_same() -> None:
    ensemble = Ensemble(mlp_members(), make_mlp, temperatures=HOT)
    assert_same(torch.compile(ensemble.as_module(), fullgraph=True)(X), ensemble.predict(X))


@pytest.mark.parametrize("form", ["loop", "packed"])
def test_a_state_dict_carries_an_ensemble_to_another_module(form: Any) -> None:
    one, two = (packed(Ensemble(members, make_mlp)) for members in (mlp_members(3), mlp_members(4)[1:]))
    module = one.as_module(form=form)
    state = deepcopy(two.as_module(form=form).state_dict())
    module.load_state_dict(state)
    assert_same(module(X), two.predict(X))


def test_values_of_all_members_lie_along_a_first_dimension_and_equal_ones_once() -> None:
    members = mlp_members()
    for member in members:
        member["4.weight"] = members[0]["4.weight"]
    shapes = {n: list(t.shape) for n, t in Ensemble(members, make_mlp).as_module().state_dict().items()}
    assert shapes["model.0.weight"] == [3, *members[0]["0.weight"].shape]
    assert shapes["model.4.weight"] == list(members[0]["4.weight"].shape)


@pytest.mark.parametrize("form", ["loop", "vmap", "packed"])
def test_to_moves_and_casts_everything(form: Any) -> None:
    ensemble = packed(Ensemble(mlp_members(), make_mlp))
    expected = ensemble.predict(X)
    module = ensemble.as_module(form=form)
    assert all(tensor.is_meta for tensor in deepcopy(module).to("meta").state_dict().values())
    halved = module.to(torch.bfloat16)(X.bfloat16())
    torch.testing.assert_close(halved, expected, rtol=0, atol=0.05)


def test_members_stay_in_evaluation_mode_and_nothing_is_trained() -> None:
    ensemble = Ensemble(mlp_members(), make_mlp)
    module = nn.Sequential(ensemble.as_module()).train()
    assert_same(module(X), ensemble.predict(X))
    assert not any(parameter.requires_grad for parameter in module.parameters())


class _Tied(nn.Module):
    """Encodes and decodes with one matrix, and takes two inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.back = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.back.weight = self.there.weight

    def forward(self, x: Tensor, shift: Tensor) -> dict[str, Tensor]:
        return {"logits": self.back(self.there(x).tanh() + shift)}


@pytest.mark.parametrize("form", ["loop", "vmap"])
def test_tied_weights_and_inputs_by_name_or_place(form: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    members = [{"there.weight": torch.randn(4, 4, generator=generator)} for _ in range(3)]
    batch = {"x": X, "shift": torch.ones(20, 4)}
    ensemble = Ensemble(members, _Tied)
    module = ensemble.as_module(form=form)
    assert_same(module(**batch), ensemble.predict(batch))
    assert_same(module(X, torch.ones(20, 4)), ensemble.predict(batch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tied_weights_stay_packed(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    members = [{"there.weight": torch.randn(4, 4, generator=generator)} for _ in range(3)]
    ensemble = Ensemble(pack_members(members, 4, PackSettings()), _Tied)
    batch = {"x": X, "shift": torch.ones(20, 4)}
    module = ensemble.as_module(form="packed").to(dtype)
    found = module(**{name: tensor.to(dtype) for name, tensor in batch.items()})
    assert_same(found, ensemble.predict(batch))


class _Twice(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.second(self.first(x).tanh())
        return logits


@pytest.mark.parametrize("form", ["loop", "vmap", "packed"])
def test_a_layer_under_two_names_predicts_the_same_again(form: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"first.weight": (4, 4), "first.bias": (4,)}
    members = [{n: torch.randn(s, generator=generator) for n, s in shapes.items()} for _ in range(3)]
    ensemble = Ensemble(pack_members(members, 4, PackSettings()), _Twice)
    module = ensemble.as_module(form=form)
    for _ in range(2):
        assert_same(module(X), ensemble.predict(X))


def test_an_unknown_form_is_refused() -> None:
    form: Any = "side by side"
    with pytest.raises(ValueError, match="form must be one of loop, vmap, packed, got 'side by side'"):
        Ensemble(mlp_members(), make_mlp).as_module(form=form)


@pytest.mark.parametrize("form", ["loop", "packed"])
def test_a_live_model_is_left_as_it_is(form: Any) -> None:
    model = make_mlp()
    ensemble = packed(Ensemble(mlp_members(), lambda: model))
    before = copy_weights(view_weights(model))
    module = ensemble.as_module(form=form)
    assert_same_weights(view_weights(model), before)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert_same(module(X), ensemble.predict(X))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_model_that_keeps_what_it_computed_from_its_weights_is_taken() -> None:
    def build() -> nn.Module:
        model = nn.utils.weight_norm(nn.Linear(4, 3))
        model(X)
        return model

    members = [copy_weights(view_weights(build())) for _ in range(3)]
    ensemble = Ensemble(members, build)
    assert_same(ensemble.as_module()(X), ensemble.predict(X))


def test_a_forward_pass_of_the_users_own_is_used() -> None:
    ensemble = Ensemble(mlp_members(), make_mlp, forward=lambda model, batch: 2 * model(batch["x"]))
    assert_same(ensemble.as_module()({"x": X}), ensemble.predict({"x": X}))
    assert_same(ensemble.as_module()(x=X), ensemble.predict({"x": X}))


def test_an_example_decides_between_loop_and_vmap_by_time() -> None:
    module = Ensemble(mlp_members(), make_mlp).as_module([X, "labels"])
    assert module.seconds.keys() == {"loop", "vmap"}
    assert module.form == min(module.seconds, key=lambda form: module.seconds[form])


class _Branching(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = super().forward(x)
        return outputs if outputs.sum().item() > 0 else -outputs


def test_a_model_that_vmap_cannot_evaluate_stays_in_a_loop() -> None:
    members = [dict(_Branching(4, 3).state_dict()) for _ in range(2)]
    ensemble = Ensemble(members, lambda: _Branching(4, 3))
    module = ensemble.as_module(X)
    assert module.seconds.keys() == {"loop"}
    assert_same(module(X), ensemble.predict(X))


def test_weights_of_another_architecture_are_refused() -> None:
    for ensemble in (Ensemble(mlp_members(), lambda: nn.Linear(4, 3)),):
        with pytest.raises(ValueError, match="the model"):
            ensemble.as_module()
    assert isinstance(Ensemble(mlp_members(), make_mlp).as_module(), EnsembleModule)


@pytest.mark.parametrize("form", ["loop", "vmap"])
def test_outputs_that_already_are_probabilities_are_refused(form: Form) -> None:
    def make_model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))

    ensemble = Ensemble([make_model().state_dict() for _ in range(2)], make_model)
    with pytest.raises(ValueError, match="probabilities already"):
        ensemble.as_module(form=form)(torch.randn(5, 4))


def test_outputs_are_not_looked_at_where_they_have_no_values() -> None:
    ensemble = Ensemble([nn.Linear(4, 3).state_dict() for _ in range(2)], lambda: nn.Linear(4, 3))
    inputs = torch.randn(6, 5, 4)
    expected = torch.stack([ensemble.predict(x) for x in inputs])
    torch.testing.assert_close(torch.func.vmap(ensemble.as_module())(inputs), expected)

import itertools
from collections import UserDict, namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from pfge import Ensemble, refresh_batch_norm
from pfge.forward import (
    call_model,
    keep_modes,
    move_batch,
    repeat_batches,
    require_order_of_targets,
    require_same_order,
    run_model,
)
from tests.toys import make_mlp


def test_every_module_is_in_its_old_mode_again_even_after_an_error() -> None:
    model = make_mlp()
    model[1].eval()
    before = [module.training for module in model.modules()]

    def change_and_fail() -> None:
        with keep_modes(model):
            model[1].train()
            model[3].eval()
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        change_and_fail()
    assert [module.training for module in model.modules()] == before


def test_batches_are_read_again_and_again() -> None:
    assert list(itertools.islice(repeat_batches([1, 2, 3]), 7)) == [1, 2, 3, 1, 2, 3, 1]


def test_batches_that_end_for_good_are_refused() -> None:
    endless = repeat_batches(iter([1]))
    assert next(endless) == 1
    with pytest.raises(ValueError, match="batches ended before the last iteration"):
        next(endless)


class Named(nn.Module):
    """Takes and returns values by name, as the models of transformers do."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": x.sum(), "logits": 2 * x}


def test_of_outputs_by_name_the_logits_are_taken() -> None:
    x = torch.ones(2, 3)
    for batch in (x, {"x": x}, UserDict(x=x), (x, torch.zeros(2))):
        assert torch.equal(call_model(Named(), batch), 2 * x)


class Sum(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + 10 * y


def test_several_inputs_are_the_arguments_of_the_model() -> None:
    x, y = torch.ones(2, 3), torch.full((2, 3), 2.0)
    for inputs in ((x, y), [x, y]):
        assert torch.equal(call_model(Sum(), (inputs, torch.zeros(2))), torch.full((2, 3), 21.0))


def test_a_dict_with_names_that_forward_does_not_take_is_refused_with_the_remedy() -> None:
    batch = {"x": torch.ones(2, 3), "labels": torch.zeros(2)}
    message = r"forward takes, x, got labels too; pass forward=.*model\(batch\['x'\]\)"
    for model in (Named(), torch.compile(Named())):
        with pytest.raises(ValueError, match=message):
            call_model(model, batch)


class TakesAll(nn.Module):
    def forward(self, x: Tensor, **others: Tensor) -> Tensor:
        return x + sum(others.values())


def test_a_forward_that_takes_any_name_is_given_all() -> None:
    assert call_model(TakesAll(), {"x": torch.ones(2), "y": torch.ones(2)}).tolist() == [2, 2]


class SaysNothing(nn.Module):
    forward = dict  # has no signature, as the forward of a scripted module


def test_a_model_that_does_not_say_what_it_takes_is_called() -> None:
    assert call_model(SaysNothing(), {"labels": 1}) == {"labels": 1}


Pair = namedtuple("Pair", ["x", "y"])


def test_a_batch_is_moved_whatever_it_is_made_of() -> None:
    def tensor() -> Tensor:
        return torch.ones(2)

    meta = torch.device("meta")
    batch = [tensor(), (tensor(), "name"), {"a": {"b": [tensor()]}}, UserDict(c=tensor()), Pair(tensor(), 1)]
    first, (second, name), third, fourth, pair = move_batch(batch, meta)
    moved = [first, second, third["a"]["b"][0], fourth["c"], pair.x]
    assert {part.device for part in moved} == {meta}
    assert (name, pair.y, type(pair)) == ("name", 1, Pair)
    assert move_batch(kept := tensor(), torch.device("cpu")) is kept
    assert move_batch(kept, None) is kept
    assert move_batch(other := object(), meta) is other


def test_a_batch_meets_a_model_on_another_device() -> None:
    model = nn.Linear(3, 2, device="meta")
    batch = (torch.ones(4, 3), torch.zeros(4))
    assert run_model(model, batch).device.type == "meta"
    assert run_model(model, batch, lambda model, batch: model(batch[0])).device.type == "meta"
    assert run_model(nn.Identity(), batch).device.type == "cpu"


def test_an_ensemble_and_batch_norm_move_batches() -> None:
    def make_model() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))

    batch = (torch.ones(4, 3), torch.zeros(4))
    seen = []

    def forward(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.append(batch[0].device.type)
        return model(batch[0])

    members = [make_model().to("meta").state_dict()]
    assert Ensemble(members, make_model, forward=forward).to("meta").predict(batch).shape == (4, 2)
    refresh_batch_norm(make_model().to("meta"), [batch], forward=forward)
    assert seen == ["meta", "meta"]


NUMBERS = torch.arange(8.0)
RANDOM: list[Sampler[int]] = [
    RandomSampler(NUMBERS),
    SubsetRandomSampler(range(8)),
    WeightedRandomSampler([1.0] * 8, 8),
]


def loaders(sampler: Sampler[int]) -> list[DataLoader[Any]]:
    """The three ways in which a loader may take a sampler."""
    return [
        DataLoader(NUMBERS, batch_size=2, sampler=sampler),
        DataLoader(NUMBERS, batch_sampler=BatchSampler(sampler, 2, drop_last=False)),
        DataLoader(NUMBERS, batch_size=None, sampler=BatchSampler(sampler, 2, drop_last=False)),
    ]


@pytest.mark.parametrize("sampler", RANDOM)
def test_a_loader_with_any_random_sampler_is_refused_where_order_matters(sampler: Sampler[int]) -> None:
    for loader in loaders(sampler):
        with pytest.raises(ValueError, match="same order for each member, got a DataLoader that shuffles"):
            require_same_order(loader, 2)
        with pytest.raises(ValueError, match="order of their targets, got a DataLoader that shuffles"):
            require_order_of_targets(loader)
        require_same_order(loader, 1)


def test_a_loader_in_a_fixed_order_is_taken() -> None:
    for loader in [*loaders(SequentialSampler(NUMBERS)), DataLoader(NUMBERS), [NUMBERS]]:
        require_same_order(loader, 2)
        require_order_of_targets(loader)

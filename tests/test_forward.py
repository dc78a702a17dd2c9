import itertools
from collections import UserDict, namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
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
    require_same_order,
    run_model,
    targets_of,
    without_targets,
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


@pytest.mark.parametrize("batch", [(1, 2, 3), [1, 2, 3], namedtuple("Three", "x y z")(1, 2, 3)])
def test_three_or_more_entries_are_refused_as_none_may_be_dropped(batch: Any) -> None:
    with pytest.raises(ValueError, match=r"or inputs and targets, got 3 entries; pass forward=lambda model"):
        call_model(nn.Identity(), batch)


class Read(nn.Module):
    """Logits [N, 2] of packed sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.head = nn.LSTM(3, 4), nn.Linear(4, 2)

    def forward(self, sequences: PackedSequence) -> Tensor:
        return self.head(self.read(sequences)[1][0][0])


def test_a_packed_sequence_is_one_input() -> None:
    generator = torch.Generator().manual_seed(0)
    sequences = pack_sequence(
        [torch.randn(n, 3, generator=generator) for n in (2, 5, 3)], enforce_sorted=False
    )
    model = Read()
    expected = model(sequences)
    labels = torch.tensor([0, 1, 1])
    ensemble = Ensemble([model.state_dict()], Read)
    for batch in (sequences, (sequences, labels), [sequences], ((sequences,), labels)):
        assert torch.equal(call_model(model, batch), expected)
        torch.testing.assert_close(ensemble.predict(batch), expected.softmax(dim=1))
    nll = ensemble.task.summarize(ensemble.evaluate([(sequences, labels)]))["nll"]
    assert nll == pytest.approx(nn.functional.cross_entropy(expected, labels).item(), rel=1e-6)
    torch.testing.assert_close(ensemble.as_module()(sequences), expected.softmax(dim=1))


def test_a_packed_sequence_is_moved_as_a_whole() -> None:
    sequences = pack_sequence([torch.ones(2, 3), torch.ones(1, 3)])
    moved, _ = move_batch((sequences, torch.ones(2)), torch.device("meta"))
    assert isinstance(moved, PackedSequence)
    assert (moved.data.device.type, moved.batch_sizes.device.type) == ("meta", "cpu")
    assert move_batch(sequences, None) is sequences


x, mask, y = torch.zeros(2, 3), torch.ones(2, 3), torch.tensor([0, 1])
Three = namedtuple("Three", ["x", "mask", "y"])


@pytest.mark.parametrize(
    ("batch", "at"),
    [
        ((x, y), None),
        ([x, y], None),
        (((x, mask), y), None),
        ({"x": x, "labels": y}, None),
        (UserDict(x=x, labels=y), None),
        ((x, mask, y), 2),
        ((x, mask, y), -1),
        (Three(x, mask, y), 2),
        ((y, x), 0),
        ({"x": x, "class": y}, "class"),
        ({"x": x, "class": y}, lambda batch: batch["class"]),
        ((x, {"class": y}), lambda batch: batch[1]["class"]),
    ],
)
def test_targets_are_at_the_usual_place_or_where_the_user_says(batch: Any, at: Any) -> None:
    assert targets_of(batch, at) is y


@pytest.mark.parametrize(
    ("batch", "at", "message"),
    [
        ((x, mask, y), None, "a batch of 3 entries does not say which one is the targets; pass targets=.*2"),
        (Three(x, mask, y), None, "a batch of 3 entries does not say"),
        (x, None, "a pair of inputs and a tensor of targets, or a dict with labels, got a Tensor; pass targ"),
        ((x,), None, "got a tuple of Tensor; pass targets="),
        ((x, [0, 1]), None, "got a tuple of Tensor, list; pass targets="),
        ({"x": x}, None, "got a dict with x; pass targets="),
        (pack_sequence([x, mask]), None, "got a PackedSequence"),
        ((x, mask, y), 3, "targets=3 must be an index into tuples or lists, or a key of dicts, got a tuple"),
        ((x, mask, y), "labels", "targets='labels' must be an index"),
        ({"x": x}, "class", "targets='class' must be .* a key of dicts, got a dict with x"),
        ({0: x}, 0, "targets=0 must be an index into tuples or lists"),
        ((x, mask, "y"), 2, "targets must be a tensor, got str at targets=2"),
        ((x, y), lambda _: [0], "targets must be a tensor, got list at targets=a function"),
        ((x, y), y, r"a function of the batch, got Tensor; put a tensor of targets into the batches"),
        ((x, y), True, "an index, a key or a function of the batch, got bool"),
    ],
)
def test_batches_without_targets_there_are_refused(batch: Any, at: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        targets_of(batch, at)


def test_a_model_is_called_with_all_entries_but_the_targets() -> None:
    one, two = torch.ones(2, 3), torch.full((2, 3), 2.0)
    batches = [((one, two, y), 2), (Three(one, two, y), -1), ((y, one, two), 0)]
    batches += [({"x": one, "y": two, "class": y}, "class"), (((one, two), y), 1), ((one, y, two), 1)]
    for batch, at in batches:
        assert torch.equal(without_targets(call_model, at)(Sum(), batch), torch.full((2, 3), 21.0))
    seen = []
    without_targets(lambda _, batch: seen.append(batch), 2)(Sum(), whole := (one, two, y))
    assert seen == [whole]


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
        require_same_order(loader, 1)


def test_a_loader_in_a_fixed_order_is_taken() -> None:
    for loader in [*loaders(SequentialSampler(NUMBERS)), DataLoader(NUMBERS), [NUMBERS]]:
        require_same_order(loader, 2)

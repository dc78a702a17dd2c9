import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from pfge.lab.data import DataError, DatasetSplits, evaluation_batches, training_batches
from pfge.lab.data.datasets import DatasetPart
from tests.lab.data.datasets.made import CLASSES, Drawing

NAMES = tuple(map(str, range(CLASSES)))


def part(items: Any, collate: Any = None, names: tuple[str, ...] = NAMES) -> DatasetPart:
    return DatasetPart.of_all(items, "training data", names, collate, 0)


def drawn(data: DatasetPart, after: int = 0, count: int = 8, **options: Any) -> list[tuple[Tensor, Tensor]]:
    """Return the values and targets of some training batches."""
    source = training_batches(data, None, batch_size=4, seed=1, **options)
    return [(inputs["values"], targets) for inputs, targets in islice(source.starting_after(after), count)]


def assert_same(first: list[tuple[Tensor, Tensor]], second: list[tuple[Tensor, Tensor]]) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_batches_are_the_same_for_any_number_of_workers() -> None:
    data = part(Drawing(20))
    assert_same(drawn(data), drawn(data, workers=2))
    assert_same(drawn(data), drawn(data, workers=1))


def test_batches_depend_on_seed_and_iteration_alone() -> None:
    data = part(Drawing(20))
    whole = drawn(data)
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    assert_same(drawn(data, after=6, count=2), whole[6:])


def test_an_item_draws_other_numbers_in_each_epoch_and_from_each_generator() -> None:
    data = part(Drawing(4))
    epochs = drawn(data, count=6)
    added = []
    for values, _ in epochs:
        nearest = torch.cdist(values[:, 3:], data.items.values[:, 3:]).argmin(dim=1)
        added.append((values - data.items.values[nearest])[nearest.argsort()])
    added = torch.stack(added)  # epoch, item, generator
    for generator in range(3):
        assert len(added[..., generator].flatten().unique()) == 6 * 4
    assert (added[..., 3] == 0).all()
    assert (added[..., :3] >= 0).all()
    assert not torch.equal(added[..., 0], added[..., 1])


def test_processes_share_a_batch_without_changing_its_items() -> None:
    data = part(Drawing(20))
    ((whole, _),) = drawn(data, count=1)
    parts = [drawn(data, count=1, share=(number, 2))[0][0] for number in range(2)]
    assert torch.equal(torch.stack(parts, dim=1).flatten(0, 1), whole)


def test_reading_leaves_the_global_random_numbers_alone() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(()).item()

    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    expected = draw()
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    drawn(part(Drawing(20)))
    assert draw() == expected
    assert torch.get_num_threads() >= 1


def test_evaluation_draws_the_same_in_every_pass_whatever_the_batches() -> None:
    data = part(Drawing(10))
    passes = [
        torch.cat([inputs["values"] for inputs, _ in evaluation_batches(data, None, batch_size=size)])
        for size in (3, 3, 10)
    ]
    assert torch.equal(passes[0], passes[1])
    assert torch.equal(passes[0], passes[2])


def test_targets_are_those_of_the_selected_items() -> None:
    data = part(Drawing(250)).select([5, 0, 7])
    assert data.labels.tolist() == [2, 0, 1]
    assert len(part(Drawing(250)).labels) == 250


def test_channels_are_those_of_tensors_of_floating_point() -> None:
    assert part(TensorDataset(torch.zeros(4, 3, 8), torch.zeros(4)), names=()).channels == 3
    assert part(TensorDataset(torch.zeros(4, 3).long(), torch.zeros(4)), names=()).channels is None
    assert part(Drawing(4)).channels is None


def test_packed_sequences_of_a_collate_function_are_one_input() -> None:
    def collate(items: list[tuple[Tensor, int]]) -> tuple[PackedSequence, Tensor]:
        sequences = pack_sequence([sequence for sequence, _ in items], enforce_sorted=False)
        return sequences, torch.tensor([number for _, number in items])

    items = [(torch.full((length, 2), float(length)), length % 2) for length in (1, 3, 2)]
    ((found, labels),) = evaluation_batches(part(items, collate), None, batch_size=3)
    assert isinstance(found, PackedSequence)
    assert pad_packed_sequence(found)[1].tolist() == [1, 3, 2]
    assert labels.tolist() == [1, 1, 0]


def test_a_collate_function_makes_batches_of_items_that_differ_in_shape() -> None:
    texts = [(torch.ones(length), length % 3) for length in (2, 5, 3, 1)]

    def pad(items: list[tuple[Tensor, int]]) -> tuple[dict[str, Tensor], Tensor]:
        longest = torch.nn.utils.rnn.pad_sequence([tokens for tokens, _ in items], batch_first=True)
        return {"tokens": longest}, torch.tensor([target for _, target in items])

    (batch,) = evaluation_batches(part(texts, pad), None, batch_size=4)
    assert batch[0]["tokens"].sum(dim=1).tolist() == [2, 5, 3, 1]
    assert batch[1].tolist() == [2, 2, 0, 1]


def test_a_python_float_is_a_float32_target() -> None:
    (batch,) = evaluation_batches(part([(torch.zeros(2), 0.5)], names=()), None, batch_size=1)
    assert batch[1].dtype == torch.float32


class Shrinking(Drawing):
    def __getitem__(self, index: int) -> Any:
        item = super().__getitem__(index)
        self.targets = self.targets[:-1]
        return item


class Failing(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        raise KeyError(f"no column {index}")


def one_left_out(items: list[Any]) -> Any:
    return torch.zeros(len(items) - 1, 2), torch.zeros(len(items) - 1).long()


def not_a_pair(items: list[Any]) -> Any:
    return torch.zeros(len(items), 2)


def broken(items: list[Any]) -> Any:
    return items["first"]  # type: ignore[call-overload]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("items", "collate", "message"),
    [
        (
            [(torch.zeros(3), 0), (torch.zeros(4), 1)],
            None,
            r"the same shapes .* got \(\[3\], int\) for item 0 .* and \(\[4\], int\) for item 1; .*collate",
        ),
        (
            [(torch.zeros(3), 0), (torch.zeros(3), 7)],
            None,
            "training data: targets must lie in 0..2 .* got 7",
        ),
        ([torch.zeros(3), torch.zeros(3)], None, r"an item must be \(inputs, target\), got \[3\] for item 0"),
        ([(object(), 0)], None, "cannot be put together: default_collate"),
        (
            Failing(),
            None,
            r"item 0 of the training data cannot be read: KeyError: 'no column 0' \(.*test_part.py, line ",
        ),
        ([(torch.zeros(2), 0)] * 2, one_left_out, r"one target for each of its 2 items, got targets \[1\]"),
        ([(torch.zeros(2), 0)] * 2, not_a_pair, r"must be inputs and a tensor of targets, got \[2, 2\]"),
        (
            [(torch.zeros(2), 0)] * 2,
            broken,
            "the collate function cannot make a batch of 2 items .* TypeError",
        ),
    ],
)
def test_items_that_cannot_be_used_are_named_in_one_line(
    items: Any, collate: Any, message: str, workers: int
) -> None:
    source = evaluation_batches(part(items, collate), None, batch_size=4, workers=workers)
    with pytest.raises(DataError, match=message) as raised:
        list(source)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_whose_length_changes_is_refused(workers: int) -> None:
    source = evaluation_batches(part(Shrinking(24)), None, batch_size=4, workers=workers)
    with pytest.raises(
        DataError, match=r"had 24 items when it was opened and has 20 now; .* keep its length"
    ):
        list(source)


def test_targets_that_batches_pad_to_several_lengths_are_refused() -> None:
    tokens = [torch.zeros(1 + (number > 99)) for number in range(200)]
    data = part([(row, row) for row in tokens], lambda items: (None, torch.stack([b for _, b in items])), ())
    with pytest.raises(DataError, match=r"one shape in all batches, got \[1\] and \[2\]"):
        _ = data.labels


def test_a_dataset_without_numbered_items_is_refused() -> None:
    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[int]:
            return iter([1])

    with pytest.raises(DataError, match=r"the test data must be a map-style Dataset, .* got Stream"):
        DatasetSplits(train=Drawing(3), test=Stream()).opened()  # type: ignore[arg-type]

import pytest
import torch

from pfge.lab.data.base import DataError
from pfge.lab.data.batches import evaluation_batches, training_batches
from pfge.lab.data.in_memory import TensorSet


def rows(count: int = 10) -> TensorSet:
    inputs = torch.arange(3.0 * count).view(count, 3)
    return TensorSet(inputs, torch.arange(count) % 2, ("a", "b"))


def test_an_epoch_has_every_row_once_with_its_own_target() -> None:
    source = training_batches(rows(), None, batch_size=2, seed=1)
    assert source.per_epoch == 5
    batches = source.starting_after(0)
    inputs, targets = map(torch.cat, zip(*(next(batches) for _ in range(5)), strict=True))
    numbers = inputs[:, 0] / 3
    assert sorted(numbers.tolist()) == list(range(10))
    assert numbers.tolist() != list(range(10))
    assert torch.equal(targets, numbers.long() % 2)


def test_a_batch_depends_on_seed_and_iteration_alone() -> None:
    source = training_batches(rows(), None, batch_size=2, seed=1)
    path = source.starting_after(0)
    seventh = [next(path) for _ in range(7)][-1]
    assert torch.equal(next(source.starting_after(6))[0], seventh[0])
    other = training_batches(rows(), None, batch_size=2, seed=2)
    assert not torch.equal(next(other.starting_after(6))[0], seventh[0])


def test_processes_share_a_batch() -> None:
    whole, *parts = (
        next(training_batches(rows(), None, batch_size=4, seed=1, share=share).starting_after(0))[0]
        for share in ((0, 1), (0, 2), (1, 2))
    )
    assert torch.equal(torch.stack(parts, dim=1).flatten(0, 1), whole)


def test_evaluation_has_all_rows_in_order_and_can_be_read_twice() -> None:
    data = rows()
    source = evaluation_batches(data, None, batch_size=4)
    assert len(source) == 3
    for _ in range(2):
        assert torch.equal(torch.cat([inputs for inputs, _ in source]), data.inputs)
        assert torch.equal(torch.cat([targets for _, targets in source]), data.labels)


def test_selected_rows_keep_their_targets() -> None:
    chosen = rows().select([3, 0])
    assert chosen.inputs[:, 0].tolist() == [9, 0]
    assert chosen.labels.tolist() == [1, 0]
    assert chosen.channels == 3


def test_targets_outside_of_the_classes_are_refused() -> None:
    with pytest.raises(DataError, match=r"targets must lie in 0..1 for 2 classes, got 7 \(1 such\)"):
        TensorSet(torch.zeros(3, 2), torch.tensor([0, 7, 1]), ("a", "b"))


@pytest.mark.parametrize("kind", [torch.bool, torch.int8, torch.int16, torch.int32, torch.uint16])
@pytest.mark.parametrize("shape", [(3,), (3, 2, 2)])
def test_class_numbers_of_any_type_become_int64(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    targets = torch.ones(shape).to(kind)
    found = TensorSet(torch.zeros(3, 2), targets, ("a", "b")).labels
    assert found.dtype == torch.int64
    assert torch.equal(found, torch.ones(shape, dtype=torch.int64))


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        (torch.ones(3, dtype=torch.uint8), ("a", "b")),  # torch takes it, and runs have its fingerprint
        (torch.ones(3, 2, dtype=torch.bool), ("a", "b")),  # labels that apply or do not
        (torch.ones(3, dtype=torch.int32), ()),
        (torch.ones(3), ("a", "b")),
    ],
)
def test_other_targets_keep_their_type(targets: torch.Tensor, names: tuple[str, ...]) -> None:
    assert TensorSet(torch.zeros(3, 2), targets, names).labels is targets


def test_the_first_example_that_is_not_finite_is_found() -> None:
    inputs = torch.zeros(4, 2, 2)
    assert TensorSet(inputs, torch.zeros(4)).first_non_finite() is None
    inputs[3, 0, 0], inputs[2, 1, 1] = float("nan"), -float("inf")
    assert TensorSet(inputs, torch.zeros(4)).first_non_finite() == 2
    assert TensorSet(inputs.long(), torch.zeros(4)).first_non_finite() is None
    assert TensorSet(inputs[:0], torch.zeros(0)).first_non_finite() is None


def test_as_many_targets_as_inputs_are_needed() -> None:
    with pytest.raises(DataError, match=r"must be as many, got \[3, 2\] and \[4\]"):
        TensorSet(torch.zeros(3, 2), torch.zeros(4))

import pytest
import torch

from pfge.lab.data.base import DataError
from pfge.lab.data.batches import EpochOrder


def test_each_epoch_visits_every_image_once():
    order = EpochOrder(12, batch_size=4, seed=0)
    for first in (1, 4, 7):
        epoch = torch.cat([order.at(iteration) for iteration in range(first, first + 3)])
        assert sorted(epoch.tolist()) == list(range(12))


def test_epochs_and_seeds_differ_in_order():
    orders = {
        tuple(EpochOrder(50, batch_size=50, seed=s).at(i).tolist()) for s in range(3) for i in (1, 2, 3)
    }
    assert len(orders) == 9


def test_the_smaller_last_batch_is_dropped():
    order = EpochOrder(11, batch_size=4, seed=0)
    assert order.per_epoch == 2
    assert [len(order.at(i)) for i in (1, 2, 3)] == [4, 4, 4]


def test_the_shares_of_all_processes_make_up_the_batch():
    whole = EpochOrder(20, batch_size=6, seed=5)
    parts = [EpochOrder(20, batch_size=6, seed=5, share=(part, 3)) for part in range(3)]
    for iteration in (1, 4, 9):
        together = torch.stack([part.at(iteration) for part in parts], dim=1).flatten()
        assert torch.equal(together, whole.at(iteration))


def test_an_iteration_before_the_first_is_refused():
    with pytest.raises(DataError, match="count from 1, got 0"):
        EpochOrder(4, batch_size=2, seed=0).at(0)


def test_fewer_images_than_a_batch_are_refused():
    with pytest.raises(DataError, match="got 3 images for batch_size 4; make the batch smaller"):
        EpochOrder(3, batch_size=4, seed=0)


@pytest.mark.parametrize("batch_size", [0, 5])
def test_a_batch_that_processes_cannot_share_equally_is_refused(batch_size: int):
    with pytest.raises(DataError, match=f"multiple of 2 processes, got {batch_size}"):
        EpochOrder(20, batch_size=batch_size, seed=0, share=(0, 2))


def test_a_share_past_the_last_process_is_refused():
    with pytest.raises(DataError, match=r"0 <= rank < processes, got \(2, 2\)"):
        EpochOrder(20, batch_size=4, seed=0, share=(2, 2))

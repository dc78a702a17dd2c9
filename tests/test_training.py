import pytest
import torch
from torch import Tensor

from pfge import FGE, PFGE, SWA, Constant, Trajectory, follow
from tests.toys import assert_same_weights, classification_loss, make_batch, make_mlp, make_sgd

BATCHES = [make_batch(i) for i in range(1, 4)]


def make_trajectory(*collectors: FGE | PFGE | SWA) -> Trajectory:
    model = make_mlp()
    return Trajectory(model, make_sgd(model), Constant(0.05), collectors)


def test_it_is_the_loop_one_would_write_by_hand() -> None:
    torch.manual_seed(0)
    trajectory = make_trajectory()
    follow(trajectory, BATCHES, classification_loss, iterations=5)
    torch.manual_seed(0)
    model = make_mlp().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x, y in [*BATCHES, *BATCHES[:2]]:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert_same_weights(trajectory.model.state_dict(), model.state_dict())


def test_progress_is_told_after_each_update() -> None:
    seen: list[tuple[int, Tensor]] = []
    follow(
        make_trajectory(),
        BATCHES,
        classification_loss,
        iterations=4,
        on_update=lambda i, v: seen.append((i, v)),
    )
    assert [iteration for iteration, _ in seen] == [1, 2, 3, 4]
    assert all(value.ndim == 0 and not value.requires_grad for _, value in seen)


def test_batches_that_end_early_are_an_error_after_what_they_gave() -> None:
    trajectory = make_trajectory()
    with pytest.raises(ValueError, match="batches ended before the last iteration; pass a DataLoader"):
        follow(trajectory, iter(BATCHES), classification_loss, iterations=5)
    assert trajectory.iteration == 3


def test_iterations_after_the_last_member_give_a_warning_that_counts_them() -> None:
    with pytest.warns(
        UserWarning, match=r"PFGE\(cycle=1, period=2.*makes no use of the last 1 of 5 iterations"
    ):
        follow(make_trajectory(PFGE(1, 2)), BATCHES, classification_loss, iterations=5)


def test_iterations_that_divide_give_no_warning() -> None:
    trajectory = make_trajectory(PFGE(1, 2), FGE(2))
    follow(trajectory, BATCHES, classification_loss, iterations=4)
    follow(trajectory, BATCHES, classification_loss, iterations=1)

"""Calls around `optimizer.step()`: what counts as an iteration, and which loops are stopped."""

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR

from pfge import FGE, PFGE, Constant, Trajectory


def make_trajectory(collector: FGE) -> Trajectory:
    model = nn.Linear(1, 1)
    return Trajectory(model, SGD(model.parameters(), lr=0.1), None, [collector])


def call(trajectory: Trajectory, order: str, *, gradients: bool = True) -> None:
    """Call before_update (b), step (s) and after_update (a) in this order, with new gradients by default."""
    if gradients:
        for parameter in trajectory.model.parameters():
            parameter.grad = torch.ones_like(parameter)
    calls = {
        "b": trajectory.before_update,
        "s": trajectory.optimizer.step,
        "a": trajectory.after_update,
    }
    for letter in order:
        calls[letter]()


@pytest.mark.parametrize("order", ["sba", "bas", "bs"])
def test_a_loop_whose_steps_are_not_between_the_calls_is_stopped(order: str) -> None:
    trajectory = make_trajectory(FGE(1))
    with pytest.raises(RuntimeError, match=r"must lie between before_update\(\) and .* last 2 did not"):
        call(trajectory, order * 3)
    assert trajectory.iteration == 0


@pytest.mark.parametrize("order", ["sba", "bas", "bs"])
def test_calls_that_are_misplaced_later_are_noticed_as_well(order: str) -> None:
    trajectory = make_trajectory(FGE(1))
    call(trajectory, "bsa" * 5)
    with pytest.raises(RuntimeError, match="must lie between before_update"):
        call(trajectory, order * 3)


def test_a_step_without_before_update_is_refused_later_too() -> None:
    trajectory = make_trajectory(FGE(1))
    call(trajectory, "bsa")
    with pytest.raises(RuntimeError, match=r"before_update\(\) must come before each .* call it there"):
        call(trajectory, "sa")
    assert trajectory.iteration == 1


@pytest.mark.parametrize(("order", "steps"), [("bsabssa", 2), ("bsasssbsa", 4), ("bsabsbsa", 2)])
def test_steps_that_the_calls_leave_out_cause_one_warning(order: str, steps: int) -> None:
    trajectory = make_trajectory(FGE(1))
    with pytest.warns(UserWarning, match=f"{steps} steps since the last .* count as one iteration") as found:
        call(trajectory, order * 2)
    assert len(found) == 1
    assert trajectory.iteration == 4


def test_one_step_that_an_interruption_left_without_after_update_is_no_problem() -> None:
    trajectory = make_trajectory(FGE(1))
    call(trajectory, "bsabs")
    call(trajectory, "bsabsa")
    assert trajectory.iteration == 3


def test_steps_before_the_first_call_are_the_users_own() -> None:
    trajectory = make_trajectory(FGE(1))
    call(trajectory, "sssbsa")
    assert trajectory.iteration == 1


def test_an_optimizer_that_replaces_the_followed_one_is_noticed() -> None:
    fge = FGE(1)
    trajectory = make_trajectory(fge)
    call(trajectory, "bsa" * 8)
    trajectory.optimizer = SGD(trajectory.model.parameters(), lr=0.1)
    with pytest.raises(
        RuntimeError, match=r"20 times in a row .* although the weights change.*new Trajectory if it was repl"
    ):
        call(trajectory, "bsa" * 20)
    assert fge.iterations == list(range(1, 9))


def test_steps_that_run_no_hooks_are_noticed_after_a_first_one_that_did() -> None:
    trajectory = make_trajectory(FGE(1))
    call(trajectory, "bsa")
    replay = SGD.step.__wrapped__  # as the replay of a CUDA graph: it changes weights and calls nothing
    for _ in range(19):
        call(trajectory, "b")
        replay(trajectory.optimizer)
        call(trajectory, "a")
    with pytest.raises(RuntimeError, match=r"although the weights change.*outside of CUDA graphs"):
        call(trajectory, "ba")


def test_nineteen_skipped_steps_in_a_row_are_accepted_and_twenty_are_not() -> None:
    trajectory = make_trajectory(FGE(1))
    call(trajectory, ("bsa" + "ba" * 19) * 2)
    assert trajectory.iteration == 2
    with pytest.raises(RuntimeError, match=r"without a step .* look for NaN or infinity in the gradients"):
        call(trajectory, "ba")


def accumulate(trajectory: Trajectory, batches: int, *, steps: bool) -> None:
    """Add up gradients of batches with calls around each of them, and make a step at the end if asked to."""
    for number in range(1, batches + 1):
        trajectory.model(torch.full((4, 1), number / batches)).square().mean().backward()
        call(trajectory, "bsa" if steps and number == batches else "ba", gradients=False)
    if steps:
        trajectory.optimizer.zero_grad()


def test_calls_around_each_of_many_accumulated_batches_count_the_steps() -> None:
    trajectory = make_trajectory(FGE(1))
    for _ in range(3):
        accumulate(trajectory, 64, steps=True)
    assert trajectory.iteration == 3


def test_gradients_that_are_accumulated_for_ever_are_noticed() -> None:
    trajectory = make_trajectory(FGE(1))
    with pytest.raises(RuntimeError, match="1000 times in a row without a step"):
        accumulate(trajectory, 1100, steps=False)


def test_gradients_that_are_not_finite_are_not_taken_for_accumulated_ones() -> None:
    trajectory = make_trajectory(FGE(1))
    call(trajectory, "ba")
    for parameter in trajectory.model.parameters():
        parameter.grad = torch.full_like(parameter, float("inf"))
    with pytest.raises(RuntimeError, match=r"20 times in a row .* look for NaN or infinity in the gradients"):
        call(trajectory, "ba" * 19, gradients=False)


def test_another_optimizer_that_accumulates_is_noticed_at_its_step() -> None:
    trajectory = make_trajectory(FGE(1))
    trajectory.optimizer = SGD(trajectory.model.parameters(), lr=0.1)
    accumulate(trajectory, 64, steps=True)
    with pytest.raises(RuntimeError, match=r"80 times in a row .* although the weights change"):
        accumulate(trajectory, 64, steps=True)
    assert trajectory.iteration == 0


class TwiceHooked(SGD):
    """Runs the hooks of SGD's step and of its own."""

    def step(self, closure: None = None) -> None:
        super().step(closure)


def test_a_step_that_runs_its_hooks_twice_is_one_step() -> None:
    model = nn.Linear(1, 1)
    SGD(model.parameters())  # from here on, torch hooks the step of SGD
    trajectory = Trajectory(model, TwiceHooked(model.parameters(), lr=0.1), None, [FGE(1)])
    call(trajectory, "bsa" * 3)
    assert trajectory.iteration == 3


def test_an_optimizer_of_another_model_is_refused() -> None:
    optimizer = SGD(nn.Linear(1, 1).parameters())
    with pytest.raises(
        ValueError,
        match=r"the SGD has no parameter of the Linear; construct it from model.param",
    ):
        Trajectory(nn.Linear(1, 1), optimizer, None, [FGE(1)])


def test_an_optimizer_of_some_parameters_is_enough() -> None:
    model = nn.Linear(1, 1)
    Trajectory(nn.DataParallel(model), SGD([model.bias]), None, [FGE(1)])


def test_an_optimizer_inside_of_a_wrapper_is_found() -> None:
    class Wrapper:
        def __init__(self, optimizer: SGD):
            self.optimizer, self.param_groups, self.state = optimizer, optimizer.param_groups, optimizer.state

        def step(self) -> None:
            self.optimizer.step()

    model = nn.Linear(1, 1)
    wrapper = Wrapper(SGD(model.parameters(), lr=0.1))
    trajectory = Trajectory(model, Wrapper(wrapper), Constant(0.5), [PFGE(1, 2)])  # type: ignore[arg-type]
    call(trajectory, "bsa" * 4)
    assert trajectory.collectors[0].iterations == [2, 4]
    assert wrapper.param_groups[0]["lr"] == 0.5


def test_what_is_not_an_optimizer_is_refused() -> None:
    model = nn.Linear(1, 1)
    scheduler = ExponentialLR(SGD(model.parameters()), 0.5)
    with pytest.raises(TypeError, match=r"a torch optimizer, got ExponentialLR; pass the torch.optim"):
        Trajectory(model, scheduler, None, [])  # type: ignore[arg-type]

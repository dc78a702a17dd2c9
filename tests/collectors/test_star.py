"""The star: periods from one start, each with the mean of its tail."""

from math import cos, pi
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pfge import CosineRestarts, Trajectory, Weights, load_checkpoint, load_weights, save_checkpoint
from pfge.collectors import Star
from pfge.weights import copy_weights, view_weights
from tests.toys import assert_same_weights

PERIOD, TAIL, LOW, HIGH, MOMENTUM = 8, 3, 0.001, 0.1, 0.9


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3))


def batch(iteration: int) -> tuple[Tensor, Tensor]:
    """Return the batch of an iteration, whichever process asks for it."""
    generator = torch.Generator().manual_seed(iteration)
    return torch.randn(16, 5, generator=generator), torch.randint(3, (16,), generator=generator)


def make_trajectory(collector: Star) -> Trajectory:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=HIGH, momentum=MOMENTUM)
    return Trajectory(model, optimizer, CosineRestarts(collector.period, LOW, HIGH), [collector])


def advance(trajectory: Trajectory, iterations: range) -> None:
    for iteration in iterations:
        x, y = batch(iteration)
        trajectory.before_update()
        trajectory.optimizer.zero_grad()
        nn.functional.cross_entropy(trajectory.model(x), y).backward()
        trajectory.optimizer.step()
        trajectory.after_update()


def make_star(periods: int) -> list[Weights]:
    star = Star(PERIOD, tail=TAIL)
    advance(make_trajectory(star), range(1, periods * PERIOD + 1))
    return list(star.members())


def make_period(number: int) -> Weights:
    """Return the member of one period, made without the others."""
    star = Star(PERIOD, tail=TAIL)
    advance(make_trajectory(star), range(number * PERIOD + 1, (number + 1) * PERIOD + 1))
    return {name: tensor.clone() for name, tensor in star.members()[0].items()}


def by_hand(number: int) -> Weights:
    """Train one period without any of our code and average its last points in float64."""
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=HIGH, momentum=MOMENTUM)
    points = []
    for j in range(PERIOD):
        rate = LOW + (HIGH - LOW) * (1 + cos(pi * (j + 1) / PERIOD)) / 2
        optimizer.param_groups[0]["lr"] = rate
        x, y = batch(number * PERIOD + j + 1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        points.append(copy_weights(view_weights(model)))
    names = [name for name, _ in model.named_parameters()]
    return {name: torch.stack([point[name].double() for point in points[-TAIL:]]).mean(0) for name in names}


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_member_is_the_mean_of_the_tail_of_a_period_from_the_start(number: int) -> None:
    member = make_star(4)[number]
    for name, expected in by_hand(number).items():
        torch.testing.assert_close(member[name].double(), expected, rtol=1e-5, atol=1e-6)


def test_periods_that_are_trained_apart_are_those_of_one_path_bit_for_bit() -> None:
    for number, together in enumerate(make_star(4)):
        assert_same_weights(make_period(number), together)


def test_the_trajectory_goes_back_to_the_start_after_each_period() -> None:
    star = Star(PERIOD, tail=TAIL)
    trajectory = make_trajectory(star)
    start = copy_weights(view_weights(trajectory.model))
    advance(trajectory, range(1, PERIOD + 1))
    assert_same_weights(view_weights(trajectory.model), start)
    assert not trajectory.optimizer.state


@pytest.mark.parametrize("stop", [1, PERIOD - 1, PERIOD, PERIOD + 6])
def test_a_stopped_star_continues_bit_for_bit(stop: int, tmp_path: Path) -> None:
    first = make_trajectory(Star(PERIOD, tail=TAIL))
    advance(first, range(1, stop + 1))
    save_checkpoint(tmp_path / "run.checkpoint", first.state_dict())
    star = Star(PERIOD, tail=TAIL)
    second = make_trajectory(star)
    load_weights(second.model, {name: torch.zeros_like(t) for name, t in view_weights(second.model).items()})
    second.load_state_dict(load_checkpoint(tmp_path / "run.checkpoint"))
    advance(second, range(stop + 1, 2 * PERIOD + 1))
    for member, expected in zip(star.members(), make_star(2), strict=True):
        assert_same_weights(member, expected)


def test_a_state_without_its_start_is_refused() -> None:
    star = Star(PERIOD)
    trajectory = make_trajectory(star)
    advance(trajectory, range(1, 3))
    state = star.state_dict() | {"start": None}
    with pytest.raises(ValueError, match="has lost the start point"):
        Star(PERIOD).load_state_dict(state)


@pytest.mark.parametrize(("period", "tail"), [(0, 1), (4, 0), (4, 5)])
def test_periods_and_tails_that_cannot_be_are_refused(period: int, tail: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        Star(period, tail=tail)


def test_iterations_after_the_last_period_are_of_no_use() -> None:
    assert Star(PERIOD).last_used_iteration(2 * PERIOD + 3) == 2 * PERIOD


def test_the_mean_so_far_is_that_of_the_tail_and_else_the_newest_member() -> None:
    star = Star(period=4, tail=2)
    star.begin({"w": torch.tensor(0.0)})
    with pytest.raises(ValueError, match="has collected nothing yet"):
        star.mean_so_far()
    found = []
    for iteration in range(1, 8):
        star.observe(iteration, {"w": torch.tensor(float(iteration))})
        if iteration > 2:
            found.append((star.mean_so_far()["w"].item(), star.pending_description()))
    half = "1 of the 2 points of its next member"
    assert found == [(3.0, half), (3.5, None), (3.5, None), (3.5, None), (7.0, half)]

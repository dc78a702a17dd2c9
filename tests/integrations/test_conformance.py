"""The same laws for every integration."""

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from pfge import Weights, load_checkpoint
from pfge.storage.ensemble_folder import EnsembleFolder
from tests.integrations.adapters import ADAPTERS, Adapter, Run
from tests.integrations.problem import (
    SCHEDULE,
    Problem,
    assert_same_members,
    make_collectors,
    train_bare,
)
from tests.made_once import made_once
from tests.processes import fork_two
from tests.toys import assert_same_weights

every_adapter = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)


@every_adapter
def test_members_equal_those_of_a_bare_loop(adapter: Adapter, tmp_path: Path) -> None:
    found, expected = make_collectors(), make_collectors()
    adapter.train(Run(Problem(), SCHEDULE, found, tmp_path))
    train_bare(Problem(), SCHEDULE, expected)
    assert_same_members(found, expected)


@pytest.mark.slow
@every_adapter
@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_resumed_training_has_the_same_members(adapter: Adapter, accumulate: int, tmp_path: Path) -> None:
    problem = Problem(accumulate=accumulate, epochs=2 * accumulate)
    expected = make_collectors()
    updates = train_bare(problem, SCHEDULE, expected, adapter.divisor).iteration
    for update in random.Random(adapter.name).sample(range(1, updates), 3):
        folder = tmp_path / str(update)
        folder.mkdir()
        adapter.train(Run(problem, SCHEDULE, make_collectors(), folder, checkpoint_at=update))
        found = make_collectors()
        adapter.train(Run(problem, SCHEDULE, found, folder, resume_at=update))
        assert_same_members(found, expected)


@every_adapter
def test_an_accumulation_window_counts_once_and_the_last_short_one_too(
    adapter: Adapter, tmp_path: Path
) -> None:
    problem = Problem(accumulate=4, epochs=4)
    found, expected = make_collectors(), make_collectors()
    adapter.train(Run(problem, SCHEDULE, found, tmp_path))
    assert train_bare(problem, SCHEDULE, expected, adapter.divisor).iteration == 12  # 4 + 4 + 2 batches
    assert_same_members(found, expected)


@every_adapter
def test_a_step_that_the_gradient_scaler_skips_does_not_count(adapter: Adapter, tmp_path: Path) -> None:
    problem = Problem(overflowing=(0, 3, 4))
    found, expected = make_collectors(), make_collectors()
    adapter.train(Run(problem, SCHEDULE, found, tmp_path))
    assert train_bare(problem, SCHEDULE, expected).iteration == 14  # of 20
    assert_same_members(found, expected)


@every_adapter
def test_a_listener_changes_nothing_of_the_training(adapter: Adapter, tmp_path: Path) -> None:
    problem = Problem(dropout=0.5, decay=True)
    results = []
    for collectors in (None, make_collectors()[1:]):
        torch.manual_seed(1)
        model, optimizer = adapter.train(Run(problem, None, collectors, tmp_path))
        rates = [group["lr"] for group in optimizer.param_groups]
        momentum = [kept["momentum_buffer"] for kept in optimizer.state.values()]
        results.append((dict(model.state_dict()), rates, momentum, torch.get_rng_state()))
    (weights, rates, momentum, numbers), (other_weights, other_rates, other_momentum, other_numbers) = results
    assert_same_weights(weights, other_weights)
    assert rates == other_rates
    assert rates[0] < 0.02  # the trainer's own scheduler was in charge
    torch.testing.assert_close(momentum, other_momentum, rtol=0, atol=0)
    assert torch.equal(numbers, other_numbers)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the members that two processes collected, by integration and rank."""
    make = partial(fork_two, "tests.integrations.two_processes")
    return made_once(tmp_path_factory, "two-by-integrations", make)


@pytest.mark.slow
@every_adapter
def test_two_processes_have_the_members_of_one(adapter: Adapter, two_processes: Path) -> None:
    expected = make_collectors()
    # Their gradients' mean is that of two accumulated batches, bit for bit.
    train_bare(Problem(batch_norm=False, accumulate=2), SCHEDULE, expected)
    for rank in (0, 1):
        found = load_checkpoint(two_processes / f"{adapter.name} {rank}")
        for members, collector in zip(found, expected, strict=True):
            assert_equal(members, collector.members())


@pytest.mark.slow
@every_adapter
def test_two_processes_write_one_folder_of_members(adapter: Adapter, two_processes: Path) -> None:
    expected = make_collectors()
    train_bare(Problem(batch_norm=False, accumulate=2), SCHEDULE, expected)
    for name, collector in (("pfge", expected[0]), ("fge", expected[3])):
        folder = EnsembleFolder.open(two_processes / adapter.name / name)
        assert folder.iterations == collector.iterations
        assert_equal(folder.members(), collector.members())


def assert_equal(found: Sequence[Weights], expected: Sequence[Weights]) -> None:
    assert len(found) == len(expected) > 0
    for member, reference in zip(found, expected, strict=True):
        assert_same_weights(member, reference)

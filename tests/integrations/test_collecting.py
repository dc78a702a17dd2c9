import gc
import weakref
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pfge import FGE, PFGE, SWA, Collector, Constant
from pfge.integrations.collecting import Collecting, warn_if_untested
from tests.toys import assert_same_weights, classification_loss, make_batch, make_mlp, make_sgd


def advance(model: nn.Module, optimizer: torch.optim.Optimizer, updates: int) -> None:
    """A loop that knows nothing of collecting."""
    for number in range(updates):
        optimizer.zero_grad()
        classification_loss(model, make_batch(number)).backward()
        optimizer.step()


def start(*collectors: Collector) -> tuple[Collecting, nn.Module, torch.optim.Optimizer]:
    model = make_mlp()
    optimizer = make_sgd(model)
    collecting = Collecting(Constant(0.05), collectors)
    collecting.attach(model, optimizer)
    return collecting, model, optimizer


def test_steps_are_followed_until_it_is_detached() -> None:
    fge = FGE(1)
    following, model, optimizer = start(fge)
    advance(model, optimizer, 3)
    following.detach()
    advance(model, optimizer, 2)
    assert fge.iterations == [1, 2, 3]
    assert following.trajectory is not None
    assert following.trajectory.iteration == 3


class Halving(torch.optim.SGD):
    """Changes the weights after the step of its base class, and fails where it is told to."""

    fails = False

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        if self.fails:
            raise OSError("the disk is gone")
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.mul_(0.5)
        return result


def follow_halving(*collectors: Collector) -> tuple[Collecting, nn.Module, Halving]:
    model = make_mlp()
    make_sgd(model)  # from here on torch runs hooks also inside of Halving.step
    optimizer = Halving(model.parameters(), lr=0.05)
    collecting = Collecting(None, collectors)
    collecting.attach(model, optimizer)
    return collecting, model, optimizer


def test_a_step_that_calls_that_of_its_base_class_counts_once_and_is_seen_at_its_end() -> None:
    fge = FGE(1)
    _, model, optimizer = follow_halving(fge)
    advance(model, optimizer, 3)
    assert fge.iterations == [1, 2, 3]
    assert_same_weights(fge.members()[-1], dict(model.state_dict()))


def test_after_a_step_that_failed_and_was_caught_steps_count_again() -> None:
    fge = FGE(1)
    _, model, optimizer = follow_halving(fge)
    advance(model, optimizer, 1)
    optimizer.fails = True
    with pytest.raises(OSError, match="the disk is gone"):
        advance(model, optimizer, 1)
    optimizer.fails = False
    advance(model, optimizer, 2)
    assert fge.iterations == [1, 2, 3]


def test_an_optimizer_is_followed_once() -> None:
    following, model, optimizer = start(FGE(1))
    other = Collecting(None, [FGE(1)])
    with pytest.raises(
        ValueError, match=r"followed by one CollectWeights at a time.*all collectors, or call detach\(\) of"
    ):
        other.attach(model, optimizer)
    following.detach()
    other.attach(model, optimizer)


def test_a_second_training_is_refused_and_the_members_stay() -> None:
    fge = FGE(1)
    following, model, optimizer = start(fge)
    advance(model, optimizer, 2)
    with pytest.raises(ValueError, match="follows one training, and this one has followed 2 updates already"):
        following.attach(model, make_sgd(model))
    assert fge.iterations == [1, 2]


def test_collectors_of_another_training_are_refused_and_their_members_stay() -> None:
    """As when the folds of a cross-validation are given one list."""
    fge = FGE(1)
    following, model, optimizer = start(fge)
    advance(model, optimizer, 2)
    following.detach()
    del following
    other = Collecting(None, [SWA(1), fge])
    with pytest.raises(
        ValueError, match=r"FGE\(.*\) already holds weights of another training, .* lost; construct a"
    ):
        other.attach(model, make_sgd(model))
    assert fge.iterations == [1, 2]


def test_collectors_of_another_training_that_made_no_update_are_taken() -> None:
    fge = FGE(1)
    following, model, optimizer = start(fge)
    following.detach()
    Collecting(None, [fge]).attach(model, optimizer)
    advance(model, optimizer, 1)
    assert fge.iterations == [1]


def test_collectors_of_another_training_are_taken_with_a_state() -> None:
    fge = FGE(1)
    following, model, optimizer = start(fge)
    advance(model, optimizer, 2)
    state = following.state_dict()
    following.detach()
    other = Collecting(None, [fge])
    other.load_state_dict(state)
    other.attach(model, optimizer)
    advance(model, optimizer, 1)
    assert fge.iterations == [1, 2, 3]


def test_a_collector_without_a_hash_is_followed() -> None:
    class Unhashable(FGE):
        __hash__ = None  # type: ignore[assignment]

    collector = Unhashable(1)
    _, model, optimizer = start(collector)
    advance(model, optimizer, 1)
    assert collector.iterations == [1]


def test_a_training_that_starts_again_before_its_first_update_is_followed() -> None:
    """As when a trainer looks for a batch size that fits into memory."""
    fge = FGE(1)
    following, model, _ = start(fge)
    optimizer = make_sgd(model)
    following.attach(model, optimizer)
    advance(model, optimizer, 1)
    assert fge.iterations == [1]


def test_a_state_holds_neither_model_nor_optimizer() -> None:
    following, model, optimizer = start(SWA(1))
    advance(model, optimizer, 1)
    assert following.state_dict().keys() == {"iteration", "begun", "rate_ratios", "collectors"}


def test_a_state_is_loaded_before_or_after_training_begins() -> None:
    swa = SWA(1)
    following, model, optimizer = start(swa)
    advance(model, optimizer, 3)
    state = following.state_dict()
    for late in (False, True):
        loaded = SWA(1)
        other = Collecting(Constant(0.05), [loaded])
        if not late:
            other.load_state_dict(state)
        model = make_mlp()
        other.attach(model, make_sgd(model))
        if late:
            other.load_state_dict(state)
        assert other.trajectory is not None
        assert other.trajectory.iteration == 3
        assert_same_weights(loaded.members()[0], swa.members()[0])


def test_a_state_of_other_collectors_is_refused() -> None:
    following, model, optimizer = start(PFGE(2, 4))
    advance(model, optimizer, 1)
    other = Collecting(None, [PFGE(2, 6)])
    other.load_state_dict(following.state_dict())
    with pytest.raises(ValueError, match=r"the state is of the collectors.*period=4.*got.*period=6"):
        other.attach(model, make_sgd(model))


@pytest.mark.parametrize("others", [(PFGE(2, 6),), (PFGE(2, 4), SWA(1)), (SWA(1),)], ids=str)
def test_after_a_resume_with_other_collectors_is_refused_the_folder_is_as_it_was(
    others: tuple[Collector, ...], tmp_path: Path
) -> None:
    following, model, optimizer = start(PFGE(2, 4, store=tmp_path))
    advance(model, optimizer, 8)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert len(before) == 3
    # The same folder is given again.
    collectors = [PFGE(2, c.period, store=tmp_path) if isinstance(c, PFGE) else c for c in others]
    other = Collecting(None, collectors)
    other.load_state_dict(following.state_dict())
    with pytest.raises(ValueError, match=r"the state is of the collectors .*; construct the same collectors"):
        other.attach(model, make_sgd(model))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_model_that_is_wrapped_twice_is_looked_through() -> None:
    model = make_mlp()
    optimizer = make_sgd(model)
    wrapped = nn.DataParallel(nn.DataParallel(model))
    fge = FGE(1)
    Collecting(None, [fge]).attach(wrapped, optimizer)
    advance(wrapped, optimizer, 1)
    assert_same_weights(fge.members()[0], dict(model.state_dict()))


def test_an_ensemble_before_training_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"this process has not followed a training, .*; train first"):
        Collecting(None, [FGE(1)]).ensemble(make_mlp)


def test_an_ensemble_without_members_is_an_error() -> None:
    following, model, optimizer = start(FGE(10))
    advance(model, optimizer, 3)
    with pytest.raises(
        ValueError, match=r"FGE\(cycle=10, phase=0\) has collected nothing yet; train up to iteration 10 at"
    ):
        following.ensemble(make_mlp)


def test_one_of_several_collectors_is_chosen() -> None:
    fge, swa = FGE(1), SWA(1)
    following, model, optimizer = start(fge, swa)
    advance(model, optimizer, 3)
    assert len(following.ensemble(make_mlp, collector=fge)) == 3
    assert len(following.ensemble(make_mlp, collector=swa)) == 1
    with pytest.raises(
        ValueError, match=r"an ensemble has the members of one collector, got FGE.*, SWA.*; pass coll"
    ):
        following.ensemble(make_mlp)


def test_a_model_that_cannot_be_constructed_again_has_to_be_given() -> None:
    following, model, optimizer = start(FGE(1))
    advance(model, optimizer, 1)
    with pytest.raises(ValueError, match="has to construct a Sequential; pass a function that returns one"):
        following.ensemble()


def test_an_optimizer_that_was_followed_is_freed() -> None:
    following, _, optimizer = start(FGE(1))
    reference = weakref.ref(optimizer)
    del following, optimizer
    gc.collect()
    assert reference() is None


def test_a_version_outside_the_tested_range_is_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    installed = version("torch").split(".")[:2]
    warn_if_untested("torch", (".".join(installed), "99.0"))
    assert not recwarn.list
    with pytest.warns(
        UserWarning, match=r"pfge is tested with torch 0.1 to 1.9, and .* is installed; compare"
    ):
        warn_if_untested("torch", ("0.1", "1.9"))

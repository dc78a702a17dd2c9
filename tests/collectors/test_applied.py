from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pfge import EMA, FGE, PFGE, SWA, SWAG, Collector, Ensemble, Trajectory, load_weights, refresh_batch_norm
from pfge.collectors import Star
from pfge.weights import copy_weights, view_weights
from tests.toys import advance, assert_same_weights, make_batch, make_mlp, train

EVERY_COLLECTOR: list[Callable[[], Collector]] = [
    lambda: SWA(2),
    lambda: EMA(0.9),
    lambda: FGE(2),
    lambda: PFGE(2, 6),
    lambda: SWAG(2),
    lambda: Star(6, tail=3),
]


def in_mid_period(collector: Collector) -> Trajectory:
    """Train for one period of 6 iterations and 4 of the next."""
    return train(make_mlp(), [collector], 10)


def observe(collector: Collector, iterations: range) -> None:
    for iteration in iterations:
        collector.observe(iteration, {"w": torch.tensor(3.0 * iteration)})


@pytest.mark.parametrize("make", EVERY_COLLECTOR)
def test_inside_the_model_has_the_mean_and_training_goes_on_as_if_nothing_happened(
    make: Callable[[], Collector],
) -> None:
    collector, undisturbed = make(), make()
    trajectory = in_mid_period(collector)
    batches = [make_batch(1), make_batch(2)]
    with collector.applied(trajectory.model):
        assert_same_weights(copy_weights(view_weights(trajectory.model)), collector.mean_so_far())
    with collector.applied(trajectory.model, batches):
        trajectory.model.eval()
        trajectory.model(batches[0][0])
    advance(trajectory, 6)
    expected = train(make_mlp(), [undisturbed], 16)
    assert_same_weights(view_weights(trajectory.model), view_weights(expected.model))
    for member, other in zip(collector.members(), undisturbed.members(), strict=True):
        assert_same_weights(member, other)


@pytest.mark.parametrize("make", EVERY_COLLECTOR)
def test_before_anything_was_collected_there_is_nothing_to_apply(make: Callable[[], Collector]) -> None:
    model = make_mlp()
    trajectory = Trajectory(model, torch.optim.SGD(model.parameters(), lr=0.1), None, [collector := make()])
    trajectory.before_update()
    before = copy_weights(view_weights(model))
    with pytest.raises(ValueError, match=r"has (collected|averaged) nothing yet"), collector.applied(model):
        pass
    assert_same_weights(view_weights(model), before)


def test_everything_comes_back_after_an_exception() -> None:
    model = in_mid_period(collector := SWA(2)).model
    model[3].eval()
    before, modes = copy_weights(view_weights(model)), [module.training for module in model.modules()]
    random = torch.get_rng_state()
    with pytest.raises(KeyError), collector.applied(model, [make_batch(1)]):  # noqa: PT012
        assert not torch.equal(model[0].weight, before["0.weight"])
        model.eval()
        torch.randn(3)
        raise KeyError
    assert_same_weights(view_weights(model), before)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)


def test_everything_comes_back_if_the_batches_raise() -> None:
    model = in_mid_period(collector := SWA(2)).model
    before = copy_weights(view_weights(model))
    with pytest.raises(ValueError, match="got none"), collector.applied(model, []):
        pass
    assert_same_weights(view_weights(model), before)
    with collector.applied(model):
        pass


def test_batch_norm_statistics_are_those_of_the_mean_over_the_batches() -> None:
    model = in_mid_period(collector := PFGE(2, 6)).model
    batches = [make_batch(1), make_batch(2)]
    expected = make_mlp()
    load_weights(expected, collector.mean_so_far())
    refresh_batch_norm(expected, batches)
    tracked = model[1].num_batches_tracked.item()
    with collector.applied(model, batches):
        assert_same_weights(view_weights(model), view_weights(expected))
        assert model[1].num_batches_tracked.item() == 2
    assert model[1].num_batches_tracked.item() == tracked


class Replaces(nn.Module):
    """Replaces its buffers in every forward pass; one of them is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("cache", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        self.cache.add_(1)
        return x * self.w


def test_buffers_that_a_model_replaces_or_does_not_save_come_back() -> None:
    model = Replaces()
    collector = SWA(1)
    collector.begin(view_weights(model))
    collector.observe(1, view_weights(model))
    with collector.applied(model):
        model(torch.ones(1))
        assert (model.calls.item(), model.cache.item()) == (1, 1)
    assert (model.calls.item(), model.cache.item()) == (0, 0)


def test_a_model_is_in_one_block_at_a_time_and_is_not_updated_in_it() -> None:
    trajectory = train(make_mlp(), [swa := SWA(2), ema := EMA(0.9)], 4)
    model = trajectory.model
    with swa.applied(model):
        for other in (swa, ema):
            with pytest.raises(RuntimeError, match="leave the block before"), other.applied(model):
                pass
        with pytest.raises(RuntimeError, match="or an update"):
            trajectory.before_update()
        with pytest.raises(RuntimeError, match="leave the block"):
            trajectory.state_dict()
        with ema.applied(copied := make_mlp()):  # another model
            assert_same_weights(view_weights(copied), ema.mean_so_far())
    with ema.applied(model):
        pass
    advance(trajectory, 1)


def test_the_mean_of_an_unfinished_period_counts_its_points() -> None:
    collector = PFGE(cycle=2, period=6)
    collector.begin({"w": torch.tensor(0.0)})
    observe(collector, range(1, 5))
    assert collector.mean_so_far() == {"w": torch.tensor((0 + 6 + 12) / 3)}
    observe(collector, range(5, 7))
    member = (0 + 6 + 12 + 18) / 4
    assert collector.mean_so_far() == {"w": torch.tensor(member)}  # a period begins at the newest member
    observe(collector, range(7, 9))
    assert collector.mean_so_far() == {"w": torch.tensor((member + 24) / 2)}


def test_the_mean_of_an_unfinished_period_may_leave_its_start_out() -> None:
    collector = PFGE(cycle=2, period=6, average_start=False)
    collector.begin({"w": torch.tensor(0.0)})
    observe(collector, range(1, 5))
    assert collector.mean_so_far() == {"w": torch.tensor((6 + 12) / 2)}


def test_the_mean_of_an_unfinished_tail_counts_its_points() -> None:
    collector = Star(period=4, tail=3)
    collector.begin({"w": torch.tensor(0.0)})
    observe(collector, range(1, 4))
    assert collector.mean_so_far() == {"w": torch.tensor((6 + 9) / 2)}
    assert collector.pending_description() == "2 of the 3 points of its next member"
    observe(collector, range(4, 6))
    assert collector.mean_so_far() == {"w": torch.tensor((6 + 9 + 12) / 3)}
    assert collector.pending_description() is None


def test_swag_and_fge_give_their_mean_and_their_newest_member() -> None:
    for collector, expected in ((SWAG(2), (6 + 12) / 2), (FGE(2), 12.0)):
        collector.begin({"w": torch.tensor(0.0)})
        observe(collector, range(1, 6))
        assert collector.mean_so_far() == {"w": torch.tensor(expected)}


def test_stopping_in_mid_period_says_what_is_in_no_member() -> None:
    in_mid_period(collector := PFGE(2, 6))
    with pytest.warns(UserWarning, match=r"has 2 of the 3 points of its next member.*mean_so_far\(\)"):
        ensemble = Ensemble.from_collector(collector, make_mlp)
    assert ensemble.iterations == [6]


def test_stopping_at_the_end_of_a_period_causes_no_warning() -> None:
    train(make_mlp(), [collector := PFGE(2, 6)], 12)
    assert len(Ensemble.from_collector(collector, make_mlp)) == 2


def test_inside_of_autocast_each_pass_is_of_the_weights_that_the_model_has() -> None:
    model = in_mid_period(collector := SWA(2)).model.eval()
    x = make_batch(1)[0]

    def expected() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            return model(x)

    with torch.no_grad():
        own = expected()
        with collector.applied(model):
            applied = expected()
        with torch.autocast("cpu", torch.bfloat16):
            model(x)  # autocast keeps these weights as bfloat16
            with collector.applied(model):
                assert torch.equal(model(x), applied)
            assert torch.equal(model(x), own)
    assert not torch.equal(own, applied)

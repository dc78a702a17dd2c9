import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pfge import FGE, SWA, Collector, Ensemble, Trajectory, refresh_batch_norm
from pfge.weights import copy_weights, view_weights
from tests.toys import assert_same_weights, make_mlp

DATA = torch.randn(41, 4, generator=torch.Generator().manual_seed(1)) * 3 + 1


def split(data: Tensor, size: int) -> list[Tensor]:
    """Batches of a size, the rest joined to the last, since BatchNorm needs two examples."""
    parts = list(data.split(size))
    return [*parts[:-2], torch.cat(parts[-2:])] if len(parts) > 1 and len(parts[-1]) == 1 else parts


@given(st.integers(2, 41))
def test_statistics_are_those_of_all_data_whatever_the_batch_size(size: int) -> None:
    model = make_mlp()
    refresh_batch_norm(model, split(DATA, size))
    seen = model[0](DATA).double()
    torch.testing.assert_close(model[1].running_mean.double(), seen.mean(0), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(model[1].running_var.double(), seen.var(0), atol=1e-6, rtol=1e-6)


def make_images() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(),
            nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.ReLU(),
            nn.Conv2d(2, 2, 2), nn.BatchNorm2d(2, momentum=None),
        )  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 10, 37])
def test_layer_by_layer_is_the_full_batch_at_any_depth(size: int) -> None:
    images = torch.randn(37, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    model, full = make_images(), make_images()
    refresh_batch_norm(model, images.split(size), layer_by_layer=True)
    for layer in full:
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    full(images)  # one training pass over everything writes the statistics of everything
    for layer in (1, 4, 7):
        # A layer in evaluation divides by the unbiased variance, in training by the biased one: 1/n apart.
        torch.testing.assert_close(model[layer].running_mean, full[layer].running_mean, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(model[layer].running_var, full[layer].running_var, atol=1e-3, rtol=1e-3)
    again = make_images()
    refresh_batch_norm(again, [images], layer_by_layer=True)
    for layer in (1, 4, 7):
        torch.testing.assert_close(model[layer].running_mean, again[layer].running_mean, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(model[layer].running_var, again[layer].running_var, atol=1e-6, rtol=1e-5)


def test_a_far_off_mean_does_not_cost_digits() -> None:
    model = nn.Sequential(nn.BatchNorm1d(1))
    data = (torch.arange(1000, dtype=torch.float32) % 7 + 1000)[:, None]
    refresh_batch_norm(model, data.split(10))
    assert model[0].running_var.item() == pytest.approx(data.double().var().item(), rel=1e-4)


def test_old_statistics_play_no_part() -> None:
    fresh, stale = make_mlp(), make_mlp()
    stale[1].running_mean.fill_(1e6)
    stale[1].running_var.fill_(1e6)
    refresh_batch_norm(fresh, [DATA])
    refresh_batch_norm(stale, [DATA])
    assert_same_weights(view_weights(fresh), view_weights(stale))


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_statistics_that_are_not_finite_are_replaced_by_those_of_the_data(bad: float) -> None:
    model = nn.Sequential(nn.BatchNorm1d(4))
    model[0].running_mean[1] = bad
    model[0].running_var[0] = bad
    refresh_batch_norm(model, split(DATA, 8))
    torch.testing.assert_close(model[0].running_mean, DATA.mean(0))
    torch.testing.assert_close(model[0].running_var, DATA.var(0))


class OneOfTwo(nn.Module):
    """Has a layer that no data reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.other = nn.BatchNorm1d(4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def test_a_layer_that_no_data_reaches_keeps_its_statistics() -> None:
    model = OneOfTwo()
    model.other.running_mean.fill_(3.0)
    model.other.running_var.fill_(7.0)
    refresh_batch_norm(model, [DATA])
    torch.testing.assert_close(model.used.running_mean, DATA.mean(0))
    assert model.other.running_mean.tolist() == [3.0] * 4
    assert model.other.running_var.tolist() == [7.0] * 4


def test_a_layer_whose_statistics_were_removed_has_none_to_refresh() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    model[0].running_mean = model[0].running_var = None
    refresh_batch_norm(model, [DATA])
    normalized = (DATA - DATA.mean(0)) / (DATA.var(0, correction=0) + model[0].eps).sqrt()
    torch.testing.assert_close(model[1].running_var, normalized.var(0))
    assert model[0].running_mean is None


def test_dropout_is_off() -> None:
    model = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(4))
    refresh_batch_norm(model, [DATA])
    torch.testing.assert_close(model[1].running_mean, DATA.mean(0))


def test_modes_momentum_and_random_state_come_back() -> None:
    model = make_mlp().train()
    model[1].eval()
    model[1].momentum = 0.3
    before = torch.get_rng_state()
    batches = torch.utils.data.DataLoader(DATA, batch_size=8, shuffle=True, drop_last=True)
    refresh_batch_norm(model, batches, frozen="refresh")
    assert [layer.training for layer in model] == [True, False, True, True, True]
    assert model.training
    assert model[1].momentum == 0.3
    assert torch.equal(torch.get_rng_state(), before)
    assert not model[1]._forward_hooks


def failing() -> Iterator[Tensor]:
    yield DATA
    torch.rand(1)
    raise OSError("the disk is gone")


def test_everything_comes_back_when_the_data_raises() -> None:
    model = make_mlp().train()
    before, state = copy_weights(view_weights(model)), torch.get_rng_state()
    with pytest.raises(OSError, match="the disk is gone"):
        refresh_batch_norm(model, failing())
    assert all(layer.training for layer in model.modules())
    assert model[1].momentum == 0.1
    assert_same_weights(view_weights(model), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert not model[1]._forward_hooks


def test_only_statistics_change() -> None:
    model = make_mlp()
    before = copy_weights(view_weights(model))
    refresh_batch_norm(model, [DATA])
    changed = {n for n, t in view_weights(model).items() if not torch.equal(t, before[n])}
    assert changed == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.norm(left + right)


def test_pairs_dicts_and_custom_batches_work() -> None:
    by_pair, by_dict, by_function = nn.Sequential(nn.BatchNorm1d(4)), TwoInputs(), TwoInputs()
    refresh_batch_norm(by_pair, [(DATA, torch.zeros(41))])
    refresh_batch_norm(by_dict, [{"left": DATA, "right": DATA * 0}])
    refresh_batch_norm(by_function, ["everything"], forward=lambda model, _: model(DATA, DATA * 0))
    for norm in (by_pair[0], by_dict.norm, by_function.norm):
        torch.testing.assert_close(norm.running_mean, DATA.mean(0))


def test_a_batch_of_an_unknown_kind_names_the_remedy() -> None:
    with pytest.raises(TypeError, match=r"got set; pass forward="):
        refresh_batch_norm(make_mlp(), [{1, 2}])


def test_no_data_is_an_error_and_keeps_the_old_statistics() -> None:
    model = make_mlp()
    with pytest.raises(ValueError, match="needs data that reaches its layers, got none"):
        refresh_batch_norm(model, [])
    assert torch.equal(model[1].running_var, torch.ones(8))


def test_one_example_alone_is_a_clear_error() -> None:
    with pytest.raises(
        ValueError, match=r"got an input of shape \[1, 8\]; use batches of 2 examples or more"
    ):
        refresh_batch_norm(make_mlp(), [DATA[:1]])


def test_a_model_without_batch_norm_reads_no_data() -> None:
    refresh_batch_norm(nn.Linear(4, 2), failing())


def make_frozen() -> nn.Module:
    """A model in training whose first BatchNorm layer the user froze."""
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2), nn.BatchNorm1d(2)).train()
    model[0].eval().requires_grad_(False)
    return model


def test_layers_that_were_frozen_in_evaluation_mode_are_left_alone() -> None:
    model, inputs = make_frozen(), torch.randn(50, 2) + 3
    with pytest.warns(UserWarning, match='1 BatchNorm layer was frozen .* frozen="refresh"'):
        refresh_batch_norm(model, [inputs])
    assert model[0].running_mean.tolist() == [0, 0]
    assert model[0].num_batches_tracked.item() == 0
    # The frozen layer normalizes by its own statistics, as in training.
    reached = model[1](inputs / (1 + model[0].eps) ** 0.5).detach()
    torch.testing.assert_close(model[2].running_mean, reached.mean(dim=0))
    assert (model[0].training, model[2].training) == (False, True)


def test_frozen_layers_are_refreshed_on_request() -> None:
    model, inputs = make_frozen(), torch.randn(50, 2) + 3
    refresh_batch_norm(model, [inputs], frozen="refresh")
    torch.testing.assert_close(model[0].running_mean, inputs.mean(dim=0))


def test_frozen_layers_can_be_named_where_the_mode_does_not_say() -> None:
    model, inputs = make_frozen().eval(), torch.randn(50, 2) + 3
    refresh_batch_norm(model, [inputs], frozen=["2"])
    torch.testing.assert_close(model[0].running_mean, inputs.mean(dim=0))
    assert model[2].running_mean.tolist() == [0, 0]


def test_a_model_whose_layers_are_all_frozen_reads_no_data() -> None:
    model = make_frozen()
    refresh_batch_norm(model, [], frozen=["0", "2"])


@pytest.mark.parametrize("frozen", ["all", ["0", "1"]])
def test_frozen_layers_that_there_are_not_are_refused(frozen: Any) -> None:
    with pytest.raises(ValueError, match="frozen must be 'keep', 'refresh' or names of BatchNorm layers"):
        refresh_batch_norm(make_frozen(), [torch.ones(2, 2)], frozen=frozen)


def train_frozen(*collectors: Collector) -> Trajectory:
    model = make_frozen()
    trajectory = Trajectory(model, torch.optim.SGD(model[1].parameters(), lr=0.1), None, collectors)
    for _ in range(4):
        model(torch.randn(8, 2)).square().sum().backward()
        trajectory.before_update()
        trajectory.optimizer.step()
        trajectory.after_update()
    return trajectory


def test_an_ensemble_knows_from_its_collector_which_layers_were_frozen() -> None:
    trajectory = train_frozen(collector := FGE(2))
    resumed = Trajectory(trajectory.model, trajectory.optimizer, None, [again := FGE(2)])
    resumed.load_state_dict(trajectory.state_dict())
    inputs = [torch.randn(50, 2) + 3]
    for source in (collector, again):
        assert source.frozen_batch_norm == {"0"}
        ensemble = Ensemble.from_collector(source, make_frozen).last(1)
        with pytest.warns(UserWarning, match="1 BatchNorm layer was frozen"):
            kept = ensemble.with_fresh_batch_norm(inputs).members[0]
        assert kept["0.running_mean"].tolist() == [0, 0]
        assert not torch.equal(kept["2.running_mean"], ensemble.members[0]["2.running_mean"])
        fresh = ensemble.with_fresh_batch_norm(inputs, frozen="refresh").members[0]
        torch.testing.assert_close(fresh["0.running_mean"], inputs[0].mean(dim=0))


def test_an_average_that_is_applied_keeps_the_statistics_of_frozen_layers() -> None:
    trajectory = train_frozen(collector := SWA(2))
    model = trajectory.model.eval()
    with collector.applied(model, [torch.randn(50, 2) + 3]):
        assert model[0].running_mean.tolist() == [0, 0]
        assert model[2].num_batches_tracked.item() == 1


# Loaders with persistent workers, which have a single iterator


def make_loader(workers: int = 1, **options: Any) -> "DataLoader[Any]":
    data = TensorDataset(torch.arange(64.0).reshape(32, 2))
    return DataLoader(data, batch_size=4, num_workers=workers, persistent_workers=True, **options)


@pytest.mark.parametrize("layer_by_layer", [False, True])
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"workers": 2, "in_order": False}])
def test_an_epoch_goes_on_where_statistics_are_computed_from_its_own_loader(
    options: dict[str, Any], layer_by_layer: bool
) -> None:
    loader, model, seen = make_loader(**options), nn.BatchNorm1d(2), []
    for _ in range(2):
        for number, (batch,) in enumerate(loader):
            seen += batch[:, 0].tolist()
            if number in (0, 3, 7):
                refresh_batch_norm(model, loader, layer_by_layer=layer_by_layer)
                assert model.running_mean.tolist() == [31, 32]
    assert sorted(seen) == sorted([*range(0, 64, 2)] * 2)


def test_training_sees_the_same_batches_with_and_without_an_average_that_is_applied() -> None:
    def order(applied: bool) -> list[float]:
        torch.manual_seed(0)
        collector, model, loader = SWA(1), nn.BatchNorm1d(2), make_loader(shuffle=True)
        collector.begin(view_weights(model))
        collector.observe(1, view_weights(model))
        seen: list[float] = []
        for _ in range(2):
            for (batch,) in loader:
                seen += batch[:, 0].tolist()
                if applied and len(seen) == 12:
                    with collector.applied(model, loader):
                        pass
        return seen

    assert order(applied=True) == order(applied=False)


def test_workers_that_have_ended_their_epoch_are_used_again() -> None:
    loader, model = make_loader(), nn.BatchNorm1d(2)
    assert len(list(loader)) == 8
    iterator = loader._iterator
    refresh_batch_norm(model, loader)
    assert model.running_mean.tolist() == [31, 32]
    assert iterator is not None
    assert loader._iterator is iterator
    assert iterator._num_yielded == 8


def test_a_loader_that_was_left_in_the_midst_of_an_epoch_gives_all_data() -> None:
    loader, model = make_loader(), nn.BatchNorm1d(2)
    next(iter(loader))
    refresh_batch_norm(model, loader)
    assert model.running_mean.tolist() == [31, 32]
    assert len(list(loader)) == 8


def test_workers_of_a_loop_come_back_when_statistics_fail() -> None:
    loader = make_loader()
    epoch = iter(loader)
    next(epoch)

    def fail(_: nn.Module, batch: Any) -> None:
        raise RuntimeError(f"no use for {batch}")

    with pytest.raises(RuntimeError, match="no use for"):
        refresh_batch_norm(nn.BatchNorm1d(2), loader, forward=fail)
    assert loader._iterator is epoch
    assert len(list(epoch)) == 7


def test_a_loader_with_a_generator_shuffles_later_epochs_as_if_it_had_not_been_read() -> None:
    def orders(*, refreshed: bool) -> list[list[float]]:
        data = TensorDataset(torch.arange(12.0)[:, None])
        loader = DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3))
        found = []
        for _ in range(3):
            found.append([value.item() for (batch,) in loader for value in batch])
            if refreshed:
                refresh_batch_norm(nn.Sequential(nn.BatchNorm1d(1)), loader)
        return found

    assert orders(refreshed=True) == orders(refreshed=False)

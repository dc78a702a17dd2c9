"""Frozen parameters are kept once, in memory and on disk, and members are as if each had its own."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pfge import (
    EMA,
    FGE,
    PFGE,
    SWA,
    SWAG,
    Bits,
    Collector,
    Ensemble,
    StorageError,
    Weights,
    compress,
    load_checkpoint,
    save_checkpoint,
)
from pfge.collectors import Star
from pfge.weights import buffer_names, count_bytes, has_same_bits, is_shared, view_weights
from tests.frozen_toys import X, advance, bytes_of_folder, classify, make_model, make_trajectory
from tests.resealed import edit_json
from tests.toys import assert_same_weights


def bytes_of_memory(tensors: Iterable[Tensor]) -> int:
    """The memory that tensors take together."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def test_four_members_of_a_model_that_is_mostly_frozen_take_little_more_than_one(tmp_path: Path) -> None:
    collector = PFGE(cycle=2, period=4)
    trajectory = make_trajectory(collector)
    advance(trajectory, 16)
    model = count_bytes(view_weights(trajectory.model))
    assert count_bytes(view_weights(trajectory.model[0])) > 0.95 * model
    assert collector._mean is not None
    kept = [t for weights in (*collector.members(), collector._mean.wide()) for t in weights.values()]
    assert bytes_of_memory(kept) <= 1.25 * model

    ensemble = Ensemble.from_collector(collector, make_model, forward=classify)
    assert ensemble.nbytes <= 1.25 * model
    ensemble.save(tmp_path / "saved")
    assert ensemble.file_bytes() == bytes_of_folder(tmp_path / "saved") <= 1.25 * model
    loaded = Ensemble.load(tmp_path / "saved", make_model, forward=classify)
    assert len(loaded) == 4
    assert loaded.nbytes == ensemble.nbytes
    assert bytes_of_memory(t for member in list(loaded.members) for t in member.values()) <= 1.25 * model
    for one, two in zip(loaded.members, collector.members(), strict=True):
        assert_same_weights(one, two)
    assert torch.equal(loaded.predict(X), ensemble.predict(X))


def test_members_that_go_to_a_folder_are_the_same_and_share_it(tmp_path: Path) -> None:
    make = [lambda: PFGE(2, 4), lambda: PFGE(2, 4, store=tmp_path / "members")]
    in_memory, on_disk = (factory() for factory in make)
    for collector in (in_memory, on_disk):
        advance(make_trajectory(collector), 16)
    for one, two in zip(in_memory.members(), on_disk.members(), strict=True):
        assert_same_weights(one, two)
    assert bytes_of_folder(tmp_path / "members") <= 1.25 * count_bytes(in_memory.members()[0])


def frozen_as_in_the_model(members: Iterable[Weights], model: nn.Module) -> bool:
    return all(has_same_bits(member["0.weight"], model[0].weight) for member in members)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SWA(2),
        lambda: EMA(0.9),
        lambda: FGE(2),
        lambda: PFGE(2, 4),
        lambda: SWAG(2),
        lambda: Star(4, tail=2),
    ],
)
def test_the_average_of_a_frozen_tensor_is_the_tensor(make: Callable[[], Collector]) -> None:
    trajectory = make_trajectory(collector := make())
    before = trajectory.model[0].weight.clone()
    advance(trajectory, 9)
    assert frozen_as_in_the_model(collector.members(), trajectory.model)
    with collector.applied(trajectory.model):
        assert has_same_bits(trajectory.model[0].weight, before)
    with torch.no_grad():
        trajectory.model[0].weight.zero_()  # the model goes on; what was collected stays
    assert has_same_bits(collector.members()[-1]["0.weight"], before)


def run_with_twins(change: Callable[[nn.Module, int], None], model: nn.Module) -> None:
    """Compare collectors of a trajectory with others that get every tensor live, as if none were frozen."""

    def make() -> list[Collector]:
        return [SWA(2), EMA(0.9), FGE(2), SWAG(2, samples=2), PFGE(2, 100)]

    collectors, twins = make(), make()
    trajectory = make_trajectory(*collectors, model=model)
    for twin in twins:
        twin.begin(view_weights(model), buffer_names(model))

    def after(iteration: int) -> None:
        for twin in twins:
            twin.observe(iteration, view_weights(model))
        change(model, iteration)

    advance(trajectory, 13, after)
    for collector, twin in zip(collectors, twins, strict=True):
        for one, two in zip(collector.members(), twin.members(), strict=True):
            assert_same_weights(one, two)
    assert_same_weights(collectors[-1].mean_so_far(), twins[-1].mean_so_far())


def unfreeze(model: nn.Module, iteration: int) -> None:
    if iteration == 5:
        model[0].requires_grad_(True)


def overwrite(model: nn.Module, iteration: int) -> None:
    if iteration == 6:
        with torch.no_grad():
            model[0].weight.mul_(2.0)


def move_as_a_teacher(model: nn.Module, iteration: int) -> None:  # noqa: ARG001
    model[0].weight.data.mul_(0.99)


def replace(model: nn.Module, iteration: int) -> None:
    if iteration == 7:
        model[0].weight = nn.Parameter(0.01 * torch.ones(1000, 64), requires_grad=False)


@pytest.mark.parametrize("change", [unfreeze, overwrite, move_as_a_teacher, replace])
def test_a_frozen_parameter_that_changes_is_collected(change: Callable[[nn.Module, int], None]) -> None:
    run_with_twins(change, make_model())


@pytest.mark.parametrize("stop", [3, 6, 9])
@pytest.mark.parametrize("folder", [False, True])
def test_a_resumed_run_has_the_same_members_and_shares_them(tmp_path: Path, stop: int, folder: bool) -> None:
    def make(name: str) -> PFGE:
        return PFGE(2, 4, store=tmp_path / name if folder else None)

    advance(make_trajectory(whole := make("whole")), 12)
    first = make_trajectory(make("parts"))
    advance(first, stop)
    save_checkpoint(tmp_path / "checkpoint", first.state_dict())
    resumed = make_trajectory(again := make("parts"))
    resumed.load_state_dict(load_checkpoint(tmp_path / "checkpoint"))
    advance(resumed, 12 - stop)
    for one, two in zip(whole.members(), again.members(), strict=True):
        assert all(has_same_bits(one[name], two[name]) for name in one)
    if folder:
        assert bytes_of_folder(tmp_path / "parts") == bytes_of_folder(tmp_path / "whole")


def test_weights_that_are_frozen_and_not_finite_are_refused() -> None:
    model = make_model()
    model[0].bias.data[0] = torch.nan
    with pytest.raises(ValueError, match=r"SWA.* needs finite weights, but 0\.bias holds NaN"):
        advance(make_trajectory(SWA(2), model=model), 2)


def make_eight_bits(kind: type[nn.Parameter] | type[nn.Buffer]) -> nn.Module:
    """A model beside which a tensor of 8 bits is kept, as a quantized base is."""
    model = make_model()
    quantized = torch.tensor([0.5, -2.0, 3.0]).to(torch.float8_e4m3fn)
    model.q = nn.Parameter(quantized, requires_grad=False) if kind is nn.Parameter else nn.Buffer(quantized)
    return model


def test_frozen_parameters_of_eight_bits_are_collected_saved_and_resumed(tmp_path: Path) -> None:
    trajectory = make_trajectory(collector := PFGE(1, 2), model=make_eight_bits(nn.Parameter))
    advance(trajectory, 3)
    save_checkpoint(tmp_path / "checkpoint", trajectory.state_dict())
    resumed = make_trajectory(again := PFGE(1, 2), model=make_eight_bits(nn.Parameter))
    resumed.load_state_dict(load_checkpoint(tmp_path / "checkpoint"))
    advance(resumed, 1)
    ensemble = Ensemble.from_collector(again, lambda: make_eight_bits(nn.Parameter), forward=classify)
    ensemble.save(tmp_path / "saved")
    loaded = Ensemble.load(tmp_path / "saved", ensemble.build_model, forward=classify)
    for member in (*collector.members(), *loaded.members):
        assert member["q"].dtype == torch.float8_e4m3fn
        assert member["q"].float().tolist() == [0.5, -2.0, 3.0]
    with collector.applied(trajectory.model):
        assert trajectory.model.q.float().tolist() == [0.5, -2.0, 3.0]


def test_other_tensors_of_eight_bits_are_refused_with_the_remedy() -> None:
    trajectory = make_trajectory(SWA(1), model=make_eight_bits(nn.Buffer))
    with pytest.raises(ValueError, match=r"q, which is torch\.float8_e4m3fn; make it a parameter .* frozen"):
        advance(trajectory, 1)


def test_bits_are_compared_not_numbers() -> None:
    zero = torch.zeros(())
    assert has_same_bits(zero, zero.clone())
    assert not has_same_bits(zero, -zero)
    assert has_same_bits(torch.tensor([torch.nan]), torch.tensor([torch.nan]))
    assert not has_same_bits(zero, zero.double())
    assert not has_same_bits(torch.zeros(2), torch.zeros(2, 1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    advance(make_trajectory(collector := FGE(2)), 6)
    Ensemble.from_collector(collector, make_model, forward=classify).save(tmp_path / "saved")
    return tmp_path / "saved"


def shared_file(folder: Path) -> Path:
    (file,) = folder.glob("shared-*.safetensors")
    return file


def edit_shared(folder: Path, entry: Any) -> None:
    edit_json(folder / "manifest.json", shared=entry)


def test_the_manifest_names_the_shared_file_and_has_a_version_that_says_so(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["version"] == 2
    assert manifest["shared"]["file"] == shared_file(folder).name
    assert manifest["shared"]["bytes"] == shared_file(folder).stat().st_size


def test_a_damaged_or_missing_shared_file_is_found(folder: Path) -> None:
    file = shared_file(folder)
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(StorageError, match=f"{file.name} must have SHA-256 .*found .*restore it"):
        Ensemble.load(folder, make_model)
    file.unlink()
    with pytest.raises(StorageError, match=f"{file.name} is missing, but .* names it as shared tensors"):
        Ensemble.load(folder, make_model)


@pytest.mark.parametrize("entry", [7, {"file": "../x", "bytes": 1, "sha256": "0"}, {"file": "x"}])
def test_a_foreign_entry_of_shared_tensors_is_refused(folder: Path, entry: Any) -> None:
    edit_shared(folder, entry)
    with pytest.raises(StorageError, match="must give file, bytes, sha256 of each file"):
        Ensemble.load(folder, make_model)


def test_what_is_made_of_a_loaded_ensemble_shares_as_well(folder: Path, tmp_path: Path) -> None:
    loaded = Ensemble.load(folder, make_model, forward=classify)
    size = bytes_of_folder(folder)
    loaded.with_fresh_batch_norm([X]).save(tmp_path / "fresh")
    assert bytes_of_folder(tmp_path / "fresh") == size
    loaded.last(2).save(folder)  # over itself
    assert bytes_of_folder(folder) < size
    assert torch.equal(
        Ensemble.load(folder, make_model, forward=classify).predict(X), loaded.last(2).predict(X)
    )
    Ensemble([dict(view_weights(make_model()))], make_model).save(folder)
    assert not list(folder.glob("shared-*"))  # a member that shares nothing needs no such file


def test_members_with_shared_tensors_are_whole_and_can_be_compressed(folder: Path) -> None:
    loaded = Ensemble.load(folder, make_model, forward=classify)
    assert sorted(loaded.members[0]) == sorted(make_model().state_dict())
    assert [is_shared(loaded.members[k]["0.weight"]) for k in range(3)] == [True] * 3
    assert not is_shared(loaded.members[0]["3.weight"])
    torch.testing.assert_close(compress(loaded, Bits(8)).predict(X), loaded.predict(X), atol=0.01, rtol=0)

"""A user's checkpoint as start weights: every usual form is read, nothing in it is ever executed."""

import os
import pickle
import random
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from pfge import StorageError
from pfge.lab.training.checkpoint_files import load_start_weights, read_start_weights
from pfge.weights import view_weights
from tests.toys import assert_same_weights, make_mlp


class Tied(nn.Module):
    """Two names for one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(3, 4, bias=False)
        self.head = nn.Linear(3, 4)
        self.head.weight = self.embedding.weight


def trained_state() -> dict[str, Tensor]:
    """Return a state dict that a new `make_mlp()` does not have, batch counters included."""
    model = make_mlp(seed=5)
    model(torch.randn(16, 4, generator=torch.Generator().manual_seed(0)))
    return model.state_dict()


def load(path: Path) -> nn.Module:
    model = make_mlp(seed=0)
    load_start_weights(model, path)
    return model


def refused(path: Path) -> str:
    with pytest.raises(StorageError) as caught:
        load(path)
    return str(caught.value)


def with_prefix(prefix: str) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in trained_state().items()}


# What is read


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
def test_a_state_dict_beside_other_values_is_read(tmp_path: Path, key: str) -> None:
    torch.save({key: trained_state(), "epoch": 3}, tmp_path / "w.pt")
    assert_same_weights(view_weights(load(tmp_path / "w.pt")), trained_state())


def test_a_model_that_is_a_part_of_what_was_saved_is_read(tmp_path: Path) -> None:
    state = with_prefix("net.backbone.") | {"loss.weight": torch.ones(3)}
    torch.save({"state_dict": state}, tmp_path / "w.ckpt")
    assert_same_weights(view_weights(load(tmp_path / "w.ckpt")), trained_state())


def test_a_part_of_what_was_saved_may_have_another_head(tmp_path: Path) -> None:
    state = with_prefix("net.")
    state["net.4.weight"], state["net.4.bias"] = torch.ones(7, 8), torch.ones(7)
    torch.save(state, tmp_path / "w.pt")
    with pytest.warns(UserWarning, match=r"has 7 classes and the model 3: 4\.weight, 4\.bias are left out"):
        assert load_start_weights(make_mlp(seed=0), tmp_path / "w.pt", classes=3) == ["4.weight", "4.bias"]


def test_two_copies_of_the_model_in_a_file_are_refused(tmp_path: Path) -> None:
    torch.save(with_prefix("net.") | with_prefix("ema."), tmp_path / "w.pt")
    assert refused(tmp_path / "w.pt") == (
        f"{tmp_path / 'w.pt'} must hold the model once, but has its tensors under net., ema.; save only "
        "the one to use"
    )


def test_a_prefix_stays_if_a_name_of_the_model_is_there_without_it(tmp_path: Path) -> None:
    torch.save(with_prefix("net.") | {"4.bias": torch.ones(3)}, tmp_path / "w.pt")
    assert "only the model has 0.bias" in refused(tmp_path / "w.pt")


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".th"])
@pytest.mark.parametrize("modern", [True, False], ids=["zip", "legacy"])
def test_a_plain_state_dict_of_torch_is_read(tmp_path: Path, suffix: str, modern: bool) -> None:
    path = tmp_path / f"w{suffix}"
    torch.save(trained_state(), path, _use_new_zipfile_serialization=modern)
    assert_same_weights(view_weights(load(path)), trained_state())


def test_safetensors_are_read(tmp_path: Path) -> None:
    save_file(trained_state(), tmp_path / "w.safetensors")
    assert_same_weights(view_weights(load(tmp_path / "w.safetensors")), trained_state())


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_a_state_dict_among_other_things_is_found(tmp_path: Path, key: str) -> None:
    about = {"epoch": 7, "best_acc": 91.7, "arch": "mlp", "optimizer": {"param_groups": [{"lr": 0.1}]}}
    torch.save({key: trained_state(), **about}, tmp_path / "w.pt")
    assert_same_weights(view_weights(load(tmp_path / "w.pt")), trained_state())


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.module."]
)
def test_the_names_that_wrappers_add_are_removed(tmp_path: Path, prefix: str) -> None:
    torch.save(with_prefix(prefix), tmp_path / "w.pt")
    save_file(with_prefix(prefix), tmp_path / "w.safetensors")
    for path in (tmp_path / "w.pt", tmp_path / "w.safetensors"):
        assert_same_weights(view_weights(load(path)), trained_state())


def test_a_compiled_part_of_a_model_is_found_by_its_own_name(tmp_path: Path) -> None:
    save_file({"features._orig_mod.0.weight": torch.ones(2)}, tmp_path / "w.safetensors")
    assert list(read_start_weights(tmp_path / "w.safetensors")) == ["features.0.weight"]


def test_a_name_that_only_resembles_a_wrappers_stays(tmp_path: Path) -> None:
    names = ["submodule.weight", "a.module.weight", "module_list.weight"]
    save_file({name: torch.ones(2) for name in names}, tmp_path / "w.safetensors")
    assert sorted(read_start_weights(tmp_path / "w.safetensors")) == sorted(names)


def test_a_part_of_the_model_that_is_called_module_keeps_its_name(tmp_path: Path) -> None:
    names = ["weight", "module.weight", "module.bias"]
    save_file({name: torch.ones(2) for name in names}, tmp_path / "w.safetensors")
    assert sorted(read_start_weights(tmp_path / "w.safetensors")) == sorted(names)
    save_file({f"module.{name}": torch.ones(2) for name in names}, tmp_path / "ddp.safetensors")
    assert sorted(read_start_weights(tmp_path / "ddp.safetensors")) == sorted(names)


def test_a_model_that_torch_averaged_is_read_without_its_counter(tmp_path: Path) -> None:
    averaged = AveragedModel(make_mlp(seed=5))
    torch.save(averaged.state_dict(), tmp_path / "w.pt")
    assert_same_weights(view_weights(load(tmp_path / "w.pt")), make_mlp(seed=5).state_dict())


def test_names_that_would_become_one_are_refused(tmp_path: Path) -> None:
    save_file({name: torch.ones(2) for name in ("a.w", "a._orig_mod.w")}, tmp_path / "w.safetensors")
    with pytest.raises(StorageError, match="must name every tensor once, but names differ only in _orig_mod"):
        read_start_weights(tmp_path / "w.safetensors")


def test_missing_batch_counters_are_fine(tmp_path: Path) -> None:
    state = trained_state()
    assert state.pop("1.num_batches_tracked") == 1
    torch.save(state, tmp_path / "w.pt")
    loaded = view_weights(load(tmp_path / "w.pt"))
    assert loaded.pop("1.num_batches_tracked") == 0
    assert_same_weights(loaded, state)


def test_the_second_name_of_a_tied_tensor_is_fine(tmp_path: Path) -> None:
    source, target = Tied(), Tied()
    torch.save(source.state_dict(), tmp_path / "w.pt")
    assert "head.weight" in source.state_dict()
    load_start_weights(target, tmp_path / "w.pt")
    assert_same_weights(view_weights(target), view_weights(source))
    assert target.head.weight is target.embedding.weight


def test_weights_of_half_precision_fill_a_model_of_full_precision(tmp_path: Path) -> None:
    half = {name: t.bfloat16() if t.is_floating_point() else t for name, t in trained_state().items()}
    torch.save(half, tmp_path / "w.pt")
    loaded = view_weights(load(tmp_path / "w.pt"))
    assert loaded["0.weight"].dtype == torch.float32
    assert torch.equal(loaded["0.weight"], half["0.weight"].float())


# What is refused


class Malicious:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path):
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("form", ["zip", "legacy", "plain pickle"])
def test_a_malicious_checkpoint_is_refused_and_executes_nothing(tmp_path: Path, form: str) -> None:
    sign = tmp_path / "executed"
    content = {**trained_state(), "extra": Malicious(sign)}
    path = tmp_path / "w.pt"
    if form == "plain pickle":
        path.write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    message = refused(path)
    assert message.startswith(str(path))
    assert not sign.exists()
    pickle.loads(pickle.dumps(Malicious(sign)))  # the trap is a real one
    assert sign.exists()


def test_a_checkpoint_with_other_objects_is_refused_with_the_class_and_the_remedy(tmp_path: Path) -> None:
    torch.save({"state_dict": trained_state(), "args": Namespace(lr=0.1)}, tmp_path / "w.pt")
    assert refused(tmp_path / "w.pt") == (
        f"{tmp_path / 'w.pt'} holds argparse.Namespace beside tensors and plain values, and is not loaded "
        "because loading would run code from it; save its state_dict() alone, best as .safetensors"
    )


def test_a_whole_pickled_model_is_refused_with_its_class(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "w.pt")
    assert "holds torch.nn.modules.linear.Linear beside" in refused(tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("w.npz", "got w.npz"), ("w", "got w"), ("w.SAFETENSORS", "got w.SAFETENSORS")],
)
def test_another_suffix_is_refused(tmp_path: Path, name: str, expected: str) -> None:
    (tmp_path / name).write_bytes(b"")
    message = refused(tmp_path / name)
    assert message == f"a checkpoint's name must end in .safetensors, .pt, .pth, .th, .ckpt, .bin, {expected}"


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    assert refused(tmp_path / name) == f"checkpoint {tmp_path / name} does not exist; check the path"


def test_a_folder_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "w.pt").mkdir()
    assert refused(tmp_path / "w.pt").endswith("does not exist; check the path")


def save_zip(path: Path) -> None:
    torch.save(trained_state(), path)


def save_legacy(path: Path) -> None:
    torch.save(trained_state(), path, _use_new_zipfile_serialization=False)


def save_safetensors(path: Path) -> None:
    save_file(trained_state(), path)


@pytest.mark.parametrize(
    ("save", "suffix"),
    [(save_zip, ".pt"), (save_legacy, ".pt"), (save_safetensors, ".safetensors")],
    ids=["zip", "legacy", "safetensors"],
)
def test_a_truncated_file_is_refused_wherever_it_ends(
    tmp_path: Path, save: Callable[[Path], None], suffix: str
) -> None:
    path = tmp_path / f"w{suffix}"
    save(path)
    whole = path.read_bytes()
    chosen = random.Random(0).sample(range(len(whole)), 60)
    for length in (0, 1, len(whole) - 1, *chosen):
        path.write_bytes(whole[:length])
        # Where a class's name is cut short in a pickle, the file seems to hold a class of that name.
        assert refused(path).startswith((f"{path} must be a whole", f"{path} holds ")), length


@pytest.mark.parametrize("content", [b"hello world\n", b"\x00" * 64, b"PK\x03\x04 no archive", b"{}"])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"w{suffix}"
    path.write_bytes(content)
    assert refused(path).startswith(f"{path} must be a whole")


def test_another_architecture_is_refused_with_the_names(tmp_path: Path) -> None:
    state = trained_state()
    state["fc.weight"] = state.pop("4.weight")
    state["0.bias"] = torch.zeros(9)
    torch.save(state, tmp_path / "w.pt")
    message = refused(tmp_path / "w.pt")
    assert message.startswith(f"{tmp_path / 'w.pt'} does not fit the model: ")
    for part in (
        "only the model has 4.weight",
        "only the weights has fc.weight",
        "0.bias is [8] in the model and [9] in the weights",
    ):
        assert part in message


def test_a_checkpoint_that_does_not_fit_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    state = trained_state()
    del state["4.bias"]
    torch.save(state, tmp_path / "w.pt")
    model = make_mlp(seed=0)
    with pytest.raises(StorageError, match=r"only the model has 4\.bias"):
        load_start_weights(model, tmp_path / "w.pt")
    assert_same_weights(view_weights(model), view_weights(make_mlp(seed=0)))


@pytest.mark.parametrize("name", ["4.weight", "1.running_mean"])
def test_weights_that_are_not_finite_are_refused_with_their_name(tmp_path: Path, name: str) -> None:
    state = trained_state()
    state[name] = torch.full_like(state[name], torch.nan)
    torch.save(state, tmp_path / "w.pt")
    assert refused(tmp_path / "w.pt") == (
        f"{tmp_path / 'w.pt'} must hold finite weights, but {name} has NaN or infinity; give another file"
    )


def test_a_mask_that_is_infinite_by_design_is_read(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
    torch.save(model.state_dict(), tmp_path / "w.pt")
    assert load_start_weights(model, tmp_path / "w.pt") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.zeros(2)], "must hold a state dict, found list"),
        (torch.zeros(2), "must hold a state dict, found Tensor"),
        ({}, "must hold a state dict, found dict"),
        ({"epoch": 7, "weights": {"a": torch.zeros(2)}}, "found other values: epoch, weights"),
        ({"state_dict": {"a": torch.zeros(2), "note": "hi"}}, "found other values: note"),
    ],
)
def test_what_is_no_state_dict_is_refused_with_what_was_found(
    tmp_path: Path, content: Any, message: str
) -> None:
    torch.save(content, tmp_path / "w.pt")
    assert message in refused(tmp_path / "w.pt")


def test_a_compressed_archive_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    whole, small = tmp_path / "whole.pth", tmp_path / "small.pth"
    torch.save({"w": torch.zeros(1_000_000)}, whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(small, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    assert small.stat().st_size < 100_000
    assert "must be as torch.save writes it, not compressed" in refused(small)


@pytest.mark.parametrize(
    "tensor",
    [torch.empty(3, device="meta"), torch.eye(3).to_sparse()],
    ids=["meta", "sparse"],
)
def test_tensors_without_plain_numbers_are_refused(tmp_path: Path, tensor: Tensor) -> None:
    torch.save({**trained_state(), "odd": tensor}, tmp_path / "odd.pt")
    assert "must hold dense tensors of numbers, got odd" in refused(tmp_path / "odd.pt")


def test_a_layer_that_a_model_uses_many_times_is_read(tmp_path: Path) -> None:
    layer = nn.Linear(64, 64)
    torch.save(nn.Sequential(*[layer] * 12).state_dict(), tmp_path / "w.pt")
    found = read_start_weights(tmp_path / "w.pt")
    assert len(found) == 24
    assert torch.equal(found["11.weight"], layer.weight)


def test_a_small_file_that_stands_for_much_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1).expand(8000, 8000)}, tmp_path / "w.pt")
    with pytest.raises(
        StorageError, match=r"must hold its tensors whole, but [\d,]+ bytes stand for 256,000,000"
    ):
        read_start_weights(tmp_path / "w.pt")


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool])
def test_whole_numbers_do_not_become_weights_without_a_word(tmp_path: Path, dtype: torch.dtype) -> None:
    state = trained_state()
    name = next(name for name, tensor in state.items() if tensor.is_floating_point())
    torch.save(state | {name: state[name].to(dtype)}, tmp_path / "cast.pt")
    assert f"{name} is of torch.float32 there and of {dtype} here" in refused(tmp_path / "cast.pt")

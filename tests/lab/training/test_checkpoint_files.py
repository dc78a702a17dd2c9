"""Checkpoints on disk as weights, and their mean."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

from pfge import StorageError
from pfge.lab.experiments.checkpoints import checkpoint_members
from pfge.lab.models import build_model
from pfge.lab.training.checkpoint_files import average_checkpoints, read_checkpoint
from pfge.weights import count_bytes, view_weights
from tests.toys import assert_same_weights


def make_net(seed: int, width: int = 6) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 3))
    net(torch.randn(8, 4))  # statistics that differ
    return net


def write_all(folder: Path, count: int) -> list[Path]:
    paths = []
    for seed in range(count):
        paths.append(folder / f"{seed}.safetensors")
        save_file(dict(make_net(seed).state_dict()), paths[-1])
    return paths


def test_the_mean_is_that_of_torch(tmp_path: Path) -> None:
    found = average_checkpoints(write_all(tmp_path, 20))
    averaged = AveragedModel(make_net(0), use_buffers=True)
    for seed in range(20):
        averaged.update_parameters(make_net(seed))
    for name, expected in averaged.module.state_dict().items():
        if expected.is_floating_point():
            torch.testing.assert_close(found[name], expected, rtol=0, atol=1e-6)
    assert found["1.num_batches_tracked"].item() == 1


def test_half_precision_is_averaged_in_float32_and_comes_back_as_it_was(tmp_path: Path) -> None:
    # In bfloat16 the sum of 256 ones and the next one is 256 again.
    paths = [tmp_path / f"{number}.safetensors" for number in range(300)]
    for number, path in enumerate(paths):
        save_file({"w": torch.tensor([1.0 + (number % 2)], dtype=torch.bfloat16)}, path)
    found = average_checkpoints(paths)
    assert found["w"].dtype == torch.bfloat16
    assert found["w"].item() == 1.5


def of_two_types(folder: Path, value: float) -> list[Path]:
    """Write a float16 checkpoint, and one of float32 that has a value."""
    save_file({"w": torch.tensor([2.0], dtype=torch.float16)}, folder / "half.safetensors")
    save_file({"w": torch.tensor([value])}, folder / "single.safetensors")
    return [folder / "half.safetensors", folder / "single.safetensors"]


@pytest.mark.parametrize("combine", [average_checkpoints, lambda paths: [*checkpoint_members(paths)]])
def test_values_too_large_for_the_first_checkpoint_are_refused(tmp_path: Path, combine: Any) -> None:
    half, single = of_two_types(tmp_path, 1e5)
    with pytest.raises(StorageError) as caught:
        combine([half, single])
    assert str(caught.value) == (
        f"{single} must fit the types of {half}, but w has a value too large for torch.float16; give a "
        "float32 checkpoint first"
    )


def test_the_mean_has_the_type_of_the_first_checkpoint(tmp_path: Path) -> None:
    half, single = of_two_types(tmp_path, 4.0)
    assert average_checkpoints([half, single])["w"].dtype == torch.float16
    assert average_checkpoints([single, half])["w"].tolist() == [3.0]


@pytest.mark.parametrize(
    ("name", "wrap"),
    [
        ("plain.pt", lambda state: state),
        ("lightning.ckpt", lambda state: {"state_dict": state, "epoch": 3, "global_step": 12}),
        ("pytorch_model.bin", lambda state: state),
        ("ddp.pth", lambda state: {"model": {f"module.{name}": value for name, value in state.items()}}),
    ],
)
def test_checkpoints_of_other_trainers_are_read(tmp_path: Path, name: str, wrap: Any) -> None:
    net = make_net(1)
    torch.save(wrap(net.state_dict()), tmp_path / name)
    assert_same_weights(read_checkpoint(tmp_path / name), view_weights(net))
    if name in ("pytorch_model.bin",):
        assert_same_weights(read_checkpoint(tmp_path), view_weights(net))


def test_a_folder_of_the_trainer_is_read_whole_or_in_parts(tmp_path: Path) -> None:
    state = dict(make_net(2).state_dict())
    whole, parts = tmp_path / "checkpoint-10", tmp_path / "checkpoint-20"
    whole.mkdir()
    parts.mkdir()
    save_file(state, whole / "model.safetensors")
    names = sorted(state)
    for number, chosen in enumerate((names[:3], names[3:]), 1):
        save_file({name: state[name] for name in chosen}, parts / f"model-{number}.safetensors")
    places = {name: f"model-{1 if name in names[:3] else 2}.safetensors" for name in names}
    (parts / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert_same_weights(read_checkpoint(whole), state)
    assert_same_weights(read_checkpoint(parts), state)


def test_a_compiled_model_in_parts_has_the_names_of_the_model(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b")):
        save_file({f"_orig_mod.{name}": torch.ones(2)}, tmp_path / f"{number}.safetensors")
    places = {"_orig_mod.a": "0.safetensors", "_orig_mod.b": "1.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert sorted(read_checkpoint(tmp_path)) == ["a", "b"]


def test_numbers_of_eight_bits_are_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(4).to(torch.float8_e4m3fn)}, tmp_path / "w.pt")
    with pytest.raises(StorageError, match=r"16 bits or more, got w of torch\.float8_e4m3fn; convert"):
        read_checkpoint(tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"w": "../../secret.safetensors"}, "must map each tensor to a file in its folder"),
        (["model.safetensors"], "must map each tensor to a file in its folder"),
        ({"w": "a.safetensors", "v": "a.safetensors"}, "lacks v"),
        ({"w": "missing.safetensors"}, "missing.safetensors is missing"),
        ({}, "must hold a model's weights, but has no floating-point tensors"),
    ],
)
def test_an_index_that_leads_elsewhere_or_lacks_tensors_is_refused(
    tmp_path: Path, places: Any, message: str
) -> None:
    save_file({"w": torch.ones(1)}, tmp_path / "a.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(StorageError, match=message):
        read_checkpoint(tmp_path)


def test_checkpoints_that_cannot_be_averaged_are_refused(tmp_path: Path) -> None:
    good = write_all(tmp_path, 1)[0]
    wide, nan, empty = (tmp_path / f"{name}.safetensors" for name in ("wide", "nan", "empty"))
    save_file(dict(make_net(0, width=7).state_dict()), wide)
    save_file({"w": torch.tensor([1.0, float("nan")])}, nan)
    save_file({"steps": torch.tensor([3])}, empty)
    with pytest.raises(
        StorageError, match=r"checkpoints must be of one architecture, but .*wide\.safetensors"
    ):
        average_checkpoints([good, wide])
    with pytest.raises(StorageError, match=r"nan\.safetensors must hold finite weights, but w has NaN"):
        average_checkpoints([good, nan])
    with pytest.raises(StorageError, match=r"empty\.safetensors must hold a model's weights"):
        average_checkpoints([empty])
    with pytest.raises(StorageError, match=r"must hold a checkpoint, .*, but has none"):
        read_checkpoint(tmp_path)
    with pytest.raises(ValueError, match="at least one checkpoint"):
        average_checkpoints([])


def test_a_file_of_optimizer_state_alone_is_refused(tmp_path: Path) -> None:
    net = make_net(0)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    with pytest.raises(StorageError, match="must hold tensors by name"):
        read_checkpoint(tmp_path / "optimizer.pt")


PEAK = """
import resource, sys
from pathlib import Path
from pfge.lab.models import build_model
from pfge.lab.training.checkpoint_files import average_checkpoints
paths = sorted(Path(sys.argv[1]).glob("*.safetensors"))[: int(sys.argv[2])]
average_checkpoints(paths)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_the_peak_of_memory_does_not_grow_with_the_number_of_checkpoints(tmp_path: Path) -> None:
    """Each model has 40 MB; files are mapped, and mapped pages of files count as resident too."""
    size = 40_000_000
    for number in range(12):
        layers = {f"{layer}": torch.randn(size // 40) for layer in range(10)}
        save_file(layers, tmp_path / f"{number:02}.safetensors")

    def peak(count: int) -> int:
        run = subprocess.run(
            [sys.executable, "-c", PEAK, str(tmp_path), str(count)],
            check=True,
            capture_output=True,
            text=True,
        )
        return int(run.stdout)

    assert peak(12) - peak(2) < size


AVERAGE = """
import resource, sys
from pathlib import Path
from pfge.cli.main import main
folder = Path(sys.argv[1])
main(["average", *map(str, sorted(folder.glob("small-*"))), "--out", str(folder / "other")])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
main(["average", *map(str, sorted(folder.glob("model-*"))), "--out", str(folder / "mean")])
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


@pytest.mark.slow
def test_twenty_models_are_averaged_in_the_memory_of_less_than_three(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = view_weights(build_model("preresnet164", classes=10, channels=3))
    total = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in model.items()}
    for number in range(20):
        noisy = {n: t + 0.1 * torch.randn(t.shape) if t.is_floating_point() else t for n, t in model.items()}
        total = {name: sum_ + noisy[name] for name, sum_ in total.items()}
        save_file(noisy, tmp_path / f"model-{number:02}.safetensors")
    for number in range(2):
        save_file({"w": torch.zeros(3)}, tmp_path / f"small-{number}.safetensors")
    command = [sys.executable, "-c", AVERAGE, str(tmp_path)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(run.stdout.splitlines()[-1]) < 3 * count_bytes(model)
    (file,) = (tmp_path / "mean").glob("*.safetensors")
    mean = load_file(file)
    assert len(mean) == len(model) == 983
    for name, sum_ in total.items():
        expected = (sum_ / 20).to(mean[name].dtype) if mean[name].is_floating_point() else model[name]
        torch.testing.assert_close(mean[name], expected, rtol=0, atol=1e-6)

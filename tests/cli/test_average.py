"""`pfge average` and `pfge pool` on the members of a small run."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from pfge import Ensemble
from pfge.cli.main import main
from pfge.lab.models import build_model
from pfge.storage.files import read_tensors
from tests.cli.captured import Captured, refused
from tests.lab.tiny import run, tiny

DATA = ["--set", "data.name=digits", "--set", "data.validation=200", "--set", "model.name=small_conv"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(tiny("ensemble.methods=['PFGE']", "data.validation=200", "seeds=[1,2]", "pretrain.epochs=4"), folder)
    return folder


@pytest.fixture
def checkpoints(folder: Path) -> list[str]:
    members = (folder / "seed-1" / "ensembles" / "PFGE").glob("member-*.safetensors")
    return [str(file) for file in sorted(members)]


def make_net() -> torch.nn.Module:
    return build_model("small_conv", classes=10, channels=1)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    save_file(make_net().state_dict(), tmp_path / "untrained.safetensors")
    return str(tmp_path / "untrained.safetensors")


def averaged(out: Path) -> dict[str, torch.Tensor]:
    """Return the only member of what the command wrote."""
    (member,) = Ensemble.load(out, make_net).members
    return member


def test_the_mean_without_data_is_the_mean(checkpoints: list[str], tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "new" / "mean"
    assert main(["average", *checkpoints, "--out", str(out)]) == 0
    members = [read_tensors(Path(file))[0] for file in checkpoints]
    for name, tensor in averaged(out).items():
        if tensor.is_floating_point():
            expected = torch.stack([member[name].double() for member in members]).mean(0)
            torch.testing.assert_close(tensor.double(), expected, rtol=0, atol=1e-6)
    assert "BatchNorm statistics were averaged too; give --config" in capsys.readouterr().out


def test_with_data_the_mean_is_measured_and_has_statistics_of_its_own(
    checkpoints: list[str], tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "mean"
    assert main(["average", *checkpoints, "--out", str(out), *DATA]) == 0
    printed = capsys.readouterr().out
    assert printed.count("accuracy") == len(checkpoints) + 1
    assert "do not lie in one valley" not in printed
    plain = tmp_path / "plain"
    main(["average", *checkpoints, "--out", str(plain)])
    with_data, without = averaged(out), averaged(plain)
    name = next(name for name in with_data if name.endswith("running_mean"))
    assert not torch.equal(with_data[name], without[name])
    assert torch.equal(
        with_data[name.replace("running_mean", "weight")], without[name.replace("running_mean", "weight")]
    )


def test_models_of_other_starts_are_said_not_to_lie_in_one_valley(
    folder: Path, checkpoints: list[str], tmp_path: Path, capsys: Captured
) -> None:
    other = str(folder / "seed-2" / "w0.safetensors")
    out = tmp_path / "mean"
    assert main(["average", *checkpoints[:2], other, "--out", str(out), *DATA]) == 0
    printed = capsys.readouterr().out
    assert f"{checkpoints[1]} and {other} do not lie in one valley" in printed
    assert f"{checkpoints[0]} and" not in printed


def test_a_greedy_mean_leaves_out_what_does_not_help(
    folder: Path, checkpoints: list[str], tmp_path: Path, capsys: Captured
) -> None:
    other = str(folder / "seed-2" / "w0.safetensors")
    out = tmp_path / "mean"
    assert main(["average", other, *checkpoints, "--out", str(out), "--greedy", *DATA]) == 0
    printed = capsys.readouterr().out
    values = [float(line.split("NLL ")[1].split(",")[0]) for line in printed.splitlines() if "NLL" in line]
    assert values[-1] <= min(values[:-1])
    assert "(left out)" in next(line for line in printed.splitlines() if line.startswith(f"  {other}"))


def test_a_pool_is_an_ensemble_of_the_checkpoints(
    checkpoints: list[str], tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "pool"
    assert main(["pool", *checkpoints, "--out", str(out)]) == 0
    ensemble = Ensemble.load(out, make_net)
    x = torch.randn(5, 1, 8, 8)
    expected = []
    for file in checkpoints:
        net = make_net().eval()
        net.load_state_dict(read_tensors(Path(file))[0])
        expected.append(net(x).softmax(dim=1))
    torch.testing.assert_close(ensemble.predict(x), torch.stack(expected).mean(0))
    assert main(["pool", *checkpoints, "--out", str(tmp_path / "measured"), *DATA]) == 0
    assert "together: accuracy" in capsys.readouterr().out


def test_a_pool_without_a_config_says_its_task(checkpoint: str, tmp_path: Path, capsys: Captured) -> None:
    assert main(["pool", checkpoint, "--out", str(tmp_path / "pool")]) == 0
    assert "task is assumed to be classification; give --config CONFIG for another" in capsys.readouterr().out


def test_a_pool_without_validation_data_is_refused_before_it_is_written(
    checkpoint: str, tmp_path: Path, capsys: Captured
) -> None:
    without = ["--set", "data.name=digits", "--set", "model.name=small_conv"]
    message = refused(capsys, ["pool", checkpoint, "--out", str(tmp_path / "pool"), *without])
    assert "measuring an ensemble needs validation data" in message
    assert not (tmp_path / "pool").exists()


def test_a_checkpoint_of_lightning_is_pooled_by_its_config(tmp_path: Path, capsys: Captured) -> None:
    state = {f"net.{name}": tensor for name, tensor in make_net().state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "epoch.ckpt")
    assert main(["pool", str(tmp_path / "epoch.ckpt"), "--out", str(tmp_path / "pool"), *DATA]) == 0
    assert "together: accuracy" in capsys.readouterr().out
    assert len(Ensemble.load(tmp_path / "pool", make_net)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "mean.safetensors"], "--out must be a folder, got mean.safetensors; give mean, in which"),
        (["--out", "mean", "--greedy"], "--greedy needs validation data; give --config CONFIG"),
        (["missing.pt", "--out", "mean"], "checkpoint missing.pt does not exist; check the path"),
    ],
)
def test_what_cannot_be_averaged_is_said_in_one_line(
    checkpoints: list[str], capsys: Captured, arguments: list[str], message: str
) -> None:
    assert message in refused(capsys, ["average", checkpoints[0], *arguments])


@pytest.mark.parametrize("command", ["average", "pool"])
def test_checkpoints_are_not_replaced_by_what_is_made_of_them(
    checkpoints: list[str], capsys: Captured, command: str
) -> None:
    folder = Path(checkpoints[0]).parent
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    for out in (checkpoints[0], str(folder)):
        message = refused(capsys, [command, *checkpoints, "--out", out])
        assert message.startswith(f"--out must not be or contain a checkpoint, got {out} for ")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_mean_is_an_ensemble_that_other_commands_take(
    checkpoints: list[str], tmp_path: Path, capsys: Captured
) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "digit.png")
    for arguments in ([], DATA):
        out = str(tmp_path / f"mean of {len(arguments)}")
        assert main(["average", *checkpoints, "--out", out, *arguments]) == 0
        manifest = json.loads((Path(out) / "manifest.json").read_text())
        assert manifest["method"] == f"average of {len(checkpoints)} checkpoints"
        assert [member["iteration"] for member in manifest["members"]] == [None]
        for command in (["evaluate", out], ["predict", out, str(tmp_path / "digit.png")]):
            assert main([*command, *DATA]) == 0
        assert main(["compress", out, f"{out} small"]) == 0
        assert main(["verify", out]) == 0
    assert (
        "the task is assumed to be classification; give --config CONFIG for another"
        in capsys.readouterr().out
    )


class Tied(nn.Module):
    """Two names for one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64, bias=False)
        self.norm = nn.BatchNorm1d(64)
        self.second = nn.Linear(64, 64)
        self.second.weight = self.first.weight

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.second(self.norm(self.first(images.flatten(1))))
        return logits[:, :10]


def make_tied(classes: int, channels: int) -> nn.Module:  # noqa: ARG001 - as models are called
    return Tied()


TIED_DATA = [*DATA[:-1], f"model.name={__name__}:make_tied"]


@pytest.fixture
def tied(tmp_path: Path) -> list[str]:
    """Write checkpoints of two models."""
    paths = [tmp_path / f"{seed}.pt" for seed in range(2)]
    for seed, path in enumerate(paths):
        torch.manual_seed(seed)
        torch.save(Tied().state_dict(), path)
    return [str(path) for path in paths]


def states(files: list[str]) -> list[dict[str, torch.Tensor]]:
    return [torch.load(file, weights_only=True) for file in files]


def test_tied_models_are_pooled(tied: list[str], tmp_path: Path) -> None:
    assert main(["pool", *tied, "--out", str(tmp_path / "pool")]) == 0
    x = torch.randn(5, 1, 8, 8)
    expected = []
    for state in states(tied):
        net = Tied().eval()
        net.load_state_dict(state)
        expected.append(net(x).softmax(dim=1))
    found = Ensemble.load(tmp_path / "pool", Tied).predict(x)
    torch.testing.assert_close(found, torch.stack(expected).mean(0))


def test_old_checkpoints_of_tied_models_are_measured(
    tied: list[str], tmp_path: Path, capsys: Captured
) -> None:
    for file, state in zip(tied, states(tied), strict=True):
        del state["norm.num_batches_tracked"]
        torch.save(state, file)
    assert main(["pool", *tied, "--out", str(tmp_path / "pool"), *TIED_DATA]) == 0
    assert "together: accuracy" in capsys.readouterr().out
    out = tmp_path / "mean"
    for greedy in ([], ["--greedy"]):
        assert main(["average", *tied, "--out", str(out), *TIED_DATA, *greedy]) == 0
        assert len(Ensemble.load(out, Tied)) == 1


def test_the_mean_of_tied_models_is_one_of_them(tied: list[str], tmp_path: Path) -> None:
    out = tmp_path / "mean"
    assert main(["average", *tied, "--out", str(out)]) == 0
    one, other = states(tied)
    mean = Tied().eval()
    mean.load_state_dict({n: (t + other[n]) / 2 if t.is_floating_point() else t for n, t in one.items()})
    x = torch.randn(5, 1, 8, 8)
    torch.testing.assert_close(Ensemble.load(out, Tied).predict(x), mean(x).softmax(dim=1))


def test_checkpoints_of_two_types_are_pooled_in_the_first(tmp_path: Path) -> None:
    save_file({"w": torch.tensor([1.5])}, tmp_path / "a.safetensors")
    save_file({"w": torch.tensor([2.5]).half()}, tmp_path / "b.safetensors")
    files = [str(tmp_path / f"{name}.safetensors") for name in "ab"]
    assert main(["pool", *files, "--out", str(tmp_path / "pool")]) == 0
    members = Ensemble.load(tmp_path / "pool", nn.Identity).members
    assert [member["w"] for member in members] == [torch.tensor([1.5]), torch.tensor([2.5])]
    assert {member["w"].dtype for member in members} == {torch.float32}

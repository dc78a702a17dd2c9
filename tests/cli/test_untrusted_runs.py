"""A run folder may be a stranger's: no command runs code from it, or reads elsewhere because it says so."""

import shutil
import sys
from pathlib import Path

import pytest
from torch import nn

from pfge.cli.main import main as run_command
from pfge.lab.config.toml import load_experiment, to_toml
from pfge.lab.data import DataError, Splits, load_data
from pfge.lab.models import build_model
from tests.cli.captured import Captured, refused
from tests.cli.every_command import (
    ALL,
    PFGE,
    READING,
    READING_ENSEMBLES,
    READING_RUNS,
    WITHOUT_THE_CONFIG_OF_A_RUN,
)

# The export alone takes seconds.
SLOW = [pytest.param(name, marks=pytest.mark.slow if name == "export" else ()) for name in READING]


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that a module with the name `hostile` makes when it is imported."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "hostile.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.delitem(sys.modules, "hostile", raising=False)
    return tmp_path / "mark"


def set_in_config(folder: Path, *settings: str) -> None:
    config = folder / "config.toml"
    config.write_text(to_toml(load_experiment(config, settings)))


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(file.relative_to(folder)): (file.read_bytes() if file.is_file() else b"", file.stat().st_mtime_ns)
        for file in folder.rglob("*")
    }


# What a run's config may not decide


WITHOUT_DATA = ("predict", "export")
"""Commands that take what they need of the data from the ensemble's manifest."""


REACHING_OUT = [
    (
        ["model.name=os:system", 'model.options={command="touch MARK"}'],
        "import and call model.name = 'os:system'",
    ),
    (["data.name=hostile:load"], "import and call data.name = 'hostile:load'"),
    (["data.root=/data"], "read files outside of the run by data.root = '/data'"),
    (["data.name=folder:/pictures"], "outside of the run by data.name = 'folder:/pictures'"),
    (["data.name=stream:../x"], "outside of the run by data.name = 'stream:../x'"),
    (
        ["model.name=timm:resnet18", "model.options.checkpoint_path=x.pth"],
        "load files by model.options.checkpoint_path = 'x.pth'",
    ),
]


@pytest.mark.parametrize(
    ("command", "settings", "expected"),
    [
        (command, *case)
        for case in REACHING_OUT
        for command in READING
        if command not in WITHOUT_DATA or not case[0][0].startswith("data.")
    ],
)
def test_the_config_of_a_run_runs_no_code_and_reads_nothing_elsewhere(
    copied_run: Path, mark: Path, capsys: Captured, command: str, settings: list[str], expected: str
) -> None:
    set_in_config(copied_run, *(setting.replace("MARK", str(mark)) for setting in settings))
    before = contents(copied_run)
    message = refused(capsys, [command, *READING[command]])
    assert not mark.exists()
    assert contents(copied_run) == before
    assert "config.toml would " in message
    assert expected in message
    assert "only if you trust it: add --trust-code, or give --set " in message


@pytest.mark.parametrize(
    "command", ["predict", pytest.param("export", marks=pytest.mark.slow)], ids=WITHOUT_DATA
)
def test_an_ensemble_is_used_without_its_data(
    copied_run: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, command: str
) -> None:
    def load(*_: object, **__: object) -> None:
        raise DataError("the data would be read")

    monkeypatch.setattr("pfge.lab.session.load_data", load)
    set_in_config(copied_run, "data.name=hostile:load", "data.root=/data")
    assert run_command([command, *READING[command]]) == 0
    assert not mark.exists()
    told = capsys.readouterr().err
    assert told == (
        "seed-1/ensembles/PFGE: exporting 4 members, then comparing the file with PyTorch\n"
        * (command == "export")
    )


@pytest.mark.parametrize("command", WITHOUT_THE_CONFIG_OF_A_RUN)
def test_other_commands_import_nothing_that_a_config_in_the_folder_names(
    copied_run: Path, mark: Path, capsys: Captured, command: str
) -> None:
    set_in_config(
        copied_run, "model.name=hostile:make", "data.name=hostile:load", "engine.logger=hostile:log"
    )
    expected = 2 if command in ("compare", "pretrain") else 0  # these two have another config
    assert run_command([command, *ALL[command]]) == expected
    assert not mark.exists()
    capsys.readouterr()


@pytest.mark.parametrize("command", [name for name in READING if name not in WITHOUT_DATA])
def test_missing_data_is_fetched_only_by_an_argument(
    copied_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, command: str
) -> None:
    def fetch(*_: object) -> None:
        raise DataError("it would be fetched")

    monkeypatch.setattr("pfge.lab.data.published.fetch_folder", fetch)
    monkeypatch.setenv("PFGE_DATA", str(tmp_path / "data"))
    set_in_config(copied_run, "data.name=cifar10", "data.download=true")
    arguments = [command, *READING[command]]
    for trusted in ([], ["--trust-code"]):
        assert "use --download, or put the files there" in refused(capsys, [*arguments, *trusted])
    assert refused(capsys, [*arguments, "--download"]) == "it would be fetched"


@pytest.mark.parametrize("command", READING_ENSEMBLES)
@pytest.mark.parametrize("place", ["shared/mine", "run/mine", "run/seed-1/small", "run/ensembles/PFGE"])
def test_a_config_that_is_not_the_runs_is_not_looked_for(
    copied_run: Path, mark: Path, capsys: Captured, command: str, place: str
) -> None:
    """The run's own is two folders above the ensembles of a seed, and nowhere else."""
    ensemble = copied_run.parent / place
    shutil.copytree(copied_run / PFGE, ensemble)
    hostile = to_toml(load_experiment(None, ["model.name=hostile:make"]))
    for parent in (ensemble, *ensemble.relative_to(copied_run.parent).parents):
        (copied_run.parent / parent / "config.toml").write_text(hostile)
    message = refused(capsys, [command, str(ensemble), *READING[command][1:]])
    assert not mark.exists()
    assert message.startswith(f"{ensemble} is not a run's RUN/seed-N/ensembles/METHOD")
    assert "give --config RUN/config.toml" in message


@pytest.mark.filterwarnings("default:bits are chosen without data")  # the command prints it
def test_a_budget_is_kept_without_the_data_of_a_config_that_is_not_trusted(
    copied_run: Path, mark: Path, capsys: Captured
) -> None:
    set_in_config(copied_run, "model.name=hostile:make")
    assert run_command(["compress", PFGE, "small", "--budget", "50kB"]) == 0
    message = capsys.readouterr().err
    assert message.startswith("pfge: warning: bits are chosen without data: ")
    assert "config.toml would import and call model.name = 'hostile:make'" in message
    assert not mark.exists()


@pytest.mark.parametrize("command", ["diagnose", "landscape", "formats"])
def test_a_run_without_w0_is_not_trained(
    copied_run: Path, mark: Path, capsys: Captured, command: str
) -> None:
    (copied_run / "seed-1" / "w0.safetensors").unlink()
    set_in_config(copied_run, "engine.logger=hostile:log")
    message = refused(capsys, [command, *READING[command]])
    assert not mark.exists()
    assert not (copied_run / "seed-1" / "w0.safetensors").exists()
    assert message == ". has no w0 for seed 1 yet; run pfge compare --out . to its end"


@pytest.mark.parametrize("command", ["evaluate", *READING_RUNS])
def test_settings_for_training_have_no_effect_and_need_no_trust(
    copied_run: Path, mark: Path, capsys: Captured, command: str
) -> None:
    training = ("engine.logger=hostile:log", "pretrain.weights=/none.pt", "pretrain.options={weights='X'}")
    set_in_config(copied_run, *training)
    assert run_command([command, *READING[command]]) == 0
    assert not mark.exists()
    capsys.readouterr()


# What the user allows


def make_small_conv(classes: int, channels: int) -> nn.Module:
    return build_model("small_conv", classes=classes, channels=channels)


def load_digits() -> Splits:
    return load_data("digits")


OWN = (
    "model.name=tests.cli.test_untrusted_runs:make_small_conv",
    "data.name=tests.cli.test_untrusted_runs:load_digits",
)


@pytest.mark.slow
@pytest.mark.parametrize("command", SLOW)
def test_a_run_with_a_model_and_data_of_the_users_own_is_read_with_trust(
    copied_run: Path, capsys: Captured, command: str
) -> None:
    set_in_config(copied_run, *OWN)
    arguments = [command, *READING[command]]
    assert "model.name" in refused(capsys, arguments)
    assert run_command([*arguments, "--trust-code"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    "arguments",
    [
        ["diagnose", ".", "--set", OWN[0], "--set", OWN[1]],
        ["evaluate", PFGE, "--set", OWN[0], "--set", OWN[1]],
        ["evaluate", PFGE, "--config", "config.toml"],
    ],
)
def test_what_the_user_names_in_the_call_is_trusted(
    copied_run: Path, capsys: Captured, arguments: list[str]
) -> None:
    set_in_config(copied_run, *OWN)
    assert run_command(arguments) == 0
    capsys.readouterr()

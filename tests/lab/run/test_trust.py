"""The config in a run's folder: what it may decide, and what only the user may."""

from pathlib import Path

import pytest

from pfge.lab.config.settings import ConfigError
from pfge.lab.config.toml import load_experiment, to_toml
from pfge.lab.run.folder import load_run_config


def write_config(folder: Path, *settings: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(to_toml(load_experiment(None, settings)))
    return folder / "config.toml"


def refused(file: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_run_config(file, overrides)
    return str(caught.value)


def test_the_refusal_says_what_would_happen_and_how_to_allow_it(tmp_path: Path) -> None:
    file = write_config(tmp_path, "model.name=mine:make", "data.root=/data")
    assert refused(file) == (
        f"{file} would import and call model.name = 'mine:make', and read files outside of the run by "
        "data.root = '/data'; a run's own config may do that only if you trust it: add --trust-code, or give "
        "--set model.name=... --set data.root=..."
    )


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("model.name=os:system", "model.name = 'os:system'"),
        ("model.name=Timm:resnet18", "model.name = 'Timm:resnet18'"),
        ("model.name=:x", "model.name = ':x'"),
        ("data.name=mine:load", "data.name = 'mine:load'"),
        ("data.name=Folder:x", "data.name = 'Folder:x'"),
        ("data.name=folder:/pictures", "data.name = 'folder:/pictures'"),
        ("data.name=stream:~/pictures", "data.name = 'stream:~/pictures'"),
        ("data.name=stream:~nobody-of-that-name/x", "data.name = 'stream:~nobody-of-that-name/x'"),
        (r'data.name="folder:\u0000"', r"data.name = 'folder:\x00'"),
        ("data.root=..", "data.root = '..'"),
        ("model.options.weights=IMAGENET1K_V1", "model.options.weights = 'IMAGENET1K_V1'"),
        ("model.options.pretrained=true", "model.options.pretrained = True"),
        ("model.options={pretrained_cfg={url='x'}}", "model.options.pretrained_cfg = {'url': 'x'}"),
        ("model.options.checkpoint_path=w", "model.options.checkpoint_path = 'w'"),
        ("model.options.cache_dir=w", "model.options.cache_dir = 'w'"),
        ("model.options.file=weights.pth", "model.options.file = 'weights.pth'"),
        ("model.options.of=['a', '/b']", "model.options.of = ['a', '/b']"),
        ("model.options={deep={deeper={pretrained=true}}}", "model.options.deep = {'deeper': {'pretrained'"),
        (r'model.options={"\u001b[2J"="/x"}', r"model.options = {'\x1b[2J': '/x'}"),
    ],
)
def test_settings_that_reach_out_are_refused_unless_the_user_gives_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, shown: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_config(tmp_path / "run", setting)
    assert shown in refused(file)
    trusted = load_experiment(file)
    assert load_run_config(file, trust_code=True) == trusted
    assert load_run_config(file, [setting]) == trusted


@pytest.mark.parametrize(
    "setting",
    [
        "model.name=resnet20",
        "model.name=torchvision:resnet18",
        "model.name=timm:resnet18.a1_in1k",
        "model.options={dropout=0.5, depths=[2, 2], act_layer='relu', pretrained=false, checkpoint_path=''}",
        "data.name=cifar10",
        "data.name=folder:run/pictures",
        "data.name=stream:run",
        "data.root=run/data",
        # These have an effect on training alone.
        "pretrain.weights=/elsewhere.pt",
        "pretrain.options={weights='IMAGENET1K_V1'}",
        "engine.logger=mine:log",
    ],
)
def test_settings_that_stay_within_the_run_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_config(tmp_path / "run", setting)
    assert load_run_config(file) == load_experiment(file)


def test_a_link_out_of_the_run_is_outside(tmp_path: Path) -> None:
    file = write_config(tmp_path / "run", f"data.root={tmp_path}/run/data")
    (tmp_path / "run" / "data").symlink_to(tmp_path)
    assert "data.root" in refused(file)


def test_what_the_user_gives_covers_that_alone(tmp_path: Path) -> None:
    file = write_config(tmp_path, "model.name=mine:make", "model.options.path=/x", "data.root=/data")
    message = refused(file, "data.root=/mine", "model.options.width=3", "data.name=digits")
    assert "data.root" not in message
    assert "model.name = 'mine:make'" in message
    assert "model.options.path = '/x'" in message
    assert "model.options.path" in refused(file, "data.root=/mine", "model.name=mine:make")
    whole = ["model={name='mine:make', options={path='/y'}}", "data={root='/mine'}"]
    assert load_run_config(file, whole).model.options == {"path": "/y"}


@pytest.mark.parametrize("trust_code", [False, True])
def test_data_is_downloaded_only_where_the_user_says_so(tmp_path: Path, trust_code: bool) -> None:
    file = write_config(tmp_path, "data.download=true")
    assert not load_run_config(file, trust_code=trust_code).data.download
    assert load_run_config(file, ["data.download=true"], trust_code=trust_code).data.download


def test_a_run_chooses_neither_a_launcher_nor_commands_of_slurm(tmp_path: Path) -> None:
    file = write_config(tmp_path, "engine.launcher=slurm", "engine.slurm={slurm_setup=['rm -r x']}")
    engine = load_run_config(file, trust_code=True).engine
    assert (engine.launcher, engine.slurm) == ("here", {})
    engine = load_run_config(file, ["engine.launcher=here:2", "engine.slurm={timeout_min=5}"]).engine
    assert (engine.launcher, engine.slurm) == ("here:2", {"timeout_min": 5})

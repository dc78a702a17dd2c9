"""Files of strangers: no command waits for a pipe, takes all memory, or ends in a traceback."""

import json
import os
import shutil
import socket
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pfge import Ensemble
from pfge.cli.main import main
from pfge.lab.config.toml import load_experiment, to_toml
from pfge.lab.launch.units import UnitStatus
from pfge.lab.run.folder import RunFolder
from pfge.storage.ensemble_folder import MANIFEST
from pfge.storage.files import checksum, read_json_object, write_json
from pfge.storage.record import InputSpec
from tests.cli.captured import Captured, refused
from tests.cli.every_command import ALL, PFGE
from tests.hostile import at_most_allocated, in_time, put_pipe
from tests.lab.tiny import SETTINGS
from tests.toys import make_mlp

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders here")
NO_REGULAR_FILE = "must be a regular file, but is a pipe, a socket, a device or a folder"


# Pipes, devices, sockets and folders in place of files


@pytest.mark.parametrize("kind", ["lock", "failed"])
def test_status_does_not_wait_for_a_pipe_among_its_units(
    copied_run: Path, capsys: Captured, kind: str
) -> None:
    (copied_run / "results.jsonl").unlink()  # so that a unit is left to do
    (copied_run / "results.lines.json").unlink()
    pipe = put_pipe(copied_run / "units" / f"seed-1-measure-w0.{kind}")
    with in_time(pipe):
        message = refused(capsys, ["status", "."])
    assert message.startswith(f"units/{pipe.name} {NO_REGULAR_FILE}")


def test_the_progress_of_a_unit_may_be_a_pipe(copied_run: Path) -> None:
    marks = UnitStatus(RunFolder(copied_run))
    pipes = [put_pipe(copied_run / "units" / f"u.{kind}") for kind in ("said", "progress-new")]
    with in_time(*pipes):
        marks.say("u", "hello")
        marks.note_progress("u", "half")
        assert marks.said("u", 0) == ([], 0)
        assert marks.progress("u") == ""


@pytest.mark.parametrize("name", ["seed-1-measure-w0.lock", "seed-1-measure-w0.failed"])
def test_compare_does_not_wait_for_a_pipe_among_its_units(
    copied_run: Path, capsys: Captured, name: str
) -> None:
    (copied_run / "results.jsonl").unlink()
    pipe = put_pipe(copied_run / "units" / name)
    with in_time(pipe):
        main(["compare", *ALL["compare"]])
    assert "Traceback" not in capsys.readouterr().err


OF_A_RUN = [
    "config.toml",
    "environment.json",
    "data.json",
    "results.jsonl",
    "results.lines.json",
    ".lock",
    "seed-1/w0.safetensors",
    "seed-1/w0.safetensors.sha256",
    "seed-1/scores/PFGE.safetensors",
    "seed-1/scores/PFGE.safetensors.sha256",
    f"{PFGE}/manifest.json",
    f"{PFGE}/evaluation.json",
    "digit.png",
]
READERS = ("status", "table", "report", "verify", "predict", "compare", "pretrain")


@pytest.mark.parametrize("name", OF_A_RUN)
@pytest.mark.filterwarnings("default")  # commands print them
def test_no_file_of_a_run_makes_a_command_wait(copied_run: Path, capsys: Captured, name: str) -> None:
    pipe = put_pipe(copied_run / name)
    for command in READERS:
        with in_time(pipe):
            assert main([command, *ALL[command]]) in (0, 1, 2), command
        assert "Traceback" not in capsys.readouterr().err


def test_a_member_may_be_a_pipe(copied_run: Path, capsys: Captured) -> None:
    pipe = put_pipe(next((copied_run / PFGE).glob("member-*")))
    with in_time(pipe):
        assert f"{PFGE}/{pipe.name} is missing" in refused(capsys, ["predict", PFGE, "digit.png"])


@pytest.mark.usefixtures("copied_run")
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "socket"])
@pytest.mark.parametrize("name", ["x.png", "x.npy"])
def test_an_input_that_is_not_a_regular_file_is_reported_and_the_others_are_predicted(
    capsys: Captured, name: str, kind: str
) -> None:
    ensemble, other = PFGE, "digit.png"
    if name.endswith(".npy"):
        ensemble, other = "rows", "rows.npy"
        shutil.copytree(PFGE, "rows")
        saved = Ensemble.load(PFGE, lambda: None)  # type: ignore[arg-type, return-value]
        spec = replace(saved.input_spec, classes=None, mean=None, std=None, resize=None)
        saved.with_record(input_spec=spec).save("rows")
        np.save("rows.npy", np.zeros((1, 1, 8, 8)))
    with socket.socket(socket.AF_UNIX) as listening:
        match kind:
            case "pipe":
                put_pipe(Path(name))
            case "device":
                Path(name).symlink_to("/dev/zero")
            case "folder":
                Path(name).mkdir()
            case "socket":
                listening.bind(name)
        arguments = ["--config", "config.toml", ensemble, name, other]
        with in_time(Path(name)):
            assert main(["predict", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{other}: ")
    assert printed.err.startswith(f"pfge: error: {name} ")
    assert NO_REGULAR_FILE in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("kind", ["folder", "stream"])
@pytest.mark.filterwarnings("default")  # the command prints them
def test_a_pipe_in_a_folder_of_pictures_is_left_out(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for part in ("train", "test"):
        for color, class_name in enumerate(("a", "b")):
            folder = tmp_path / "pictures" / part / class_name
            folder.mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (8, 8), (100 * color, 10 * number, 0)).save(folder / f"{number}.png")
    pipes = [put_pipe(tmp_path / "pictures" / part / "a" / "1.png") for part in ("train", "test")]
    settings = [
        f"data.name={kind}:pictures",
        "data.image_size=8",
        "data.batch_size=2",
        "ensemble.methods=['SWA']",
        "ensemble.unit=iterations",
        "ensemble.cycle=1",
        "ensemble.period=2",
        "ensemble.length=2",
        "pretrain.epochs=1",
        "seeds=[1]",
    ]
    with in_time(*pipes):
        code = main(["compare", "--out", "run", *(part for s in settings for part in ("--set", s))])
    told = capsys.readouterr().err
    assert code == 0, told
    assert "left out 1 of 6 pictures" in told or "corrupt picture" in told


@pytest.mark.parametrize("option", ["--config", "--cascade"])
def test_a_pipe_as_an_option_is_refused(copied_run: Path, capsys: Captured, option: str) -> None:
    pipe = put_pipe(copied_run / "given")
    with in_time(pipe):
        message = refused(capsys, ["predict", PFGE, "digit.png", option, "given"])
    assert message.startswith(f"given {NO_REGULAR_FILE}")


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_pipe_as_a_checkpoint_is_refused(copied_run: Path, capsys: Captured, suffix: str) -> None:
    pipe = put_pipe(copied_run / f"given{suffix}")
    with in_time(pipe):
        message = refused(capsys, ["average", "seed-1/w0.safetensors", pipe.name, "--out", "mean"])
    assert "given" in message


# Manifests and configs that somebody edited, and sealed again

USAGE = {field.name for field in fields(InputSpec)}
VIEW = {"down": 0, "right": 0, "mirrored": False}
MANIFESTS = {
    "resize": ({"resize": 30_000}, "resize must be at most 4 times the height of (1, 8, 8), got 30000"),
    "input_shape": (
        {"input_shape": [1, 20_000, 20_000]},
        "input_shape must have at most 8 dimensions and 4,194,304 numbers, got (1, 20000, 20000)",
    ),
    "dimensions": ({"input_shape": [1] * 50}, "input_shape must have at most 8 dimensions"),
    "outputs": (
        {"outputs": 2**24, "classes": None},
        "does not fit the model 'small_conv': outputs must be at most the 24,",
    ),
    "fewer outputs": (
        {"outputs": 5000, "classes": None},
        "is [5000, 64] in the model and [10, 64] in the members",
    ),
    "channels": ({"channels": 2**24}, "channels must be at most the 24,"),
    "classes": ({"classes": ["one"]}, "classes must have a name for each output, got 1 names and 10 outputs"),
    "mean": ({"mean": [10**400]}, "a whole number must have at most 64 bits, got 10000000000000000000..."),
    "many means": (
        {"mean": [0.0] * 1000, "std": [1.0] * 1000},
        "mean must have a number for each channel of [C, H, W], got 1000 for (1, 8, 8)",
    ),
}


def forge(folder: Path, **changes: Any) -> None:
    """Change the usage in a manifest, or other entries of it, as somebody who knows the format would."""
    manifest = read_json_object(folder / MANIFEST)
    usage = {name: value for name, value in changes.items() if name in USAGE}
    entries = {name: value for name, value in changes.items() if name not in USAGE}
    kept = {name: value for name, value in (manifest["usage"] | usage).items() if value is not None}
    write_json(folder / MANIFEST, {**manifest, "usage": kept, **entries})


@pytest.mark.parametrize(("changes", "expected"), MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_cannot_ask_for_more_than_its_members_need(
    copied_run: Path, capsys: Captured, changes: dict[str, Any], expected: str
) -> None:
    forge(copied_run / PFGE, **changes)
    with in_time(), at_most_allocated(200_000_000):
        message = refused(capsys, ["predict", PFGE, "digit.png"])
    assert expected in message


@pytest.mark.parametrize("key", ["usage", "task", "format", "views"])
def test_what_a_manifest_says_at_length_is_shortened(copied_run: Path, capsys: Captured, key: str) -> None:
    forge(copied_run / PFGE, **{key: "x" * 1_000_000})
    message = refused(capsys, ["predict", PFGE, "digit.png"])
    assert message.startswith(f"{PFGE}/manifest.json")
    assert " characters are left out] xxx" in message or "xxx..." in message
    assert len(message) < 2100
    main(["verify", PFGE])
    assert len(capsys.readouterr().out) < 2300


def test_many_views_are_refused(copied_run: Path, capsys: Captured) -> None:
    forge(copied_run / PFGE, views={"views": [VIEW] * 100_000, "border": [0.0]})
    with in_time():
        assert "views must be at most 256, got 100,000" in refused(capsys, ["predict", PFGE, "digit.png"])


def test_many_members_that_are_one_file_are_refused(copied_run: Path, capsys: Captured) -> None:
    entry = read_json_object(copied_run / PFGE / MANIFEST)["members"][0]
    forge(copied_run / PFGE, members=[entry] * 20_000)
    with in_time():
        message = refused(capsys, ["predict", PFGE, "digit.png"])
    assert message.endswith("must list at most 10,000 members, found 20,000")


def test_a_file_that_a_manifest_names_often_is_checked_once(
    copied_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = read_json_object(copied_run / PFGE / MANIFEST)["members"][0]
    forge(copied_run / PFGE, members=[entry] * 1000)
    checked = []
    monkeypatch.setattr("pfge.storage.files.checksum", lambda path: checked.append(path) or checksum(path))
    assert len(Ensemble.load(PFGE, make_mlp)) == 1000
    assert len(checked) == 1


def test_verify_goes_on_after_a_manifest_that_cannot_be_read(copied_run: Path, capsys: Captured) -> None:
    assert main(["verify", "."]) == 0
    whole = int(capsys.readouterr().out.splitlines()[-1].split()[0])
    forge(copied_run / PFGE, mean=[10**400])
    assert main(["verify", "."]) == 1
    *problems, counts = capsys.readouterr().out.splitlines()
    (damaged,) = [line for line in problems if ": damaged: " in line]
    assert damaged.startswith(f"{PFGE}/manifest.json: damaged: ")
    assert "a whole number must have at most 64 bits" in damaged
    members = len([*(copied_run / PFGE).glob("member-*")])
    assert counts.startswith(f"{whole - 1 - members} whole, 1 damaged, ")


def test_verify_goes_on_after_any_error_of_a_reader(
    copied_run: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr("pfge.lab.run.verification.read_ensemble", fail)
    assert main(["verify", "."]) == 1
    printed = capsys.readouterr().out
    assert f"{PFGE}/manifest.json: damaged: it cannot be read: OverflowError: too large" in printed
    assert printed.splitlines()[-1].split(", ")[1] == "1 damaged"
    assert (copied_run / "config.toml").exists()


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (
            f"ensemble.high={10**400}",
            "ensemble.high must be a number of at most 64 bits, got one of 1,329 bits",
        ),
        (f"seeds=[{10**30}]", "seeds[0] must be a number of at most 64 bits, got one of 100 bits"),
        (f"model.options={{width={10**30}}}", "model.options.width must be a number of at most 64 bits"),
        ("ensemble.length=1e300", "ensemble.length must be at most 10,000 periods, got 1e+300"),
        (f"seeds={list(range(1001))}", "seeds must be at most 1,000, got 1,001"),
    ],
)
def test_numbers_of_a_config_are_bounded(capsys: Captured, setting: str, expected: str) -> None:
    with in_time():
        assert expected in refused(capsys, ["compare", "--set", setting])


def test_a_config_with_a_number_of_thousands_of_digits_is_refused(copied_run: Path, capsys: Captured) -> None:
    (copied_run / "config.toml").write_text(f"[ensemble]\nhigh = {'9' * 5000}\n")
    assert "config.toml must be TOML" in refused(capsys, ["status", "."])
    assert main(["report", "."]) == 0
    assert "The config cannot be read" in (copied_run / "report.html").read_text()


def test_the_model_of_a_config_must_have_the_tensors_of_the_members_before_it_is_built(
    copied_run: Path, capsys: Captured
) -> None:
    config = copied_run / "config.toml"
    config.write_text(to_toml(load_experiment(config, ["model.name=wideresnet28-1000"])))
    with in_time(), at_most_allocated(500_000_000):
        message = refused(capsys, ["predict", PFGE, "digit.png"])
    assert message.startswith(f"{PFGE} does not fit the model 'wideresnet28-1000': the model and the members")


# Names and texts


@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        "/x",
        "a/b",
        "a\\b",
        "C:x",
        "..",
        ".",
        ".x",
        "",
        "x\0",
        "x\n",
        "x\x1b[2J",
        "x" * 201,
        "\u20ac" * 67,
    ],
)
def test_a_run_is_written_to_its_own_folder(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    settings = [*SETTINGS, f"name={json.dumps(name)}"]
    message = refused(capsys, ["pretrain", *(part for s in settings for part in ("--set", s))])
    assert message.startswith(
        "name must be that of a folder: at most 200 bytes, printable, and without slashes"
    )
    assert [*tmp_path.rglob("*")] == [tmp_path / "here"]


CONTROL = 'a\x1b[2J\x7f\x85\u202e\u2028"é'


def test_json_of_predictions_has_no_character_that_steers_a_terminal(
    copied_run: Path, capsys: Captured
) -> None:
    classes = read_json_object(copied_run / PFGE / MANIFEST)["usage"]["classes"]
    forge(copied_run / PFGE, classes=[f"{CONTROL}{name}" for name in classes])
    shutil.copy("digit.png", "\x1b\u202e.png")
    assert main(["predict", PFGE, "\x1b\u202e.png", "--json", "--top", "10"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.isprintable()
    found = json.loads(line)
    assert found["file"] == "\x1b\u202e.png"
    assert {*found["classes"]} == {f"{CONTROL}{name}" for name in classes}
    assert "é" in line

"""Links in a run folder: no command changes or removes anything that they lead to."""

import shutil
from pathlib import Path

import pytest

from pfge.cli.main import main
from tests.lab.tiny import SETTINGS, run, tiny

FILES = (
    ".lock",
    "config.toml",
    "data.json",
    "environment.json",
    "results.jsonl",
    "results.lines.json",
    "connectivity.jsonl",
    "connectivity.lines.json",
    "formats.jsonl",
    "formats.lines.json",
    "seed-1/w0.safetensors",
    "seed-1/w0-2.safetensors",
    "seed-1/pretrain.checkpoint",
    "seed-1/shared.checkpoint",
    "seed-1/curve-PFGE-1.checkpoint",
    "seed-1/scores/PFGE.safetensors",
    "seed-1/ensembles/PFGE/manifest.json",
    "seed-1/curves/PFGE-1.bends",
)
FOLDERS = (
    "units",
    "seed-1",
    "seed-1/periods",
    "seed-1/members",
    "seed-1/members/PFGE",
    "seed-1/ensembles",
    "seed-1/ensembles/PFGE",
    "seed-1/scores",
    "seed-1/curves",
)
COMMANDS = ("compare", "pretrain", "connect", "formats")
CHOICE = ("ensemble.methods=['PFGE']", "ensemble.length=8")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(tiny(*CHOICE), folder)
    return folder


def content(folder: Path) -> dict[str, bytes | None]:
    """Return everything in a folder by name, and the bytes of files."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def start(command: str, folder: Path) -> int:
    if command in ("connect", "formats"):
        return main([command, str(folder)])
    settings = [part for setting in (*SETTINGS, *CHOICE) for part in ("--set", setting)]
    return main([command, "--out", str(folder), *settings])


def assert_refused(
    captured: pytest.CaptureFixture[str], command: str, workplace: Path, link: Path, before: object
) -> None:
    assert start(command, workplace / "run") == 2
    message = (
        f"pfge: error: {link} is a symbolic link, and a run changes files in its own folder only; put a copy"
    )
    assert captured.readouterr().err.splitlines() == [f"{message} in its place, or give another --out"]
    assert content(workplace) == before


@pytest.mark.parametrize("place", FILES + FOLDERS)
def test_a_link_is_refused_and_what_it_leads_to_is_left_as_it_is(
    tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    link, target = tmp_path / "run" / place, tmp_path / "outside"
    if link.exists():
        link.rename(target)
    elif place in FILES:
        target.write_text("somebody's")
    else:
        (target / "ensembles").mkdir(parents=True)
        for name in ("w0-2.safetensors", "member-0123.safetensors", "work.checkpoint", ".a.12.part"):
            (target / name).write_text("somebody's")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    before = content(tmp_path)
    for command in COMMANDS:
        assert_refused(capsys, command, tmp_path, link, before)


@pytest.mark.parametrize("place", [".lock", "results.jsonl", "seed-1", "seed-2"])
def test_nothing_is_made_where_a_link_leads_to_nothing(
    tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    link = tmp_path / "run" / place
    if link.exists():
        link.rename(tmp_path / "moved")
    link.symlink_to(tmp_path / "nowhere")
    before = content(tmp_path)
    for command in COMMANDS:
        assert_refused(capsys, command, tmp_path, link, before)
    assert not (tmp_path / "nowhere").exists()


def test_the_run_folder_itself_and_what_is_not_the_runs_own_may_be_links(
    tmp_path: Path, finished: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "logs").mkdir()
    (tmp_path / "run" / "logs").symlink_to(tmp_path / "logs")
    (tmp_path / "latest").symlink_to(tmp_path / "run")
    assert start("compare", tmp_path / "latest") == 0

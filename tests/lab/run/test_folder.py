"""A run's folder: it describes itself, one process uses it, and another config does not."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import torch

from pfge import StorageError
from pfge.lab.config.settings import Experiment
from pfge.lab.config.toml import load_experiment
from pfge.lab.run.folder import RunFolder, describe_environment, hold_lock
from pfge.storage.files import is_sealed_text


def changed(*overrides: str) -> Experiment:
    return load_experiment(None, overrides)


def refused(path: Path, experiment: Experiment) -> str:
    with pytest.raises(StorageError) as caught, RunFolder(path).opened(experiment):
        pass
    return str(caught.value)


def test_a_new_folder_holds_its_config_and_environment(tmp_path: Path) -> None:
    experiment = changed("ensemble.high=0.1")
    with RunFolder(tmp_path / "deep" / "run").opened(experiment):
        pass
    assert load_experiment(tmp_path / "deep" / "run" / "config.toml") == experiment
    environment = json.loads((tmp_path / "deep" / "run" / "environment.json").read_text())
    assert environment["torch"] == torch.__version__


def test_an_empty_folder_is_a_new_one(tmp_path: Path) -> None:
    with RunFolder(tmp_path).opened(Experiment()):
        assert (tmp_path / "config.toml").exists()


def test_the_same_config_continues_and_changes_no_file(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.opened(Experiment()):
        folder.results.write_text("a result\n")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with folder.opened(Experiment()):
        pass
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_settings_without_effect_may_change_between_two_runs(tmp_path: Path) -> None:
    with RunFolder(tmp_path).opened(Experiment()):
        pass
    with RunFolder(tmp_path).opened(changed("engine.checkpoint_seconds=1", "data.root=/other")):
        assert load_experiment(tmp_path / "config.toml") == Experiment()


def test_another_config_is_refused_with_what_differs(tmp_path: Path) -> None:
    with RunFolder(tmp_path).opened(Experiment()):
        pass
    assert refused(tmp_path, changed("ensemble.high=0.1")) == (
        f"{tmp_path} was made with another config, where this one has ensemble.high = 0.1 (was 0.05); "
        "run it with the same config, or give another --out"
    )
    assert load_experiment(tmp_path / "config.toml") == Experiment()


def test_more_seeds_continue_a_run_and_are_written_once_they_are_kept(tmp_path: Path) -> None:
    folder, more = RunFolder(tmp_path), changed("seeds=[4,1,2,3]", "data.root=/other")
    with folder.opened(Experiment()):
        pass
    with folder.opened(more, more_seeds=True):
        assert load_experiment(folder.config) == Experiment()
        folder.keep_seeds(more)
    assert load_experiment(folder.config) == changed("seeds=[4,1,2,3]")
    assert is_sealed_text(folder.config.read_text())


@pytest.mark.parametrize("seeds", ["[1,2]", "[1,2,4]"])
def test_fewer_or_other_seeds_are_refused(tmp_path: Path, seeds: str) -> None:
    with RunFolder(tmp_path).opened(Experiment()):
        pass
    with (
        pytest.raises(
            StorageError, match=r"another config, where this one has seeds = .* \(was \[1, 2, 3\]\)"
        ),
        RunFolder(tmp_path).opened(changed(f"seeds={seeds}"), more_seeds=True),
    ):
        pass


def test_more_seeds_are_refused_by_work_on_a_finished_run(tmp_path: Path) -> None:
    with RunFolder(tmp_path).opened(Experiment()):
        pass
    assert "where this one has seeds = [1, 2, 3, 4]" in refused(tmp_path, changed("seeds=[1,2,3,4]"))


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    message = refused(tmp_path, Experiment())
    assert message == f"{tmp_path} holds other files and no run; give an empty or new --out"
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("below", ["", "run"])
def test_a_file_in_the_way_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / below
    assert refused(path, Experiment()).startswith(f"{path} must be a folder, but it is a file")


def test_a_second_user_is_refused_while_the_first_has_it(tmp_path: Path) -> None:
    with RunFolder(tmp_path).opened(Experiment()):
        message = refused(tmp_path, Experiment())
    assert message == f"{tmp_path} is in use by another process; wait for it, or give another --out"


def test_a_folder_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), RunFolder(tmp_path).opened(Experiment()):
        raise ZeroDivisionError
    with RunFolder(tmp_path).opened(Experiment()):
        assert (tmp_path / "config.toml").exists()


def stop_with_an_error(folder: RunFolder, *made: str) -> list[str]:
    """Return the names in a folder after an error in a run that had made some files."""
    with suppress(ZeroDivisionError), folder.opened(Experiment()):
        for name in ("data.json", "units/w0.failed", "units/w0.lock", "logs/w0.csv", *made):
            (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
            (folder.path / name).write_text("")
        folder.of_seed(1)
        raise ZeroDivisionError
    return sorted(file.name for file in folder.path.iterdir())


def test_a_run_that_failed_before_it_made_anything_gives_way_to_another_config(tmp_path: Path) -> None:
    folder, corrected = RunFolder(tmp_path), changed("ensemble.high=0.1")
    assert stop_with_an_error(folder) == [".lock"]
    with folder.opened(corrected):
        pass
    assert load_experiment(folder.config) == corrected


def test_a_run_that_failed_after_it_made_something_stays(tmp_path: Path) -> None:
    assert "config.toml" in stop_with_an_error(RunFolder(tmp_path), "seed-1/w0.safetensors")


def test_a_config_that_was_there_before_an_error_stays(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.opened(Experiment()):
        pass
    assert "config.toml" in stop_with_an_error(folder)


def test_a_run_whose_jobs_go_on_stays_after_an_error(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with ExitStack() as jobs:
        with suppress(ZeroDivisionError), folder.opened(Experiment()):
            folder.units.mkdir()
            jobs.enter_context(hold_lock(folder.units / "w0.lock", "in use"))
            raise ZeroDivisionError
        assert folder.config.exists()


class Killed(BaseException):
    """Stands for the end of a process."""


@pytest.mark.parametrize("replaced", [0, 1, 2])
def test_a_process_that_was_killed_at_its_start_leaves_a_folder_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: int
) -> None:
    """The two files are written as .part and then renamed; the kill comes after so many renames."""
    renames = 0
    rename = Path.replace

    def replace(self: Path, target: Path) -> Path:
        nonlocal renames
        if renames == replaced:
            raise Killed
        renames += 1
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", replace)
        patched.setattr(Path, "unlink", lambda *_, **__: None)  # the dead tidy nothing up
        with pytest.raises(Killed), RunFolder(tmp_path).opened(Experiment()):
            raise Killed
    assert len(list(tmp_path.glob(".*.part"))) == (replaced < 2)
    with RunFolder(tmp_path).opened(Experiment()):
        assert load_experiment(tmp_path / "config.toml") == Experiment()
    assert sorted(file.name for file in tmp_path.iterdir()) == [".lock", "config.toml", "environment.json"]


def test_what_killed_processes_left_is_removed_from_the_runs_own_folders(tmp_path: Path) -> None:
    with RunFolder(tmp_path).opened(Experiment()):
        pass
    own = [tmp_path, *(tmp_path / "seed-1" / name for name in ("", "scores", "ensembles/SWA", "members/SWA"))]
    for folder in own:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (".w0.safetensors.12.part", ".tmpAb3dEf"):
            (folder / name).write_text("half")
    others = [
        tmp_path / "logs" / ".a.12.part",
        tmp_path / "seed-1" / "w0.safetensors",
        tmp_path / "notes.part",
    ]
    for file in others:
        file.parent.mkdir(exist_ok=True)
        file.write_text("whole")
    with RunFolder(tmp_path).opened(Experiment()):
        assert [file for folder in own for file in folder.glob(".*") if file.name != ".lock"] == []
    assert all(file.exists() for file in others)


def test_a_refused_folder_is_left_as_it_is(tmp_path: Path) -> None:
    with RunFolder(tmp_path).opened(Experiment()):
        pass
    (tmp_path / ".config.toml.12.part").write_text("half")
    refused(tmp_path, changed("ensemble.high=0.1"))
    assert (tmp_path / ".config.toml.12.part").exists()


def test_the_lock_keeps_what_is_in_its_file(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("a file that was linked here by a hard link")
    with RunFolder(tmp_path).opened(Experiment()):
        pass
    assert (tmp_path / ".lock").read_text() == "a file that was linked here by a hard link"


def test_seeds_and_ensembles_have_their_own_folders(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.of_seed(7) == tmp_path / "seed-7"
    assert (tmp_path / "seed-7").is_dir()
    assert folder.ensemble(7, "PFGE") == tmp_path / "seed-7" / "ensembles" / "PFGE"


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("seed-7/ensembles/PFGE", True),
        ("seed--7/ensembles/SWAG-last", True),
        ("link", True),
        ("seed-7/ensembles", False),
        ("seed-7/ensembles/PFGE/small", False),
        ("seed-7/small/PFGE", False),
        ("seeds/ensembles/PFGE", False),
        ("small", False),
        (".", False),
        ("/", False),
    ],
)
def test_the_run_of_an_ensemble_is_found_at_its_place_alone(tmp_path: Path, place: str, found: bool) -> None:
    with RunFolder(tmp_path).opened(Experiment()):
        pass
    (tmp_path / "link").symlink_to(tmp_path / "seed-7" / "ensembles" / "PFGE")
    run = RunFolder.of_ensemble(tmp_path / place)
    assert (None if run is None else run.path) == (tmp_path if found else None)


def test_an_ensemble_in_folders_without_a_config_has_no_run(tmp_path: Path) -> None:
    assert RunFolder.of_ensemble(tmp_path / "seed-1" / "ensembles" / "PFGE") is None


def test_the_environment_names_what_ran_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/pfge", "compare", "a.toml"])
    environment = describe_environment()
    assert environment["command"] == "pfge compare a.toml"
    assert environment["cores"] == os.cpu_count()
    assert environment["threads"] == torch.get_num_threads()
    assert environment["processor"]


ORPHAN = """
import os, signal, sys, time
from pathlib import Path
from pfge.lab.config.settings import Experiment
from pfge.lab.run.folder import RunFolder

with RunFolder(Path(sys.argv[1])).opened(Experiment()):
    child = os.fork()
    if child == 0:
        time.sleep(100)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_forked_process_that_outlives_the_run_does_not_hold_it(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN, str(tmp_path)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    orphan = int(parent.stdout.readline())
    try:
        parent.wait()
        with RunFolder(tmp_path).opened(Experiment()):
            os.kill(orphan, 0)  # it is still there
    finally:
        os.kill(orphan, signal.SIGKILL)
        parent.stdout.close()

"""Several processes do what one does: gloo on the CPU, launched by torchrun and by the product itself."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from pfge import Ensemble
from pfge.lab.run.folder import RunFolder
from pfge.storage.files import read_tensors
from pfge.weights import copy_weights, view_weights
from tests.lab.shared_work import PLAIN, TWO, measure_given, plain_net
from tests.lab.tiny import SETTINGS, outcome, run, small_conv, tiny
from tests.made_once import made_once
from tests.processes import PATIENCE, ROOT, launch, launch_two

SCRIPT = """
import sys
from pathlib import Path
sys.modules["torchmetrics"] = None  # as of PROGRAM
from tests.lab.shared_work import work
work(Path(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes of torchrun did their work; stdout.txt is what they printed."""
    return made_once(tmp_path_factory, "two-of-torchrun", work_in_two)


def work_in_two(folder: Path) -> None:
    members = []
    for seed in range(3):
        torch.manual_seed(seed)
        members.append(copy_weights(view_weights(small_conv())))
    Ensemble(members, small_conv).save(folder / "given")
    with RunFolder(folder / "failing").opened(tiny("pretrain.rate=0.5")):
        pass
    script = folder / "script.py"
    script.write_text(SCRIPT)
    printed = launch_two(str(script), str(folder))
    (folder / "stdout.txt").write_text(printed)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, two: Path) -> Path:
    """The same work done by this process alone."""
    folder = tmp_path_factory.mktemp("one")
    shutil.copytree(two / "given", folder / "given")
    run(tiny(*PLAIN), folder / "run")
    measure_given(folder, folder / "measured")
    return folder


def read_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "results.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_there_were_two_processes(two: Path) -> None:
    shares = [json.loads((two / f"measured-{rank}" / "share.json").read_text()) for rank in (0, 1)]
    assert shares == [[0, 2], [1, 2]]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["SWA", "FGE", "SWAG", "PFGE"])
def test_two_halves_of_each_batch_give_the_weights_of_one_process(two: Path, one: Path, method: str) -> None:
    """Although the run of two was stopped and continued."""
    found, expected = (
        Ensemble.load(folder / "run" / "seed-1" / "ensembles" / method, lambda: plain_net(10, 1))
        for folder in (two, one)
    )
    assert len(found) == len(expected)
    for member, other in zip(found.members, expected.members, strict=True):
        torch.testing.assert_close(member, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_two_processes_find_the_w0_of_one(two: Path, one: Path) -> None:
    found, expected = (read_tensors(folder / "run" / "seed-1" / "w0.safetensors")[0] for folder in (two, one))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_results_are_written_once_and_are_those_of_one_process(two: Path, one: Path) -> None:
    rows, expected = read_rows(two), read_rows(one)
    assert [row["method"] for row in rows] == [row["method"] for row in expected]
    for row, other in zip(rows, expected, strict=True):
        assert row["member_iterations"] == other["member_iterations"]
        assert row["test"]["nll"] == pytest.approx(other["test"]["nll"], rel=1e-4)


@pytest.mark.slow
def test_the_table_is_printed_once(two: Path) -> None:
    printed = (two / "stdout.txt").read_text()
    assert printed.count("│ PFGE ") == 1


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_batch_norm_refreshed_by_two_processes_is_that_of_one(two: Path, one: Path, rank: int) -> None:
    fresh = Ensemble.load(two / f"measured-{rank}" / "fresh", small_conv)
    expected = Ensemble.load(one / "measured" / "fresh", small_conv)
    given = Ensemble.load(one / "given", small_conv)
    for member, other, before in zip(fresh.members, expected.members, given.members, strict=True):
        torch.testing.assert_close(member, other, rtol=1e-5, atol=1e-6)
        assert member["1.num_batches_tracked"] == 5
        assert not torch.allclose(member["1.running_var"], before["1.running_var"])


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_an_evaluation_by_two_processes_is_that_of_one(two: Path, one: Path, rank: int) -> None:
    measured, expected = (
        json.loads((folder / "measured.json").read_text())
        for folder in (two / f"measured-{rank}", one / "measured")
    )
    assert measured.keys() == expected.keys()
    for part in ("pooled", "last"):
        assert measured[part] == pytest.approx(expected[part], rel=1e-4)
    for part in ("members", "growing"):
        assert measured[part] == [pytest.approx(each, rel=1e-4) for each in expected[part]]


@pytest.mark.slow
def test_a_comparison_that_fails_in_one_process_is_not_mixed_with_the_next(two: Path) -> None:
    errors = [(two / f"error-{rank}.txt").read_text() for rank in (0, 1)]
    assert sorted(errors) == ["RuntimeError", "StorageError"]  # the second has lost the first
    assert not (two / "next").exists()


# Fabric imports torchmetrics, which takes seconds, only to learn its version.
PROGRAM = """
import sys
sys.modules["torchmetrics"] = None
from pfge.cli.main import main
sys.exit(main())
"""
LOST = (
    "pfge: error: another process of this command ended; the same command continues from the last checkpoint"
)


def compare_in_two(program: Path, out: Path) -> list[str]:
    """Return the command of a comparison that launches a second process and takes some seconds."""
    overrides = (*SETTINGS, *PLAIN, *TWO, "ensemble.methods=['PFGE']", "ensemble.length=80")
    settings = [part for setting in overrides for part in ("--set", setting)]
    program.write_text(PROGRAM)
    return [str(program), "compare", "--out", str(out), *settings, "--set", "engine.checkpoint_seconds=0"]


def child_of(process: int) -> int:
    """Return the process that a process launched."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return int(children[0])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run by two processes that the product launched; stdout.txt is what they printed."""

    def make(folder: Path) -> None:
        printed = launch(*compare_in_two(folder / "program.py", folder / "run"))
        (folder / "stdout.txt").write_text(printed)

    return made_once(tmp_path_factory, "undisturbed", make)


@pytest.mark.slow
def test_the_product_launches_its_processes_itself_and_prints_one_table(undisturbed: Path, one: Path) -> None:
    assert (undisturbed / "stdout.txt").read_text().count("│ PFGE ") == 1
    assert [row["method"] for row in read_rows(undisturbed)] == ["w0", "PFGE"]
    found, expected = (
        read_tensors(folder / "run" / "seed-1" / "w0.safetensors")[0] for folder in (undisturbed, one)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def start_and_disturb(
    command: list[str], folder: Path, disturbed: str, number: signal.Signals
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a command, send a signal to one of its two processes in the middle, and return them."""
    before = times_of_checkpoints(folder)
    with (folder / "said").open("w") as said:
        first = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT}/src"},
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
    while times_of_checkpoints(folder) <= before and first.poll() is None:
        time.sleep(0.01)
    second = child_of(first.pid)
    os.kill(first.pid if disturbed == "the first" else second, number)
    return first, second


def times_of_checkpoints(folder: Path) -> set[int]:
    """Return when the checkpoints of PFGE's own part were written; a new one adds a time."""
    times = set()
    for file in (folder / "run" / "seed-1").glob("*pfge*.checkpoint"):
        with suppress(FileNotFoundError):  # its part is done by now
            times.add(file.stat().st_mtime_ns)
    return times


def wait_for_end(process: int) -> None:
    """Wait until a process that is not our child is gone, or has ended and is a zombie."""
    state = Path(f"/proc/{process}/stat")
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.1)


def lines_of_errors(folder: Path) -> list[str]:
    """Return what the command said of errors; a traceback is none of it."""
    lines = (folder / "said").read_text().splitlines()
    assert not any("Traceback" in line for line in lines)
    return [line for line in lines if line.startswith("pfge: ")]


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found in /proc")


@pytest.mark.slow
@needs_proc
def test_when_a_process_dies_the_other_ends_with_one_line_and_the_run_goes_on(
    undisturbed: Path, tmp_path: Path
) -> None:
    command = compare_in_two(tmp_path / "program.py", tmp_path / "run")
    for killed in ("the first", "the second"):
        first, second = start_and_disturb(command, tmp_path, killed, signal.SIGKILL)
        start = time.monotonic()
        code = first.wait()
        wait_for_end(second)
        assert time.monotonic() - start < 30  # seconds, on a machine that is busy
        assert code == (-signal.SIGKILL if killed == "the first" else 2)
        assert lines_of_errors(tmp_path) == [LOST]
    launch(*command)
    assert outcome(tmp_path / "run") == outcome(undisturbed / "run")


SILENT = (
    "pfge: error: another process of this command has not answered for engine.timeout seconds; end it, and "
    "the same command continues from the last checkpoint"
)


@pytest.mark.slow
@needs_proc
def test_a_process_that_is_stopped_is_noticed_in_time_and_the_run_goes_on(
    undisturbed: Path, tmp_path: Path
) -> None:
    command = compare_in_two(tmp_path / "program.py", tmp_path / "run")
    for stopped in ("the first", "the second"):
        first, second = start_and_disturb(
            [*command, "--set", "engine.timeout=8"], tmp_path, stopped, signal.SIGSTOP
        )
        start = time.monotonic()
        try:
            if stopped == "the first":
                wait_for_end(second)
            else:
                assert first.wait(timeout=PATIENCE) == 2
            assert time.monotonic() - start < 40  # seconds, on a machine that is busy
            assert lines_of_errors(tmp_path) == [SILENT]
        finally:
            for process in (first.pid, second):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            first.wait()
            wait_for_end(second)
    launch(*command)
    assert outcome(tmp_path / "run") == outcome(undisturbed / "run")

"""After kill -9 at any moment, the same command ends with the bytes of a run that was never killed."""

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.forked_commands import ForkedCommand
from tests.lab.killable_runs import MODEL, PATIENCE, SETTINGS, SHORTER, finish, fork, processes_below
from tests.lab.tiny import outcome

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


# Real commands, killed at random moments of each stage

SMALLER = (*SHORTER, "data.test_images=200", "data.batch_norm_images=200", "pretrain.epochs=1")


def kill_when(process: ForkedCommand, reached: Callable[[], bool], delay: float) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    (tmp_path / "dropping.py").write_text(MODEL)
    return tmp_path


def test_a_killed_command_ends_with_the_bytes_of_one_that_was_not(workplace: Path) -> None:
    out, random_delay = workplace / "killed", random.Random(3)
    seed = out / "seed-1"
    stages = [
        (seed / "pretrain.checkpoint").exists,
        (seed / "pfge-fork.checkpoint").exists,
        (seed / "ensembles" / "SWAG").exists,
        (seed / "pfge.checkpoint").exists,
    ]
    for reached in stages:
        kill_when(fork(workplace, out), reached, delay=random_delay.uniform(0, 0.08))
    finish(fork(workplace, out))
    finish(fork(workplace, workplace / "whole"))
    # results, w0, manifests, members, and the scores of w0, four methods and two starred ones, with digests
    assert len(outcome(out)) == 2 + 1 + 4 + (1 + 12 + 12 + 4) + 2 * 7
    assert outcome(out) == outcome(workplace / "whole")
    assert sorted(file.name for file in seed.iterdir()) == [
        "ensembles",
        "scores",
        "w0.safetensors",
        "w0.safetensors.sha256",
    ]


OWN_DATA = (
    "data.name=tests.lab.data.datasets.made:load",
    "model.name=tests.lab.data.datasets.made:Net",
    "data.batch_size=12",
)


def test_workers_that_read_a_dataset_may_be_killed_with_the_run(workplace: Path) -> None:
    """The Dataset draws random numbers; after five kills, the bytes are those of a run without workers."""
    kept = [setting for setting in SETTINGS if not setting.startswith(("model.", "data."))]
    kept += SHORTER
    out, random_delay = workplace / "killed", random.Random(7)
    seed = out / "seed-1"
    stages = (
        "pretrain.checkpoint",
        "shared.checkpoint",
        "pfge-fork.checkpoint",
        "ensembles",
        "pfge.checkpoint",
    )
    for reached in stages:
        process = fork(ROOT, out, (*kept, *OWN_DATA, "data.workers=2"))
        kill_when(process, (seed / reached).exists, delay=random_delay.uniform(0, 0.3))
    finish(fork(ROOT, out, (*kept, *OWN_DATA, "data.workers=2")))
    finish(fork(ROOT, workplace / "whole", (*kept, *OWN_DATA)))
    assert outcome(out) == outcome(workplace / "whole")


def server_and_workers_of(driver: int) -> tuple[list[int], list[int]]:
    """Return the process from which the workers of a driver are forked, and the workers."""
    found = {pid: above for pid, (above, line) in processes_below(driver).items() if "forkserver" in line}
    return [pid for pid in found if found[pid] == driver], [pid for pid in found if found[pid] in found]


def test_workers_and_drivers_may_be_killed_at_any_moment(workplace: Path) -> None:
    """Five times, a worker and then its driver are killed, each at a random moment.

    Once, what workers are forked from is killed with the worker.
    """
    methods = "ensemble.methods=['FGE','PFGE','Star','DeepEnsemble']"
    settings = (*SETTINGS, *SMALLER, "seeds=[1,2]", methods)
    two = (*settings, "engine.launcher=here:2")
    out, chosen = workplace / "killed", random.Random(5)
    for number in range(5):
        driver = fork(workplace, out, two)
        deadline = time.monotonic() + PATIENCE
        while not (found := server_and_workers_of(driver.pid))[1] and time.monotonic() < deadline:
            if driver.poll() is not None:  # a fast machine has finished by now
                break
            time.sleep(0.05)
        servers, workers = found
        time.sleep(chosen.uniform(0, 4))  # some are killed at their start, others at work
        for pid in [*servers[: number == 1], chosen.choice(workers)] if workers else ():
            with suppress(ProcessLookupError):  # it may be done by now
                os.kill(pid, signal.SIGKILL)
        time.sleep(chosen.uniform(0, 2))
        driver.kill()
        driver.communicate()
    finish(fork(workplace, out, two))
    finish(fork(workplace, workplace / "whole", settings))
    assert outcome(out) == outcome(workplace / "whole")
    names = [sorted(file.name for file in folder.iterdir()) for folder in (out, workplace / "whole")]
    assert names[0] == names[1]


def test_a_second_process_on_the_same_folder_is_refused(workplace: Path) -> None:
    out = workplace / "run"
    first = fork(workplace, out)
    try:
        deadline = time.monotonic() + PATIENCE
        while not (out / "config.toml").exists() and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert first.poll() is None, first.communicate()[1]
        first.send_signal(signal.SIGSTOP)  # so that it cannot end before the second begins
        second = fork(workplace, out)
        _, errors = second.communicate(timeout=PATIENCE)
    finally:
        first.kill()
        first.communicate()
    assert second.returncode == 2
    message = f"pfge: error: {out} is in use by another process; wait for it, or give another --out"
    assert errors.splitlines() == [message]

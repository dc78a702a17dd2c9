"""The driver: which units it starts and when, and what becomes of those that fail."""

import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pfge.lab.launch.driver import UnitsMissingError, drive
from pfge.lab.launch.units import Unit, UnitStatus
from pfge.lab.launch.worker import ExperimentUnits, WorkerTask
from pfge.lab.run.folder import RunFolder
from pfge.storage.files import StorageError


@contextmanager
def shows_nothing() -> Iterator[Callable[[Sequence[str]], None]]:
    yield lambda _: None


class Runner:
    """An executor whose units are done by a job's second look, unless they are to fail."""

    def __init__(self, folder: Path, failures: dict[str, int] | None = None):
        self.folder = folder
        self.size = 2
        self.failures = failures or {}
        self.said: list[str] = []
        self.events: list[str] = []
        self.done: set[str] = set()
        self.running: set[str] = set()
        self.most_running = 0

    def unit(
        self,
        name: str,
        *needs: str,
        by_driver: bool = False,
        early: Path | None = None,
        iterations: int = 0,
    ) -> Unit:
        def run(_: Any) -> None:
            self.events.append(name)
            self.done.add(name)

        return Unit(name, lambda: name in self.done, run, needs, early, iterations, by_driver)

    def start(self, tasks: Sequence[WorkerTask]) -> "list[FakeJob]":
        return [self.start_one(task.unit.name) for task in tasks]

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def start_one(self, name: str) -> "FakeJob":
        self.events.append(name)
        self.running.add(name)
        self.most_running = max(self.most_running, len(self.running))
        return FakeJob(self, name)

    def work(self, units: list[Unit], title: str = "") -> ExperimentUnits:
        session: Any = SimpleNamespace(
            folder=RunFolder(self.folder / title),
            reporter=SimpleNamespace(say=self.said.append, live_lines=shows_nothing),
            experiment=None,
        )
        return ExperimentUnits(session, units, title)

    def drive(self, units: list[Unit]) -> None:
        drive([self.work(units)], self, lambda _: 1)


class FakeJob:
    def __init__(self, work: Runner, name: str):
        self.work, self.name, self.looks = work, name, 0

    def is_over(self) -> bool:
        self.looks += 1
        if self.looks < 2:
            return False
        self.work.running.discard(self.name)
        if self.work.failures.get(self.name, 0):
            self.work.failures[self.name] -= 1
        else:
            self.work.done.add(self.name)
        return True

    def ending(self) -> str:
        return "its process was ended by signal 9"

    def stop(self) -> None:
        self.work.events.append(f"stopped {self.name}")


def test_units_start_when_what_they_need_is_done_and_few_at_once(tmp_path: Path) -> None:
    work = Runner(tmp_path)
    starts = [work.unit(f"w{i}") for i in range(4)]
    work.drive([*starts, work.unit("all", "w0", "w1", "w2", "w3"), work.unit("tidy", "all", by_driver=True)])
    assert work.events == ["w0", "w1", "w2", "w3", "all", "tidy"]
    assert work.most_running == 2


def test_the_longest_chain_starts_first(tmp_path: Path) -> None:
    """Beside a, w0 of the next seed is more urgent than b, which nothing needs."""
    work = Runner(tmp_path)
    work.drive(
        [
            work.unit("a", iterations=8),
            work.unit("b", iterations=4),
            work.unit("next w0", iterations=2),
            work.unit("next a", "next w0", iterations=8),
        ]
    )
    assert work.events == ["next w0", "a", "next a", "b"]


def test_a_unit_starts_early_beside_what_it_would_wait_for(tmp_path: Path) -> None:
    work = Runner(tmp_path)
    (tmp_path / "fork").touch()
    work.drive([work.unit("shared"), work.unit("own", "shared", early=tmp_path / "fork")])
    assert work.most_running == 2


def test_a_unit_that_fails_twice_is_done_at_the_third_attempt(tmp_path: Path) -> None:
    work = Runner(tmp_path, failures={"a": 2})
    work.drive([work.unit("a"), work.unit("b", "a")])
    assert work.events == ["a", "a", "a", "b"]
    assert work.said == ["a: failed, and starts again: its process was ended by signal 9"] * 2


def test_a_unit_that_fails_three_times_stops_only_what_needs_it(tmp_path: Path) -> None:
    work = Runner(tmp_path, failures={"bad": 9})
    units = [work.unit("bad"), work.unit("more", "bad"), work.unit("good"), work.unit("after", "good")]
    with pytest.raises(UnitsMissingError) as caught:
        work.drive([*units, work.unit("tidy", "more", "after", by_driver=True)])
    assert work.done == {"good", "after"}
    assert work.events.count("bad") == 3
    assert str(caught.value) == (
        f"3 parts of {tmp_path} are missing; bad failed 3 times: its process was ended by signal 9; "
        "left out, as they need it: more, tidy; the same command tries them again"
    )
    assert UnitStatus(RunFolder(tmp_path)).failure("bad") == "its process was ended by signal 9"


def test_jobs_are_stopped_if_the_driver_is_interrupted(tmp_path: Path) -> None:
    work = Runner(tmp_path)

    def interrupt() -> bool:
        raise KeyboardInterrupt

    interrupted = work.start_one

    def start_one(name: str) -> FakeJob:
        job = interrupted(name)
        job.is_over = interrupt  # type: ignore[method-assign]
        return job

    work.start_one = start_one  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        work.drive([work.unit("a"), work.unit("b")])
    assert work.events == ["a", "b", "stopped a", "stopped b"]


def test_jobs_go_on_if_an_error_ends_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of a cluster outlive their driver, and the next waits for them."""
    work = Runner(tmp_path)

    def fail(*_: object) -> str:
        raise StorageError("seed-1-w0.progress cannot be read")

    monkeypatch.setattr(UnitStatus, "progress", fail)
    with pytest.raises(StorageError, match="cannot be read"):
        work.drive([work.unit("a"), work.unit("b")])
    assert work.events == ["a", "b"]


def test_a_disk_without_room_for_reasons_stops_no_other_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pfge.lab.launch.units.write_text", refuse)
    work = Runner(tmp_path, failures={"bad": 9})
    with pytest.raises(UnitsMissingError, match="bad failed 3 times: its process was ended by signal 9"):
        work.drive([work.unit("bad"), work.unit("good"), work.unit("after", "good")])
    assert work.done == {"good", "after"}


def test_experiments_share_the_workers_and_one_that_fails_stops_no_other(tmp_path: Path) -> None:
    work = Runner(tmp_path, failures={"bad": 9})
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = work.work([work.unit("bad"), work.unit("more", "bad")], "a")
    second = work.work([work.unit("w0"), work.unit("end", "w0")], "b")
    with pytest.raises(UnitsMissingError) as caught:
        drive([first, second], work, lambda _: 1)
    assert str(caught.value) == (
        f"2 parts of {tmp_path / 'a'} are missing; bad failed 3 times: its process was ended by signal 9; "
        "left out, as they need it: more; the same command tries them again"
    )
    assert work.done == {"w0", "end"}
    assert work.events[:2] == ["bad", "w0"]  # at once
    assert work.said[0] == "a, bad: failed, and starts again: its process was ended by signal 9"


def test_a_unit_that_a_job_of_an_earlier_driver_runs_is_waited_for(tmp_path: Path) -> None:
    """Jobs of a cluster outlive their driver."""
    work = Runner(tmp_path)
    units = [work.unit("a"), work.unit("b", "a")]
    held, end = threading.Event(), threading.Event()

    def run_elsewhere() -> None:
        with UnitStatus(RunFolder(tmp_path)).held("a"):
            held.set()
            end.wait(20)
            work.done.add("a")

    elsewhere = threading.Thread(target=run_elsewhere)
    elsewhere.start()
    held.wait(20)
    threading.Timer(0.3, end.set).start()
    work.drive(units)
    elsewhere.join()
    assert work.events == ["b"]
    assert work.said == []


def test_what_a_unit_says_is_repeated(tmp_path: Path) -> None:
    work = Runner(tmp_path)
    (tmp_path / "units").mkdir()
    started = work.start_one

    def start_one(name: str) -> FakeJob:
        UnitStatus(RunFolder(tmp_path)).say(name, f"{name} continues\nfrom \x1b[2J")
        return started(name)

    work.start_one = start_one  # type: ignore[method-assign]
    work.drive([work.unit("a")])
    assert work.said == ["a continues", "from ?[2J"]

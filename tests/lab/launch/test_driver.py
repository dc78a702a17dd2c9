"""The driver: which units it starts and when, and what becomes of those that fail."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pfge.lab.launch.driver import UnitsMissingError, drive
from pfge.lab.launch.marks import Marks
from pfge.lab.launch.unit import Unit
from pfge.lab.run.folder import RunFolder


class Work:
    """Units that are done by a job's second look, unless they are to fail."""

    def __init__(self, folder: Path, failures: dict[str, int] | None = None):
        self.folder = folder
        self.failures = failures or {}
        self.said: list[str] = []
        self.events: list[str] = []
        self.done: set[str] = set()
        self.running: set[str] = set()
        self.most_running = 0

    def unit(self, name: str, *needs: str, by_driver: bool = False, early: Path | None = None) -> Unit:
        def run(_: Any) -> None:
            self.events.append(name)
            self.done.add(name)

        return Unit(name, lambda: name in self.done, run, needs, early, by_driver=by_driver)

    def start(self, unit: Unit) -> "FakeJob":
        self.events.append(unit.name)
        self.running.add(unit.name)
        self.most_running = max(self.most_running, len(self.running))
        return FakeJob(self, unit.name)

    def drive(self, units: list[Unit], workers: int = 2) -> None:
        session: Any = SimpleNamespace(
            folder=RunFolder(self.folder), reporter=SimpleNamespace(say=self.said.append)
        )
        drive(session, units, self.start, workers)


class FakeJob:
    def __init__(self, work: Work, name: str):
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
    work = Work(tmp_path)
    starts = [work.unit(f"w{i}") for i in range(4)]
    work.drive([*starts, work.unit("all", "w0", "w1", "w2", "w3"), work.unit("tidy", "all", by_driver=True)])
    assert work.events == ["w0", "w1", "w2", "w3", "all", "tidy"]
    assert work.most_running == 2


def test_a_unit_starts_early_beside_what_it_would_wait_for(tmp_path: Path) -> None:
    work = Work(tmp_path)
    (tmp_path / "fork").touch()
    work.drive([work.unit("shared"), work.unit("own", "shared", early=tmp_path / "fork")])
    assert work.most_running == 2


def test_a_unit_that_fails_twice_is_done_at_the_third_attempt(tmp_path: Path) -> None:
    work = Work(tmp_path, failures={"a": 2})
    work.drive([work.unit("a"), work.unit("b", "a")])
    assert work.events == ["a", "a", "a", "b"]
    assert work.said == ["a: failed, and starts again: its process was ended by signal 9"] * 2


def test_a_unit_that_fails_three_times_stops_only_what_needs_it(tmp_path: Path) -> None:
    work = Work(tmp_path, failures={"bad": 9})
    units = [work.unit("bad"), work.unit("more", "bad"), work.unit("good"), work.unit("after", "good")]
    with pytest.raises(UnitsMissingError) as caught:
        work.drive([*units, work.unit("tidy", "more", "after", by_driver=True)])
    assert work.done == {"good", "after"}
    assert work.events.count("bad") == 3
    assert str(caught.value) == (
        f"3 parts of {tmp_path} are missing; bad failed 3 times: its process was ended by signal 9; "
        "left out, as they need it: more, tidy; the same command tries them again"
    )
    assert Marks(RunFolder(tmp_path)).failure("bad") == "its process was ended by signal 9"


def test_jobs_are_stopped_if_the_driver_is_interrupted(tmp_path: Path) -> None:
    work = Work(tmp_path)

    def interrupt() -> bool:
        raise KeyboardInterrupt

    interrupted: Callable[[Unit], FakeJob] = work.start

    def start(unit: Unit) -> FakeJob:
        job = interrupted(unit)
        job.is_over = interrupt  # type: ignore[method-assign]
        return job

    work.start = start  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        work.drive([work.unit("a"), work.unit("b")])
    assert work.events == ["a", "b", "stopped a", "stopped b"]

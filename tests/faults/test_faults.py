"""Programs that are struck at a change to the file system, and then run again.

Of the commands, a sample of the places is struck; `python -m benchmarks.faults` strikes at all of them.
"""

import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.faulty_programs import FAULTY
from tests.faults.harness import Ending
from tests.faults.programs import COMMANDS, SAVES
from tests.faults.strikes import (
    ACTIONS,
    FAILING,
    FULL,
    INTERRUPT,
    KILL,
    KILLS,
    LITTLE_MEMORY,
    SECOND_KILL,
    SHORT_WRITE,
    TERMINATE,
    strike_programs,
)
from tests.faults.target import (
    DIFFERENT,
    ENDED,
    ERROR,
    HANG,
    LEFT,
    MEMORY,
    STUCK,
    SURVIVED,
    TRACEBACK,
    Tally,
    judge,
)

needs_gcc = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="the library to preload is compiled by gcc"
)


def strike(folder: Path, plans: dict[str, dict[str, float]]) -> dict[tuple[str, str], Tally]:
    return {(tally.program, tally.kind): tally for tally in strike_programs(folder, plans)}


@needs_gcc
@pytest.mark.slow
def test_an_ensemble_is_saved_after_a_fault_at_any_change(tmp_path: Path) -> None:
    tallies = strike(tmp_path, {name: {KILL: 1, FULL: 1} for name in SAVES})
    assert len(tallies) == 8
    for tally in tallies.values():
        # the member or members and the manifest, each made, written, synced and renamed
        assert tally.strikes == tally.places >= 8
        assert tally.problems == {}
    assert {kind for (_, kind), tally in tallies.items() if tally.endings[ENDED]} == {KILL}


@needs_gcc
@pytest.mark.slow
def test_commands_and_loops_go_on_after_a_fault_at_any_change(tmp_path: Path) -> None:
    plan = {**dict.fromkeys(ACTIONS, 0.01), LITTLE_MEMORY: 1}
    tallies = strike(tmp_path, dict.fromkeys(COMMANDS, plan))
    assert len(tallies) == len(COMMANDS) * len(plan)
    for (program, kind), tally in tallies.items():
        assert tally.problems == {}
        assert tally.strikes == tally.planned >= 1
        assert tally.changes >= 10
        if kind in (*KILLS, TERMINATE):
            assert tally.endings == {ENDED: tally.strikes}
        if kind == SHORT_WRITE:
            assert tally.endings == {SURVIVED: tally.strikes}
        assert tally.endings[ERROR] == 0 or kind in (FULL, FAILING, LITTLE_MEMORY), program
    assert tallies["compare", KILL].changes > 150
    assert any(tally.endings[ENDED] for (_, kind), tally in tallies.items() if kind == INTERRUPT)
    assert sum(tally.endings[ERROR] for (_, kind), tally in tallies.items() if kind == FULL) > 5


@pytest.mark.slow
@needs_gcc
def test_a_program_that_does_not_survive_is_found(tmp_path: Path) -> None:
    tallies = strike(tmp_path, {name: {KILL: 1, SECOND_KILL: 1} for name in FAULTY})
    found = {name: [*tallies[name, KILL].problems] for name in FAULTY}
    assert found == {"gets stuck": [TRACEBACK, STUCK], "differs": [DIFFERENT], "leaves files": [LEFT]}
    assert all(tally.strikes == tally.places for tally in tallies.values())
    stuck = tallies["gets stuck", KILL].problems[STUCK]
    assert [reason.partition(":")[0] for reason in stuck] == [
        "kill at 3 (write first)",
        "kill at 4 (open second)",
    ]


WHOLE = Ending(0, "", 1000, 0.5, ())


@pytest.mark.parametrize(
    ("ending", "problems"),
    [
        (WHOLE, []),
        (replace(WHOLE, code=2, errors="pfge: warning: x\npfge: error: the disk is full\n"), []),
        (replace(WHOLE, code=-signal.SIGKILL), []),
        (replace(WHOLE, code=130, errors="pfge: stopped\n"), []),
        (replace(WHOLE, memory=2000), []),
        (replace(WHOLE, memory=2001), [MEMORY]),
        (replace(WHOLE, seconds=10.1), [HANG]),
        (replace(WHOLE, code=-signal.SIGALRM), [HANG]),
        (replace(WHOLE, code=1, errors="Traceback (most recent call last):\nKeyError: 1\n"), [TRACEBACK]),
        (replace(WHOLE, errors="Traceback (most recent call last):\nKeyError: 1\n"), [TRACEBACK]),
        (replace(WHOLE, code=2), [TRACEBACK]),
        (replace(WHOLE, code=2, errors="pfge: error: one\npfge: error: two\n"), [TRACEBACK]),
        (replace(WHOLE, code=-signal.SIGABRT), [TRACEBACK]),
    ],
)
def test_bad_ends_are_told_apart(ending: Ending, problems: list[str]) -> None:
    assert [kind for kind, _ in judge(ending, WHOLE)] == problems

"""Strike a program from the same start again and again, let it run to the end, and judge what came of it."""

import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.harness import SECONDS, Ending, Strike, import_what_it_imports, run_struck
from tests.faults.programs import Program

ENDED, ERROR, SURVIVED = "ended by it", "an error in one line", "finished all the same"
ENDINGS = (ENDED, ERROR, SURVIVED)
STUCK, DIFFERENT, LEFT = "stuck", "different", "files left"
TRACEBACK, HANG, MEMORY = "traceback", "over 10 s", "over twice the memory"
PROBLEMS = (STUCK, DIFFERENT, LEFT, TRACEBACK, HANG, MEMORY)


@dataclass
class Tally:
    """What became of strikes of one kind on one program.

    Args:
        program: Its name.
        kind: Of the strikes.
        changes: How many changes the program makes.
        places: How many of them strikes of this kind can be at.
        planned: How many strikes are planned.
        strikes: How many there were so far.
        endings: How the struck runs ended.
        problems: What was wrong, in the struck run or when it ran again, by its kind.
    """

    program: str
    kind: str
    changes: int
    places: int = 0
    planned: int = 0
    strikes: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    problems: dict[str, list[str]] = field(default_factory=dict)


class Target:
    """A program that is struck again and again, always from the same start.

    Args:
        program: What to strike.
        folder: A folder for it, which does not exist.
    """

    def __init__(self, program: Program, folder: Path):
        self._program = program
        names = ("before", "struck", "trial", "notes")
        self._before, self._struck, self._trial, self._notes = (folder / name for name in names)
        self._first: Strike | None = None  # after which `struck` is what was left
        self._changes_left = 0
        self._notes.mkdir(parents=True)
        first = folder / "first"
        works = (lambda: program.prepare(first), lambda: program.run(first), lambda: program.run(first))
        import_what_it_imports(works, self._notes)
        shutil.rmtree(first)
        self._require_success(
            run_struck(lambda: program.prepare(self._before), folder, Strike(), self._notes)
        )
        self._start_over(self._before)
        self.whole = self._run(Strike())
        self._require_success(self.whole)
        self._expected = self._content()

    def strike(self, strike: Strike, tally: Tally) -> None:
        """Run from the start and be struck, and then run to the end."""
        self._start_over(self._before)
        self._finish(self._run(strike), tally, self._describe(strike))

    def strike_again(self, first: Strike, where: float, tally: Tally) -> None:
        """As `strike`, but be struck in the second run too, in the same way, after a share of its changes."""
        if self._first != first:
            self._start_over(self._before)
            self._run(first)
            shutil.rmtree(self._struck, ignore_errors=True)
            if self._trial.exists():
                shutil.copytree(self._trial, self._struck)
            self._first, self._changes_left = first, len(self._run(Strike()).changes)
        self._start_over(self._struck)
        number = 1 + int(where * self._changes_left)
        what = f"{self._describe(first)}, then {number} of {self._changes_left}"
        self._finish(self._run(Strike(number, first.action)), tally, what)

    def _finish(self, struck: Ending, tally: Tally, what: str) -> None:
        """Run to the end what was struck, and count what came of it."""
        tally.strikes += 1
        tally.endings[_describe_ending(struck)] += 1
        last = self._run(Strike())
        problems = [*judge(struck, self.whole), *judge(last, self.whole)]
        if last.code:
            problems.append((STUCK, _last_line(last)))
        else:
            found = self._content()
            problems += [
                (DIFFERENT, name) for name, data in self._expected.items() if found.get(name) != data
            ]
            problems += [(LEFT, name) for name in sorted(found.keys() - self._expected.keys())]
        for kind, reason in problems:
            tally.problems.setdefault(kind, []).append(f"{tally.kind} at {what}: {reason}")

    def _describe(self, strike: Strike) -> str:
        changes = self.whole.changes
        name = changes[strike.number - 1] if 0 < strike.number <= len(changes) else f"{strike.memory} bytes"
        return f"{strike.number} ({name})"

    def _start_over(self, start: Path) -> None:
        shutil.rmtree(self._trial, ignore_errors=True)
        if start.exists():
            shutil.copytree(start, self._trial)

    def _run(self, strike: Strike) -> Ending:
        return run_struck(lambda: self._program.run(self._trial), self._trial, strike, self._notes)

    def _content(self) -> dict[str, bytes]:
        """Return the bytes of all files by name, with folders, and without bytes for those that vary."""
        paths = {str(path.relative_to(self._trial)): path for path in self._trial.rglob("*")}
        return {
            name: path.read_bytes() if path.is_file() and name not in self._program.varying else b""
            for name, path in paths.items()
        }

    def _require_success(self, ending: Ending) -> None:
        if ending.code:
            raise RuntimeError(f"a program that was not struck ended with {ending.code}: {ending.errors}")


def judge(ending: Ending, whole: Ending) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with how a run ended, whether it was struck or not, beside one that was whole."""
    if ending.code == -signal.SIGALRM or ending.seconds > SECONDS:
        yield HANG, f"{ending.seconds:.1f} s"
    if not _is_clean(ending):
        yield TRACEBACK, f"exit code {ending.code}: {_last_line(ending)}"
    if ending.memory > 2 * whole.memory:
        yield MEMORY, f"{ending.memory:,} kB"


def _describe_ending(ending: Ending) -> str:
    return {0: SURVIVED, 2: ERROR}.get(ending.code, ENDED)


def _is_clean(ending: Ending) -> bool:
    """Return whether a run ended well, in one line, or by a signal that was sent to it."""
    said = [line for line in ending.errors.splitlines() if "error" in line]
    one_line = ending.code != 2 or (len(said) == 1 and said[0] == _last_line(ending))
    signals = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGALRM)
    return ending.code in (0, 2, 130, *signals) and one_line and "Traceback" not in ending.errors


def _last_line(ending: Ending) -> str:
    return (ending.errors.splitlines() or [""])[-1]

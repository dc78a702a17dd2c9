"""Strike a program at every change that it makes to the file system, and see what becomes of it.

`python -m tests.faults.harness FOLDER ACTION PROGRAM...`, with the compiled shim preloaded, runs each program
in forked processes, strikes at one change after another, lets the program run again, and prints as JSON what
came of it. `strike_everywhere` starts that.
"""

import ctypes
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from tests.faults.programs import PROGRAMS, Program

ROOT = Path(__file__).parents[2]
SHIM = Path(__file__).with_name("shim.c")
COUNT, KILL = 0, -1
"""What the shim does at a change; any other action is the error number that the call fails with."""


@dataclass
class Outcome:
    """What became of a program that was struck at each of its changes; the lists say at which.

    Args:
        changes: All of them in order, as "rename seed-1/w0.safetensors".
        survived: The program ended well, although it was struck.
        stuck: It failed when it ran again.
        different: It then ended with other files or other bytes than a program that was never struck.
        left: It then left files behind.
    """

    changes: list[str] = field(default_factory=list)
    survived: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def strike_everywhere(folder: Path, names: Sequence[str], action: int = KILL) -> dict[str, Outcome]:
    """Strike programs at every change, in a process of its own, and return what became of each."""
    library = folder / "shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", library, SHIM, "-ldl"], check=True)
    # A process of its own: forking this one, whose threads are pytest's, could stop it for ever.
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.harness", folder, str(action), *names],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return {name: Outcome(**outcome) for name, outcome in json.loads(done.stdout).items()}


def strike_program(program: Program, folder: Path, action: int) -> Outcome:
    """Strike a program at each of its changes, and run it again each time."""
    before, after, trial, changes = (folder / name for name in ("before", "after", "trial", "changes"))
    folder.mkdir()
    _must_succeed(in_child(lambda: program.prepare(before)))
    _copy(before, after)

    def note_changes() -> None:
        program.run(after)
        noted = (_shim().fault_operation(number + 1) for number in range(_shim().fault_count()))
        changes.write_bytes(b"\n".join(noted))

    _must_succeed(in_child(note_changes, (after, 0, COUNT)))
    outcome = Outcome(changes.read_text().splitlines())
    expected = _content(after, program)
    for number, (last, change) in enumerate(pairwise(["", *outcome.changes]), 1):
        if action == KILL and last.startswith("fsync"):
            continue  # the same files as before the fsync
        shutil.rmtree(trial, ignore_errors=True)
        _copy(before, trial)
        code = in_child(lambda: program.run(trial), (trial, number, action), quiet=True)
        if action == KILL and code != -signal.SIGKILL:
            raise RuntimeError(f"was not killed at {number}, {change}")
        if code == 0:
            outcome.survived.append(change)
        if in_child(lambda: program.run(trial), (trial, 0, COUNT), quiet=True):
            outcome.stuck.append(change)
            continue
        found = _content(trial, program)
        if any(found.get(name) != data for name, data in expected.items()):
            outcome.different.append(change)
        if extra := found.keys() - expected.keys():
            outcome.left.append(f"{change}: {', '.join(sorted(extra))}")
    return outcome


def in_child(
    work: Callable[[], object], strike: tuple[Path, int, int] | None = None, *, quiet: bool = False
) -> int:
    """Do work in a forked process; return its exit code, or minus the signal that ended it."""
    return wait_for(start_child(work, strike, quiet=quiet))


def start_child(
    work: Callable[[], object], strike: tuple[Path, int, int] | None = None, *, quiet: bool = False
) -> int:
    """Do work in a forked process, and return its number.

    Args:
        work: What to do.
        strike: The folder below which changes count, the number of the one to strike at, and how.
        quiet: Whether to keep an error to oneself.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if strike:
                _shim().fault_arm(bytes(strike[0]), *strike[1:])
            work()
            code = 0
        except Exception:
            if not quiet:
                traceback.print_exc()
        finally:
            os._exit(code)
    return child


def wait_for(child: int) -> int:
    """Return the exit code of a forked process, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def import_what_it_imports(program: Program, folder: Path) -> None:
    """Import here what a program imports late, so that no child has to.

    The program itself does not run here: a process that has computed gradients has forks that cannot.
    """
    listed = folder / "modules"

    def note_modules() -> None:
        before = {*sys.modules}
        program.run(folder / "first")
        listed.write_text("\n".join(name for name in sys.modules if name not in before))

    _must_succeed(in_child(note_modules))
    for name in listed.read_text().split():
        with suppress(ImportError):  # some register other things than modules
            importlib.import_module(name)
    shutil.rmtree(folder / "first")


def _must_succeed(code: int) -> None:
    if code:
        raise RuntimeError(f"a program that was not struck ended with {code}")


def _shim() -> Any:
    library = ctypes.CDLL(None)
    library.fault_operation.restype = ctypes.c_char_p
    library.fault_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
    return library


def _copy(source: Path, target: Path) -> None:
    if source.exists():
        shutil.copytree(source, target)


def _content(folder: Path, program: Program) -> dict[str, bytes]:
    """Return the bytes of all files by name, with folders, and without bytes for those that vary."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
    return {
        name: path.read_bytes() if path.is_file() and name not in program.varying else b""
        for name, path in paths.items()
    }


def main() -> None:
    """Print the outcomes of the programs that are named."""
    torch.set_num_threads(1)
    folder, action = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    outcomes = {}
    for number, name in enumerate(sys.argv[3:]):
        import_what_it_imports(PROGRAMS[name], folder)
        outcomes[name] = asdict(strike_program(PROGRAMS[name], folder / str(number), action))
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()

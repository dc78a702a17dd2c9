"""Work in forked processes that are struck at a change to the file system, or run short of memory.

The process that forks must have `shim.c` preloaded, which `start_preloaded` does.
"""

import ctypes
import gc
import importlib
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SHIM = Path(__file__).with_name("shim.c")
SECONDS = 10
"""More is a hang."""
PATIENCE = 120
"""Seconds after which a program is ended, most of which it may have waited for a busy machine's processor."""


@dataclass(frozen=True)
class Strike:
    """What happens to a program, and when.

    Args:
        number: At which of its changes, counted from 1; 0 is at none.
        action: 0 for nothing, minus a signal, the error number that the call fails with, or as in the shim.
        memory: Bytes of address space that it may take beside what it has.
    """

    number: int = 0
    action: int = 0
    memory: int | None = None


@dataclass(frozen=True)
class Ending:
    """How a program ended.

    Args:
        code: Its exit code, or minus the signal that ended it.
        errors: What it wrote to standard error.
        memory: The most that was resident, in kB.
        seconds: That it took, without those in which it waited for a processor.
        changes: What it changed, as "rename run/seed-1/w0.safetensors"; nothing if a signal ended it.
    """

    code: int
    errors: str
    memory: int
    seconds: float
    changes: tuple[str, ...]


def start_preloaded(folder: Path, module: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a module of the tests with the shim preloaded, in a process of its own.

    Forking this one, whose threads are pytest's, could stop it for ever.
    """
    library = folder / "shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", library, SHIM, "-ldl"], check=True)
    return subprocess.Popen(
        [sys.executable, "-m", module, str(folder), *arguments],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


def run_struck(work: Callable[[], int], folder: Path, strike: Strike, notes: Path) -> Ending:
    """Do work in a forked process that may be struck.

    Args:
        work: Returns an exit code.
        folder: Changes below it count.
        strike: What happens.
        notes: A folder for what the process says.
    """
    errors, changes = notes / "errors", notes / "changes"
    changes.write_bytes(b"")

    def do() -> int:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells turn off in the background
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE)
        shim = _shim()
        if strike.memory is not None:
            limit_memory(strike.memory)
        shim.fault_arm(bytes(folder), strike.number, strike.action)
        code = work()
        noted = [shim.fault_operation(number + 1) for number in range(shim.fault_count())]
        changes.write_bytes(b"\n".join(noted))
        return code

    started = time.monotonic()
    child = start_child(do)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    queued = int(Path(f"/proc/{child}/schedstat").read_text().split()[1]) / 1e9
    seconds = time.monotonic() - started - queued
    _, status, usage = os.wait4(child, 0)
    return Ending(
        os.waitstatus_to_exitcode(status),
        errors.read_text(errors="replace"),
        usage.ru_maxrss,
        seconds,
        tuple(changes.read_text().splitlines()),
    )


def start_child(work: Callable[[], int | None]) -> int:
    """Do work in a forked process, which ends with the exit code that it returns; return its number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = work() or 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def wait_for(child: int) -> int:
    """Return the exit code of a forked process, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def limit_memory(more: int) -> None:
    """Let this process have so many bytes of address space beside what it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def import_what_it_imports(works: Sequence[Callable[[], object]], notes: Path) -> None:
    """Import here what work imports late, so that no child has to.

    The work itself is not done here: a process that has computed gradients has forks that cannot.
    """
    listed = notes / "modules"

    def note_modules() -> None:
        before = {*sys.modules}
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        for work in works:
            work()
        listed.write_text("\n".join(name for name in sys.modules if name not in before))

    if code := wait_for(start_child(note_modules)):
        raise RuntimeError(f"work that was not struck ended with {code}")
    for name in listed.read_text().split():
        with suppress(ImportError):  # some register other things than modules
            importlib.import_module(name)
    gc.freeze()  # or a collection in a child would touch, and so copy, all of it


def _shim() -> Any:
    library = ctypes.CDLL(None)
    library.fault_operation.restype = ctypes.c_char_p
    library.fault_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
    return library

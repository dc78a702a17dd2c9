"""Commands in processes that are forked from one that has imported what they need.

A command of its own interpreter takes some four seconds of processor time to import torch and the rest, which
is most of its time in tests. The process that forks has done nothing but import, so it can be forked safely.
"""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_IMPORTED = (
    "pfge.cli.compare",
    "pfge.cli.main",
    "pfge.cli.tables",
    "pfge.lab.experiments.compare",
    "scipy.stats",
    "torch._dynamo",  # by the first optimizer
)
_CONTEXT = multiprocessing.get_context("forkserver")


class ForkedCommand:
    """A `pfge` command in a process of its own, with the interface of `subprocess.Popen`.

    Args:
        arguments: Of the command.
        folder: Where it runs.
    """

    def __init__(self, arguments: Sequence[str], folder: Path):
        _CONTEXT.set_forkserver_preload([*_IMPORTED])
        descriptor, name = tempfile.mkstemp()
        os.close(descriptor)
        self._errors = Path(name)
        self._process = _CONTEXT.Process(target=_run, args=([*arguments], str(folder), name))
        self._process.start()
        self.pid = self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the same."""
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process."""
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end of the process, and return nothing and what it wrote to standard error."""
        self._process.join(timeout)
        if self.returncode is None:
            raise TimeoutError(f"the command took more than {timeout} seconds")
        errors = self._errors.read_text() if self._errors.exists() else ""
        self._errors.unlink(missing_ok=True)
        return "", errors


def _run(arguments: Sequence[str], folder: str, errors: str) -> None:
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(errors, os.O_WRONLY), 2)
    import torch

    from pfge.cli.main import main

    multiprocessing.set_start_method("fork", force=True)  # as in a command of its own interpreter
    torch.set_num_threads(1)
    sys.argv = ["pfge", *arguments]
    sys.exit(main())

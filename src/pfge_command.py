"""Start the `pfge` command. It imports so little that Ctrl-C ends in one line even during imports."""

import os
import signal


def main() -> int:
    """Import the command and run it."""
    before = signal.signal(signal.SIGINT, _stop)
    from pfge.cli.main import main as run

    signal.signal(signal.SIGINT, before)
    return run()


def _stop(*_: object) -> None:
    # Exit at once, because imported modules could catch an exception.
    os.write(2, b"pfge: stopped\n")
    os._exit(130)

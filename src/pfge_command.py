"""Start the `pfge` command. A module of its own, so that Ctrl-C while torch is imported ends in one line."""

import os
import signal


def main() -> int:
    """Import the command and run it."""
    before = signal.signal(signal.SIGINT, _stop)
    from pfge.cli.main import main as run

    signal.signal(signal.SIGINT, before)
    return run()


def _stop(*_: object) -> None:
    # At once, as there is nothing to finish yet: an exception could be caught by what is imported.
    os.write(2, b"pfge: stopped\n")
    os._exit(130)

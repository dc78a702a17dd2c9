"""`pfge verify`: check files for damage."""

import argparse
from pathlib import Path

HELP = "check a run folder, an ensemble or a checkpoint for damage"
DESCRIPTION = """
Compare every file with the SHA-256 that was kept of it, and say which are damaged and which are not
covered. The exit code is 1 if a file is damaged.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("path", type=Path, metavar="PATH", help="a run folder, an ensemble or a file")


def run(options: argparse.Namespace) -> int:
    """Print what is damaged, what is not covered, and how many files are whole."""
    from pfge.lab.run.verification import verify
    from pfge.reports.printable import short_message

    found = verify(options.path)
    for file in found:
        if file.state != "whole":
            print(short_message(f"{file.path}: {file.state}: {file.reason}"))
    counts = {
        state: sum(file.state == state for file in found) for state in ("whole", "damaged", "not covered")
    }
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    return 1 if counts["damaged"] else 0

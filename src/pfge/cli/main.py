"""The entry point of the `pfge` command."""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

import pfge
from pfge.cli import (
    average,
    cascade,
    compare,
    compress,
    connect,
    diagnose,
    evaluate,
    export,
    formats,
    landscape,
    plan,
    pool,
    predict,
    pretrain,
    report,
    table,
)

# Each is a module with HELP, DESCRIPTION, add_arguments and run, named as its command.
COMMANDS = (
    plan,
    compare,
    pretrain,
    evaluate,
    table,
    report,
    diagnose,
    connect,
    landscape,
    compress,
    cascade,
    formats,
    export,
    predict,
    average,
    pool,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; a user's mistake ends in one line and exit code 2, not in a traceback."""
    parser = argparse.ArgumentParser(prog="pfge", description=(pfge.__doc__ or "").partition("\n")[0])
    parser.add_argument("--version", action="version", version=f"pfge {pfge.__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        name = command.__name__.rpartition(".")[2]
        subparser = commands.add_parser(name, help=command.HELP, description=command.DESCRIPTION)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    options = parser.parse_args(arguments)
    warnings.showwarning = _show_warning
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, closed the pipe. Without the redirection, Python would report the same
        # error again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        if options.traceback:
            raise
        print(f"pfge: error: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pfge: stopped; the same command continues from the last checkpoint", file=sys.stderr)
        return 130
    return code


def _show_warning(
    message: Warning | str,
    category: type[Warning],  # noqa: ARG001
    filename: str,  # noqa: ARG001
    lineno: int,  # noqa: ARG001
    file: TextIO | None = None,
    line: str | None = None,  # noqa: ARG001
) -> None:
    print(f"pfge: warning: {message}", file=file or sys.stderr)

"""The entry point of the `pfge` command."""

import argparse
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn, TextIO

import pfge
from pfge.cli import checkpoints, compare, compress, deploy, measure, report
from pfge.errors import InvalidValueError, PfgeError
from pfge.reports.printable import printable, short_message

COMMANDS = (
    compare.plan,
    compare.compare,
    compare.pretrain,
    compare.status,
    measure.evaluate,
    report.table,
    report.report,
    measure.diagnose,
    measure.connect,
    measure.landscape,
    compress.compress,
    compress.cascade,
    measure.formats,
    compress.views,
    deploy.export,
    deploy.predict,
    checkpoints.average,
    checkpoints.pool,
    checkpoints.verify,
)
"""All commands, in the order of the help."""
DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn"}
"""Packages that are installed under another name, which cannot be looked up while they are missing."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand. A user's mistake ends in one line and exit code 2, without a traceback."""
    _print_in_any_encoding()
    parser = _Parser(prog="pfge", description=(pfge.__doc__ or "").partition("\n")[0])
    parser.add_argument("--version", action="version", version=f"pfge {pfge.__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    parser.add_argument(
        "--completion",
        choices=("bash", "zsh", "tcsh"),
        metavar="SHELL",
        help="print a script that completes commands and options in bash, zsh or tcsh (needs shtab)",
    )
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in COMMANDS:
        subparser = commands.add_parser(command.name, help=command.summary, description=command.description)
        command.add_arguments(subparser)
        flags = {a.dest: a.option_strings[-1] for a in subparser._actions if a.option_strings}
        subparser.set_defaults(run=command.run, prog=subparser.prog, flags=flags)
    given = sys.argv[1:] if arguments is None else arguments
    if any("\0" in text for text in given):  # only a program can pass one, not a shell
        parser.error("arguments must not contain null characters; leave them out")
    options = parser.parse_args(given)
    if options.completion:
        return _print_completion(parser, options.completion)
    if options.run is None:
        parser.print_help()
        return 0
    warnings.showwarning = _show_warning
    if sys.stdout is None:  # the command was started with standard output closed
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, closed the pipe. Without the redirection, Python would report the same
        # error again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (PfgeError, OSError) as error:
        if options.traceback:
            raise
        message = " ".join(str(error).splitlines())
        if isinstance(error, InvalidValueError):
            message = name_options(message, _flags_for(options))
        print(f"pfge: error: {short_message(message)}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        extra = find_extra(error.name or "")
        if options.traceback or extra is None:
            raise
        print(
            f"pfge: error: {options.prog} needs the package {error.name}, which is not installed; "
            f'pip install "pfge[{extra}]"',
            file=sys.stderr,
        )
        return 2
    except (MemoryError, RuntimeError) as error:
        reason = _known_reason(error)
        if options.traceback or not reason:
            raise
        print(f"pfge: error: {reason}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pfge: stopped; the same command continues from the last checkpoint", file=sys.stderr)
        return 130
    return code


def _print_in_any_encoding() -> None:
    """Print question marks for characters that the encoding of an output lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        # Python's default for standard error never fails, and prints the code of the character.
        if isinstance(stream, TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="replace")


def _flags_for(options: argparse.Namespace) -> dict[str, str]:
    """Return the options of the command, except options whose value is a file with the option's name."""
    return {name: flag for name, flag in options.flags.items() if str(getattr(options, name, "")) != name}


def name_options(message: str, flags: Mapping[str, str]) -> str:
    """Return a message of the library with its parameters spelled as options.

    A name of a single word may be an ordinary word: it is replaced only before "must" and before "=".

    Args:
        message: Message of an error, such as "delta_bits must be 1 to 8".
        flags: Option of each parameter. The parameter of `--max-kl` may be called `kl`.

    >>> name_options("delta_bits must be 1 to 8, got 9", {"delta_bits": "--delta-bits"})
    '--delta-bits must be 1 to 8, got 9'
    """
    for name, flag in sorted(flags.items(), key=lambda item: -len(item[0])):
        for word in dict.fromkeys((name, name.removeprefix("max_"))):
            pattern = rf"(?<![\w./'\"-]){word}\b" if "_" in word else rf"^{word}(?= must)|(?<= ){word}(?==)"
            message = re.sub(pattern, flag, message)
    return message


def _print_completion(parser: argparse.ArgumentParser, shell: str) -> int:
    try:
        import shtab
    except ImportError:
        print('pfge: error: --completion needs shtab; pip install "pfge[completion]"', file=sys.stderr)
        return 2
    print(shtab.complete(parser, shell))
    return 0


class _Parser(argparse.ArgumentParser):
    """A parser that suggests the right spelling of a command, and prints one-line errors."""

    def error(self, message: str) -> NoReturn:
        if found := re.search(r"argument COMMAND: invalid choice: '(.*)' \(choose from", message):
            names = [command.name for command in COMMANDS]
            near = get_close_matches(found[1], names, n=1)
            meant = f"did you mean {near[0]}?" if near else f"choose from {', '.join(names)}"
            message = f"unknown command {found[1]!r}; {meant}"
        else:
            message = f"{message}; see {self.prog} --help"
        print(f"pfge: error: {printable(message)}", file=sys.stderr)
        raise SystemExit(2)


def _known_reason(error: Exception) -> str:
    """Return a message for a RuntimeError or MemoryError that is not a bug; "" if it may be one."""
    from pfge.lab.user_functions import is_out_of_memory

    if is_out_of_memory(error):
        return (
            "there is not enough memory for this; use smaller batches (data.batch_size, "
            "data.evaluation_batch_size) or a smaller model"
        )
    if _has_lost_a_process(error):
        if "timed out" in str(error).lower():
            return (
                "another process of this command has not answered for engine.timeout seconds; end it, and "
                "the same command continues from the last checkpoint"
            )
        return "another process of this command ended; the same command continues from the last checkpoint"
    return ""


def _has_lost_a_process(error: Exception) -> bool:
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return False
    # gloo raises plain RuntimeErrors that name its source file.
    return isinstance(error, distributed.DistError) or "gloo" in str(error)


def _show_warning(
    message: Warning | str,
    category: type[Warning],  # noqa: ARG001
    filename: str,  # noqa: ARG001
    lineno: int,  # noqa: ARG001
    file: TextIO | None = None,
    line: str | None = None,  # noqa: ARG001
) -> None:
    print(f"pfge: warning: {short_message(str(message))}", file=file or sys.stderr)


def find_extra(module: str, requirements: Sequence[str] | None = None) -> str | None:
    """Return the extra that installs a module; None if pfge has no such extra.

    Args:
        module: Name of the module, such as `PIL.Image`.
        requirements: Requirements as in package metadata. By default, the requirements of the installed pfge.

    >>> find_extra("PIL.Image", ['torch>=2.6', 'pillow>=10; extra == "lab"'])
    'lab'
    """
    package = module.partition(".")[0]
    wanted = _normalized(DISTRIBUTIONS.get(package, package))
    for requirement in _installed_requirements() if requirements is None else requirements:
        found = re.match(r"""([\w.-]+).*\bextra == ["']([\w.-]+)["']""", requirement)
        if found and _normalized(found[1]) == wanted:
            return found[2]
    return None


def _installed_requirements() -> Sequence[str]:
    from importlib import metadata  # takes longer to import than all other modules of the help

    try:
        return metadata.requires("pfge") or ()
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        return ()


def _normalized(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()

"""The arguments that change the settings of an experiment, or say how far those of a run are trusted."""

import argparse


def add_setting_arguments(parser: argparse.ArgumentParser, example: str) -> None:
    """Add the arguments that override settings; the example is one of them, as key=value."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help=f"override a setting, as {example}"
    )
    parser.add_argument("--download", action="store_true", help="fetch data that is missing")


def add_trust_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument by which a command that reads a run trusts the run's own config."""
    parser.add_argument(
        "--trust-code",
        action="store_true",
        help="import the functions and read the files that the run's own config names: only if you trust it",
    )


def given_settings(options: argparse.Namespace) -> list[str]:
    """Return the overrides that the arguments give, in the form key=value."""
    return [*options.set, *(["data.download=true"] if options.download else [])]

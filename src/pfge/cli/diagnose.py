"""`pfge diagnose`: report whether members connect and differ, in words."""

import argparse

from pfge.cli.arguments import add_run_arguments, given_settings

HELP = "report whether a run's members connect and differ, and what to change"
DESCRIPTION = """
Examine adjacent members of a finished run: barriers on the straight line between them, distance, angle,
disagreement, BatchNorm and learning rates. Only training and validation data are used, so that settings are
not chosen on the test set.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--methods", nargs="+", default=[], metavar="NAME", help="methods to examine (default: PFGE)"
    )
    add_run_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the diagnosis and write it as JSON."""
    from pfge.cli.tables import print_diagnosis
    from pfge.lab.experiments.diagnose import diagnose
    from pfge.lab.run.progress import Reporter
    from pfge.lab.run.results import Diagnoses
    from pfge.storage.files import write_json

    found = diagnose(
        options.folder,
        Reporter(),
        methods=options.methods,
        overrides=given_settings(options),
        trust_code=options.trust_code,
    )
    for diagnosis in found:
        print_diagnosis(diagnosis)
    write_json(options.folder / "diagnosis.json", Diagnoses(found).to_json())
    return 0

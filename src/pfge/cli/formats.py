"""`pfge formats`: measure a run's ensembles in each storage format."""

import argparse

from pfge.cli.arguments import add_run_arguments, given_settings

HELP = "measure every ensemble of a run in every storage format, whole and as a cascade"
DESCRIPTION = """
Store every ensemble of a finished comparison as float32, as int8, and as an int8 base with 3 bits or 1 bit
for each member, and print bytes, forward passes, accuracy and NLL on the test set. With validation data,
each is also measured as a cascade, which stops evaluating members once the prediction is confident. Running
the same command again measures only what is missing.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_run_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Measure the formats and print the table."""
    from pfge.cli.tables import print_formats
    from pfge.lab.experiments.formats import measure_formats
    from pfge.lab.run.progress import Reporter

    rows = measure_formats(
        options.folder, Reporter(), overrides=given_settings(options), trust_code=options.trust_code
    )
    print_formats(rows, options.folder)
    return 0

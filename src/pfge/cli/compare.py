"""`pfge compare`: run every method from one w0."""

import argparse
from typing import TYPE_CHECKING

from pfge.cli.experiment_arguments import add_experiment_arguments, load_chosen_experiment

if TYPE_CHECKING:
    from pfge.lab.experiments.cost import Cost

WORKERS = (1, 2, 4, 8)
"""Numbers of processes for which a dry run tells the time."""
HELP = "compare SWA, FGE, SWAG and PFGE from the same start weights"
DESCRIPTION = (
    "Train or load w0, run every method from it with equal rates and iterations, and print "
    "tables. Without CONFIG, use scikit-learn's digits and a small network, in about a minute. "
    "Running the same command again continues where it stopped."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_experiment_arguments(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only print the parts, their iterations and, after timing a few, the hours of training",
    )
    parser.add_argument(
        "--on",
        metavar="LAUNCHER",
        help="same as --set engine.launcher=LAUNCHER: here, or here:N for N processes on this machine",
    )


def run(options: argparse.Namespace) -> int:
    """Run the comparison and print its tables."""
    experiment, folder = load_chosen_experiment(
        options, [f"engine.launcher={options.on}"] if options.on is not None else []
    )

    from pfge.cli.tables import print_comparison
    from pfge.lab.experiments.compare import compare
    from pfge.lab.experiments.cost import find_cost
    from pfge.lab.launch.driver import UnitsMissingError
    from pfge.lab.run.folder import RunFolder
    from pfge.lab.run.progress import Reporter
    from pfge.lab.run.result_lines import require_rows
    from pfge.lab.run.results import ComparisonRow

    if options.dry_run:
        _print_cost(find_cost(experiment, folder, Reporter()))
        return 0
    try:
        rows = compare(experiment, folder, Reporter())
    except UnitsMissingError:
        if found := require_rows(RunFolder(folder).results, ComparisonRow):
            print_comparison(found, experiment, folder)
        raise
    print_comparison(rows, experiment, folder)
    return 0


def _print_cost(cost: "Cost") -> None:
    for unit in cost.units:
        print(f"{unit.iterations:>12,}  {unit.name}")
    print(f"{cost.iterations:>12,}  iterations in {len(cost.units)} parts; {cost.done} parts are done")
    print(f"an iteration takes {1000 * cost.step:.1f} ms here; if it does in every process, training takes")
    for workers in WORKERS:
        on = f"--on here:{workers}" if workers > 1 else "one process"
        print(f"{cost.seconds(workers) / 3600:>12.2f}  hours with {on}")

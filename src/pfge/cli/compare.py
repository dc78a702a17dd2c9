"""`pfge compare`: run every method from one w0, in one or more experiments."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pfge.cli.arguments import RUNS, add_experiment_arguments, load_chosen_experiments, prepare_workers

if TYPE_CHECKING:
    from pfge.lab.config.settings import Experiment
    from pfge.lab.experiments.cost import Cost

WORKERS = (1, 2, 4, 8)
"""Numbers of workers for which a dry run tells the time."""
HELP = "compare SWA, FGE, SWAG and PFGE from the same start weights"
DESCRIPTION = """
Train or load w0, run every method from it with equal rates and iterations, and print tables. Without
CONFIG, use scikit-learn's digits and a small network, in about a minute. Several experiments run at once,
each in its own folder. Running the same command again continues where it stopped.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_experiment_arguments(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only print the sizes of the data, the parts, their iterations and, after timing a few, the "
        "hours of training",
    )


def run(options: argparse.Namespace) -> int:
    """Run the comparisons and print their tables."""
    if not options.dry_run:
        prepare_workers(options)
    chosen = load_chosen_experiments(options)

    import pfge.cli.tables  # noqa: F401 - while workers import what they need
    from pfge.lab.experiments.compare import compare_all
    from pfge.lab.launch.driver import UnitsMissingError
    from pfge.lab.run.progress import Reporter

    if options.dry_run:
        from pfge.lab.experiments.cost import find_cost

        _print_costs(
            {experiment.name: find_cost(experiment, folder, Reporter()) for experiment, folder in chosen}
        )
        return 0
    try:
        compare_all(chosen, Reporter())
    except UnitsMissingError:
        _print_results(chosen, options.out)
        raise
    _print_results(chosen, options.out)
    return 0


def _print_results(chosen: "Sequence[tuple[Experiment, Path]]", out: Path | None) -> None:
    """Print what there is: the tables of one comparison, or one table and one page of all."""
    from pfge.cli.tables import print_comparison, print_comparisons
    from pfge.lab.run.folder import RunFolder
    from pfge.lab.run.results import ComparisonRow, require_rows

    if len(chosen) > 1:
        print_comparisons([folder for _, folder in chosen], (out or RUNS) / "report.html")
        return
    ((experiment, folder),) = chosen
    if rows := require_rows(RunFolder(folder).results, ComparisonRow):
        print_comparison(rows, experiment, folder)


def _print_costs(costs: "dict[str, Cost]") -> None:
    from pfge.lab.experiments.cost import seconds_of_all

    for name, cost in costs.items():
        if len(costs) > 1:
            print(f"{name}:")
        print(cost.data)
        for unit in cost.units:
            print(f"{unit.iterations:>12,}  {unit.name}")
        print(f"{cost.iterations:>12,}  iterations in {len(cost.units)} parts; {cost.done} parts are done")
        print(f"an iteration takes {1000 * cost.step:.1f} ms here")
    print("if iterations take as long in every process, training takes")
    for workers in WORKERS:
        on = f"{workers} workers, such as --launcher here:{workers}" if workers > 1 else "one process"
        print(f"{seconds_of_all(list(costs.values()), workers) / 3600:>12.2f}  hours with {on}")

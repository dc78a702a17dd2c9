"""`pfge compare`: every method of the paper from one w0."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(commands: "SubParsers") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "compare",
        help="compare SWA, FGE, SWAG and PFGE from the same start weights",
        description="Find w0, run every method from it at equal rates and iterations, and print a table. "
        "Without CONFIG: scikit-learn's digits and a small network, in under a minute. "
        "Running the same command again continues where it stopped.",
    )
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="a .toml file")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="the run folder (default: runs/NAME)")
    parser.add_argument("--seeds", metavar="1,2,3", help="the same as --set seeds=[1,2,3]")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a setting, as ensemble.high=0.1",
    )
    parser.add_argument("--download", action="store_true", help="fetch data that is missing")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the comparison and print its table."""
    from pfge.lab.config import load_experiment

    overrides = [*options.set]
    overrides += [f"seeds=[{options.seeds}]"] if options.seeds else []
    overrides += ["data.download=true"] if options.download else []
    experiment = load_experiment(options.config, overrides)
    folder = options.out or Path("runs") / experiment.name

    from pfge.cli.tables import print_comparison
    from pfge.lab.compare import compare
    from pfge.lab.progress import Reporter

    results = compare(experiment, folder, Reporter())
    print_comparison(results, experiment, folder)
    return 0

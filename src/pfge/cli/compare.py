"""Plan comparisons, run them, and see how far they are: plan, compare, pretrain, status."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pfge.cli.arguments import (
    RUNS,
    add_experiment_arguments,
    command,
    load_chosen_experiments,
    parse_bytes,
    prepare_workers,
)
from pfge.errors import InvalidValueError

if TYPE_CHECKING:
    from pfge.lab.config.settings import Experiment
    from pfge.lab.experiments.cost import Cost
    from pfge.methods import TrainingPlan


ENSEMBLE_SETTINGS = {
    "cycle": ("EPOCHS", "cycle c of the learning rate"),
    "period": ("EPOCHS", "period P of PFGE"),
    "low": ("RATE", "lowest learning rate"),
    "high": ("RATE", "highest learning rate"),
}


def _add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory",
        type=parse_bytes,
        required=True,
        metavar="BYTES",
        help="memory at test time, such as 700kB or 20MB",
    )
    parser.add_argument(
        "--epochs", type=float, required=True, metavar="N", help="length of the ensembling phase"
    )
    parser.add_argument("--model", required=True, metavar="NAME", help="model.name in a config")
    parser.add_argument(
        "--classes", type=int, required=True, metavar="N", help="number of classes, or of outputs"
    )
    parser.add_argument(
        "--channels", type=int, default=3, metavar="N", help="channels of an image (default: 3)"
    )
    parser.add_argument(
        "--images", type=int, default=50_000, metavar="N", help="images in an epoch (default: 50000)"
    )
    parser.add_argument(
        "--batch-size", type=int, default=128, metavar="N", help="images in a batch (default: 128)"
    )
    for name, (unit, meaning) in ENSEMBLE_SETTINGS.items():
        parser.add_argument(
            f"--{name}", type=float, metavar=unit, help=f"{meaning} (default: that of a config)"
        )


@command("print which ensembles fit into a memory, and where their members are taken", _add_plan_arguments)
def plan(options: argparse.Namespace) -> int:
    """Print the largest ensemble of each method and storage format that fits into a memory.

    For each, print the number of members, their bytes at test time, the memory needed to collect them, and
    the iterations and learning rates at which they are taken. Nothing is trained, and the model is not
    allocated.
    """
    from pfge.cli.tables import print_plans
    from pfge.lab.models.registry import note_on
    from pfge.lab.planner import describe_layout, find_plans, recommend
    from pfge.methods import METHODS
    from pfge.weights import count_bytes

    layout = describe_layout(options.model, classes=options.classes, channels=options.channels)
    plans = find_plans(options.memory, layout, _training_plan(options))
    title = f"{options.model}, {count_bytes(layout):,} bytes per model; {options.memory:,} bytes at test time"
    print_plans(plans, title)
    print("Recommended, by the NLL of each method at its own rate and temperature (docs/mnist1d.md):")
    recommended = recommend(plans)
    for plan in recommended:
        passes = "one forward pass" if plan.members == 1 else f"{plan.members} forward passes"
        print(f"  {passes}: {plan.method} as {plan.format.name}, {plan.nbytes:,} bytes")
    for method in (method for method in METHODS.values() if method.path == "augmented"):
        for plan in (plan for plan in recommended if plan.method == method.base):
            print(
                f"  several forward passes, for images: {method.name}, the model of {plan.method} on "
                f"several views (docs/cifar10.md), {plan.nbytes:,} bytes"
            )
    print("Choose --high on validation data: it changed the NLL more than the choice of a method.")
    if note := note_on(options.model):
        print(note)
    return 0


def _training_plan(options: argparse.Namespace) -> "TrainingPlan":
    from pfge.lab.config.settings import EnsembleSettings, Experiment
    from pfge.lab.data.batches import count_batches
    from pfge.lab.planner import planned_methods

    if options.batch_size < 1:
        raise InvalidValueError(f"--batch-size must be at least 1, got {options.batch_size}")
    if options.images < options.batch_size:
        raise InvalidValueError(
            f"--images must be at least the --batch-size of {options.batch_size}, got {options.images}"
        )
    settings = EnsembleSettings(
        methods=tuple(method.name for method in planned_methods()),
        length=options.epochs,
        **{key: value for key in ENSEMBLE_SETTINGS if (value := getattr(options, key)) is not None},
    )
    Experiment(ensemble=settings)  # raises if a setting is wrong
    return settings.setting(count_batches(options.images, options.batch_size))


WORKERS = (1, 2, 4, 8)
"""Numbers of workers for which a dry run estimates the time."""


def _add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    add_experiment_arguments(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only print the sizes of the data, the units of work and their iterations, and the hours of "
        "training, estimated by timing a few iterations",
    )


@command("compare SWA, FGE, SWAG and PFGE from the same start weights", _add_compare_arguments)
def compare(options: argparse.Namespace) -> int:
    """Train or load w0, run every method from it with equal rates and iterations, and print tables.

    Without CONFIG, use scikit-learn's digits and a small network, in about a minute. Several experiments run
    at once, each in its own folder. Running the same command again continues where it stopped.
    """
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
    """Print the results so far: the tables of one comparison, or one table and one page of several."""
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
        print(f"{cost.iterations:>12,}  iterations in {len(cost.units)} units; {cost.done} units are done")
        print(f"an iteration takes {1000 * cost.step:.1f} ms here")
    print("if iterations take as long in every process, training takes")
    for workers in WORKERS:
        on = f"{workers} workers, such as --launcher here:{workers}" if workers > 1 else "one process"
        print(f"{seconds_of_all(list(costs.values()), workers) / 3600:>12.2f}  hours with {on}")


@command("train or load the start weights w0 of a comparison", add_experiment_arguments)
def pretrain(options: argparse.Namespace) -> int:
    """Train or load w0 for every seed, and print its file and its quality.

    `pfge compare` with the same arguments continues from it. Running the same command again continues where
    it stopped.
    """
    prepare_workers(options)
    chosen = load_chosen_experiments(options)

    from pfge.cli.tables import print_start_weights
    from pfge.lab.experiments.compare import find_all_w0
    from pfge.lab.run.progress import Reporter
    from pfge.lab.training.pretrain import pretrain

    if not chosen[0][0].engine.chosen_launcher.is_this_process:
        find_all_w0(chosen, Reporter())
    for experiment, folder in chosen:
        here = replace(experiment, engine=replace(experiment.engine, launcher="here"))
        print_start_weights(pretrain(here, folder, Reporter()))
    return 0


def _add_status_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN", help="a run folder")


@command("print which units of a comparison are done, running, waiting or failed", _add_status_arguments)
def status(options: argparse.Namespace) -> int:
    """Print the progress of each unit of comparisons, and why units failed.

    The command only reads files of the run, so you can use it at any time and on any machine that has the
    folder.
    """
    for path in options.folders:
        if len(options.folders) > 1:
            print(f"{path}:")
        _print_states(path)
    return 0


def _print_states(path: Path) -> None:
    from pfge.lab.experiments.compare import units_of_run
    from pfge.lab.launch.units import find_states
    from pfge.lab.run.folder import RunFolder

    folder = RunFolder(path)
    states = find_states(folder, units_of_run(folder))
    for found in states:
        print(f"{found.state:<8} {found.name}{f': {found.note}' if found.note else ''}")
    kinds = ("done", "running", "waiting", "failed")
    counts = ", ".join(f"{sum(found.state == kind for found in states)} {kind}" for kind in kinds)
    print(f"{counts}; {'a process works on it' if folder.is_in_use() else 'no process works on it'}")

"""`pfge plan`: print what fits into a memory, before training."""

import argparse
from typing import TYPE_CHECKING

from pfge.cli.compress import parse_bytes
from pfge.errors import InvalidValueError

if TYPE_CHECKING:
    from pfge.methods import TrainingPlan


ENSEMBLE_SETTINGS = {
    "cycle": ("EPOCHS", "cycle c of the learning rate"),
    "period": ("EPOCHS", "period P of PFGE"),
    "low": ("RATE", "lowest learning rate"),
    "high": ("RATE", "highest learning rate"),
}
HELP = "print which ensembles fit into a memory, and where their members are taken"
DESCRIPTION = """
Print, for each method and storage format, the largest number of members that fit into the memory at test
time, their bytes, the memory needed to collect them, and the iterations and learning rates at which they
are taken. Nothing is trained, and the model is not allocated.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
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


def run(options: argparse.Namespace) -> int:
    """Print the plans."""
    from pfge.cli.tables import print_plans
    from pfge.lab.models.registry import note_on
    from pfge.lab.planner import describe_layout, find_plans, recommend
    from pfge.methods import METHODS
    from pfge.weights import count_bytes

    layout = describe_layout(options.model, classes=options.classes, channels=options.channels)
    plans = find_plans(options.memory, layout, _setting(options))
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
                f"  several forward passes, for pictures: {method.name}, the model of {plan.method} on "
                f"several views (docs/cifar10.md), {plan.nbytes:,} bytes"
            )
    print("Choose --high on validation data: it changed the NLL more than the choice of a method.")
    if note := note_on(options.model):
        print(note)
    return 0


def _setting(options: argparse.Namespace) -> "TrainingPlan":
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

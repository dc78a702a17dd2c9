"""`pfge average`: make one model out of checkpoints."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pfge.cli.checkpoint_arguments import add_checkpoint_arguments, in_words, open_session_for

if TYPE_CHECKING:
    from pfge.lab.experiments.checkpoints import Average
    from pfge.tasks import Task

HELP = "average checkpoints that lie on disk into one model"
DESCRIPTION = """
Write the mean of checkpoints as one .safetensors file; two of them are in memory at a time. With --config,
refresh BatchNorm on training data, measure the checkpoints and their mean on validation data, and report
adjacent checkpoints that do not lie in one valley.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_checkpoint_arguments(parser, out="the .safetensors file to write")
    parser.add_argument(
        "--greedy",
        action="store_true",
        help="take checkpoints in the order of their validation NLL, and only those that lower it",
    )


def run(options: argparse.Namespace) -> int:
    """Average, write the model and print what it is worth."""
    from pfge.lab.experiments.checkpoints import average_with_data
    from pfge.lab.run.progress import Reporter
    from pfge.lab.training.checkpoint_files import average_checkpoints
    from pfge.storage.files import StorageError, write_tensors

    out: Path = options.out
    if out.suffix != ".safetensors":
        raise StorageError(f"--out must end in .safetensors, got {out.name}")
    if out.resolve() in {path.resolve() for path in options.checkpoints}:
        raise StorageError(f"--out must not be one of the checkpoints, got {out}; choose another name")
    out.parent.mkdir(parents=True, exist_ok=True)
    if session := open_session_for(options):
        average = average_with_data(session, options.checkpoints, greedy=options.greedy)
        write_tensors(out, average.weights)
        print(f"{out}: the mean of {len(average.used)} checkpoints")
        _print_quality(average, options.checkpoints, session.task)
        return 0
    if options.greedy:
        raise StorageError("--greedy needs validation data; give --config CONFIG")
    with Reporter().task("reading checkpoints", len(options.checkpoints)) as advance:
        mean = average_checkpoints(options.checkpoints, on_file=lambda done: advance(done, ""))
    write_tensors(out, mean)
    print(f"{out}: the mean of {len(options.checkpoints)} checkpoints")
    if any(name.endswith("running_mean") for name in mean):
        print(
            "The model has BatchNorm, whose statistics were averaged too; give --config CONFIG to compute "
            "those of the mean."
        )
    return 0


def _print_quality(average: "Average", paths: list[Path], task: "Task") -> None:
    for path, metrics in zip(paths, average.each, strict=True):
        left_out = "" if path in average.used else "  (left out)"
        print(f"  {path}: {in_words(task, metrics)}{left_out}")
    print(f"  mean: {in_words(task, average.metrics)}")
    for barrier in average.barriers:
        if barrier.is_high:
            print(
                f"{barrier.first} and {barrier.second} do not lie in one valley: the training loss is "
                f"{barrier.middle:.3f} half-way between them and {barrier.ends:.3f} at the two; use "
                "pfge pool for them instead"
            )

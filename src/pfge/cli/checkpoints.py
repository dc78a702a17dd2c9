"""Make ensembles out of checkpoints, and check files for damage: average, pool, verify."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pfge.cli.arguments import (
    add_checkpoint_arguments,
    command,
    in_words,
    open_session_for,
    require_new_folder,
)

if TYPE_CHECKING:
    from pfge.lab.experiments.checkpoints import Average
    from pfge.tasks import Task


def _add_average_arguments(parser: argparse.ArgumentParser) -> None:
    add_checkpoint_arguments(parser, out="the folder of the ensemble")
    parser.add_argument(
        "--greedy",
        action="store_true",
        help="add checkpoints in the order of their validation NLL, and keep only those that lower it",
    )


@command("average checkpoints that lie on disk into one model", _add_average_arguments)
def average(options: argparse.Namespace) -> int:
    """Write an ensemble folder whose only member is the mean of checkpoints.

    Ensemble.load and the other commands open it. Two checkpoints are in memory at a time. With --config,
    refresh BatchNorm on training data, measure the checkpoints and their mean on validation data, and report
    adjacent checkpoints that do not lie in one valley.
    """
    from pfge.lab.experiments.checkpoints import average_with_data, name_of_average
    from pfge.lab.run.progress import Reporter
    from pfge.lab.training.checkpoint_files import average_checkpoints, read_as_member
    from pfge.storage.ensemble_folder import write_ensemble
    from pfge.storage.files import StorageError
    from pfge.storage.record import EnsembleRecord

    out: Path = options.out
    require_new_folder(options)
    if out.suffix == ".safetensors":
        raise StorageError(
            f"--out must be a folder, got {out}; give {out.with_suffix('')}, in which the "
            "weights will be one .safetensors file"
        )
    if session := open_session_for(options):
        average = average_with_data(session, options.checkpoints, greedy=options.greedy)
        average.ensemble.save(out)
        print(f"{out}: {average.ensemble.method}")
        _print_quality(average, options.checkpoints, session.task)
        return 0
    if options.greedy:
        raise StorageError("--greedy needs validation data; give --config CONFIG")
    with Reporter().task("reading checkpoints", len(options.checkpoints)) as advance:
        mean = average_checkpoints(
            options.checkpoints, read=read_as_member, on_file=lambda done: advance(done, "")
        )
    method = name_of_average(len(options.checkpoints))
    write_ensemble(out, [mean], EnsembleRecord(method=method, iterations=(None,)))
    print(f"{out}: {method}; the task is assumed to be classification; give --config CONFIG for another")
    if any(name.endswith("running_mean") for name in mean):
        print(
            "The BatchNorm statistics were averaged too; give --config CONFIG to recompute them for the mean."
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


def _add_pool_arguments(parser: argparse.ArgumentParser) -> None:
    add_checkpoint_arguments(parser, out="the folder of the ensemble")


@command("make an ensemble out of checkpoints that lie on disk", _add_pool_arguments)
def pool(options: argparse.Namespace) -> int:
    """Write an ensemble folder whose members are checkpoints.

    Ensemble.load and the other commands open it. With --config, also measure the members and the ensemble on
    validation data. One checkpoint is in memory at a time.
    """
    from pfge.lab.evaluation.evaluate import evaluate_on
    from pfge.lab.experiments.checkpoints import checkpoint_members, pooled_checkpoints
    from pfge.storage.ensemble_folder import write_ensemble
    from pfge.storage.record import EnsembleRecord

    require_new_folder(options)
    paths = options.checkpoints
    written = f"{options.out}: an ensemble of {len(paths)} checkpoints"
    session = open_session_for(options)
    if session is None:
        members = checkpoint_members(paths)
        record = EnsembleRecord(method=f"{len(paths)} checkpoints", iterations=(None,) * len(paths))
        write_ensemble(options.out, members, record)
        print(f"{written}; the task is assumed to be classification; give --config CONFIG for another")
        return 0
    data = session.validation_for("measuring an ensemble")  # before anything is written
    ensemble = pooled_checkpoints(session, paths)
    ensemble.save(options.out)
    print(written)
    found = evaluate_on(session, ensemble, data, "on validation")
    for path, metrics in zip(paths, found.members, strict=True):
        print(f"  {path}: {in_words(session.task, metrics)}")
    print(f"  together: {in_words(session.task, found.pooled.metrics)}")
    return 0


def _add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH", help="a run folder, an ensemble or a file")


@command("check a run folder, an ensemble or a checkpoint for damage", _add_verify_arguments)
def verify(options: argparse.Namespace) -> int:
    """Compare every file with its recorded SHA-256.

    Prints the files that are damaged and those that have no record. The exit code is 1 if a file is damaged.
    """
    from pfge.lab.run.verification import verify
    from pfge.reports.printable import short_message

    found = verify(options.path)
    for file in found:
        if file.state != "whole":
            print(short_message(f"{file.path}: {file.state}: {file.reason}"))
    counts = {
        state: sum(file.state == state for file in found) for state in ("whole", "damaged", "not covered")
    }
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    return 1 if counts["damaged"] else 0

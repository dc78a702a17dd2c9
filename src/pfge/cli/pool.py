"""`pfge pool`: make an ensemble out of checkpoints."""

import argparse

from pfge.cli.arguments import (
    add_checkpoint_arguments,
    in_words,
    open_session_for,
    require_new_folder,
)

HELP = "make an ensemble out of checkpoints that lie on disk"
DESCRIPTION = """
Write an ensemble folder whose members are checkpoints; Ensemble.load and the other commands open it. With
--config, also measure the members and the ensemble on validation data. One checkpoint is in memory at a
time.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_checkpoint_arguments(parser, out="the folder of the ensemble")


def run(options: argparse.Namespace) -> int:
    """Write the ensemble and print what it is worth."""
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
        print(f"{written}; its task is taken to be classification, give --config CONFIG for another")
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

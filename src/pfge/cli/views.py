"""`pfge views`: let an ensemble see each picture in several views."""

import argparse
from pathlib import Path

from pfge.cli.arguments import WHERE_FROM, add_ensemble_arguments, in_words, open_session_of
from pfge.errors import InvalidValueError

HELP = "write a copy of an ensemble that sees each picture in several views"
DESCRIPTION = f"""
Write a copy of a saved ensemble for test-time augmentation: every member predicts each picture as it is,
shifted and mirrored, as the pictures were in training (data.crop_padding, data.flip), and the mean counts.
This takes forward passes, not memory. If there is validation data, a temperature is fitted on it. The other
commands use the copy like any ensemble. {WHERE_FROM}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_ensemble_arguments(parser)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the copy")
    parser.add_argument(
        "--count",
        type=int,
        default=4,
        metavar="N",
        help="how many views at the most, that of the picture as it is included (default: 4)",
    )


def run(options: argparse.Namespace) -> int:
    """Write the copy, and print what views change on validation data."""
    from pfge.lab.evaluation.passes import views_in
    from pfge.storage.ensemble_folder import prepare_for_overwrite

    out: Path = options.out
    if options.ensemble.resolve() == out.resolve():
        raise InvalidValueError(f"OUT and ENSEMBLE must be different folders, got {out} for both")
    if options.count < 2:
        raise InvalidValueError(
            f"--count must be at least 2, as a single view is the picture, got {options.count}"
        )
    prepare_for_overwrite(out)  # before any long work
    session = open_session_of(options)
    session.require_one_class("a mean over views")
    views = views_in(session, options.count, "a mean over views")
    if len(views) < 2:
        raise InvalidValueError(
            "views are those of training, so data.crop_padding must be above 0 or data.flip true, got 0 and "
            "false; set one, for example by --set data.flip=true"
        )
    plain = session.load_ensemble(options.ensemble)
    seen = plain.in_views(views)
    data = session.splits.validation
    if len(data):
        seen = seen.calibrated(session.in_batches(data))
    if not session.engine.is_first:
        return 0
    seen.save(out)
    if not len(data):
        print(
            f"{out}: {len(views)} views of each picture; without validation data, no temperature was fitted"
        )
        return 0
    print(f"{out}: {len(views)} views of each picture, temperature {seen.temperatures.pooled:.3f}")
    # Both at a temperature, so that the difference is that of the views alone.
    at_temperature = plain.calibrated(session.in_batches(data))
    print(f"On {len(data):,} validation examples, each at its own temperature:")
    for name, ensemble in (("pictures as they are", at_temperature), ("in views", seen)):
        metrics = session.task.summarize(ensemble.evaluate(session.in_batches(data)))
        print(f"  {name}: {in_words(session.task, metrics)}")
    return 0

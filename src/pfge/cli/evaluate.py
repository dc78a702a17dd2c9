"""`pfge evaluate`: measure a saved ensemble: calibration, unknown inputs, corrupted inputs."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pfge.cli.arguments import (
    WHERE_FROM,
    add_ensemble_arguments,
    load_saved_ensemble,
    open_session_of,
    written_file,
)

if TYPE_CHECKING:
    from pfge.calibration import Calibration, Temperatures

HELP = "measure a saved ensemble: calibration, unknown inputs, corrupted inputs"
DESCRIPTION = f"Measure an ensemble on the test set, print the tables, and write them as JSON. {WHERE_FROM}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_ensemble_arguments(parser)
    parser.add_argument(
        "--calibrate",
        choices=("pooled", "members", "shared", "weights"),
        help="first fit temperatures on validation data, and save them with the ensemble: one for the mean; "
        "one for each member; one that members share and one for the mean; one for the mean and weights of "
        "members. The last two are kept if they help",
    )
    parser.add_argument(
        "--ood",
        action="append",
        default=[],
        metavar="DATASET",
        help="measure how well its images are separated from the test set",
    )
    parser.add_argument(
        "--corruptions",
        nargs="+",
        default=[],
        metavar="NAME",
        help="corrupt the test images at five strengths, by noise, blur and others, or by all; an unknown "
        "name prints the names",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="ENSEMBLE",
        help="compare with another ensemble, such as the one before compression",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the corruptions (default: 0)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="JSON file (default: ENSEMBLE/evaluation.json)"
    )


def run(options: argparse.Namespace) -> int:
    """Measure the ensemble, print the tables and write the JSON."""
    from dataclasses import replace

    from pfge.cli.tables import print_evaluation
    from pfge.lab.evaluation.robustness import assess, calibrate
    from pfge.lab.run.folder import describe_environment
    from pfge.storage.files import write_json

    folder: Path = options.ensemble
    out = written_file(options, "evaluation.json")
    session = open_session_of(options)
    engine = session.engine
    ensemble = load_saved_ensemble(session, folder)
    if options.calibrate:
        ensemble = calibrate(session, ensemble, options.calibrate)
        engine.on_rank_zero(lambda: ensemble.save(folder))
        session.reporter.say(f"Fitted on validation data and saved: {_in_words(ensemble.temperatures)}.")
    found = assess(
        session,
        ensemble,
        ood=options.ood,
        corruptions=options.corruptions,
        against=session.load_ensemble(options.against) if options.against else None,
        seed=options.seed,
    )
    if engine.is_first:
        on_disk = sum(file.stat().st_size for file in folder.iterdir() if file.name != "evaluation.json")
        found = replace(
            found, ensemble=str(folder), bytes_on_disk=on_disk, environment=describe_environment()
        )
        write_json(out, found.to_json())
        print_evaluation(found, out)
    return 0


def _in_words(temperatures: "Temperatures") -> str:
    of_members, pooled = temperatures.members, temperatures.pooled
    if of_members is not None and pooled != 1:  # fitted together: all members have the same
        return (
            f"the temperature {_numbers(of_members[:1])} of each member and {_numbers([pooled])} of the mean"
        )
    values = [pooled] if of_members is None else of_members
    is_one = len(values) == 1 and not isinstance(values[0], tuple)
    said = f"{'the temperature' if is_one else 'the temperatures'} {_numbers(values)}"
    if temperatures.weights is not None:
        said += f" and the weights {_numbers(temperatures.weights)}"
    return said


def _numbers(values: "Sequence[Calibration]") -> str:
    each = [number for value in values for number in (value if isinstance(value, tuple) else (value,))]
    return ", ".join(f"{number:.3f}" for number in each)

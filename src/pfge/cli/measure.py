"""Measure ensembles and finished runs: evaluate, diagnose, connect, landscape, formats."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pfge.cli.arguments import (
    add_ensemble_arguments,
    add_launcher_argument,
    add_run_arguments,
    command,
    given_settings,
    load_saved_ensemble,
    open_session_of,
    prepare_workers,
    written_file,
)

if TYPE_CHECKING:
    from pfge.calibration import Calibration, Temperatures


def _add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
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
        help="measure how well the images of this data set are separated from the test set",
    )
    parser.add_argument(
        "--corruptions",
        nargs="+",
        default=[],
        metavar="NAME",
        help="corrupt the test images at five strengths, by noise, blur and others, or by all; an unknown "
        "name lists the valid ones",
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


@command("measure a saved ensemble: calibration, unknown inputs, corrupted inputs", _add_evaluate_arguments)
def evaluate(options: argparse.Namespace) -> int:
    """Measure an ensemble on the test set, print the tables, and write them as JSON."""
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
        session.reporter.say(
            f"Fitted on validation data and saved: {_describe_temperatures(ensemble.temperatures)}."
        )
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


def _describe_temperatures(temperatures: "Temperatures") -> str:
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


def _add_diagnose_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--methods", nargs="+", default=[], metavar="NAME", help="methods to examine (default: PFGE)"
    )
    add_run_arguments(parser)


@command("report whether a run's members connect and differ, and what to change", _add_diagnose_arguments)
def diagnose(options: argparse.Namespace) -> int:
    """Examine adjacent members of a finished run, and recommend what to change.

    Measures barriers on the straight line between members, distance, angle, disagreement, BatchNorm and
    learning rates. Uses training and validation data only, because settings must not be chosen on the test
    set.
    """
    from pfge.cli.tables import print_diagnosis
    from pfge.lab.experiments.diagnose import diagnose
    from pfge.lab.run.progress import Reporter
    from pfge.lab.run.results import Diagnoses
    from pfge.storage.files import write_json

    found = diagnose(
        options.folder,
        Reporter(),
        methods=options.methods,
        overrides=given_settings(options),
        trust_code=options.trust_code,
    )
    for diagnosis in found:
        print_diagnosis(diagnosis)
    write_json(options.folder / "diagnosis.json", Diagnoses(found).to_json())
    return 0


def _add_connect_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pairs",
        type=_number_or_all,
        metavar="N",
        help="number of adjacent pairs of each ensemble, or all (default: all of PFGE, and as many of FGE)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice of pairs (default: 0)")
    add_launcher_argument(parser)
    add_run_arguments(parser, "connect.rate=0.01")


@command("measure how well adjacent members of PFGE and of FGE are connected", _add_connect_arguments)
def connect(options: argparse.Namespace) -> int:
    """Fit a curve of low loss between adjacent members of a finished comparison.

    Print test error and training loss along it, and the mode connectivity. Running the same command again
    continues where it stopped.
    """
    prepare_workers(options)

    from pfge.cli.tables import print_connectivity
    from pfge.lab.experiments.connect import connect
    from pfge.lab.run.progress import Reporter
    from pfge.reports.contents import save_if_possible
    from pfge.reports.figures.path import curves

    rows = connect(
        options.folder,
        Reporter(),
        overrides=given_settings(options),
        trust_code=options.trust_code,
        pairs=options.pairs,
        choice_seed=options.seed,
    )
    figure = save_if_possible(curves(rows), options.folder / "connectivity.svg", options.folder)
    print_connectivity(rows, figure)
    return 0


def _number_or_all(text: str) -> int | Literal["all"]:
    return "all" if text == "all" else int(text)


def _add_landscape_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--members",
        type=int,
        nargs=3,
        default=[1, 2, 3],
        metavar="N",
        help="the three members, counted from 1",
    )
    parser.add_argument(
        "--quantity",
        choices=("train_loss", "train_error", "test_error"),
        default="train_loss",
        help="what to draw",
    )
    parser.add_argument("--grid", type=int, default=11, help="points on each side (default: 11)")
    parser.add_argument(
        "--images", type=int, default=2000, help="images to measure each point on (default: 2000)"
    )
    parser.add_argument("--seed", type=int, help="seed of the run (default: its first)")
    add_run_arguments(parser)


@command("draw the loss on the plane through three members", _add_landscape_arguments)
def landscape(options: argparse.Namespace) -> int:
    """Measure the loss on a grid on the plane through three members of PFGE.

    BatchNorm is refreshed at each point. The figure also shows w0, the trajectory, SWA, the members and the
    curves of pfge connect. Points off the plane are projected onto it.
    """
    from pfge.lab.experiments.landscape import make_landscape
    from pfge.lab.run.progress import Reporter
    from pfge.reports.contents import save_if_possible
    from pfge.reports.figures.path import plane
    from pfge.storage.files import write_json

    found = make_landscape(
        options.folder,
        Reporter(),
        members=options.members,
        quantity=options.quantity,
        grid=options.grid,
        images=options.images,
        seed=options.seed,
        overrides=given_settings(options),
        trust_code=options.trust_code,
    )
    write_json(options.folder / "landscape.json", found.to_json())
    print(save_if_possible(plane(found), options.folder / "landscape.svg", options.folder))
    return 0


@command("measure every ensemble of a run in every storage format, whole and as a cascade", add_run_arguments)
def formats(options: argparse.Namespace) -> int:
    """Measure every ensemble of a finished comparison in every storage format.

    The formats are float32, int8, and an int8 base with a few bits for each member. Print bytes, forward
    passes, accuracy and NLL on the test set. With validation data, each is also measured as a cascade, which
    stops evaluating members once the prediction is confident. Running the same command again measures only
    what is missing.
    """
    from pfge.cli.tables import print_formats
    from pfge.lab.experiments.formats import measure_formats
    from pfge.lab.run.progress import Reporter

    rows = measure_formats(
        options.folder, Reporter(), overrides=given_settings(options), trust_code=options.trust_code
    )
    print_formats(rows, options.folder)
    return 0

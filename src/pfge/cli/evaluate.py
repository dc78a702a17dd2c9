"""`pfge evaluate`: what a saved ensemble is worth, and whether it knows what it does not know."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pfge.cli.compare import SubParsers


def add_parser(commands: "SubParsers") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "evaluate",
        help="measure a saved ensemble: calibration, unknown inputs, corrupted inputs",
        description="Measure an ensemble on the test set, print the tables, and write them as JSON. "
        "An ensemble in a run folder is measured with the run's data and model; any other needs --config, "
        "or --set.",
    )
    parser.add_argument("ensemble", type=Path, metavar="ENSEMBLE", help="a folder with a manifest.json")
    parser.add_argument("--config", type=Path, metavar="CONFIG", help="a .toml file, if not that of the run")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a setting, as data.name=mnist",
    )
    parser.add_argument("--download", action="store_true", help="fetch data that is missing")
    parser.add_argument(
        "--calibrate",
        choices=("pooled", "members"),
        help="first fit a temperature on validation data, of the mean or of each member, and save it with "
        "the ensemble",
    )
    parser.add_argument(
        "--ood", action="append", default=[], metavar="DATASET", help="tell its images from the test set's"
    )
    parser.add_argument(
        "--corruptions",
        nargs="+",
        default=[],
        metavar="NAME",
        help="corrupt the test images at five strengths: noise, blur, brightness, contrast, pixelation, "
        "jpeg, or all",
    )
    parser.add_argument(
        "--against", type=Path, metavar="ENSEMBLE", help="another, as before compression: tell the difference"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the corruptions")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the JSON (default: ENSEMBLE/evaluation.json)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure the ensemble, print the tables and write the JSON."""
    from pfge.cli.tables import print_assessment
    from pfge.lab.assessment import assess, calibrate
    from pfge.lab.bench import Bench
    from pfge.lab.config_file import load_experiment
    from pfge.lab.engine import Engine
    from pfge.lab.progress import Reporter
    from pfge.lab.run_folder import CONFIG, RunFolder, describe_environment
    from pfge.storage import StorageError, write_json

    folder: Path = options.ensemble
    parents = folder.resolve().parents
    config = options.config or next((p / CONFIG for p in parents if (p / CONFIG).is_file()), None)
    if config is None and not options.set:
        raise StorageError(
            f"{folder} is in no run folder, so its data and model are not known; give --config CONFIG, or "
            "--set data.name=... --set model.name=..."
        )
    overrides = [*options.set, *(["data.download=true"] if options.download else [])]
    experiment = load_experiment(config, overrides)
    engine = Engine(experiment.engine)
    reporter = Reporter(quiet=not engine.is_first)
    bench = Bench.set_up(experiment, RunFolder(folder), engine, reporter)
    ensemble = bench.load_ensemble(folder)
    if options.calibrate:
        ensemble = calibrate(bench, ensemble, options.calibrate)
        engine.first_does(lambda: ensemble.save(folder))
    found = assess(
        bench,
        ensemble,
        ood=options.ood,
        corruptions=options.corruptions,
        against=bench.load_ensemble(options.against) if options.against else None,
        seed=options.seed,
    )
    if engine.is_first:
        out = options.out or folder / "evaluation.json"
        on_disk = sum(file.stat().st_size for file in folder.iterdir() if file.name != "evaluation.json")
        found |= {"ensemble": str(folder), "bytes_on_disk": on_disk, "environment": describe_environment()}
        write_json(out, found)
        print_assessment(found, out)
    return 0

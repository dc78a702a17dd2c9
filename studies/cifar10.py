"""Run the plan of docs/cifar10.md, and write its results there.

    python -m studies.cifar10 --weights resnet20-cifar10.safetensors [--out runs/cifar10]
                              [--stage choose|report|long|write]

Each stage is a few comparisons; a stage that was stopped continues where it was. Without --stage all of them
run, one after another.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from pfge.lab.config.toml import load_experiment
from pfge.lab.experiments.compare import compare
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.progress import Reporter
from pfge.methods import base_of
from studies.rates import RATES, chosen_rate, member_counts, methods_of, rate_folder
from studies.tables import (
    QUALITY_HEADS,
    differences,
    nll_at_rates,
    quality,
    table,
    validation_nll_at_rates,
    write_results,
)

PAGE = Path(__file__).parents[1] / "docs" / "cifar10.md"
CONFIG = Path(__file__).parent / "cifar10.toml"
CHOOSING = 1
REPORTED = (11, 12, 13)
LONG = 21
THREE_TIMES = ("ensemble.length=7800", "ensemble.period=1950", "ensemble.cycle=390")


def run_choose(out: Path, weights: Path) -> None:
    for rate in RATES:
        overrides = (f"seeds=[{CHOOSING}]", f"ensemble.high={rate}")
        _run(rate_folder(out, "choose", rate), weights, *overrides)


def run_report(out: Path, weights: Path) -> None:
    _run_chosen(out, "report", weights, f"seeds={list(REPORTED)}")


def run_long(out: Path, weights: Path) -> None:
    _run_chosen(out, "long", weights, f"seeds=[{LONG}]", *THREE_TIMES)


def _run_chosen(out: Path, what: str, weights: Path, *overrides: str) -> None:
    """Run every method at its own rate: one comparison for all methods of a rate."""
    for rate, methods in _methods_at(out).items():
        trained = json.dumps(sorted({base_of(method) for method in methods}))
        rated = (f"ensemble.high={rate}", f"ensemble.methods={trained}")
        _run(rate_folder(out, what, rate), weights, *rated, *overrides)


def _run(folder: Path, weights: Path, *overrides: str) -> None:
    settings = [f"pretrain.weights={weights}", *overrides]
    compare(load_experiment(CONFIG, settings), folder, Reporter())


def _methods(out: Path) -> list[str]:
    return methods_of(rate_folder(out, "choose", RATES[0]))


def _methods_at(out: Path) -> dict[float, list[str]]:
    chosen: dict[float, list[str]] = {}
    for method in _methods(out):
        chosen.setdefault(chosen_rate(out, method), []).append(method)
    return chosen


def results(out: Path) -> str:
    methods = _methods(out)
    rates = {method: chosen_rate(out, method) for method in methods}
    counts = member_counts([rate_folder(out, "choose", RATES[0])])
    reported, long = (
        {method: rate_folder(out, what, rate) for method, rate in rates.items()}
        for what in ("report", "long")
    )

    def of_all(folders: dict[str, Path]) -> str:
        rows = [["w0", "1", "", *quality(folders[methods[0]], "w0")]]
        rows += [[m, str(counts[m]), f"{rates[m]:g}", *quality(folders[m], m)] for m in methods]
        return table(["method", "members", "rate", *QUALITY_HEADS], rows)

    parts = [
        f"The rates were chosen by the validation NLL at T of seed {CHOOSING}. Test data, seeds "
        f"{', '.join(map(str, REPORTED))}, mean and standard error; w0 is the same for every seed.",
        of_all(reported),
        "### Differences from SWA and FGE, each at its own rate and temperature",
        differences(methods, reported),
        f"### Every rate: NLL at T on the test data, seed {CHOOSING}",
        nll_at_rates(out, "choose", methods),
        f"### Every rate: validation NLL at T, seed {CHOOSING}, on which the choices were made",
        validation_nll_at_rates(out, methods),
        f"### Three times the iterations, seed {LONG}",
        of_all(long),
        _environment(out),
    ]
    return "\n\n".join(parts)


def _environment(out: Path) -> str:
    about = json.loads(RunFolder(rate_folder(out, "choose", RATES[0])).environment.read_text())
    return (
        f"`python -m studies.cifar10`; torch {about['torch']}, threads: {about['threads']}, "
        f"{about['processor']}. No run was left out. Runs: {len(RATES)} for the rates, {len(REPORTED)} "
        "reported and 1 of three times the iterations, for each method."
    )


STAGES: dict[str, Callable[[Path, Path], None]] = {
    "choose": run_choose,
    "report": run_report,
    "long": run_long,
    "write": lambda out, _: write_results(PAGE, results(out)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, required=True, help="published weights of ResNet-20")
    parser.add_argument("--out", type=Path, default=Path("runs/cifar10"), help="folder of the runs")
    parser.add_argument("--stage", choices=STAGES, action="append", help="only this stage; repeat for more")
    options = parser.parse_args()
    for stage in options.stage or STAGES:
        STAGES[stage](options.out, options.weights)


if __name__ == "__main__":
    main()

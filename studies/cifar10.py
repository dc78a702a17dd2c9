"""Run the plan of docs/cifar10.md, and write its results there.

    python -m studies.cifar10 --weights resnet20-cifar10.safetensors [--out runs/cifar10] [--processes 2]
                              [--stage choose|base|report|long|views|write]

Each stage is a few comparisons; a stage that was stopped continues where it was. Without --stage all of them
run, one after another. What was measured is copied to studies/recorded-cifar10, and is not run again.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pfge.lab.config.toml import load_experiment
from pfge.lab.experiments.compare import compare_all
from pfge.lab.run.progress import Reporter
from pfge.methods import METHODS, base_of
from pfge.reports.tables.methods import paper_accuracies
from studies.cifar10_views import VIEWS, record_views, viewed_table
from studies.rates import chosen_rate, member_counts, methods_of, rate_folder, values
from studies.records import Part, begun_part, machines, missing_part, parts_in, record_parts
from studies.tables import (
    QUALITY_HEADS,
    differences,
    nll_at_rates,
    quality,
    table,
    validation_nll_at_rates,
    write_results,
)

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "cifar10.md"
RECORDED = Path(__file__).parent / "recorded-cifar10"
CONFIG = Path(__file__).parent / "cifar10.toml"
CHOOSING = 1
REPORTED = (11, 12, 13)
LONG = 21
THREE_TIMES = ("ensemble.length=7800", "ensemble.period=1950", "ensemble.cycle=390")
COMPARED = load_experiment(CONFIG).ensemble.methods
TRIED = {0.0125: ("Cosine",), 0.025: COMPARED, 0.05: COMPARED, 0.1: COMPARED}
"""Which methods are tried at which rates: for every method there is a worse one on both sides of the best."""
RATES = tuple(TRIED)
BASE_RATE = 0.05
VIEWED = "views.json"
BASE = (*COMPARED, "SWAG")
"""What is reported at the base rate, whichever rates are chosen: all methods, and the paper's SWAG."""


@dataclass(frozen=True)
class Study:
    """Where the study runs.

    Attributes:
        out: The folder of its runs.
        recorded: What was measured before, which is not run again.
        weights: The file of w0.
        processes: How many run parts of it at once.
    """

    out: Path
    recorded: Path
    weights: Path
    processes: int = 1

    def run(self, parts: Iterable[Part], overrides: Sequence[str] = ()) -> None:
        """Run what is not recorded of comparisons."""
        left = [found for part in parts if (found := missing_part(part, self.recorded))]
        missing = [begun_part(part, self.out) for part in left]
        experiments = []
        for part in missing:
            settings = (
                f"name={part.stage} {part.rate:g}",
                f"seeds=[{part.seed}]",
                f"ensemble.high={part.rate}",
                f"ensemble.methods={list(part.methods)}",
                f"pretrain.weights={self.weights}",
                f"engine.launcher=here:{self.processes}",
            )
            experiment = load_experiment(CONFIG, [*settings, *overrides])
            experiments.append((experiment, part.folder(self.out)))
        if experiments:
            compare_all(experiments, Reporter())
        self.record()

    def record(self) -> None:
        """Record what was measured."""
        record_parts(self.out, self.recorded)


def chosen_parts(stage: str, seeds: Iterable[int], recorded: Path) -> list[Part]:
    """Return the parts in which every row of the table has its own rate: one for all methods of a rate."""
    rows = methods_of(*(rate_folder(recorded, "choose", rate) for rate in RATES))
    trained: dict[float, set[str]] = {}
    for row in rows:
        method = METHODS[base_of(row)]
        # A method that only measures another's model is run with it.
        trained.setdefault(chosen_rate(recorded, row, RATES), set()).update({method.name, method.base})
    return [
        Part(stage, rate, seed, tuple(name for name in COMPARED if name in trained[rate]))
        for rate in sorted(trained)
        for seed in seeds
    ]


CHOICES = [Part("choose", rate, CHOOSING, tuple(methods)) for rate, methods in TRIED.items()]
BASES = [Part("report", BASE_RATE, seed, BASE) for seed in REPORTED]


def missing_parts(recorded: Path) -> list[Part]:
    """Return what of the plan is not recorded; before all choices are made, the rates are those of now."""
    chosen = [*chosen_parts("report", REPORTED, recorded), *chosen_parts("long", [LONG], recorded)]
    missing = [found for part in [*CHOICES, *BASES, *chosen] if (found := missing_part(part, recorded))]
    return list(dict.fromkeys(missing))


def results(recorded: Path) -> str:
    """Return the page's results."""
    choices = [rate_folder(recorded, "choose", rate) for rate in RATES]
    methods = methods_of(*choices)
    if not methods:
        return _progress(recorded)
    rates = {method: chosen_rate(recorded, method, RATES) for method in methods}
    counts = member_counts([*choices, rate_folder(recorded, "report", BASE_RATE)])
    reported, long = (
        {method: rate_folder(recorded, what, rate) for method, rate in rates.items()}
        for what in ("report", "long")
    )

    views = ""
    if (recorded / VIEWED).exists():
        found = viewed_table(recorded / VIEWED, rate_folder(recorded, "report", BASE_RATE))
        views = f"### {VIEWS} views of each picture for every member, rate {BASE_RATE:g}\n\n{found}"

    def of_all(folders: dict[str, Path]) -> str:
        rows = [["w0", "1", "", *quality(folders[methods[0]], "w0")]]
        rows += [[m, str(counts[m]), f"{rates[m]:g}", *quality(folders[m], m)] for m in methods]
        return table(["method", "members", "rate", *QUALITY_HEADS], rows)

    parts = [
        _progress(recorded),
        f"The rates were chosen by the validation NLL at T of seed {CHOOSING}. Test data, seeds "
        f"{', '.join(map(str, REPORTED))}, mean and standard error; w0 is the same for every seed.",
        of_all(reported),
        "### Differences from SWA and FGE, each at its own rate and temperature",
        differences(methods, reported),
        f"### All methods at rate {BASE_RATE:g}",
        base_table(recorded, counts),
        f"### Every rate: NLL at T on the test data, seed {CHOOSING}",
        nll_at_rates(recorded, "choose", methods, RATES),
        f"### Every rate: validation NLL at T, seed {CHOOSING}, on which the choices were made",
        validation_nll_at_rates(recorded, methods, RATES),
        views,
        f"### Three times the iterations, seed {LONG}",
        of_all(long),
        _environment(recorded),
    ]
    return "\n\n".join(part for part in parts if part)


def base_table(recorded: Path, counts: dict[str, int]) -> str:
    """Return all methods at the base rate, beside the accuracies of the paper's larger networks."""
    folder = rate_folder(recorded, "report", BASE_RATE)
    paper = paper_accuracies("cifar10")
    networks = list(next(iter(paper.values())))
    rows = []
    for method in ["w0", *methods_of(folder)]:
        printed = [f"{mean:.2f} ± {error:.2f}" for mean, error in paper.get(method, {}).values()]
        seeds = len(values(folder, method, "nll", calibrated=False))
        cells = [*quality(folder, method), *(printed or [""] * len(networks))]
        rows.append([method, str(counts[method]), str(seeds), *cells])
    heads = ["method", "members", "seeds", *QUALITY_HEADS, *(f"paper: {name}" for name in networks)]
    return table(heads, rows)


def _progress(recorded: Path) -> str:
    missing = missing_parts(recorded)
    if not missing:
        return ""
    listed = "\n".join(
        f"- {part.stage}, rate {part.rate:g}, seed {part.seed}: {', '.join(part.methods)}" for part in missing
    )
    if all(part.stage == "long" for part in missing):
        return f"**Unfinished.** All runs of n = 2,600 are made. Not run yet:\n\n{listed}"
    return (
        "**Unfinished.** Nothing is decided before all runs are made, and a rate below is the best of those "
        f"that were run. Not run yet:\n\n{listed}"
    )


def _environment(recorded: Path) -> str:
    described = (
        f"{found['processor']}, torch {found['torch']}, Python {found['python']}"
        for found in machines(recorded)
    )
    made_on = "; ".join(dict.fromkeys(described))
    return (
        f"`python -m studies.cifar10`, one thread for each process; {made_on}. No run was left out. "
        "Runs in the whole plan, for each method: one for each rate that has a number above, "
        f"{len(REPORTED)} reported and 1 of three times the iterations."
    )


def run_report(study: Study) -> None:
    _require_choices(study)
    study.run(chosen_parts("report", REPORTED, study.recorded))


def run_long(study: Study) -> None:
    _require_choices(study)
    study.run(chosen_parts("long", [LONG], study.recorded), THREE_TIMES)


def run_views(study: Study) -> None:
    for part, folder in parts_in(study.out):
        if part.stage == "report" and part.rate == BASE_RATE:
            record_views(folder, part.seed, study.recorded / VIEWED)


def _require_choices(study: Study) -> None:
    open_rates = [f"{part.rate:g}" for part in CHOICES if missing_part(part, study.recorded)]
    if open_rates:
        raise SystemExit(
            f"each method's rate must be chosen first, and rates {', '.join(open_rates)} are not finished; "
            "run --stage choose"
        )


def write(study: Study) -> None:
    study.record()
    write_results(PAGE, results(study.recorded))


STAGES: dict[str, Callable[[Study], None]] = {
    "choose": lambda study: study.run(CHOICES),
    "base": lambda study: study.run(BASES),
    "report": run_report,
    "long": run_long,
    "views": run_views,
    "write": write,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, required=True, help="published weights of ResNet-20")
    parser.add_argument("--out", type=Path, default=Path("runs/cifar10"), help="folder of the runs")
    parser.add_argument("--processes", type=int, default=1, help="how many run parts at once (default: 1)")
    parser.add_argument("--stage", choices=STAGES, action="append", help="only this stage; repeat for more")
    options = parser.parse_args()
    study = Study(options.out, RECORDED, options.weights.resolve(), options.processes)
    for stage in options.stage or STAGES:
        STAGES[stage](study)


if __name__ == "__main__":
    main()

"""Run the plan of docs/mnist1d.md, and write its results there.

    python -m studies.mnist1d --out runs/mnist1d [--stage tails|rates|report|deep|members|write]

Each stage is a few comparisons; a stage that was stopped continues where it was. Without --stage all of them
run, one after another.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean

from pfge.lab.config.toml import load_experiment
from pfge.lab.experiments.compare import compare
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.progress import Reporter
from pfge.storage.files import read_json_object, write_json
from studies.mnist1d_members import KINDS, measure
from studies.rates import chosen_rate, member_counts, methods_of, rate_folder, validation_nll, values
from studies.tables import (
    QUALITY_HEADS,
    RIVALS,
    change,
    differences,
    nll_at_rates,
    quality,
    table,
    validation_nll_at_rates,
    write_results,
)

PAGE = Path(__file__).parents[1] / "docs" / "mnist1d.md"
CONFIG = Path(__file__).parent / "mnist1d.toml"
CHOOSING = (1, 2, 3)
REPORTED = tuple(range(11, 21))
RATES = (0.05, 0.1, 0.2, 0.4)
TAILS = (0.0, 0.1, 0.3)
ANNEALED = ("Star", "Cosine")
TRAININGS = ("DeepEnsemble",)


def tail_folder(out: Path, tail: float) -> Path:
    return out / f"tail-{tail:g}"


def run(folder: Path, seeds: Iterable[int], *overrides: str) -> None:
    settings = [f"seeds={list(seeds)}", *overrides]
    compare(load_experiment(CONFIG, settings), folder, Reporter())


def run_tails(out: Path) -> None:
    for tail in TAILS:
        methods = f"ensemble.methods={json.dumps(ANNEALED)}"
        run(tail_folder(out, tail), CHOOSING, methods, "ensemble.high=0.1", f"ensemble.tail={tail}")


def run_rates(out: Path, what: str, seeds: Sequence[int]) -> None:
    tail = chosen_tail(out)
    for rate in RATES:
        run(rate_folder(out, what, rate), seeds, f"ensemble.high={rate}", f"ensemble.tail={tail}")


def run_deep(out: Path) -> None:
    run(out / "deep", REPORTED, f"ensemble.methods={json.dumps(TRAININGS)}")


def run_members(out: Path) -> None:
    counts = counts_of(out)
    reported = methods_of(rate_folder(out, "report", RATES[0]))
    pooled = [method for method in reported if counts[method] > 1]
    file = out / "members.json"
    found = read_json_object(file)["rows"] if file.exists() else []
    known = {(row["method"], row["seed"], row["kind"]) for row in found}
    for rate in RATES:
        chosen = {method: counts[method] for method in pooled if chosen_rate(out, method, RATES) == rate}
        if chosen:
            found += measure(rate_folder(out, "report", rate), chosen, REPORTED, known)
    write_json(file, {"rows": found})


def chosen_tail(out: Path) -> float:
    """Return the tail with the lowest validation NLL, over the methods that have one."""
    return min(TAILS, key=lambda tail: fmean(validation_nll(tail_folder(out, tail), m) for m in ANNEALED))


def counts_of(out: Path) -> dict[str, int]:
    return member_counts([rate_folder(out, "report", RATES[0]), out / "deep"])


def results(out: Path) -> str:
    methods = methods_of(rate_folder(out, "report", RATES[0]))
    rates = {method: chosen_rate(out, method, RATES) for method in methods}
    folders = {method: rate_folder(out, "report", rate) for method, rate in rates.items()}
    folders |= dict.fromkeys(TRAININGS, out / "deep")
    counts = counts_of(out)
    parts = [
        f"Choices: a tail of {chosen_tail(out):g} and the rates below, by the validation NLL at T of seeds "
        f"{', '.join(map(str, CHOOSING))}. Test data, seeds {REPORTED[0]} to {REPORTED[-1]}, mean and "
        "standard error.",
        table(
            ["method", "members", "rate", *QUALITY_HEADS],
            [
                ["w0", "1", "", *quality(folders[methods[0]], "w0")],
                *([m, str(counts[m]), f"{rates[m]:g}", *quality(folders[m], m)] for m in methods),
                *([m, str(counts[m]), "", *quality(folders[m], m)] for m in TRAININGS),
            ],
        ),
        "### Differences from SWA and FGE, each at its own rate and temperature",
        differences(methods, folders),
        "### Every rate: NLL at T on the test data",
        nll_at_rates(out, "report", methods, RATES),
        "### Every rate and tail: validation NLL at T, on which the choices were made",
        validation_nll_at_rates(out, methods, RATES),
        table(
            ["tail", *ANNEALED],
            (
                [f"{tail:g}", *(f"{validation_nll(tail_folder(out, tail), m):.4f}" for m in ANNEALED)]
                for tail in TAILS
            ),
        ),
        "### Weights of members, and compressed members",
        members_table(out, methods, folders),
        environment(out),
    ]
    return "\n\n".join(parts)


def members_table(out: Path, methods: Sequence[str], folders: dict[str, Path]) -> str:
    """Return what weights and compression change, and how what is compressed compares with the rivals."""
    measured = read_json_object(out / "members.json")["rows"]
    rival_nll = {rival: values(folders[rival], rival, "nll", calibrated=True) for rival in RIVALS}

    def of(method: str, kind: str, key: str) -> list[float]:
        return [row[key] for row in measured if row["method"] == method and row["kind"] == kind]

    pooled = [method for method in methods if of(method, KINDS[0], "nll")]
    weights, packed = [], []
    for method in pooled:
        plain = of(method, KINDS[0], "nll")
        kept = f"{sum(of(method, 'weights', 'weighted')):g} of {len(plain)}"
        weights.append([method, kept, change(of(method, "weights", "nll"), plain)])
        for kind in (kind for kind in KINDS[2:] if of(method, kind, "nll")):
            nll, size = of(method, kind, "nll"), f"{fmean(of(method, kind, 'size')):.3f}x"
            packed.append(
                [method, kind, size, change(nll, plain), *(change(nll, rival_nll[r]) for r in RIVALS)]
            )
    rivals = [f"minus {rival}" for rival in RIVALS]
    return "\n\n".join(
        [
            table(["method", "weights kept", "NLL at T minus that with equal weights, 95 %"], weights),
            table(["method", "stored in", "size", "NLL at T minus float32, 95 %", *rivals], packed),
        ]
    )


def environment(out: Path) -> str:
    about = json.loads(RunFolder(rate_folder(out, "report", RATES[0])).environment.read_text())
    runs = [len(TAILS) * len(CHOOSING), len(RATES) * len(CHOOSING), len(RATES) * len(REPORTED), len(REPORTED)]
    return (
        f"`python -m studies.mnist1d`; torch {about['torch']}, threads: {about['threads']}, "
        f"{about['processor']}. No run was left out. Runs: {runs[0]} for the tail, {runs[1]} for the rates, "
        f"{runs[2]} reported, {runs[3]} of the deep ensemble."
    )


STAGES: dict[str, Callable[[Path], None]] = {
    "tails": run_tails,
    "rates": lambda out: run_rates(out, "choose", CHOOSING),
    "report": lambda out: run_rates(out, "report", REPORTED),
    "deep": run_deep,
    "members": run_members,
    "write": lambda out: write_results(PAGE, results(out)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/mnist1d"), help="folder of the runs")
    parser.add_argument("--stage", choices=STAGES, action="append", help="only this stage; repeat for more")
    options = parser.parse_args()
    for stage in options.stage or STAGES:
        STAGES[stage](options.out)


if __name__ == "__main__":
    main()

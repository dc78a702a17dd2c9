"""Run the plan of docs/mnist1d.md, and write its results there.

    python -m studies.mnist1d --out runs/mnist1d [--stage tails|rates|report|deep|members|write]

Each stage is a few comparisons; a stage that was stopped continues where it was. Without --stage all of them
run, one after another.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

from scipy.stats import t as student

from pfge.lab.config.toml import load_experiment
from pfge.lab.experiments.compare import compare
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.progress import Reporter
from pfge.lab.run.result_lines import require_rows
from pfge.lab.run.results import ComparisonRow
from pfge.methods import known_rows
from pfge.storage.files import read_json_object, write_json
from studies.mnist1d_members import KINDS, measure

PAGE = Path(__file__).parents[1] / "docs" / "mnist1d.md"
CONFIG = Path(__file__).parent / "mnist1d.toml"
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
CHOOSING = (1, 2, 3)
REPORTED = tuple(range(11, 21))
RATES = (0.05, 0.1, 0.2, 0.4)
TAILS = (0.0, 0.1, 0.3)
ANNEALED = ("Star", "Cosine")
TRAININGS = ("DeepEnsemble",)
RIVALS = ("SWA", "FGE")


def tail_folder(out: Path, tail: float) -> Path:
    return out / f"tail-{tail:g}"


def rate_folder(out: Path, what: str, rate: float) -> Path:
    return out / f"{what}-{rate:g}"


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
    counts = member_counts(out)
    pooled = [method for method in shown_methods(out) if counts[method] > 1]
    file = out / "members.json"
    found = read_json_object(file)["rows"] if file.exists() else []
    known = {(row["method"], row["seed"], row["kind"]) for row in found}
    for rate in RATES:
        chosen = {method: counts[method] for method in pooled if chosen_rate(out, method) == rate}
        if chosen:
            found += measure(rate_folder(out, "report", rate), chosen, REPORTED, known)
    write_json(file, {"rows": found})


def rows_of(folder: Path) -> list[ComparisonRow]:
    return require_rows(RunFolder(folder).results, ComparisonRow)


def values(folder: Path, method: str, part: str, metric: str, *, calibrated: bool) -> list[float]:
    """Return one number for each seed, in their order."""
    rows = sorted((row for row in rows_of(folder) if row.method == method), key=lambda row: row.seed)
    found = []
    for row in rows:
        metrics = row.metrics if not calibrated or row.calibrated is None else row.calibrated.metrics
        found.append(metrics[part][metric])
    return found


def validation_nll(folder: Path, method: str) -> float:
    return fmean(values(folder, method, "validation", "nll", calibrated=True))


def chosen_tail(out: Path) -> float:
    """Return the tail with the lowest validation NLL, over the methods that have one."""
    return min(TAILS, key=lambda tail: fmean(validation_nll(tail_folder(out, tail), m) for m in ANNEALED))


def chosen_rate(out: Path, method: str) -> float:
    return min(RATES, key=lambda rate: validation_nll(rate_folder(out, "choose", rate), method))


def mean_and_error(numbers: Sequence[float], digits: int, factor: float = 1.0) -> str:
    error = stdev(numbers) / len(numbers) ** 0.5
    return f"{factor * fmean(numbers):.{digits}f} ± {factor * error:.{digits}f}"


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean."""
    reach = float(student.ppf(0.975, len(differences) - 1)) * stdev(differences) / len(differences) ** 0.5
    return fmean(differences) - reach, fmean(differences) + reach


def verdict(low: float, high: float, *, lower_is_better: bool) -> str:
    if low <= 0 <= high:
        return "undecided"
    return "better" if (high < 0) == lower_is_better else "worse"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def shown_methods(out: Path) -> list[str]:
    names = {row.method for row in rows_of(rate_folder(out, "report", RATES[0]))}
    return [row for row in known_rows() if row in names]


def member_counts(out: Path) -> dict[str, int]:
    folders = [rate_folder(out, "report", RATES[0]), out / "deep"]
    return {row.method: row.members for folder in folders for row in rows_of(folder)}


def results(out: Path) -> str:
    methods = shown_methods(out)
    rates = {method: chosen_rate(out, method) for method in methods}
    folders = {method: rate_folder(out, "report", rate) for method, rate in rates.items()}
    folders |= dict.fromkeys(TRAININGS, out / "deep")
    counts = member_counts(out)
    test = partial(values, part="test")

    def quality(method: str, folder: Path) -> list[str]:
        def shown(metric: str, digits: int, factor: float, *, calibrated: bool) -> str:
            return mean_and_error(test(folder, method, metric=metric, calibrated=calibrated), digits, factor)

        return [
            shown("accuracy", 2, 100, calibrated=False),
            shown("nll", 4, 1, calibrated=False),
            shown("nll", 4, 1, calibrated=True),
            shown("ece", 2, 100, calibrated=False),
            shown("ece", 2, 100, calibrated=True),
        ]

    heads = ["accuracy %", "NLL", "NLL at T", "ECE %", "ECE % at T"]
    first = folders[methods[0]]
    parts = [
        f"Choices: a tail of {chosen_tail(out):g} and the rates below, by the validation NLL at T of seeds "
        f"{', '.join(map(str, CHOOSING))}. Test data, seeds {REPORTED[0]} to {REPORTED[-1]}, mean and "
        "standard error.",
        table(
            ["method", "members", "rate", *heads],
            [
                ["w0", "1", "", *quality("w0", first)],
                *([m, str(counts[m]), f"{rates[m]:g}", *quality(m, folders[m])] for m in methods),
                *([m, str(counts[m]), "", *quality(m, folders[m])] for m in TRAININGS),
            ],
        ),
        "### Differences from SWA and FGE, each at its own rate and temperature",
        differences(methods, folders, test),
        "### Every rate: NLL at T on the test data",
        table(
            ["method", *(f"{rate:g}" for rate in RATES)],
            ([m, *(every_rate(out, m, rate, test) for rate in RATES)] for m in methods),
        ),
        "### Every rate and tail: validation NLL at T, on which the choices were made",
        table(
            ["method", *(f"{rate:g}" for rate in RATES)],
            (
                [m, *(f"{validation_nll(rate_folder(out, 'choose', rate), m):.4f}" for rate in RATES)]
                for m in methods
            ),
        ),
        table(
            ["tail", *ANNEALED],
            (
                [f"{tail:g}", *(f"{validation_nll(tail_folder(out, tail), m):.4f}" for m in ANNEALED)]
                for tail in TAILS
            ),
        ),
        "### Weights of members, and compressed members",
        members_table(out, methods, folders, test),
        environment(out),
    ]
    return "\n\n".join(parts)


def members_table(
    out: Path, methods: Sequence[str], folders: dict[str, Path], test: Callable[..., list[float]]
) -> str:
    """Return what weights and compression change, and how what is compressed compares with the rivals."""
    measured = read_json_object(out / "members.json")["rows"]
    rival_nll = {r: test(folders[r], r, metric="nll", calibrated=True) for r in RIVALS}

    def of(method: str, kind: str, key: str) -> list[float]:
        return [row[key] for row in measured if row["method"] == method and row["kind"] == kind]

    def change(numbers: Sequence[float], others: Sequence[float]) -> str:
        low, high = interval([a - b for a, b in zip(numbers, others, strict=True)])
        mean = fmean(numbers) - fmean(others)
        return f"{mean:+.4f} ({low:+.4f} to {high:+.4f})"

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


def differences(methods: Sequence[str], folders: dict[str, Path], test: Callable[..., list[float]]) -> str:
    rows = []
    for rival in RIVALS:
        for method in (name for name in methods if name != rival):
            cells = []
            for metric, calibrated, digits, factor, lower in (
                ("nll", True, 4, 1, True),
                ("accuracy", False, 2, 100, False),
            ):
                pairs = zip(
                    test(folders[method], method, metric=metric, calibrated=calibrated),
                    test(folders[rival], rival, metric=metric, calibrated=calibrated),
                    strict=True,
                )
                found = [factor * (a - b) for a, b in pairs]
                low, high = interval(found)
                cells += [
                    f"{fmean(found):+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})",
                    verdict(low, high, lower_is_better=lower),
                ]
            rows.append([method, rival, *cells])
    return table(["method", "minus", "NLL at T, 95 %", "", "accuracy, points, 95 %", ""], rows)


def every_rate(out: Path, method: str, rate: float, test: Callable[..., list[float]]) -> str:
    found = mean_and_error(test(rate_folder(out, "report", rate), method, metric="nll", calibrated=True), 4)
    return f"**{found}**" if rate == chosen_rate(out, method) else found


def environment(out: Path) -> str:
    about = json.loads(RunFolder(rate_folder(out, "report", RATES[0])).environment.read_text())
    runs = [len(TAILS) * len(CHOOSING), len(RATES) * len(CHOOSING), len(RATES) * len(REPORTED), len(REPORTED)]
    return (
        f"`python -m studies.mnist1d`; torch {about['torch']}, threads: {about['threads']}, "
        f"{about['processor']}. No run was left out. Runs: {runs[0]} for the tail, {runs[1]} for the rates, "
        f"{runs[2]} reported, {runs[3]} of the deep ensemble."
    )


def write(out: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{results(out)}\n{END}{after}", encoding="utf-8")


STAGES: dict[str, Callable[[Path], None]] = {
    "tails": run_tails,
    "rates": lambda out: run_rates(out, "choose", CHOOSING),
    "report": lambda out: run_rates(out, "report", REPORTED),
    "deep": run_deep,
    "members": run_members,
    "write": write,
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

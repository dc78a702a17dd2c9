"""Run the plan of docs/pooling.md, and write its results there.

    python -m studies.pooling --cifar10 runs/cifar10 [--mnist1d runs/pooling-mnist1d]
                              [--stage mnist1d|cifar10|write]

The members of CIFAR-10 are those of `studies.cifar10`, whose run folders must be there; those of MNIST-1D are
made here. What was measured is copied to studies/recorded-pooling.json, and is not measured again.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from pfge.calibration import fit_shared_temperature, fit_temperature, log_probabilities
from pfge.lab.config.toml import load_experiment
from pfge.lab.data import DataPart
from pfge.lab.data.batches import count_batches
from pfge.lab.experiments.compare import augmented_ensemble, compare
from pfge.lab.run.folder import RunFolder, describe_environment
from pfge.lab.run.progress import Reporter
from pfge.lab.session import Session, open_run
from pfge.methods import METHODS, base_of
from pfge.storage.files import read_json_object, write_json
from pfge.tasks import Task
from studies import cifar10, mnist1d
from studies.rates import rate_folder
from studies.records import DESCRIBED, parts_in
from studies.tables import change, interval, mean_and_error, table, verdict, write_results

PAGE = Path(__file__).parents[1] / "docs" / "pooling.md"
RECORDED = Path(__file__).parent / "recorded-pooling.json"
CHOSEN_ON_MNIST1D = {0.2: ("SWA", "FGE", "PFGE"), 0.4: ("Snapshot", "Star")}
"""The rates that docs/mnist1d.md chose for these methods, on seeds 1 to 3."""
MEASURED = {
    "MNIST-1D": ("SWA", "FGE", "FGE*", "PFGE", "Snapshot", "Star"),
    "CIFAR-10": ("SWA", "FGE", "FGE*", "PFGE", "Star", "TTA"),
}
MNIST1D_SEEDS = mnist1d.REPORTED[:5]
LAST = 4
"""Members of FGE*."""


@dataclass(frozen=True)
class Pooled:
    """Test metrics of members that are pooled with temperatures fitted on validation data.

    Attributes:
        data: What they classify.
        method: A row of the comparison.
        seed: Of its run.
        members: How many.
        by: "pooled" for a temperature of the mean alone, "shared" for one of the members too.
        shared: The temperature of each member; 1 if it did not help.
        temperature: That of their mean.
        accuracy: From 0 to 1.
        nll: Negative log-likelihood.
        ece: Expected calibration error.
    """

    data: str
    method: str
    seed: int
    members: int
    by: str
    shared: float
    temperature: float
    accuracy: float
    nll: float
    ece: float


def measure(data: str, folder: Path, seed: int, methods: Iterable[str]) -> Iterator[Pooled]:
    """Yield what the members of a finished run are worth, pooled in both ways."""
    with open_run(folder, Reporter()) as session:
        for method in methods:
            validation, test = (
                torch.stack(list(_predict(session, seed, method, part)))
                for part in (session.splits.validation, session.splits.test)
            )
            fits = _fit(validation, session.splits.validation.labels.cpu())
            for by, (shared, temperature) in fits.items():
                predictions = _pool(session.task, test, shared, temperature)
                found = session.task.summarize(
                    session.task.score(predictions, session.splits.test.labels.cpu())
                )
                metrics = found["accuracy"], found["nll"], found["ece"]
                yield Pooled(data, method, seed, len(test), by, shared, temperature, *metrics)


def _predict(session: Session, seed: int, method: str, part: DataPart) -> Iterator[Tensor]:
    """Yield the predictions of each member."""
    base = METHODS[base_of(method)]
    if base.path == "augmented":
        per_epoch = count_batches(len(session.splits.train), session.experiment.data.batch_size)
        ensemble = augmented_ensemble(session, seed, base, session.experiment.ensemble.setting(per_epoch))
    else:
        ensemble = session.load_ensemble(session.folder.ensemble(seed, base.name)).uncalibrated()
    if method != base.name:
        ensemble = ensemble.last(LAST)
    yield from ensemble.predict_each(session.in_batches(part))


def _saved_as(method: str) -> str:
    """Return the name of the ensemble that a method's members are saved in."""
    base = METHODS[base_of(method)]
    return base.base or base.name


def _fit(members: Tensor, targets: Tensor) -> dict[str, tuple[float, float]]:
    """Return the temperatures of members and of their mean for each way to pool; one member has one."""
    mean = members.double().mean(dim=0)
    found = {"pooled": (1.0, fit_temperature(log_probabilities(mean), targets).value)}
    if len(members) > 1:
        both = fit_shared_temperature(members, targets)
        found["shared"] = both.members, both.pooled
    return found


def _pool(task: Task, members: Tensor, shared: float, temperature: float) -> Tensor:
    pool = task.pool()
    for member in members:
        pool.add(task.calibrate(member, shared))
    return task.calibrate(pool.result(), temperature)


@dataclass(frozen=True)
class Study:
    """Where the members are, and what was recorded of them.

    Attributes:
        mnist1d: Folder of the runs on MNIST-1D.
        cifar10: Folder of the runs of `studies.cifar10`.
        recorded: What was measured before, which is not measured again.
    """

    mnist1d: Path
    cifar10: Path
    recorded: Path

    def record(self, data: str, folder: Path, seed: int, methods: Sequence[str]) -> None:
        """Measure what is not recorded of a run's methods, and record it."""
        rows, machines = read(self.recorded)
        known = {(row.data, row.method, row.seed) for row in rows}
        missing = [method for method in methods if (data, method, seed) not in known]
        if not missing:
            return
        rows += measure(data, folder, seed, missing)
        about = describe_environment()
        machine = {key: about[key] for key in DESCRIBED}
        machines += [machine] if machine not in machines else []
        write_json(self.recorded, {"machines": machines, "rows": [asdict(row) for row in rows]})


def read(recorded: Path) -> tuple[list[Pooled], list[dict[str, object]]]:
    """Return what was measured, and on what."""
    if not recorded.exists():
        return [], []
    found = read_json_object(recorded)
    return [Pooled(**row) for row in found["rows"]], list(found["machines"])


def run_mnist1d(study: Study) -> None:
    for rate, methods in CHOSEN_ON_MNIST1D.items():
        folder = rate_folder(study.mnist1d, "report", rate)
        settings = [f"ensemble.methods={list(methods)}", f"ensemble.high={rate}", "ensemble.tail=0.3"]
        settings += [f"seeds={list(MNIST1D_SEEDS)}"]
        compare(load_experiment(mnist1d.CONFIG, settings), folder, Reporter())
        rows = [row for row in MEASURED["MNIST-1D"] if base_of(row) in methods]
        for seed in MNIST1D_SEEDS:
            study.record("MNIST-1D", folder, seed, rows)


def run_cifar10(study: Study) -> None:
    for part, folder in parts_in(study.cifar10):
        if (
            part.stage == "report"
            and part.rate == cifar10.BASE_RATE
            and set(part.methods) >= set(cifar10.BASE)
        ):
            run = RunFolder(folder)
            made = [row for row in MEASURED["CIFAR-10"] if run.has_ensemble(part.seed, _saved_as(row))]
            study.record("CIFAR-10", folder, part.seed, made)


def results(recorded: Path) -> str:
    """Return the page's results."""
    rows, machines = read(recorded)
    parts = []
    for data, methods in MEASURED.items():
        of_data = [row for row in rows if row.data == data]
        seeds = sorted({row.seed for row in of_data})
        if len(seeds) < 2:
            parts += [f"### {data}", "Not measured yet."]
            continue
        measured = [method for method in methods if len(_of(of_data, method, "pooled", seeds)) == len(seeds)]
        missing = [method for method in methods if method not in measured]
        parts += [
            f"### {data}, test data, seeds {', '.join(map(str, seeds))}",
            *([f"Not measured yet: {', '.join(missing)}."] if missing else []),
            both_ways(of_data, measured, seeds),
            "Each method at S and T, minus SWA at its temperature:",
            against_swa(of_data, measured, seeds),
        ]
    if machines:
        made_on = "; ".join(f"{found['processor']}, torch {found['torch']}" for found in machines)
        parts.append(f"`python -m studies.pooling`; {made_on}. No run was left out.")
    return "\n\n".join(parts)


def both_ways(rows: Sequence[Pooled], methods: Sequence[str], seeds: Sequence[int]) -> str:
    """Return each method with a temperature of the mean alone and with one of the members too."""
    lines = []
    for method in methods:
        alone, both = _of(rows, method, "pooled", seeds), _of(rows, method, "shared", seeds)
        nll = [row.nll for row in alone]
        line = [method, str(alone[0].members), mean_and_error(nll, 4)]
        if both:
            gain = [a.nll - b.nll for a, b in zip(both, alone, strict=True)]
            accuracy = [row.accuracy for row in both], [row.accuracy for row in alone]
            kept = f"{sum(row.shared != 1 for row in both)} of {len(both)}"
            temperatures = f"{fmean(r.shared for r in both):.2f}, {fmean(r.temperature for r in both):.2f}"
            line += [mean_and_error([row.nll for row in both], 4), change([row.nll for row in both], nll)]
            line += [verdict(*interval(gain), lower_is_better=True), change(*accuracy, 2, 100)]
            line += [temperatures, kept]
        lines.append(line + [""] * (9 - len(line)))
    heads = ["method", "members", "NLL at T", "NLL at S and T", "difference, 95 %", ""]
    return table([*heads, "accuracy, points, 95 %", "S, T", "S kept"], lines)


def against_swa(rows: Sequence[Pooled], methods: Sequence[str], seeds: Sequence[int]) -> str:
    """Return the differences of all methods from one averaged model, in NLL and accuracy."""
    swa = _of(rows, "SWA", "pooled", seeds)
    lines = []
    for method in (name for name in methods if name != "SWA"):
        found = _of(rows, method, "shared", seeds)
        nll = [row.nll for row in found], [row.nll for row in swa]
        accuracy = [row.accuracy for row in found], [row.accuracy for row in swa]
        low, high = interval([a - b for a, b in zip(*nll, strict=True)])
        more = interval([a - b for a, b in zip(*accuracy, strict=True)])
        cells = [change(*nll), verdict(low, high, lower_is_better=True)]
        cells += [change(*accuracy, 2, 100), verdict(*more, lower_is_better=False)]
        lines.append([method, *cells])
    return table(["method", "NLL, 95 %", "", "accuracy, points, 95 %", ""], lines)


def _of(rows: Sequence[Pooled], method: str, by: str, seeds: Sequence[int]) -> list[Pooled]:
    """Return one row for each seed, in their order."""
    found = {row.seed: row for row in rows if (row.method, row.by) == (method, by)}
    return [found[seed] for seed in seeds if seed in found]


STAGES: dict[str, Callable[[Study], None]] = {
    "mnist1d": run_mnist1d,
    "cifar10": run_cifar10,
    "write": lambda study: write_results(PAGE, results(study.recorded)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--mnist1d", type=Path, default=Path("runs/pooling-mnist1d"), help="folder of its runs"
    )
    parser.add_argument(
        "--cifar10", type=Path, default=Path("runs/cifar10"), help="folder of studies.cifar10"
    )
    parser.add_argument("--stage", choices=STAGES, action="append", help="only this stage; repeat for more")
    options = parser.parse_args()
    study = Study(options.mnist1d, options.cifar10, RECORDED)
    for stage in options.stage or STAGES:
        STAGES[stage](study)


if __name__ == "__main__":
    main()

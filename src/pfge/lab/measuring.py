"""Turn what a method collected into a saved ensemble and a line of results."""

from collections.abc import Iterable
from typing import Any

from pfge.collectors import Collector
from pfge.ensemble import Ensemble
from pfge.ensemble_folder import MANIFEST
from pfge.lab.bench import Bench
from pfge.lab.results import append_result, read_results
from pfge.methods import Setting
from pfge.weights import Weights

STARRED = ("FGE", "SWAG")
"""Methods that are also measured with as many members as PFGE has: their last ones."""


def expected_rows(methods: Iterable[str]) -> set[str]:
    """Return the rows of a finished comparison of these methods."""
    return {"w0", *methods, *(f"{name}*" for name in methods if name in STARRED)}


def measured_rows(bench: Bench, seed: int) -> set[str]:
    """Return the rows of a seed that are in the results already."""
    rows = _rows(bench, seed)
    bench.engine.wait_for_all()  # nobody appends before everybody has looked
    return rows


def record_w0(bench: Bench, seed: int, w0: Weights) -> None:
    """Measure the start point as it is, with its own BatchNorm statistics."""
    _measure(bench, seed, "w0", bench.make_ensemble([w0], method="w0", iterations=[0]), iterations=0)


def record(bench: Bench, seed: int, setting: Setting, method: str, collector: Collector) -> None:
    """Refresh BatchNorm for every member, save the ensemble, and measure it."""
    path = bench.folder.ensemble(seed, method)
    saved = (path / MANIFEST).exists()
    bench.engine.wait_for_all()  # nobody saves before everybody has looked
    if not saved:
        raw = bench.make_ensemble(collector.members(), method=str(collector), iterations=collector.iterations)
        fresh = bench.refresh_batch_norm(raw, seed, f"seed {seed}: BatchNorm of {method}")
        bench.engine.first_does(lambda: fresh.save(path))
    last = setting.members if method in STARRED else None
    _measure(bench, seed, method, bench.load_ensemble(path), iterations=setting.iterations, last=last)


def _rows(bench: Bench, seed: int) -> set[str]:
    return {row["method"] for row in read_results(bench.folder.results) if row["seed"] == seed}


def _measure(
    bench: Bench, seed: int, method: str, ensemble: Ensemble, *, iterations: int, last: int | None = None
) -> None:
    one = ensemble.nbytes // len(ensemble)
    last = min(last, len(ensemble)) if last else None
    measured = {
        part: bench.evaluate(ensemble, data, f"seed {seed}: {method} on {part}", last)
        for part, data in bench.splits.for_evaluation().items()
    }

    def append(name: str, key: str, members: int) -> None:
        row: dict[str, Any] = {
            "seed": seed,
            "method": name,
            "members": members,
            "bytes": members * one,
            "bytes_of_one": one,
            "iterations": iterations,
            "member_iterations": ensemble.iterations[-members:],
            **{part: result[key] for part, result in measured.items()},
        }
        if key == "pooled":
            row["each"] = {part: result["members"] for part, result in measured.items()}
            row["growing"] = {part: result["growing"] for part, result in measured.items()}
        append_result(bench.folder.results, row)

    if bench.engine.is_first:
        # First, so that a crash between the two leaves the method to be measured again.
        if last and f"{method}*" not in _rows(bench, seed):
            append(f"{method}*", "last", last)
        append(method, "pooled", len(ensemble))

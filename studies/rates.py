"""Runs of a study at several rates: where they lie, what they measured, and which rate each method gets."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from pfge.lab.run.folder import RunFolder
from pfge.lab.run.results import ComparisonRow, require_rows
from pfge.methods import known_rows


def rate_folder(out: Path, what: str, rate: float) -> Path:
    return out / f"{what}-{rate:g}"


def rows_of(folder: Path) -> list[ComparisonRow]:
    return require_rows(RunFolder(folder).results, ComparisonRow)


def methods_of(*folders: Path) -> list[str]:
    """Return the methods that runs have measured, in the order of all tables."""
    names = {row.method for folder in folders for row in rows_of(folder)}
    return [row for row in known_rows() if row in names]


def member_counts(folders: Sequence[Path]) -> dict[str, int]:
    return {row.method: row.members for folder in folders for row in rows_of(folder)}


def by_seed(
    folder: Path, method: str, metric: str, *, calibrated: bool, part: str = "test"
) -> dict[int, float]:
    """Return the number of each seed that was run, in their order."""
    found = {}
    for row in sorted((row for row in rows_of(folder) if row.method == method), key=lambda row: row.seed):
        metrics = row.metrics if not calibrated or row.calibrated is None else row.calibrated.metrics
        found[row.seed] = metrics[part][metric]
    return found


def values(folder: Path, method: str, metric: str, *, calibrated: bool, part: str = "test") -> list[float]:
    """Return one number for each seed, in their order."""
    return list(by_seed(folder, method, metric, calibrated=calibrated, part=part).values())


def validation_nlls(folder: Path, method: str) -> list[float]:
    return values(folder, method, "nll", calibrated=True, part="validation")


def validation_nll(folder: Path, method: str) -> float:
    return fmean(validation_nlls(folder, method))


def chosen_rate(out: Path, method: str, rates: Sequence[float]) -> float:
    """Return the rate with the lowest validation NLL among those that were run."""
    folders = {rate: rate_folder(out, "choose", rate) for rate in rates}
    tried = [rate for rate, folder in folders.items() if validation_nlls(folder, method)]
    return min(tried, key=lambda rate: validation_nll(folders[rate], method))

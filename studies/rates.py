"""Runs of a study at several rates: where they lie, what they measured, and which rate each method gets."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from pfge.lab.run.folder import RunFolder
from pfge.lab.run.result_lines import require_rows
from pfge.lab.run.results import ComparisonRow
from pfge.methods import known_rows

RATES = (0.05, 0.1, 0.2, 0.4)


def rate_folder(out: Path, what: str, rate: float) -> Path:
    return out / f"{what}-{rate:g}"


def rows_of(folder: Path) -> list[ComparisonRow]:
    return require_rows(RunFolder(folder).results, ComparisonRow)


def methods_of(folder: Path) -> list[str]:
    """Return the methods of a finished run, in the order of all tables."""
    names = {row.method for row in rows_of(folder)}
    return [row for row in known_rows() if row in names]


def member_counts(folders: Sequence[Path]) -> dict[str, int]:
    return {row.method: row.members for folder in folders for row in rows_of(folder)}


def values(folder: Path, method: str, metric: str, *, calibrated: bool, part: str = "test") -> list[float]:
    """Return one number for each seed, in their order."""
    rows = sorted((row for row in rows_of(folder) if row.method == method), key=lambda row: row.seed)
    found = []
    for row in rows:
        metrics = row.metrics if not calibrated or row.calibrated is None else row.calibrated.metrics
        found.append(metrics[part][metric])
    return found


def validation_nll(folder: Path, method: str) -> float:
    return fmean(values(folder, method, "nll", calibrated=True, part="validation"))


def chosen_rate(out: Path, method: str) -> float:
    return min(RATES, key=lambda rate: validation_nll(rate_folder(out, "choose", rate), method))

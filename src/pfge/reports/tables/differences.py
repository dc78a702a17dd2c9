"""Which differences between methods are more than noise, over test images and over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pfge.metrics.significance import Difference, SeedDifference, paired_bootstraps, seed_difference
from pfge.storage.files import read_tensors

COLUMNS = (
    "method",
    "accuracy, points",
    "95 % over images",
    "over seeds",
    "NLL",
    "95 % over images",
    "over seeds",
    "",
)
METRICS = ("correct", "log_loss")

SeedScores = Mapping[int, Mapping[str, Tensor]]
"""The scores of each example, by seed and by name."""


@dataclass(frozen=True)
class Against:
    """How a method differs from the reference in one metric."""

    over_images: Difference
    over_seeds: SeedDifference | None

    @property
    def within_noise(self) -> bool:
        """Whether another test set, or other seeds (two standard errors), might turn it round."""
        of_seeds = (
            self.over_seeds is not None and abs(self.over_seeds.mean) <= 2 * self.over_seeds.standard_error
        )
        return self.over_images.within_noise or of_seeds


def read_scores(files: Mapping[int, Path], part: str = "test") -> SeedScores:
    """Return a row's scores of each example, for every seed that has its file."""
    prefix = f"{part}."
    return {
        seed: {
            name.removeprefix(prefix): values
            for name, values in read_tensors(file)[0].items()
            if name.startswith(prefix) and "calibrated" not in name
        }
        for seed, file in files.items()
        if file.exists()
    }


def compare_all(methods: Mapping[str, SeedScores], reference: SeedScores) -> dict[str, dict[str, Against]]:
    """Return how each method differs from the reference, on the seeds that both have, if there are any.

    Images are drawn again and again for the mean over seeds, so that the interval is that of the test set;
    what seeds add is told apart, by the standard error of their differences.
    """
    shared = {
        method: sorted(seed for seed in scores if scores[seed] and reference.get(seed))
        for method, scores in methods.items()
    }
    pairs = [(method, name) for method, seeds in shared.items() if seeds for name in METRICS]
    if not pairs:
        return {}
    columns, of_seeds = [], []
    for method, name in pairs:
        first, second = (
            [scores[seed][name] for seed in shared[method]] for scores in (methods[method], reference)
        )
        columns.append((torch.stack(first) - torch.stack(second)).mean(0))
        of_seeds.append(
            seed_difference([x.mean().item() for x in first], [x.mean().item() for x in second])
            if len(first) > 1
            else None
        )
    found: dict[str, dict[str, Against]] = {}
    for (method, name), images, seeds in zip(
        pairs, paired_bootstraps(torch.stack(columns, 1)), of_seeds, strict=True
    ):
        found.setdefault(method, {})[name] = Against(images, seeds)
    return found


def difference_cells(rows: Mapping[str, Mapping[str, Against]]) -> list[list[str]]:
    """Return a row of text for each method."""
    cells = []
    for method, found in rows.items():
        accuracy, nll = (found[name] for name in METRICS)
        verdicts = [
            f"{name} {'worse' if (against.over_images.mean > 0) == (name == 'NLL') else 'better'}"
            for name, against in (("accuracy", accuracy), ("NLL", nll))
            if not against.within_noise
        ]
        cells.append(
            [method, *_show(accuracy, 100, 2), *_show(nll, 1, 4), ", ".join(verdicts) or "within noise"]
        )
    return cells


def _show(against: Against, factor: float, digits: int) -> Sequence[str]:
    images, seeds = against.over_images, against.over_seeds
    return (
        f"{factor * images.mean:+.{digits}f}",
        f"{factor * images.low:+.{digits}f} to {factor * images.high:+.{digits}f}",
        "one seed" if seeds is None else f"± {factor * seeds.standard_error:.{digits}f}",
    )

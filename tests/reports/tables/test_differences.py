"""Which differences between methods are more than noise."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from pfge.reports.tables.differences import COLUMNS, compare_all, difference_cells, read_scores
from pfge.storage.files import write_tensors


def scores(correct: float, log_loss: float, *, count: int = 400, shift: int = 0) -> dict[str, Tensor]:
    """Return examples of which a share is right, all with one log loss but for a wave."""
    right = (torch.arange(count).roll(shift) < correct * count).double()
    wave = torch.linspace(-0.1, 0.1, count, dtype=torch.float64).roll(shift)
    return {"correct": right, "log_loss": log_loss + wave}


def cells_of(method: dict[int, dict[str, Tensor]], reference: dict[int, dict[str, Tensor]]) -> dict[str, str]:
    (cells,) = difference_cells(compare_all({"FGE": method}, reference))
    return {f"{index}": cell for index, cell in enumerate(cells)} | {"verdict": cells[-1]}


def test_a_difference_on_every_example_is_no_noise() -> None:
    cells = cells_of({1: scores(0.9, 0.30)}, {1: scores(0.9, 0.25)})
    assert list(cells.values())[1:7] == [
        "+0.00",
        "+0.00 to +0.00",
        "one seed",
        "+0.0500",
        "+0.0500 to +0.0500",
        "one seed",
    ]
    assert cells["verdict"] == "NLL worse"


def test_better_and_worse_are_seen_from_the_method() -> None:
    assert (
        cells_of({1: scores(0.95, 0.2)}, {1: scores(0.85, 0.3)})["verdict"] == "accuracy better, NLL better"
    )
    assert cells_of({1: scores(0.85, 0.3)}, {1: scores(0.95, 0.2)})["verdict"] == "accuracy worse, NLL worse"


def test_what_other_images_could_turn_round_is_within_noise() -> None:
    # 360 of 400 are right in both, but 40 that are right in one are wrong in the other.
    cells = cells_of({1: scores(0.9, 0.3, shift=40)}, {1: scores(0.9, 0.3)})
    assert cells["verdict"] == "within noise"


def test_what_other_seeds_could_turn_round_is_within_noise() -> None:
    # On every image, but +0.05 with one seed and -0.04 with the other: mean 0.005, standard error 0.045.
    reference = {seed: scores(0.9, 0.25) for seed in (1, 2)}
    cells = cells_of({1: scores(0.9, 0.30), 2: scores(0.9, 0.21)}, reference)
    assert cells["4"] == "+0.0050"
    assert cells["6"] == "± 0.0450"
    assert cells["verdict"] == "within noise"


def test_only_seeds_that_both_have_are_compared() -> None:
    both = {1: scores(0.9, 0.3), 2: scores(0.1, 9.0)}
    found = compare_all({"FGE": both}, {1: scores(0.9, 0.2), 3: scores(0.5, 0.1)})["FGE"]
    assert found["log_loss"].over_images.mean == pytest.approx(0.1)
    assert found["log_loss"].over_seeds is None
    assert compare_all({"FGE": {2: scores(0.9, 0.3)}}, {1: scores(0.9, 0.3)}) == {}


def test_scores_are_read_of_one_part_as_predicted(tmp_path: Path) -> None:
    tensors = {
        "test.correct": torch.ones(3),
        "test.calibrated.correct": torch.zeros(3),
        "validation.correct": torch.zeros(2),
    }
    write_tensors(tmp_path / "there.safetensors", tensors)
    found = read_scores({1: tmp_path / "there.safetensors", 2: tmp_path / "missing.safetensors"})
    assert found.keys() == {1}
    assert found[1].keys() == {"correct"}
    assert found[1]["correct"].tolist() == [1, 1, 1]


def test_there_is_a_cell_for_each_column() -> None:
    found = compare_all({"FGE": {1: scores(0.9, 0.3)}}, {1: scores(0.9, 0.3)})
    (cells,) = difference_cells(found)
    assert len(cells) == len(COLUMNS)

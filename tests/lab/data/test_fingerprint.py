from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from pfge.lab.data.base import Fingerprint, digest
from pfge.lab.data.datasets import DatasetPart
from pfge.lab.data.in_memory import TensorSet
from pfge.lab.data.pictures import StreamedPictures, find_pictures, read_pictures
from tests.lab.data.datasets.made import Drawing
from tests.lab.data.made import random_images, write_pictures


def part(items: Any) -> DatasetPart:
    return DatasetPart.of_all(items, "training data", ("a", "b", "c"), None, 0)


def test_a_digest_is_of_values_types_shapes_and_order() -> None:
    x = torch.arange(4.0)
    same = (x, "a", {"n": 1, "y": np.ones(2)}, None)
    assert digest(*same) == digest(x.clone(), "a", {"n": 1, "y": np.ones(2)}, None)
    others = [
        (x.double(),),
        (x.view(2, 2),),
        (x.flip(0),),
        (x, x),
        ([x],),
        ("x",),
        (1,),
        (True,),
        (None,),
        (x.numpy(),),
    ]
    assert len({digest(*values) for values in [(x,), *others]}) == len(others) + 1


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (Fingerprint("images", 10, "t", "c"), None),
        (Fingerprint("images", 10, "", ""), None),
        (Fingerprint("images", 1160, "t", "c"), "10 images then, 1,160 now"),
        (Fingerprint("items", 10, "t", "c"), "10 images then, 10 items now"),
        (
            Fingerprint("images", 10, "u", "d"),
            "the same number of images, with other targets or in another order",
        ),
        (
            Fingerprint("images", 10, "t", "d"),
            "the same number of images, but different ones or in another order",
        ),
    ],
)
def test_the_difference_is_named(now: Fingerprint, expected: str | None) -> None:
    assert Fingerprint("images", 10, "t", "c").difference(now) == expected


def test_images_in_memory_are_told_apart_by_pixels_and_labels() -> None:
    data = random_images(6)
    assert data.fingerprint() == random_images(6).fingerprint()
    assert data.fingerprint().difference(random_images(6, seed=1).fingerprint()) is not None
    assert data.fingerprint().difference(data.select([1, 0, 2, 3, 4, 5]).fingerprint()) is not None


@pytest.mark.parametrize("streamed", [False, True])
def test_pictures_are_told_apart_by_names_and_sizes_of_files(tmp_path: Path, streamed: bool) -> None:
    def fingerprint() -> Fingerprint:
        files = find_pictures(tmp_path)
        return (StreamedPictures(files, 8) if streamed else read_pictures(files, size=8)).fingerprint()

    write_pictures(tmp_path / "a", 5)
    before = fingerprint()
    assert before == fingerprint()
    write_pictures(tmp_path / "a", 1, width=30)
    assert (
        before.difference(fingerprint())
        == "the same number of images, but different ones or in another order"
    )
    write_pictures(tmp_path / "a", 5)
    assert before == fingerprint()
    (tmp_path / "a" / "0.png").rename(tmp_path / "a" / "9.png")
    assert before.difference(fingerprint()) is not None


def test_tensors_are_told_apart_by_every_value() -> None:
    inputs, targets = torch.zeros(6, 2), torch.arange(6) % 2
    before = TensorSet(inputs, targets, ("a", "b")).fingerprint()
    changed = inputs.clone()
    changed[3, 1] = 1e-30
    assert before.difference(TensorSet(changed, targets, ("a", "b")).fingerprint()) is not None
    assert before.difference(TensorSet(inputs, targets.flip(0), ("a", "b")).fingerprint()) is not None
    assert before.difference(TensorSet(inputs, targets, ("a", "c")).fingerprint()) is not None


def test_datasets_are_told_apart_by_selection_targets_and_three_items() -> None:
    data = part(Drawing(20))
    assert data.fingerprint() == part(Drawing(20)).fingerprint()
    assert data.fingerprint().targets
    assert data.fingerprint().content
    assert data.fingerprint().difference(part(Drawing(20, seed=1)).fingerprint()) is not None
    last_swapped = data.select([*range(18), 19, 18])
    assert data.fingerprint().difference(last_swapped.fingerprint()) is not None
    rows = [torch.zeros(6, 2), torch.ones(6, 2).index_fill(0, torch.tensor(1), 0)]
    first, second = (part(TensorDataset(values, torch.arange(6) % 3)).fingerprint() for values in rows)
    assert first.difference(second) is not None


def test_items_that_a_generator_of_their_own_changes_do_not_count() -> None:
    class Unsteady(Drawing):
        generator = np.random.default_rng(0)

        def __getitem__(self, index: int) -> Any:
            return torch.tensor(self.generator.random()), int(self.targets[index])

    assert part(Unsteady(20)).fingerprint().content == ""


def test_reading_three_items_leaves_global_random_numbers_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(())
    torch.manual_seed(1)
    part(Drawing(20)).fingerprint()
    assert torch.rand(()) == expected

import torch
from torch import Tensor

from pfge.lab.models.packages import other_head


def tensors(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


OWN = tensors(body=(4, 3), weight=(7, 4), bias=(7,))


def test_a_head_is_what_differs_in_its_classes_alone() -> None:
    found = tensors(body=(4, 3), weight=(1000, 4), bias=(1000,))
    assert other_head(found, OWN, 7) == ["weight", "bias"]


def test_a_head_that_fits_is_left_alone() -> None:
    assert other_head(tensors(body=(4, 3), weight=(7, 4), bias=(7,)), OWN, 7) == []


def test_there_is_none_where_anything_else_differs() -> None:
    assert other_head(tensors(body=(5, 3), weight=(1000, 4), bias=(1000,)), OWN, 7) == []
    assert other_head(tensors(body=(4, 3), weight=(1000, 5), bias=(1000,)), OWN, 7) == []
    assert other_head(tensors(body=(9, 3), weight=(7, 4), bias=(7,)), OWN, 7) == []

import pytest
import torch
from torch import Tensor

from pfge.compression.rate_distortion import sample_channels


def make_tensors(differing: list[int], channels: int = 10) -> tuple[list[Tensor], Tensor]:
    """Two members of long channels, of which two are sampled, that differ in some; and their mean."""
    tensors = [torch.ones(channels, 2, 4096) for _ in range(2)]
    for channel in differing:
        tensors[1][channel, 1, 7] = 2
    return tensors, (tensors[0] + tensors[1]) / 2


@pytest.mark.parametrize(
    ("differing", "expected"),
    [
        ([0], [0, 1]),
        ([1, 5, 9], [0, 1]),
        ([2, 3, 4, 6, 7, 8, 9], [2, 6]),  # the first of each half of them
        ([4, 9], [4, 9]),
        ([9], [9]),
        ([], [0, 1]),
    ],
)
def test_the_first_channels_are_sampled_unless_members_are_alike_in_them(
    differing: list[int], expected: list[int]
) -> None:
    channels = sample_channels(*make_tensors(differing))
    assert torch.arange(10)[channels].tolist() == expected


def test_a_short_tensor_is_sampled_whole() -> None:
    channels = sample_channels(*make_tensors([], channels=2))
    assert torch.arange(2)[channels].tolist() == [0, 1]

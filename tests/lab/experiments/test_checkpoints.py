"""Checkpoints that lie apart, and those that lie in one valley."""

from pathlib import Path

import pytest

from pfge.lab.experiments.checkpoints import Barrier


@pytest.mark.parametrize(
    ("ends", "middle", "high"),
    [(1.0, 1.54, False), (1.0, 1.56, True), (-1.0, -1.0, False), (-1.0, -0.46, False), (-1.0, -0.44, True)],
)
def test_a_barrier_is_high_from_half_the_size_of_the_loss(ends: float, middle: float, high: bool) -> None:
    assert Barrier(Path("a"), Path("b"), ends, middle).is_high == high

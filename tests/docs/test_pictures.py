"""The pictures of methods show what the methods do."""

from pathlib import Path

import numpy as np
import pytest
from site_extension import pictures
from site_extension.pictures import SETTING, W0, walk

from pfge.methods import METHODS


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_drawn(name: str, tmp_path: Path) -> None:
    pictures.draw(METHODS[name], tmp_path / "a" / f"{name}.svg")
    assert (tmp_path / "a" / f"{name}.svg").read_text().rstrip().endswith("</svg>")


def test_a_member_of_pfge_is_the_mean_of_its_period_and_the_next_start() -> None:
    found = walk(METHODS["PFGE"])
    assert found.iterations == [60, 120, 180, 240]
    points = np.array(found.taken).reshape(4, 5, 2)
    starts = [np.array(W0), *found.members[:-1]]
    for start, of_period, member in zip(starts, points, found.members, strict=True):
        assert np.allclose(member, np.mean([start, *of_period], axis=0))
    assert all(np.allclose(piece[0], start) for piece, start in zip(found.pieces, starts, strict=True))


def test_a_member_of_fge_is_the_point_that_was_taken() -> None:
    found = walk(METHODS["FGE"])
    assert len(found.pieces) == 1
    assert np.allclose(found.members, found.taken)
    assert found.iterations == list(range(SETTING.cycle, SETTING.iterations + 1, SETTING.cycle))


def test_every_period_of_a_star_starts_from_w0() -> None:
    found = walk(METHODS["Star"])
    assert [tuple(piece[0]) for piece in found.pieces] == [W0] * 4


def test_a_method_without_a_path_cannot_be_walked() -> None:
    with pytest.raises(ValueError, match="DeepEnsemble has no collector"):
        walk(METHODS["DeepEnsemble"])

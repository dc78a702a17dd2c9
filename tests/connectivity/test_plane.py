"""A plane through three points of weight space."""

import pytest
import torch

from pfge import Weights
from pfge.connectivity import Plane
from pfge.weights import copy_weights, distance, view_weights
from tests.toys import assert_same_weights, make_mlp


def point(*values: float) -> Weights:
    return {"w": torch.tensor(values, dtype=torch.float32), "count": torch.tensor(3)}


def test_coordinates_worked_out_by_hand() -> None:
    # From (1, 1, 0): the first axis is (0, 1, 0); (3, 2, 0) is 1 along it and 2 across it, along (1, 0, 0).
    plane = Plane((point(1, 1, 0), point(1, 5, 0), point(3, 2, 0)))
    assert plane.coordinates(point(1, 1, 0)) == (0, 0)
    assert plane.coordinates(point(1, 5, 0)) == (4, 0)
    assert plane.coordinates(point(3, 2, 0)) == (2 - 1, 2)
    assert plane.coordinates(point(0, 0, 7)) == (-1, -1)
    assert plane.distance(point(0, 0, 7)) == 7
    assert plane.at(1, 2)["w"].tolist() == [3, 2, 0]
    assert plane.at(1, 2)["count"] == 3


def test_distances_on_the_plane_are_those_in_weight_space() -> None:
    members = [copy_weights(view_weights(make_mlp(seed))) for seed in range(3)]
    plane = Plane((members[0], members[1], members[2]))
    places = [torch.tensor(plane.coordinates(member)) for member in members]
    for i in range(3):
        assert plane.distance(members[i]) == pytest.approx(0, abs=1e-6)
        for j in range(i):
            assert (places[i] - places[j]).norm().item() == pytest.approx(
                distance(members[i], members[j]), rel=1e-5
            )


def test_a_point_comes_back_from_its_coordinates() -> None:
    members = [copy_weights(view_weights(make_mlp(seed))) for seed in range(3)]
    plane = Plane((members[0], members[1], members[2]))
    for member in members:
        found = plane.at(*plane.coordinates(member))
        for name, tensor in member.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)
    assert_same_weights(plane.at(0, 0), members[0])


def test_only_trained_tensors_count() -> None:
    points = [
        {"a": torch.tensor(a), "b": torch.tensor([9.0 * a[0]])} for a in ([0.0, 0.0], [1.0, 0.0], [0.0, 1.0])
    ]
    plane = Plane((points[0], points[1], points[2]), trained=["a"])
    assert plane.coordinates(points[1]) == (1, 0)
    assert plane.at(1, 1)["b"].item() == 0


@pytest.mark.parametrize("third", [point(1, 1, 1), point(0, 0, 0), point(2, 2, 2)])
def test_points_on_one_line_span_no_plane(third: Weights) -> None:
    with pytest.raises(ValueError, match="three points that are not on one line"):
        Plane((point(0, 0, 0), point(1, 1, 1), third))


def test_the_same_point_twice_spans_no_plane() -> None:
    with pytest.raises(ValueError, match="three points that are not on one line"):
        Plane((point(0, 0, 0), point(0, 0, 0), point(1, 0, 0)))


def test_points_of_different_architectures_are_refused() -> None:
    with pytest.raises(ValueError, match="point 1 and point 3 must have the same tensors"):
        Plane((point(0, 0, 0), point(1, 0, 0), point(1, 0)))

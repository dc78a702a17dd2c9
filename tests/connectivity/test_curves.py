"""Points on curves against closed forms, and ends that are exact."""

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfge import Weights, load_checkpoint, save_checkpoint
from pfge.connectivity import Bezier, Curve, PolygonalChain
from pfge.weights import copy_weights, interpolate, trained_names, view_weights
from tests.toys import assert_same_weights, make_mlp

KINDS = pytest.mark.parametrize("kind", [Bezier, PolygonalChain])


def plane(x: float, y: float) -> Weights:
    return {"w": torch.tensor([x, y], dtype=torch.float64)}


def set_bends(curve: Curve, *points: tuple[float, float]) -> None:
    with torch.no_grad():
        for bend, (x, y) in zip(curve.bends, points, strict=True):
            bend["w"].copy_(torch.tensor([x, y], dtype=torch.float64))


def at(curve: Curve, t: float) -> list[float]:
    found: list[float] = curve.at(t)["w"].tolist()
    return found


# Inside


def test_a_bezier_curve_with_one_bend_is_a_parabola() -> None:
    curve = Bezier(plane(-1, 0), plane(3, 2))
    set_bends(curve, (1, 4))
    # (1-t)^2 a + 2t(1-t) b + t^2 c at 1/4: 9/16 (-1, 0) + 6/16 (1, 4) + 1/16 (3, 2)
    assert at(curve, 0.25) == pytest.approx([0.0, 26 / 16])


def test_a_bezier_curve_with_two_bends_is_a_cubic() -> None:
    curve = Bezier(plane(0, 0), plane(1, 0), bends=2)
    set_bends(curve, (0, 1), (1, 1))
    # at 1/2: (1, 3, 3, 1) / 8
    assert at(curve, 0.5) == pytest.approx([0.5, 0.75])


def test_a_chain_passes_through_its_bends_and_is_straight_between() -> None:
    curve = PolygonalChain(plane(0, 0), plane(3, 0), bends=2)
    set_bends(curve, (0, 3), (3, 3))
    assert at(curve, 1 / 3) == pytest.approx([0, 3])
    assert at(curve, 2 / 3) == pytest.approx([3, 3])
    assert at(curve, 1 / 6) == pytest.approx([0, 1.5])
    assert at(curve, 1 / 2) == pytest.approx([1.5, 3])
    assert at(curve, 5 / 6) == pytest.approx([3, 1.5])


@given(t=st.floats(0, 1), points=st.lists(st.floats(-9, 9), min_size=2, max_size=6))
@settings(max_examples=50)
def test_a_bezier_curve_is_de_casteljaus_construction(t: float, points: list[float]) -> None:
    start, *bends, end = points
    curve = Bezier(plane(start, 0), plane(end, 0), len(bends))
    set_bends(curve, *((bend, 0) for bend in bends))
    while len(points) > 1:
        points = [(1 - t) * left + t * right for left, right in itertools.pairwise(points)]
    assert at(curve, t)[0] == pytest.approx(points[0], abs=1e-12)


@given(t=st.floats(0, 1), bends=st.integers(0, 5))
@settings(max_examples=50)
def test_the_coefficients_of_a_chain_weigh_two_neighbours_whose_centre_is_at_t(t: float, bends: int) -> None:
    found = PolygonalChain(plane(0, 0), plane(1, 1), bends).coefficients(t)
    used = [k for k, c in enumerate(found) if c]
    assert len(found) == bends + 2
    assert used[-1] - used[0] <= 1
    assert min(found) >= 0
    assert sum(found) == pytest.approx(1)
    assert sum(k * c for k, c in enumerate(found)) == pytest.approx((bends + 1) * t)


@KINDS
@given(t=st.floats(0, 1), bends=st.integers(0, 4))
@settings(max_examples=20)
def test_a_curve_begins_as_the_straight_line(kind: type[Curve], t: float, bends: int) -> None:
    curve = kind(plane(-1, 5), plane(3, 2), bends)
    assert at(curve, t) == pytest.approx(interpolate(plane(-1, 5), plane(3, 2), t)["w"].tolist())


@KINDS
def test_without_bends_a_curve_is_interpolation(kind: type[Curve]) -> None:
    start, end = view_weights(make_mlp(0)), view_weights(make_mlp(1))
    point, expected = kind(start, end, 0).at(0.3), interpolate(start, end, 0.3)
    assert point.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(point[name], expected[name])


def test_bf16_points_are_computed_in_float32() -> None:
    # 1 and 1 + 1/128 are neighbors in bf16; a bend half way exists only in a wider type.
    start, end = {"w": torch.tensor(1.0).bfloat16()}, {"w": torch.tensor(1 + 1 / 128).bfloat16()}
    curve = Bezier(start, end)
    assert curve.bends[0]["w"].dtype == torch.float32
    assert curve.bends[0]["w"].item() == 1 + 1 / 256
    assert curve.at(0.9)["w"].dtype == torch.bfloat16
    assert curve.at(0.9)["w"].item() == 1 + 1 / 128


# Ends


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_ends_are_exact_in_any_type(kind: type[Curve], dtype: torch.dtype) -> None:
    start, end = (view_weights(make_mlp(seed).to(dtype)) for seed in (0, 1))
    curve = kind(start, end, 3)
    assert_same_weights(curve.at(0), start)
    assert_same_weights(curve.at(1), end)


def test_the_ends_are_exact_in_channels_last() -> None:
    start, end = (
        {"w": torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(seed))} for seed in (0, 1)
    )
    last = [{"w": w["w"].to(memory_format=torch.channels_last)} for w in (start, end)]
    curve = Bezier(*last)
    assert curve.bends[0]["w"].is_contiguous(memory_format=torch.channels_last)
    assert_same_weights(curve.at(0), start)
    assert_same_weights(curve.at(1), end)
    torch.testing.assert_close(curve.at(0.25), Bezier(start, end).at(0.25))


def test_the_ends_are_those_of_construction_whatever_becomes_of_the_model() -> None:
    model = make_mlp(0)
    before = copy_weights(view_weights(model))
    curve = Bezier(view_weights(model), view_weights(make_mlp(1)))
    with torch.no_grad():
        model[0].weight.zero_()
    assert_same_weights(curve.at(0), before)


def test_a_point_is_a_copy() -> None:
    curve = Bezier(plane(0, 0), plane(1, 1))
    curve.at(0)["w"].fill_(9)
    curve.at(0.5)["w"].fill_(9)
    assert at(curve, 0) == [0, 0]
    assert at(curve, 0.5) == pytest.approx([0.5, 0.5])


# What is on the curve


def test_buffers_and_frozen_parameters_are_those_of_the_nearer_end() -> None:
    model = make_mlp(0)
    model[0].weight.requires_grad_(False)
    start = copy_weights(view_weights(model))
    end = {name: tensor + 1 for name, tensor in start.items()}
    curve = Bezier(start, end, trained=trained_names(model))
    assert sorted(curve.names) == ["0.bias", "1.bias", "1.weight", "4.bias", "4.weight"]
    for t, nearer in ((0.5, start), (0.51, end)):
        point = curve.at(t)
        assert point.keys() == start.keys()
        for name in ("0.weight", "1.running_mean", "1.running_var", "1.num_batches_tracked"):
            assert torch.equal(point[name], nearer[name]), name
    torch.testing.assert_close(curve.at(0.51)["0.bias"], start["0.bias"] + 0.51)


def test_whole_numbers_are_never_on_the_curve() -> None:
    start, end = ({"w": torch.tensor(float(n)), "n": torch.tensor(n)} for n in (1, 9))
    curve = Bezier(start, end)
    assert curve.names == ["w"]
    assert [curve.at(t)["n"].item() for t in (0.2, 0.8)] == [1, 9]


# On disk


def test_the_bends_survive_a_file(tmp_path: Path) -> None:
    start, end = view_weights(make_mlp(0)), view_weights(make_mlp(1))
    curve, other = Bezier(start, end, 2), Bezier(start, end, 2)
    with torch.no_grad():
        for tensor in curve.parameters():
            tensor.add_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)))
    save_checkpoint(tmp_path / "curve", curve.state_dict())
    other.load_state_dict(load_checkpoint(tmp_path / "curve"))
    assert_same_weights(other.at(0.3), curve.at(0.3))
    assert not torch.equal(curve.at(0.3)["0.weight"], Bezier(start, end).at(0.3)["0.weight"])


def test_the_state_of_another_kind_of_curve_is_refused() -> None:
    state = PolygonalChain(plane(0, 0), plane(1, 1)).state_dict()
    message = "this curve is a Bezier with 2 bends, got the state of a PolygonalChain with 1 bends"
    with pytest.raises(ValueError, match=message):
        Bezier(plane(0, 0), plane(1, 1), 2).load_state_dict(state)


def test_the_state_of_a_curve_over_other_tensors_is_refused_and_changes_nothing() -> None:
    curve = Bezier(plane(0, 0), plane(1, 1))
    other = Bezier({"w": torch.zeros(3)}, {"w": torch.ones(3)})
    with pytest.raises(ValueError, match=r"w is \[2\] in the curve and \[3\] in the state"):
        curve.load_state_dict(other.state_dict())
    assert at(curve, 0.5) == pytest.approx([0.5, 0.5])


# What cannot be


@pytest.mark.parametrize("t", [-0.01, 1.01, float("nan")])
def test_a_t_outside_is_refused(t: float) -> None:
    with pytest.raises(ValueError, match=r"t must be from 0 \(the start\) to 1 \(the end\), got"):
        Bezier(plane(0, 0), plane(1, 1)).at(t)


def test_ends_of_different_architectures_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"4\.weight is \[3, 8\] in the start and \[5, 8\] in the end"):
        Bezier(view_weights(make_mlp()), view_weights(make_mlp(classes=5)))


def test_fewer_bends_than_none_are_refused() -> None:
    with pytest.raises(ValueError, match="bends must be at least 0, got -1"):
        Bezier(plane(0, 0), plane(1, 1), -1)


def test_a_curve_over_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="a curve needs a trained floating-point tensor"):
        Bezier({"n": torch.tensor(1)}, {"n": torch.tensor(2)})


def test_a_name_that_the_ends_do_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="trained must name tensors of the ends, got 'v'"):
        Bezier(plane(0, 0), plane(1, 1), trained=["w", "v"])

"""Along a curve: values worked by hand, ends that are the members', and a model that is left alone."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pfge import load_weights, refresh_batch_norm
from pfge.connectivity import Bezier, CurveTrace, mode_connectivity, trace_curve
from pfge.weights import copy_weights, distance, trained_names, view_weights
from tests.connectivity.curved_models import MODELS, Clamping, Point, loss_in_its_type, ring, seeded
from tests.toys import make_batch, make_mlp

BATCH = make_batch(9, size=40)
INPUTS = [make_batch(1)[0], make_batch(2)[0]]


def ring_loss(model: nn.Module) -> dict[str, float]:
    return {"train_loss": float(ring(model, None))}


def line(bends: int = 0) -> Bezier:
    return Bezier(view_weights(Point(-1, 0)), view_weights(Point(1, 0)), bends)


def trace_of(*values: float) -> CurveTrace:
    places = [index / (len(values) - 1) for index in range(len(values))]
    return CurveTrace(places, {"train_loss": values}, [0.0] * len(values))


# Values


def test_a_trace_of_a_line_across_a_barrier_has_its_closed_form() -> None:
    # At t the line is at (2t - 1, 0), where the loss is ((2t - 1)² - 1)² and the squared norm (2t - 1)².
    trace = trace_curve(line(), Point(), ring_loss)
    assert len(trace.t) == 61
    assert trace.t[0] == 0
    assert trace.t[-1] == 1
    assert trace.t == pytest.approx([i / 60 for i in range(61)])
    assert trace.of("train_loss") == pytest.approx([((2 * t - 1) ** 2 - 1) ** 2 for t in trace.t])
    assert trace.squared_norms == pytest.approx([(2 * t - 1) ** 2 for t in trace.t])


def test_the_mode_connectivity_of_that_line_is_minus_the_height_of_the_barrier() -> None:
    # The ends have loss 0, the middle 1.
    assert mode_connectivity(trace_curve(line(), Point(), ring_loss)) == -1.0


def test_the_mode_connectivity_of_a_curve_around_the_barrier_is_worked_by_hand() -> None:
    # A bend at (0, 2): the point is (2t - 1, 4t(1-t)). With s = 2t - 1 that is (s, 1 - s²), so that
    # x² + y² - 1 = s⁴ - s², largest in size at s² = 1/2: the loss is 1/16 there. s² = 1/2 is between points.
    curve = line(1)
    with torch.no_grad():
        curve.bends[0]["w"].copy_(torch.tensor([0.0, 2.0]))
    trace = trace_curve(curve, Point(), ring_loss)
    assert trace.of("train_loss") == pytest.approx(
        [((2 * t - 1) ** 4 - (2 * t - 1) ** 2) ** 2 for t in trace.t], abs=1e-15
    )
    assert mode_connectivity(trace) == pytest.approx(-1 / 16, abs=1e-4)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1.0, 5.0, 3.0), -3.0),  # a barrier: mean of the ends 2, inside 5
        ((1.0, 0.5, 3.0), 1.5),  # the inside is better: 2 - 0.5
        ((1.0, 2.5, 0.0, 3.0), 2.0),  # 2 is more than 0.5
        ((1.0, 2.0, 1.0), -1.0),
        ((2.0, 2.0), 0.0),
        ((1.0, 2.0, 3.0), 1.0),  # the largest in size is at an end itself
    ],
)
def test_mode_connectivity_takes_the_largest_difference_from_the_mean_of_the_ends(
    values: tuple[float, ...], expected: float
) -> None:
    assert mode_connectivity(trace_of(*values)) == expected


def test_mode_connectivity_is_of_any_quantity() -> None:
    trace = CurveTrace([0, 0.5, 1], {"train_loss": [0, 1, 0], "train_error": [0.2, 0.1, 0.4]}, [0, 0, 0])
    assert mode_connectivity(trace) == -1
    assert mode_connectivity(trace, "train_error") == pytest.approx(0.2)


def test_statistics_are_the_extremes_and_the_mean_over_points() -> None:
    found = trace_of(1.0, 6.0, 0.5, 2.5).statistics("train_loss")
    assert (found.max, found.min, found.mean) == (6.0, 0.5, 2.5)


def test_the_penalty_is_half_the_weight_decay_times_the_squared_norm() -> None:
    trace = trace_curve(line(), Point(), ring_loss, 3).with_penalty("train_loss", 0.2)
    assert trace.of("train_loss") == pytest.approx([0.1, 1.0, 0.1])  # norms 1, 0, 1
    assert mode_connectivity(trace) == pytest.approx(-0.9)


def test_the_squared_norm_is_that_of_the_trained_tensors() -> None:
    model = make_mlp(0)
    trained = trained_names(model)
    curve = Bezier(view_weights(model), view_weights(make_mlp(1)), trained=trained)
    trace = trace_curve(curve, model, lambda _: {"zero": 0.0}, 2, refresh=INPUTS)
    mine = {name: tensor for name, tensor in view_weights(model).items() if name in trained}
    zero = {name: torch.zeros_like(tensor) for name, tensor in mine.items()}
    assert trace.squared_norms[0] == pytest.approx(distance(zero, mine) ** 2)


# Ends and models


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_the_loss_at_the_ends_is_the_members_and_the_model_is_left_alone(
    build: Callable[[int], nn.Module],
) -> None:
    def forward(model: nn.Module, x: Tensor) -> Tensor:
        return model(x.to(next(model.parameters()).dtype))

    def evaluate(model: nn.Module) -> dict[str, float]:
        assert not any(module.training for module in model.modules())
        return {"loss": loss_in_its_type(model, BATCH).item()}

    start, end, model = build(0), build(1), build(2)
    curve = Bezier(view_weights(start), view_weights(end), trained=trained_names(model))
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    values = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    random = torch.random.get_rng_state()
    trace = trace_curve(curve, model, evaluate, 3, refresh=INPUTS, forward=forward)
    expected = []
    for member in (start, end):
        alone = build(3)
        load_weights(alone, view_weights(member))
        refresh_batch_norm(alone, INPUTS, forward=forward)
        with torch.no_grad():
            expected.append(evaluate(alone.eval())["loss"])
    assert [trace.of("loss")[0], trace.of("loss")[-1]] == expected
    assert trace.of("loss")[1] not in expected
    assert model.training
    after = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, tensor in tensors.items():
        assert after[name] is tensor, name
        assert torch.equal(tensor, values[name]), name
    assert torch.equal(torch.random.get_rng_state(), random)


def test_batch_norm_is_that_of_the_point_everywhere() -> None:
    model = make_mlp()
    curve = Bezier(view_weights(make_mlp(0)), view_weights(make_mlp(1)), trained=trained_names(model))
    seen: list[Tensor] = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        seen.append(model[1].running_mean.clone())
        return {}

    trace_curve(curve, model, evaluate, 3, refresh=INPUTS)
    for t, mean in zip((0, 0.5, 1), seen, strict=True):
        point = curve.at(t)
        expected = (torch.cat(INPUTS) @ point["0.weight"].T + point["0.bias"]).mean(dim=0)
        torch.testing.assert_close(mean, expected)


def test_the_model_comes_back_when_evaluating_fails() -> None:
    model = Point(0.3, 0.4)
    before = copy_weights(view_weights(model))

    def fail(_: nn.Module) -> dict[str, float]:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        trace_curve(line(), model, fail)
    assert model.training
    assert torch.equal(model.w, before["w"])


# What cannot be


def refused(*arguments: Any, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the test looks at the message
        trace_curve(*arguments, **options)
    return str(caught.value)


def test_one_point_is_no_trace() -> None:
    message = refused(line(), Point(), ring_loss, 1)
    assert message == "points must be at least 2 (the ends), got 1"


@pytest.mark.parametrize("bad", [nan, inf])
def test_a_value_that_is_not_finite_is_named_with_its_point(bad: float) -> None:
    values = iter([1.0, bad])
    message = refused(line(), Point(), lambda _: {"test_loss": next(values)}, 5)
    assert (
        message == f"point 2 of 5 (t = 0.2500): test_loss is {bad}; fit the curve with a lower learning rate"
    )


def test_a_curve_that_ran_away_is_named_with_its_point() -> None:
    curve = line(1)
    with torch.no_grad():
        curve.bends[0]["w"].fill_(nan)
    message = refused(curve, Point(), ring_loss, 3)
    assert message.startswith("point 2 of 3 (t = 0.5000): the curve holds NaN or infinity in w")


def test_a_forward_pass_that_changes_parameters_is_refused_by_name() -> None:
    build = seeded(Clamping)
    curve = Bezier(view_weights(build(0)), view_weights(build(1)))

    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"loss": loss_in_its_type(model, BATCH).item()}

    assert "but it changed layer.weight" in refused(curve, build(2), evaluate)


def test_a_model_of_another_architecture_is_refused() -> None:
    assert "only the model has 0.weight" in refused(line(), make_mlp(), ring_loss)


def test_batch_norm_without_inputs_is_refused() -> None:
    curve = Bezier(view_weights(make_mlp(0)), view_weights(make_mlp(1)))
    assert "pass training inputs as refresh=" in refused(curve, make_mlp(), ring_loss)


def test_inputs_that_can_be_read_only_once_are_refused() -> None:
    curve = Bezier(view_weights(make_mlp(0)), view_weights(make_mlp(1)))
    message = refused(curve, make_mlp(), ring_loss, refresh=iter(INPUTS))
    assert message.startswith("refresh is read once for each point, got an iterator")


def test_a_quantity_that_was_not_evaluated_is_refused() -> None:
    with pytest.raises(ValueError, match="a trace has the quantities train_loss, got 'test_loss'"):
        mode_connectivity(trace_of(1.0, 2.0), "test_loss")

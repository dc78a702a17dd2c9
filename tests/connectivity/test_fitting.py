"""Fitting a curve: gradients worked by hand, a valley that is known, and a model that is left alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pfge.connectivity import Bezier, Curve, PolygonalChain, fit_curve
from pfge.schedules import LinearDecay
from pfge.weights import copy_weights, interpolate, trained_names, view_weights
from tests.connectivity.curved_models import MODELS, Clamping, Point, Tied, loss_in_its_type, ring, seeded
from tests.toys import assert_same_weights, classification_loss, make_batch, make_mlp

BATCHES = [make_batch(iteration) for iteration in range(1, 5)]


def plane_curve(kind: type[Curve] = Bezier, bends: int = 1, nudge: float = 0.0) -> Curve:
    """From (-1, 0) to (1, 0), each bend a little off the line, where the gradient across it is 0."""
    curve = kind(view_weights(Point(-1, 0)), view_weights(Point(1, 0)), bends)
    with torch.no_grad():
        for bend in curve.bends:
            bend["w"][1] += nudge
    return curve


def drawn(seed: int, count: int = 1) -> list[float]:
    """What the fit draws from a generator of that seed."""
    generator = torch.Generator().manual_seed(seed)
    return [float(torch.rand((), generator=generator, dtype=torch.float64)) for _ in range(count)]


def fit(
    curve: Curve,
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor] = classification_loss,
    *,
    iterations: int = 4,
    rate: float = 0.05,
    momentum: float = 0.9,
    seed: int = 0,
    **options: Any,
) -> None:
    optimizer = torch.optim.SGD(curve.parameters(), lr=rate, momentum=momentum)
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(0)  # dropout's
    fit_curve(
        curve,
        model,
        BATCHES,
        loss,
        optimizer=optimizer,
        iterations=iterations,
        generator=generator,
        **options,
    )


def between(build: Callable[[int], nn.Module], kind: type[Curve] = Bezier) -> Curve:
    start, end = build(0), build(1)
    return kind(view_weights(start), view_weights(end), trained=trained_names(start))


# The valley


def test_a_bezier_curve_finds_the_valley_around_a_barrier() -> None:
    # A parabola cannot be the circle; with its bend at (0, 2) the loss is 1/16 at the most.
    curve = plane_curve(nudge=0.1)
    fit(curve, Point(), ring, iterations=600, rate=0.05)
    losses = [float(ring_of(curve.at(i / 60)["w"])) for i in range(61)]
    assert max(losses) < 0.12
    assert float(ring_of(interpolate(curve.start, curve.end, 0.5)["w"])) == 1.0
    assert curve.bends[0]["w"][1].item() > 1.5


def test_a_chain_of_many_bends_follows_the_circle() -> None:
    curve = plane_curve(PolygonalChain, bends=5, nudge=0.1)
    fit(curve, Point(), ring, iterations=1500, rate=0.02)
    losses = [float(ring_of(curve.at(i / 60)["w"])) for i in range(61)]
    assert max(losses) < 0.06
    assert curve.at(0.5)["w"].norm().item() == pytest.approx(1, abs=0.1)


def ring_of(w: Tensor) -> Tensor:
    return (w.square().sum() - 1).square()


# Gradients


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_gradient_of_one_bend_is_2t_1_minus_t_times_that_of_the_point(seed: int) -> None:
    # One step of SGD at rate 1 moves the bend by minus its gradient. The loss is a w_x + b w_y.
    curve, (t,) = plane_curve(), drawn(seed)
    fit(
        curve,
        Point(),
        lambda model, _: model.w @ torch.tensor([3.0, -2.0], dtype=torch.float64),
        iterations=1,
        rate=1.0,
        seed=seed,
    )
    factor = 2 * t * (1 - t)
    assert curve.bends[0]["w"].tolist() == pytest.approx([-3 * factor, 2 * factor])


def test_the_gradients_of_three_bends_are_bernsteins_polynomials() -> None:
    curve, (t,) = plane_curve(bends=3), drawn(5)
    before = [bend["w"][1].item() for bend in curve.bends]
    fit(curve, Point(), lambda model, _: model.w[1], iterations=1, rate=1.0, seed=5)
    moved = [bend["w"][1].item() - old for bend, old in zip(curve.bends, before, strict=True)]
    s = 1 - t
    assert moved == pytest.approx([-4 * t * s**3, -6 * t**2 * s**2, -4 * t**3 * s])


def test_the_weight_penalty_pulls_the_point_not_the_bend() -> None:
    # The gradient of wd/2 |w(t)|² with respect to the bend is wd B(t) w(t), B = 2t(1-t).
    curve, (t,) = plane_curve(nudge=4.0), drawn(3)
    point, bend = curve.at(t)["w"], curve.bends[0]["w"].detach().clone()
    fit(
        curve,
        Point(),
        lambda model, _: model.w.sum() * 0,
        iterations=1,
        rate=1.0,
        seed=3,
        weight_decay=0.3,
    )
    expected = bend - 0.3 * 2 * t * (1 - t) * point
    torch.testing.assert_close(curve.bends[0]["w"].detach(), expected)


def test_a_fit_equals_autograd_through_the_formula() -> None:
    """The same steps written plainly: autograd sees how the point and the penalty are made."""
    start, end = make_mlp(0), make_mlp(1)
    for model in (start, end):
        model[3] = nn.Identity()  # dropout
    curve = Bezier(view_weights(start), view_weights(end), trained=trained_names(start))
    bend = {name: tensor.detach().clone().requires_grad_() for name, tensor in curve.bends[0].items()}
    optimizer = torch.optim.SGD(bend.values(), lr=0.05, momentum=0.9)
    for t, batch in zip(drawn(0, 4), BATCHES, strict=True):
        point = {
            name: (1 - t) ** 2 * curve.start[name] + 2 * t * (1 - t) * bend[name] + t**2 * curve.end[name]
            for name in bend
        }
        buffers = {name: tensor.clone() for name, tensor in start.named_buffers()}
        logits = torch.func.functional_call(start, point | buffers, (batch[0],))
        penalty = sum(tensor.square().sum() for tensor in point.values())
        optimizer.zero_grad()
        (nn.functional.cross_entropy(logits, batch[1]) + 0.01 / 2 * penalty).backward()
        optimizer.step()
    fit(curve, make_mlp(7, classes=3).apply(without_dropout), weight_decay=0.01)
    for name, tensor in bend.items():
        torch.testing.assert_close(curve.bends[0][name], tensor)


def without_dropout(module: nn.Module) -> None:
    if isinstance(module, nn.Dropout):
        module.p = 0.0


def test_a_parameter_that_the_loss_does_not_use_feels_the_penalty_alone() -> None:
    class Spare(Point):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Parameter(torch.ones(1, dtype=torch.float64))

    model = Spare()
    curve, (t,) = Bezier(view_weights(model), view_weights(model)), drawn(0)
    fit(curve, model, ring, iterations=1, rate=1.0, weight_decay=0.5)
    assert curve.bends[0]["spare"].item() == pytest.approx(1 - 0.5 * 2 * t * (1 - t))


# Whatever the model


ANY_MODEL = pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)


@ANY_MODEL
def test_every_bend_moves_and_no_end_does(build: Callable[[int], nn.Module]) -> None:
    curve = between(build)
    start, end = copy_weights(view_weights(build(0))), copy_weights(view_weights(build(1)))
    before = copy_weights(curve.bends[0])
    fit(curve, build(2), loss_in_its_type)
    for name, tensor in curve.bends[0].items():
        assert tensor.isfinite().all(), name
        # what BatchNorm centers has no gradient in the bias before it
        assert name in ("0.bias", "1.bias") or not torch.equal(tensor, before[name]), name
    assert_same_weights(curve.at(0), start)
    assert_same_weights(curve.at(1), end)


@ANY_MODEL
def test_the_model_is_left_exactly_as_it_was(build: Callable[[int], nn.Module]) -> None:
    model = build(2).eval()
    next(model.children()).train()
    modes = [module.training for module in model.modules()]
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    values = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    fit(between(build), model, loss_in_its_type)
    assert [module.training for module in model.modules()] == modes
    after = dict(model.named_parameters()) | dict(model.named_buffers())
    assert after.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert after[name] is tensor, name
        assert torch.equal(tensor, values[name]), name
        assert tensor.grad is None, name


def test_the_models_own_weights_play_no_part() -> None:
    curves = [between(make_mlp), between(make_mlp)]
    for seed, curve in enumerate(curves, 5):
        fit(curve, make_mlp(seed))
    assert_same_weights(curves[0].bends[0], curves[1].bends[0])


def test_batch_norm_uses_its_batch_while_fitting_even_in_a_model_that_was_evaluated() -> None:
    seen = []

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.append((model.training, model[1].training))
        return classification_loss(model, batch)

    fit(between(make_mlp), make_mlp().eval(), loss, iterations=1)
    assert seen == [(True, True)]


def test_frozen_parameters_stay() -> None:
    def build(seed: int) -> nn.Module:
        model = make_mlp(seed)
        model[0].weight.requires_grad_(False).copy_(make_mlp(0)[0].weight.detach())
        return model

    curve = between(build)
    fit(curve, build(2))
    assert "0.weight" not in curve.bends[0]
    assert torch.equal(curve.at(0.3)["0.weight"], make_mlp(0)[0].weight)


def test_tied_parameters_get_the_gradients_of_both_places() -> None:
    build = seeded(Tied)
    start, end = build(0), build(1)
    curve, (t,) = between(build), drawn(0)
    before = copy_weights(curve.bends[0])
    model = build(2)
    with torch.no_grad():
        for name, tensor in view_weights(model).items():
            tensor.copy_(interpolate(view_weights(start), view_weights(end), t)[name])
    classification_loss(model, BATCHES[0]).backward()
    fit(curve, build(3), iterations=1, rate=1.0)
    expected = before["first.weight"] - 2 * t * (1 - t) * model.first.weight.grad
    torch.testing.assert_close(curve.bends[0]["first.weight"].detach(), expected)


# Random numbers, rates and continuing


def test_the_generator_decides_and_nothing_else_is_random() -> None:
    curves: list[Curve] = [between(make_mlp) for _ in range(3)]
    model = make_mlp().apply(without_dropout)
    before = torch.random.get_rng_state()
    for curve, seed in zip(curves, (1, 1, 2), strict=True):
        optimizer = torch.optim.SGD(curve.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(seed)
        fit_curve(
            curve, model, BATCHES, classification_loss, optimizer=optimizer, iterations=3, generator=generator
        )
    assert_same_weights(curves[0].bends[0], curves[1].bends[0])
    assert not torch.equal(curves[0].bends[0]["0.weight"], curves[2].bends[0]["0.weight"])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_two_halves_make_a_whole() -> None:
    whole, parts = plane_curve(nudge=0.3), plane_curve(nudge=0.3)
    schedule = LinearDecay(10, 0.05, 0.0)
    fit(whole, Point(), ring, iterations=10, schedule=schedule)
    optimizer = torch.optim.SGD(parts.parameters(), lr=9.0, momentum=0.9)
    generator, seen = torch.Generator().manual_seed(0), []
    for after in (0, 5):
        fit_curve(
            parts,
            Point(),
            BATCHES,
            ring,
            optimizer=optimizer,
            iterations=5,
            generator=generator,
            schedule=schedule,
            after=after,
            on_update=lambda iteration, _: seen.append(iteration),
        )
    assert_same_weights(parts.bends[0], whole.bends[0])
    assert seen == [*range(1, 11)]


def test_the_loss_is_reported_without_the_penalty() -> None:
    seen = []
    (t,) = drawn(0)
    fit(
        plane_curve(),
        Point(),
        ring,
        iterations=1,
        weight_decay=10.0,
        on_update=lambda _, value: seen.append(value.item()),
    )
    assert seen == [pytest.approx(((2 * t - 1) ** 2 - 1) ** 2)]


# What cannot be


def refused(curve: Curve, model: nn.Module, loss: Any = classification_loss, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the test looks at the message
        fit(curve, model, loss, **options)
    return str(caught.value)


def test_a_straight_line_has_nothing_to_fit() -> None:
    curve = Bezier(view_weights(make_mlp(0)), view_weights(make_mlp(1)), 0)
    with pytest.raises(ValueError, match="a curve needs a bend to be fitted, got bends=0, a straight line"):
        fit_curve(
            curve,
            make_mlp(),
            BATCHES,
            classification_loss,
            optimizer=torch.optim.SGD([torch.zeros(1)], lr=1.0),
            iterations=1,
            generator=torch.Generator(),
        )


def refused_optimizer(curve: Curve, model: nn.Module, parameters: list[Tensor]) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the test looks at the message
        fit_curve(
            curve,
            model,
            BATCHES,
            ring,
            optimizer=torch.optim.SGD(parameters, lr=1.0),
            iterations=1,
            generator=torch.Generator(),
        )
    return str(caught.value)


def test_an_optimizer_of_the_model_is_refused_and_the_model_stays() -> None:
    curve, model = plane_curve(), Point()
    model.w.grad = torch.ones_like(model.w)  # left over from training
    assert refused_optimizer(curve, model, list(model.parameters())) == (
        "an optimizer must be over the tensors of the bends and no others, got one without 1 of 1 and with "
        "1 other; give the optimizer curve.parameters()"
    )
    assert model.w.tolist() == [0, 0]


def test_an_optimizer_of_another_curve_of_fewer_bends_or_of_more_is_refused() -> None:
    curve, other = plane_curve(bends=2), plane_curve(bends=2)
    for parameters, found in (
        (other.parameters(), "without 2 of 2 and with 2 others"),
        (curve.parameters()[1:], "without 1 of 2 and with 0 others"),
        (curve.parameters() + other.parameters(), "without 0 of 2 and with 2 others"),
    ):
        assert found in refused_optimizer(curve, Point(), parameters)


def test_bends_may_be_in_several_groups_of_the_optimizer() -> None:
    curve = plane_curve(bends=2, nudge=0.3)
    before = [copy_weights(bend) for bend in curve.bends]
    fit_curve(
        curve,
        Point(),
        BATCHES,
        ring,
        optimizer=torch.optim.SGD([{"params": [tensor]} for tensor in curve.parameters()], lr=0.1),
        iterations=1,
        generator=torch.Generator().manual_seed(0),
    )
    assert not any(torch.equal(b["w"], old["w"]) for b, old in zip(curve.bends, before, strict=True))


def test_a_model_of_another_architecture_is_refused() -> None:
    message = refused(between(make_mlp), make_mlp(classes=5))
    assert "4.weight is [5, 8] in the model and [3, 8] in the curve" in message


def test_a_curve_over_buffers_is_refused_with_the_remedy() -> None:
    curve = Bezier(view_weights(make_mlp(0)), view_weights(make_mlp(1)))
    assert refused(curve, make_mlp()) == (
        "a curve must have exactly the trained tensors of its model, but 1.running_mean is on it and not "
        "trained; "
        "construct the curve with trained=trained_names(model)"
    )


def test_a_frozen_parameter_that_differs_between_the_ends_is_refused() -> None:
    model = make_mlp(0)
    model[0].weight.requires_grad_(False)
    curve = Bezier(view_weights(model), view_weights(make_mlp(1)), trained=trained_names(model))
    assert "a frozen parameter must be the same in both ends, but 0.weight differs" in refused(curve, model)


class Replacing(Clamping):
    def forward(self, x: Tensor) -> Tensor:
        self.layer._parameters["weight"] = self.layer.weight * 0.5
        return self.layer(x)


@pytest.mark.parametrize("build", [Clamping, Replacing])
def test_a_forward_pass_that_changes_parameters_is_refused_by_name(build: type[nn.Module]) -> None:
    curve = between(seeded(build))
    before = copy_weights(curve.bends[0])
    message = "a forward pass must leave the model's parameters as they are, but it changed layer.weight"
    assert message in refused(curve, seeded(build)(2))
    assert_same_weights(curve.bends[0], before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_named_and_finished_updates_stay(bad: float) -> None:
    calls = 0
    good = plane_curve(nudge=0.3)
    fit(good, Point(), ring, iterations=2)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return ring(model, batch) * (bad if calls == 3 else 1)

    curve = plane_curve(nudge=0.3)
    t = drawn(0, 3)[2]
    assert refused(curve, Point(), loss) == (
        f"the loss became {bad} at iteration 3 and t = {t:.4f}; lower the learning rate"
    )
    assert_same_weights(curve.bends[0], good.bends[0])


def test_batches_that_end_are_refused() -> None:
    curve = plane_curve()
    with pytest.raises(ValueError, match="batches ended before the last iteration"):
        fit_curve(
            curve,
            Point(),
            iter(BATCHES),
            ring,
            optimizer=torch.optim.SGD(curve.parameters(), lr=0.1),
            iterations=5,
            generator=torch.Generator(),
        )

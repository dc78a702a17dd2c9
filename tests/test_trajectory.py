from collections.abc import Callable, Sequence
from math import cos, pi
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR

from pfge import (
    EMA,
    FGE,
    PFGE,
    SWA,
    SWAG,
    Collector,
    Constant,
    CosineRestarts,
    Trajectory,
    Triangular,
    follow,
    load_checkpoint,
    save_checkpoint,
)
from pfge.collectors import Star
from pfge.schedules import Joined, LinearDecay, Schedule
from pfge.weights import copy_weights, view_weights
from tests.toys import (
    advance,
    assert_same_weights,
    classification_loss,
    make_batch,
    make_mlp,
    make_sgd,
    train,
)


def one_step(trajectory: Trajectory, gradient: float = 1.0) -> None:
    for parameter in trajectory.model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    trajectory.before_update()
    trajectory.optimizer.step()
    trajectory.after_update()


def make_trajectory(*collectors: Collector, lr: float = 0.1) -> Trajectory:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return Trajectory(model, torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9), None, collectors)


def test_iterations_count_updates_from_one() -> None:
    trajectory = make_trajectory()
    assert trajectory.iteration == 0
    one_step(trajectory)
    assert trajectory.iteration == 1


def test_the_schedule_sets_the_rate_of_the_coming_iteration() -> None:
    trajectory = make_trajectory()
    trajectory.schedule = Triangular(4, 1.0, 3.0)
    seen = []
    for _ in range(4):
        one_step(trajectory)
        seen.append(trajectory.optimizer.param_groups[0]["lr"])
    assert seen == [2.0, 3.0, 2.0, 1.0]


def test_without_a_schedule_the_rates_are_the_users() -> None:
    trajectory = make_trajectory(lr=0.123)
    one_step(trajectory)
    assert trajectory.optimizer.param_groups[0]["lr"] == 0.123


def test_groups_keep_the_ratio_of_their_rates() -> None:
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    groups = [{"params": first.parameters(), "lr": 0.01}, {"params": second.parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    trajectory = Trajectory(nn.ModuleList([first, second]), optimizer, Constant(5.0), [])
    one_step(trajectory)
    one_step(trajectory)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.5, 5.0])


def test_a_rate_that_is_a_tensor_stays_one() -> None:
    model = nn.Linear(1, 1)
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, foreach=False, capturable=False)
    trajectory = Trajectory(model, optimizer, Constant(0.25), [])
    one_step(trajectory)
    assert optimizer.param_groups[0]["lr"].item() == 0.25
    assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor)


def test_two_steering_collectors_are_refused() -> None:
    with pytest.raises(
        ValueError, match="only one collector may steer a trajectory, got PFGE and PFGE; give"
    ):
        make_trajectory(PFGE(1, 2), SWA(1), PFGE(1, 2))


def test_a_restart_moves_the_model_and_clears_the_momentum() -> None:
    pfge = PFGE(1, 2)
    trajectory = make_trajectory(pfge)
    one_step(trajectory)
    one_step(trajectory)
    # Steps of 0.1 * (1, 1.9): points -0.1 and -0.29, mean with the start 0: -0.13.
    assert trajectory.model.weight.item() == pytest.approx(-0.13)
    assert not trajectory.optimizer.state
    one_step(trajectory)
    assert trajectory.model.weight.item() == pytest.approx(-0.13 - 0.1)


def test_momentum_is_kept_on_request() -> None:
    trajectory = make_trajectory(PFGE(1, 2, clear_momentum=False))
    for _ in range(3):
        one_step(trajectory)
    # The third velocity is 0.9 * 1.9 + 1 = 2.71.
    assert trajectory.model.weight.item() == pytest.approx(-0.13 - 0.271)


def test_other_collectors_see_the_path_before_it_is_bent() -> None:
    fge = FGE(2)
    trajectory = make_trajectory(PFGE(1, 2), fge)
    one_step(trajectory)
    one_step(trajectory)
    assert fge.members()[0]["weight"].item() == pytest.approx(-0.29)


def test_a_restart_inside_of_autocast_is_what_the_model_computes_with_next() -> None:
    trajectory = make_trajectory(PFGE(1, 2))
    x = torch.ones(1, 1)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        one_step(trajectory)
        trajectory.model(x)  # autocast keeps this weight as bfloat16
        one_step(trajectory)
        found = trajectory.model(x)
    assert found.item() == pytest.approx(-0.13, rel=2**-8)


def make_partly_frozen() -> Trajectory:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    return Trajectory(model, SGD(model.parameters(), lr=0.1), None, [Star(period=3)])


def test_what_is_unfrozen_later_goes_back_to_the_start_as_well() -> None:
    trajectory = make_partly_frozen()
    start = copy_weights(view_weights(trajectory.model))
    advance(trajectory, 1)
    trajectory.model[0].requires_grad_(True)
    advance(trajectory, 1)
    assert not torch.equal(trajectory.model[0].weight, start["0.weight"])
    advance(trajectory, 1)
    assert_same_weights(view_weights(trajectory.model), start)


def test_what_was_frozen_and_moved_by_hand_goes_back_to_the_start_as_well() -> None:
    trajectory = make_partly_frozen()
    start = copy_weights(view_weights(trajectory.model))
    advance(trajectory, 1)
    with torch.no_grad():
        trajectory.model[0].weight.add_(1.0)  # as a teacher that follows its student
    advance(trajectory, 2)
    assert_same_weights(view_weights(trajectory.model), start)


@pytest.mark.parametrize("stop", [2, 3, 5])
def test_a_run_that_is_resumed_after_unfreezing_is_bit_identical(stop: int, tmp_path: Path) -> None:
    def start(iterations: int) -> Trajectory:
        trajectory = make_partly_frozen()
        advance(trajectory, 1)
        trajectory.model[0].requires_grad_(True)
        advance(trajectory, iterations - 1)
        return trajectory

    whole = start(6)
    save_checkpoint(tmp_path / "state", start(stop).state_dict())
    resumed = make_partly_frozen()
    resumed.model[0].requires_grad_(True)
    resumed.load_state_dict(load_checkpoint(tmp_path / "state"))
    advance(resumed, 6 - stop)
    assert_same_weights(view_weights(resumed.model), view_weights(whole.model))
    members = [trajectory.collectors[0].members() for trajectory in (resumed, whole)]
    for one, two in zip(*members, strict=True):
        assert_same_weights(one, two)


def test_the_start_point_is_that_of_the_first_update_not_of_the_construction() -> None:
    swa = SWA(1)
    trajectory = make_trajectory(swa)
    nn.init.constant_(trajectory.model.weight, 10.0)
    one_step(trajectory)
    assert swa.members()[0]["weight"].item() == pytest.approx((10.0 + 9.9) / 2)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_gradient_scaler_skips_does_not_count(fused: bool) -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    fge = FGE(1)
    trajectory = Trajectory(model, optimizer, None, [fge])
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    for gradient in (torch.inf, 1.0, torch.inf):
        optimizer.zero_grad()
        loss = scaler.scale(model.weight.sum() * 1.0)
        loss.backward()
        model.weight.grad.mul_(gradient)
        trajectory.before_update()
        scaler.step(optimizer)
        scaler.update()
        trajectory.after_update()
    assert trajectory.iteration == 1
    assert fge.iterations == [1]


def test_after_update_without_before_update_is_refused() -> None:
    with pytest.raises(RuntimeError, match="before_update\\(\\) must come before"):
        make_trajectory().after_update()


def test_weights_that_are_not_finite_are_refused_and_members_stay() -> None:
    fge = FGE(2)
    trajectory = make_trajectory(fge)
    one_step(trajectory)
    one_step(trajectory)
    one_step(trajectory, gradient=torch.nan)
    with pytest.raises(ValueError, match="weight holds NaN or infinity at iteration 4"):
        one_step(trajectory)
    assert len(fge.members()) == 1


ALL: list[Callable[[], Collector]] = [
    lambda: PFGE(2, 4),
    lambda: PFGE(2, 4, average_start=False, clear_momentum=False, phase=1),
    lambda: SWA(2),
    lambda: FGE(3),
    lambda: SWAG(2, rank=2, samples=3),
    lambda: EMA(0.8, every=2),
]


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("make_optimizer", [make_sgd, lambda model: torch.optim.AdamW(model.parameters())])
def test_resuming_at_any_iteration_is_bit_identical(
    make: Callable[[], Collector],
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    tmp_path: Path,
) -> None:
    schedule = Triangular(2, 0.01, 0.1)
    whole = make()
    run = train(make_mlp(), [whole], 12, make_optimizer=make_optimizer, schedule=schedule)
    for stop in range(12):
        first = train(make_mlp(), [make()], stop, make_optimizer=make_optimizer, schedule=schedule)
        save_checkpoint(tmp_path / "state", first.state_dict())
        resumed = make()
        other = make_mlp(seed=stop + 1)
        second = Trajectory(other, make_optimizer(other), schedule, [resumed])
        second.load_state_dict(load_checkpoint(tmp_path / "state"))
        advance(second, 12 - stop)
        assert len(resumed.members()) == len(whole.members())
        for one, two in zip(resumed.members(), whole.members(), strict=True):
            assert_same_weights(one, two)
        assert_same_weights(second.model.state_dict(), run.model.state_dict())


def test_resuming_in_another_memory_order_is_bit_identical(tmp_path: Path) -> None:
    def start() -> tuple[Trajectory, PFGE]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Conv2d(5, 7, 3)).bfloat16()
        model = model.to(memory_format=torch.channels_last)
        pfge = PFGE(2, 4)
        return Trajectory(model, make_sgd(model), Constant(0.05), [pfge]), pfge

    def go_on(trajectory: Trajectory, last: int) -> None:
        while trajectory.iteration < last:
            generator = torch.Generator().manual_seed(trajectory.iteration)
            inputs = torch.randn(2, 3, 6, 6, generator=generator).bfloat16()
            trajectory.optimizer.zero_grad()
            trajectory.model(inputs.contiguous(memory_format=torch.channels_last)).square().mean().backward()
            trajectory.before_update()
            trajectory.optimizer.step()
            trajectory.after_update()

    whole, expected = start()
    go_on(whole, 8)
    first, _ = start()
    go_on(first, 3)
    save_checkpoint(tmp_path / "state", first.state_dict())
    second, found = start()
    second.load_state_dict(load_checkpoint(tmp_path / "state"))
    momentum = second.optimizer.state[second.model[0].weight]["momentum_buffer"]
    assert momentum.is_contiguous(memory_format=torch.channels_last)
    go_on(second, 8)
    for one, two in zip(found.members(), expected.members(), strict=True):
        assert_same_weights(one, two)


def test_resuming_with_other_collectors_is_refused() -> None:
    state = train(make_mlp(), [SWA(2)], 3).state_dict()
    with pytest.raises(ValueError, match="the state is of the collectors"):
        train(make_mlp(), [SWA(3)], 0).load_state_dict(state)


BATCHES = [make_batch(i) for i in range(1, 4)]


def make_run(*collectors: Collector) -> Trajectory:
    return train(make_mlp(), collectors, 0)


def test_following_is_the_loop_one_would_write_by_hand() -> None:
    torch.manual_seed(0)
    trajectory = make_run()
    follow(trajectory, BATCHES, classification_loss, iterations=5)
    torch.manual_seed(0)
    model = make_mlp().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x, y in [*BATCHES, *BATCHES[:2]]:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert_same_weights(trajectory.model.state_dict(), model.state_dict())


def test_progress_is_told_after_each_update() -> None:
    seen: list[tuple[int, Tensor]] = []
    follow(
        make_run(),
        BATCHES,
        classification_loss,
        iterations=4,
        on_update=lambda i, v: seen.append((i, v)),
    )
    assert [iteration for iteration, _ in seen] == [1, 2, 3, 4]
    assert all(value.ndim == 0 and not value.requires_grad for _, value in seen)


def test_batches_that_end_early_are_an_error_after_what_they_gave() -> None:
    trajectory = make_run()
    with pytest.raises(ValueError, match="batches ended before the last iteration; pass a DataLoader"):
        follow(trajectory, iter(BATCHES), classification_loss, iterations=5)
    assert trajectory.iteration == 3


def test_iterations_after_the_last_member_give_a_warning_that_counts_them() -> None:
    with pytest.warns(UserWarning, match=r"PFGE\(cycle=1, period=2.*does not use the last 1 of 5 iterations"):
        follow(make_run(PFGE(1, 2)), BATCHES, classification_loss, iterations=5)


def test_iterations_that_divide_give_no_warning() -> None:
    trajectory = make_run(PFGE(1, 2), FGE(2))
    follow(trajectory, BATCHES, classification_loss, iterations=4)
    follow(trajectory, BATCHES, classification_loss, iterations=1)


def test_a_state_without_the_training_continues_where_a_trainer_restored_it() -> None:
    expected, found = PFGE(2, 4), PFGE(2, 4)
    train(make_mlp(), [expected], 8)
    first = train(make_mlp(), [PFGE(2, 4)], 3)
    state = first.state_dict(training=False)
    assert not {"weights", "optimizer"} & state.keys()
    second = train(make_mlp(), [found], 0)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(state)
    advance(second, 5)
    for one, two in zip(found.members(), expected.members(), strict=True):
        assert_same_weights(one, two)


# Traps in a loop of the user's own


def groups(*rates: float) -> tuple[nn.Linear, SGD]:
    model = nn.Linear(1, 1)
    return model, SGD([{"params": [p], "lr": r} for p, r in zip(model.parameters(), rates, strict=True)])


@pytest.mark.parametrize("end", [0.0, 0.001])
def test_groups_keep_the_ratios_that_they_had_before_a_scheduler_changed_them(end: float) -> None:
    model, optimizer = groups(0.1, 0.2)
    scheduler = CosineAnnealingLR(optimizer, T_max=1, eta_min=end)
    optimizer.step()
    scheduler.step()  # both groups have the same rate now
    with pytest.warns(UserWarning, match=r"have the ratios \[1.0, 1.0\], and had \[0.5, 1.0\] before"):
        trajectory = Trajectory(model, optimizer, Constant(0.4), [])
    trajectory.before_update()
    assert [group["lr"] for group in optimizer.param_groups] == [0.2, 0.4]


def test_a_scheduler_that_scaled_all_groups_alike_causes_no_warning() -> None:
    model, optimizer = groups(0.1, 0.2)
    scheduler = ExponentialLR(optimizer, 0.5)
    optimizer.step()
    scheduler.step()
    Trajectory(model, optimizer, Constant(0.4), []).before_update()
    assert [group["lr"] for group in optimizer.param_groups] == [0.2, 0.4]


def train_beside(scheduler: ExponentialLR, trajectory: Trajectory) -> list[float]:
    """Make four updates in a loop with a scheduler, and return the rate of each."""
    rates = []
    for _ in range(4):
        trajectory.before_update()
        rates.append(trajectory.optimizer.param_groups[0]["lr"])
        trajectory.optimizer.step()
        trajectory.after_update()
        scheduler.step()
    return rates


def test_a_scheduler_left_in_the_loop_is_noticed_once_and_overridden() -> None:
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = ExponentialLR(optimizer, 0.5)
    trajectory = Trajectory(model, optimizer, Constant(0.4), [])
    expected = r"were \[0.4\] at update 1 and are now \[0.2\].*schedule=None"
    with pytest.warns(UserWarning, match=expected) as found:
        assert train_beside(scheduler, trajectory) == [0.4] * 4
    assert len(found) == 1


def test_a_scheduler_that_is_meant_to_be_overridden_causes_no_warning() -> None:
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = ExponentialLR(optimizer, 0.5)
    trajectory = Trajectory(model, optimizer, Constant(0.4), [], overrides_scheduler=True)
    assert train_beside(scheduler, trajectory) == [0.4] * 4


def test_updates_of_another_optimizer_are_an_error_that_names_the_cause() -> None:
    model = nn.Linear(1, 1)
    trajectory = Trajectory(model, SGD(model.parameters()), None, [SWA(2)])
    other = SGD(model.parameters())
    for _ in range(19):
        trajectory.before_update()
        other.step()
        trajectory.after_update()
    with pytest.raises(RuntimeError, match="called 20 times in a row without a step of the optimizer"):
        trajectory.after_update()
    assert trajectory.iteration == 0


def test_a_torch_scheduler_is_refused_as_a_schedule() -> None:
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters())
    with pytest.raises(TypeError, match=r"function of the iteration.*got ExponentialLR; pass schedule=None"):
        Trajectory(model, optimizer, ExponentialLR(optimizer, 0.5), [])  # type: ignore[arg-type]


def test_one_collector_needs_no_list() -> None:
    model = nn.Linear(1, 1)
    swa = SWA(4)
    assert Trajectory(model, SGD(model.parameters()), None, swa).collectors == (swa,)


def test_what_is_not_a_collector_is_refused() -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(TypeError, match=r"must be objects such as SWA\(cycle=4\), got <class .*SWA'>;"):
        Trajectory(model, SGD(model.parameters()), None, [SWA])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "make",
    [
        lambda: FGE(1),
        lambda: SWA(1),
        lambda: EMA(0.9),
        lambda: PFGE(1, 5),
        lambda: SWAG(1),
        lambda: Star(5, tail=5),
    ],
)
@pytest.mark.parametrize("updates", [1, 6])
def test_a_collector_that_has_collected_is_refused_by_another_trajectory(
    make: Callable[[], Collector], updates: int
) -> None:
    collector = make()
    trajectory = make_trajectory(collector)
    for _ in range(updates):
        one_step(trajectory)
    state = collector.state_dict()
    with pytest.raises(
        ValueError, match="already holds weights of another training, which would be lost; construct a new"
    ):
        make_trajectory(collector).before_update()
    assert str(collector.state_dict()) == str(state)


def test_a_collector_of_two_trajectories_at_once_is_refused_before_it_mixes_them() -> None:
    collector = SWA(2)
    first, second = make_trajectory(collector), make_trajectory(collector)
    one_step(first)
    one_step(second)
    with pytest.raises(RuntimeError, match=r"another Trajectory has begun with SWA.* for each Trajectory"):
        one_step(first)
    one_step(second)
    assert collector.iterations == [2]


def test_a_collector_that_has_collected_resumes_from_a_state() -> None:
    collector = FGE(1)
    first = make_trajectory(collector)
    one_step(first)
    one_step(first)
    state = first.state_dict()
    one_step(first)
    second = make_trajectory(collector)
    second.load_state_dict(state)
    for _ in range(3):
        one_step(second)
    assert collector.iterations == [1, 2, 3, 4, 5]


def make_with(schedule: Schedule | None, *collectors: Collector, rate: float = 0.001) -> Trajectory:
    model = nn.Linear(1, 1)
    return Trajectory(model, SGD(model.parameters(), lr=rate), schedule, collectors)


@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        (Triangular(4, 0.001, 0.1), lambda: PFGE(5, 10)),
        (Triangular(4, 0.001, 0.1), lambda: FGE(6)),
        (Triangular(4, 0.001, 0.1), lambda: SWA(6)),
        (Triangular(4, 0.001, 0.1), lambda: SWAG(3)),
        (Triangular(5000, 0.001, 0.1), lambda: SWA(10)),
        (CosineRestarts(100, 0.001, 0.1), lambda: Star(150)),
        (CosineRestarts(100, 0.001, 0.1), lambda: Star(150, tail=15)),
        (Joined(((LinearDecay(50, 0.0, 0.1), 50), (Triangular(40, 0.001, 0.1), 1))), lambda: FGE(60)),
        (lambda i: 0.1 * (1 + cos(i * pi / 20) ** 2), lambda: FGE(20)),  # highest at its multiples
    ],
)
def test_a_cycle_that_does_not_fit_that_of_any_schedule_causes_a_warning(
    schedule: Schedule, make: Callable[[], Collector]
) -> None:
    with pytest.warns(UserWarning, match="collects its first points at the rates .* the phase at which"):
        make_with(schedule, make())


def test_points_that_are_taken_at_high_rates_cause_a_warning_with_the_rates() -> None:
    # Iterations 10, 20, 30, 40 and 50 are at 3, 6, 2, 5 and 1 of a cycle of 7.
    rates = "0.6, 0.2, 0.4, 0.4, 0.2"
    with pytest.warns(UserWarning, match=rf"PFGE\(cycle=10.* at the rates {rates}, although .* down to 0,"):
        make_with(Triangular(7, 0.0, 0.7), PFGE(10, 50))


@pytest.mark.parametrize("make", [SWA, FGE, SWAG, lambda cycle: PFGE(cycle, cycle)])
def test_points_at_the_wrong_half_of_a_cycle_cause_a_warning(make: Callable[[int], Collector]) -> None:
    # One iteration before a cycle begins at 0.1: a quarter of the way back from 0.001 is left.
    with pytest.warns(UserWarning, match="collects its first points at the rates 0.0753, 0.0753, 0.0753"):
        make_with(Triangular(8, 0.001, 0.1, start="high"), make(8))
    with pytest.warns(UserWarning, match="collects its first points at the rates"):
        make_with(CosineRestarts(8, 0.001, 0.1), make(5))


@pytest.mark.parametrize(
    ("schedule", "collector"),
    [
        (Triangular(10, 0.001, 0.1), PFGE(10, 50)),
        (Triangular(10, 0.001, 0.1), SWA(30)),  # several cycles
        (Triangular(10, 0.001, 0.1), SWA(10, phase=9)),
        (Triangular(10, 0.001, 0.1, start="high"), PFGE.reference(10, 50)),
        (Triangular(7, 0.001, 0.1, start="high"), PFGE.reference(7, 35)),  # an odd cycle has no middle
        (CosineRestarts(10, 0.001, 0.1), FGE(10)),
        (Triangular(10, 0.1, 0.1), SWA(7)),  # one rate
        (Triangular(10, 0.001, 0.1), SWA(1)),  # every iteration
        (Triangular(10, 0.001, 0.1), EMA(0.9)),
        (CosineRestarts(10, 0.001, 0.1), Star(10, tail=3)),
        (Triangular(1000, 0.001, 0.1), EMA(0.999, every=10)),
        (Triangular(10, 0.001, 0.1), PFGE(1, 10)),
        (Triangular(4, 0.001, 0.1, start="high"), PFGE.reference(4, 8)),
        (CosineRestarts(10, 0.001, 0.1), Star(10, tail=10)),
        (CosineRestarts(400, 0.001, 0.1), Star(400, tail=40)),  # one annealing
        (LinearDecay(10, 0.1, 0.001), SWA(7)),
        (LinearDecay(2000, 0.1, 0.0), SWA(40)),
        (LinearDecay(2000, 0.001, 0.1), FGE(40)),  # a warm-up
        (Joined(((LinearDecay(100, 0.0, 0.1), 100), (LinearDecay(900, 0.1, 0.0), 900))), SWA(10)),
        (Joined(((LinearDecay(100, 0.0, 0.1), 100), (Triangular(10, 0.05, 0.1), 1))), SWA(10)),
        (lambda i: 0.1 * (1 + cos(i * pi / 20) ** 2), FGE(20, phase=10)),
        ([0.1, 0.05, 0.01, 0.05].__getitem__, SWA(2)),  # it knows 4 iterations only
        (None, FGE(3)),
    ],
)
def test_points_at_low_rates_or_without_a_cycle_cause_no_warning(
    schedule: Schedule | None, collector: Collector
) -> None:
    make_with(schedule, collector)


# Groups that are added to the optimizer


def rates(trajectory: Trajectory) -> list[float]:
    return [float(group["lr"]) for group in trajectory.optimizer.param_groups]


def add_group(trajectory: Trajectory, rate: float) -> None:
    trajectory.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": rate})


@pytest.mark.parametrize("updates", [1, 3, 5])
def test_a_group_that_is_added_later_has_its_ratio_to_the_first_rate(updates: int) -> None:
    trajectory = make_with(LinearDecay(10, 0.8, 0.0), rate=0.4)
    for _ in range(updates):
        one_step(trajectory)
    add_group(trajectory, 0.1)
    for _ in range(3):
        one_step(trajectory)
        first, second = rates(trajectory)
        assert first == trajectory.schedule(trajectory.iteration)
        assert second == pytest.approx(first / 4)


def test_a_group_that_is_added_before_the_first_update_keeps_its_ratio_to_the_others() -> None:
    model = nn.Linear(1, 1)
    trajectory = Trajectory(model, SGD(model.parameters(), lr=0.1), Constant(5.0), [])
    add_group(trajectory, 0.01)
    one_step(trajectory)
    assert rates(trajectory) == pytest.approx([5.0, 0.5])


@pytest.mark.parametrize("low", [0.0, 0.001])
def test_a_group_without_a_rate_of_its_own_has_that_of_the_schedule(low: float) -> None:
    trajectory = make_with(Triangular(2, low, 0.5), rate=0.1)
    one_step(trajectory)
    one_step(trajectory)
    assert rates(trajectory) == [low]  # a ratio to this would be 100 or more
    trajectory.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    one_step(trajectory)
    assert rates(trajectory) == [0.5, 0.5]


def test_a_group_that_is_added_never_has_more_than_the_schedule() -> None:
    trajectory = make_with(Constant(0.4), rate=0.1)
    one_step(trajectory)
    add_group(trajectory, 3.0)
    one_step(trajectory)
    assert rates(trajectory) == [0.4, 0.4]


def test_a_scheduler_that_sets_old_groups_is_still_noticed_beside_a_new_one() -> None:
    trajectory = make_with(Constant(0.4), rate=0.4)
    one_step(trajectory)
    trajectory.optimizer.param_groups[0]["lr"] = 0.2
    add_group(trajectory, 0.1)
    with pytest.warns(UserWarning, match=r"were \[0.4\] at update 1 and are now \[0.2\]"):
        trajectory.before_update()
    assert rates(trajectory) == [0.4, 0.1]


@pytest.mark.parametrize("updates", [0, 2])
def test_a_run_with_a_group_that_was_added_is_resumed(updates: int) -> None:
    def start() -> Trajectory:
        return make_with(LinearDecay(8, 0.8, 0.0), rate=0.7)

    whole = start()
    one_step(whole)
    add_group(whole, 0.175)
    for _ in range(updates):
        one_step(whole)
    resumed = start()
    add_group(resumed, 0.0)
    resumed.load_state_dict(whole.state_dict())
    for _ in range(3):
        one_step(whole)
        one_step(resumed)
        assert rates(resumed) == rates(whole)
    assert rates(whole)[1] == pytest.approx(rates(whole)[0] / 4)


class OwnRates(SGD):
    """Chooses its rates itself, as Adafactor does with relative_step."""

    def __init__(self, parameters: Sequence[nn.Parameter]):
        super().__init__(parameters, lr=0.1)
        self.param_groups[0]["lr"] = None

    def step(self, closure: None = None) -> None:  # noqa: ARG002
        for parameter in self.param_groups[0]["params"]:
            parameter.data.sub_(0.5)


def test_an_optimizer_without_a_rate_is_followed_without_a_schedule_and_refused_with_one() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = OwnRates(list(model.parameters()))
    trajectory = Trajectory(model, optimizer, None, [swa := SWA(1)])
    one_step(trajectory)
    one_step(trajectory)
    assert swa.members()[0]["weight"].item() == pytest.approx((0 - 0.5 - 1.0) / 3)
    with pytest.raises(ValueError, match="needs an optimizer with a learning rate, got None; pass schedule"):
        Trajectory(model, optimizer, Constant(0.1), [])


def test_ratios_that_a_scheduler_changed_are_of_no_interest_without_a_schedule() -> None:
    model, optimizer = groups(0.1, 0.2)
    scheduler = CosineAnnealingLR(optimizer, T_max=1)
    optimizer.step()
    scheduler.step()
    Trajectory(model, optimizer, None, [])

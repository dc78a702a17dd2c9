"""Plans have as many members as fit, and members where collectors really take them."""

import warnings
from dataclasses import replace

import pytest
import torch

from pfge.compression.compress import FORMATS_OF_ONE
from pfge.lab.planner import Plan, describe_layout, find_plans, recommend
from pfge.methods import TrainingPlan, make_collector
from pfge.weights import count_bytes, view_weights
from tests.toys import make_mlp

SETTING = TrainingPlan(iterations=40, cycle=2, period=10, low=0.001, high=0.1)
LAYOUT = view_weights(make_mlp())
ONE = 404  # 99 floats and a counter of 8 bytes


def found(memory: int, setting: TrainingPlan = SETTING) -> dict[tuple[str, str], Plan]:
    return {(plan.method, plan.format.name): plan for plan in find_plans(memory, LAYOUT, setting)}


def test_a_model_is_described_without_memory() -> None:
    layout = describe_layout("wideresnet28-10", classes=10)
    assert {tensor.device.type for tensor in layout.values()} == {"meta"}
    assert sum(t.numel() for name, t in layout.items() if "running" not in name and t.ndim) == 36_489_290


def reads_its_numbers(classes: int) -> torch.nn.Module:
    model = torch.nn.Linear(4, classes)
    assert model.weight.sum().item() != 0
    return model


def test_a_model_that_reads_its_numbers_is_described_too() -> None:
    before = torch.get_rng_state()
    layout = describe_layout("tests.lab.test_planner:reads_its_numbers", classes=3)
    assert count_bytes(layout) == 4 * (12 + 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_with_enough_memory_everything_has_all_its_members() -> None:
    plans = found(20 * ONE)
    assert {key: plan.members for key, plan in plans.items() if key[1] == "float32"} == {
        ("PFGE", "float32"): 4,
        ("FGE", "float32"): 20,
        ("SWA", "float32"): 1,
        ("Star", "float32"): 4,
    }
    assert plans["PFGE", "float32"].nbytes == 4 * ONE
    assert len(plans) == 4 + 4 + 2 + 2  # members of a star have no base


@pytest.mark.parametrize("method", ["PFGE", "FGE", "SWA", "Star"])
def test_members_are_where_the_collector_takes_them(method: str) -> None:
    plan = found(20 * ONE)[method, "float32"]
    collector = make_collector(method, SETTING)
    collector.begin({"w": torch.zeros(1)})
    for iteration in range(1, 41):
        collector.observe(iteration, {"w": torch.zeros(1)})
    if method == "SWA":
        assert plan.iterations == [40]
    else:
        assert plan.iterations == list(collector.iterations)
    assert plan.rates == [SETTING.schedule()(iteration) for iteration in plan.iterations]
    assert plan.rates == [0.001] * plan.members  # lowest at multiples of the cycle


def test_training_takes_a_mean_and_the_members() -> None:
    plans = found(20 * ONE)
    assert plans["SWA", "float32"].training_bytes == ONE
    assert plans["PFGE", "float32"].training_bytes == (1 + 4) * ONE
    assert plans["FGE", "float32"].training_bytes == 20 * ONE


def test_fewer_members_fit_by_longer_periods_and_by_the_last_of_fge() -> None:
    plans = found(2 * ONE)
    pfge, fge = plans["PFGE", "float32"], plans["FGE", "float32"]
    # 40 iterations in two periods; of FGE's 20 members the last two.
    assert (pfge.members, pfge.setting.period, pfge.iterations) == (2, 20, [20, 40])
    assert (fge.members, fge.iterations) == (2, [38, 40])
    # Three members have periods of 13 iterations, of which 12 are whole cycles.
    three = found(3 * ONE)["PFGE", "float32"]
    assert (three.setting.period, three.iterations) == (12, [12, 24, 36])


@pytest.mark.filterwarnings("ignore:a period of 15 iterations is not a multiple")
def test_no_period_is_shorter_than_the_one_asked_for() -> None:
    # As 150 epochs, a cycle of 10 and a period of 15: no whole number of cycles gives nine members.
    setting = replace(SETTING, iterations=150, cycle=10, period=15)
    plans = {members: found(members * ONE, setting)["PFGE", "float32"] for members in range(2, 11)}
    assert [plan.setting.period for plan in plans.values()] == [70, 50, 30, 30, 20, 20, 15, 15, 15]
    # The last nine of ten.
    assert plans[9].iterations == list(range(30, 151, 15))


def test_every_plan_fits_and_one_member_more_would_not() -> None:
    for memory in (400, 900, 1500, 3000):
        for plan in find_plans(memory, LAYOUT, SETTING):
            assert plan.nbytes <= memory
            if plan.method == "FGE" and plan.members < 20:
                assert plan.format.size(LAYOUT, plan.members + 1) > memory


def test_a_memory_that_nobody_can_keep_to_is_refused_with_the_smallest() -> None:
    # 0.weight [8, 4] and 4.weight [3, 8] as bytes and a step a channel, 43 floats and the counter.
    smallest = (32 + 2 * 8) + (24 + 2 * 3) + 4 * 43 + 8
    assert FORMATS_OF_ONE[1].size(LAYOUT, 1) == smallest
    with pytest.raises(ValueError, match=f"memory must be at least {smallest} bytes, which one member"):
        find_plans(smallest - 1, LAYOUT, SETTING)
    assert [plan.format.name for plan in find_plans(smallest, LAYOUT, SETTING)] == ["int8 base"]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (replace(SETTING, cycle=4), "not a multiple of the cycle of 4: the last 2 iterations of each period"),
        (replace(SETTING, period=12), "not a multiple of the period of 12: PFGE does not use the last 4;"),
    ],
)
def test_a_remainder_is_warned_of(setting: TrainingPlan, expected: str) -> None:
    with pytest.warns(UserWarning, match=expected):
        find_plans(20 * ONE, LAYOUT, setting)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        find_plans(20 * ONE, LAYOUT, SETTING)


@pytest.mark.parametrize(
    ("memory", "recommended"),
    [
        (20 * ONE, [("SWA", "float32", 1), ("Star", "float32", 4), ("FGE", "float32", 20)]),
        # Of FGE only the last eight fit, which are not recommended.
        (900, [("SWA", "float32", 1), ("Star", "int8", 4)]),
        # Four of a star do not fit, and four of PFGE do, as differences from a base.
        (480, [("SWA", "float32", 1), ("PFGE", "int8 base + 1 bit", 4)]),
    ],
)
def test_a_method_is_recommended_for_one_pass_for_a_few_and_for_many(
    memory: int, recommended: list[tuple[str, str, int]]
) -> None:
    plans = recommend(find_plans(memory, LAYOUT, SETTING))
    assert [(plan.method, plan.format.name, plan.members) for plan in plans] == recommended

from collections.abc import Mapping
from itertools import pairwise

import pytest
import torch

from pfge import Weights
from pfge.compression.rate_distortion import SMALL as ALL_SMALL
from pfge.compression.rate_distortion import Choices, Ladder, Plan
from pfge.packed.encode import PackSettings, TensorForm, find_common, pack_members

SETTINGS = PackSettings()


def make_members(count: int = 3) -> list[Weights]:
    """A large tensor with deltas of 1 % of its size, and a small one with deltas of 10 %."""
    generator = torch.Generator().manual_seed(0)
    base = {
        "large": torch.randn(40, 64, generator=generator),
        "small": torch.randn(4, 64, generator=generator),
    }
    return [
        {
            name: tensor + spread * torch.randn(tensor.shape, generator=generator)
            for (name, tensor), spread in zip(base.items(), (0.01, 0.1), strict=True)
        }
        for _ in range(count)
    ]


MEMBERS = make_members()
LADDER = Ladder(MEMBERS, find_common(MEMBERS, SETTINGS), Choices.of(SETTINGS))
# A bit costs each of 3 members an eighth of a byte a number.
LARGE, SMALL = 3 * 40 * 64 // 8, 3 * 4 * 64 // 8


def widths_of(plan: Plan) -> dict[str, int]:
    return {name: form.bits for name, form in plan.forms.items()}


def size(widths: dict[str, int]) -> int:
    return pack_members(MEMBERS, widths, SETTINGS).nbytes


def error(members: list[Weights], forms: Mapping[str, TensorForm | int], settings: PackSettings) -> float:
    """Return the sum over tensors of the squared error over the squared size, of the members in the mean."""
    packed = pack_members(members, forms, settings)
    errors = [
        float((one[name] - two[name]).square().sum() / two[name].square().sum())
        for one, two in zip(packed, members, strict=True)
        for name in two
    ]
    return sum(errors) / len(members)


def test_it_starts_at_one_bit_and_ends_at_eight() -> None:
    assert widths_of(LADDER.at(0)) == {"large": 1, "small": 1}
    assert widths_of(LADDER.at(LADDER.top)) == {"large": 8, "small": 8}
    assert LADDER.smallest == size({"large": 1, "small": 1})


def test_the_first_bits_go_where_the_relative_error_is_larger_and_bytes_are_fewer() -> None:
    # Relative squared errors are as 100 to 1 and costs as 1 to 10; a bit divides an error by about 3 to 4,
    # so the small tensor is ahead by log(1000) / log(3.5) = 5.5 bits.
    widths = widths_of(LADDER.at(5))
    assert widths == {"large": 1, "small": 6}


def test_each_rung_costs_what_packing_takes() -> None:
    for rung in (0, 3, 8, LADDER.top):
        widths = widths_of(LADDER.at(rung))
        extra = (widths["large"] - 1) * LARGE + (widths["small"] - 1) * SMALL
        assert size(widths) == LADDER.smallest + extra


@pytest.mark.parametrize("extra", [0, SMALL - 1, SMALL, LARGE, LARGE + 7 * SMALL, 100 * LARGE])
def test_a_budget_is_kept_and_used(extra: int) -> None:
    budget = LADDER.smallest + extra
    widths = widths_of(LADDER.within(budget))
    left = budget - size(widths)
    assert left >= 0
    assert widths["small"] == 8 or left < SMALL
    assert widths["large"] == 8 or left < LARGE


@pytest.mark.parametrize("bits", range(1, 9))
def test_a_budget_is_used_at_least_as_well_as_by_one_width_for_all(bits: int) -> None:
    even = {"large": bits, "small": bits}
    chosen = widths_of(LADDER.within(size(even)))
    assert size(chosen) <= size(even)
    assert error(MEMBERS, chosen, SETTINGS) <= error(MEMBERS, even, SETTINGS)


@pytest.mark.parametrize("wanted", [0, 1, 6, 13, 14])
def test_the_lowest_rung_that_serves_is_found_in_few_trials(wanted: int) -> None:
    tried = []

    def serves(plan: Plan) -> bool:
        tried.append(plan)
        return sum(widths_of(plan).values()) - 2 >= wanted

    assert LADDER.first_satisfying(serves) == wanted
    assert len(tried) <= 1 + 4  # the top, and log2 of 15 rungs


def test_no_rung_serves() -> None:
    assert LADDER.first_satisfying(lambda _: False) is None


def test_a_tensor_of_more_weight_gets_its_bits_first() -> None:
    # 100 times the error and 10 times the cost against 1000 times the weight.
    heavy = LADDER.weighted({"large": 1e6, "small": 1.0})
    assert widths_of(heavy.at(5)) == {"large": 6, "small": 1}
    assert widths_of(LADDER.at(5)) == {"large": 1, "small": 6}  # the other one is left alone


FREE = Choices()


def make_whole_members() -> list[Weights]:
    generator = torch.Generator().manual_seed(1)
    return [member | {"bias": 1 + 0.1 * torch.randn(64, generator=generator)} for member in make_members()]


def test_no_form_of_a_tensor_is_better_and_smaller_than_a_chosen_one() -> None:
    members = make_whole_members()
    common = find_common(members, SETTINGS)
    ladder = Ladder(members, common, FREE)
    budget = 9_000
    plan = ladder.within(budget)

    def total(plan: Plan) -> tuple[int, float]:
        packed = pack_members(members, plan.forms, plan.settings, common)
        error = sum(
            float((one[name] - two[name]).square().sum() / two[name].square().sum())
            for one, two in zip(list(packed)[:2], members, strict=False)
            for name in two
        )
        return packed.nbytes, error

    bytes_, error = total(plan)
    assert ladder.smallest <= bytes_ <= budget
    for settings in (PackSettings(8, 64, 16), PackSettings(8, None, 16), PackSettings(6, 1024, 8)):
        fixed = Ladder(members, common, Choices.of(settings)).within(budget)
        assert total(fixed)[0] <= budget
        assert error <= total(fixed)[1]


@pytest.mark.slow
def test_every_rung_is_larger_and_more_exact() -> None:
    members = make_whole_members()
    common = find_common(members, SETTINGS)
    ladder = Ladder(members, common, FREE)
    plans = [ladder.at(rung) for rung in range(ladder.top + 1)]
    sizes = [pack_members(members, plan.forms, plan.settings, common).nbytes for plan in plans]
    assert sizes[0] == ladder.smallest
    assert sizes == sorted(set(sizes))
    errors = [error(members, plan.forms, plan.settings) for plan in plans]
    # Of all components but the first, errors are estimated, so that a rung may gain nothing.
    assert all(later <= 1.02 * earlier for earlier, later in pairwise(errors))
    top = ladder.at(ladder.top)
    assert all(isinstance(form.bits, tuple) and set(form.bits) == {8} for form in top.forms.values())
    assert top.settings.small_bits == 32


@pytest.mark.slow
def test_a_budget_of_a_rungs_size_is_used_up_by_that_rung() -> None:
    """So costs are those of packing, whatever is chosen, and every byte is spent in the ladder's order."""
    members = make_whole_members()
    common = find_common(members, SETTINGS)
    ladder = Ladder(members, common, FREE)
    for rung in range(ladder.top + 1):
        plan = ladder.at(rung)
        assert ladder.within(pack_members(members, plan.forms, plan.settings, common).nbytes) == plan


def test_small_tensors_get_bits_where_these_matter_more() -> None:
    members = make_whole_members()
    ladder = Ladder(members, find_common(members, SETTINGS), FREE)
    few, many = (
        ladder.weighted({ALL_SMALL: weight}).within(ladder.smallest + 1_000).settings.small_bits
        for weight in (1e-6, 1e9)
    )
    assert (few, many) == (4, 32)


def make_long_members(first: float, at: int, count: int = 3) -> list[Weights]:
    """Members that differ in three channels of the same 9,000 numbers each, and are constant in a fourth."""
    generator = torch.Generator().manual_seed(2)
    members = []
    for _ in range(count):
        rows = torch.randn(9_000, generator=generator).repeat(4, 1)
        rows[at] = first
        members.append({"weight": rows})
    return members


@pytest.mark.parametrize("choices", [FREE, Choices.of(SETTINGS)])
def test_where_a_channel_without_numbers_lies_does_not_matter(choices: Choices) -> None:
    """One channel is sampled of so long ones; it must not be that of zeros, as of a pruned model."""
    plans = []
    for at in (0, 3):
        members = make_long_members(0.0, at)
        ladder = Ladder(members, find_common(members, SETTINGS), choices)
        plans.append([ladder.at(rung) for rung in range(ladder.top + 1)])
    assert plans[0] == plans[1]
    assert len(plans[0]) > 7  # all widths at least


@pytest.mark.parametrize("constant", [0.0, 1.0])
@pytest.mark.parametrize("choices", [FREE, Choices.of(SETTINGS)])
def test_bytes_are_spent_on_members_that_are_alike_in_their_first_channel(
    constant: float, choices: Choices
) -> None:
    members = make_long_members(constant, at=0)
    ladder = Ladder(members, find_common(members, SETTINGS), choices)
    errors = []
    for rung in (0, ladder.top):
        plan = ladder.at(rung)
        errors.append(error(members, plan.forms, plan.settings))
    # A bit more divides the squared error by about 3 to 4, and there are 7 more.
    assert errors[1] < errors[0] / 3**7


def test_bytes_are_spent_on_one_member_without_a_base_whose_first_channel_is_zero() -> None:
    members = make_long_members(0.0, at=0, count=1)
    settings = PackSettings(base_bits=None)
    ladder = Ladder(members, find_common(members, settings), Choices.of(settings))
    assert widths_of(ladder.at(ladder.top)) == {"weight": 8}


def test_members_that_differ_in_nothing_that_float32_holds_have_one_form() -> None:
    members = [{"weight": torch.full((2, 64), k * 1e-50, dtype=torch.float64)} for k in range(3)]
    common = find_common(members, SETTINGS)
    assert not common.identical
    ladder = Ladder(members, common, FREE)
    assert ladder.top == 0
    plan = ladder.within(ladder.smallest)
    packed = pack_members(members, plan.forms, plan.settings, common)
    assert packed.nbytes == ladder.smallest
    assert all(not bool(member["weight"].any()) for member in packed)


def test_no_byte_is_spent_on_what_removes_an_error_of_rounding_only() -> None:
    noise = torch.Generator().manual_seed(0)
    base = torch.randn(8, 64, generator=noise)
    # On a line, so that beside the error of the base all is in one component, but for rounding.
    members = [{"weight": base + k / 100} for k in range(4)]
    ladder = Ladder(members, find_common(members, PackSettings()), Choices())
    rungs = ladder._hulls["weight"]
    assert all(better.error < (1 - 1e-6) * point.error for point, better in pairwise(rungs))
    assert len(rungs) > 3

import pytest
import torch

from pfge import Weights
from pfge.compression.bit_allocation import Ladder
from pfge.packed.encode import PackSettings, find_shared, pack_members

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
LADDER = Ladder(MEMBERS, find_shared(MEMBERS, SETTINGS), SETTINGS)
# A bit costs each of 3 members an eighth of a byte a number.
LARGE, SMALL = 3 * 40 * 64 // 8, 3 * 4 * 64 // 8


def size(widths: dict[str, int]) -> int:
    return pack_members(MEMBERS, widths, SETTINGS).nbytes


def test_it_starts_at_one_bit_and_ends_at_eight() -> None:
    assert LADDER.at(0) == {"large": 1, "small": 1}
    assert LADDER.at(LADDER.top) == {"large": 8, "small": 8}
    assert LADDER.smallest == size({"large": 1, "small": 1})


def test_the_first_bits_go_where_the_relative_error_is_larger_and_bytes_are_fewer() -> None:
    # Relative squared errors are as 100 to 1 and costs as 1 to 10; a bit divides an error by about 3 to 4,
    # so the small tensor is ahead by log(1000) / log(3.5) = 5.5 bits.
    widths = LADDER.at(5)
    assert widths == {"large": 1, "small": 6}


def test_each_rung_costs_what_packing_takes() -> None:
    for rung in (0, 3, 8, LADDER.top):
        widths = LADDER.at(rung)
        extra = (widths["large"] - 1) * LARGE + (widths["small"] - 1) * SMALL
        assert size(widths) == LADDER.smallest + extra


@pytest.mark.parametrize("extra", [0, SMALL - 1, SMALL, LARGE, LARGE + 7 * SMALL, 100 * LARGE])
def test_a_budget_is_kept_and_used(extra: int) -> None:
    budget = LADDER.smallest + extra
    widths = LADDER.within(budget)
    left = budget - size(widths)
    assert left >= 0
    assert widths["small"] == 8 or left < SMALL
    assert widths["large"] == 8 or left < LARGE


def test_one_width_for_all_is_the_widest_that_fits() -> None:
    both = LARGE + SMALL
    assert LADDER.widest_within(LADDER.smallest + 2 * both - 1) == {"large": 2, "small": 2}
    assert LADDER.widest_within(LADDER.smallest + 2 * both) == {"large": 3, "small": 3}
    assert LADDER.widest_within(LADDER.smallest + 99 * both) == {"large": 8, "small": 8}


@pytest.mark.parametrize("wanted", [0, 1, 6, 13, 14])
def test_the_lowest_rung_that_serves_is_found_in_few_trials(wanted: int) -> None:
    tried = []

    def serves(widths: dict[str, int]) -> bool:
        tried.append(widths)
        return sum(widths.values()) - 2 >= wanted

    assert LADDER.lowest_that(serves) == wanted
    assert len(tried) <= 1 + 4  # the top, and log2 of 15 rungs


def test_no_rung_serves() -> None:
    assert LADDER.lowest_that(lambda _: False) is None

"""A plan for files: the smallest is tried first, and few attempts come close to the budget."""

import pytest

from pfge.compression.compress import ATTEMPTS, plan_within_files
from pfge.compression.rate_distortion import Ladder, Plan
from pfge.packed import PackSettings

OVERHEAD = 2000  # bytes of files that are no tensors
UPGRADE = 40  # bytes of tensors from one plan to the next


class Even(Ladder):
    """Plans from 500 to 4500 bytes of tensors, which are their only setting."""

    def __init__(self) -> None:
        self.smallest, self.largest = 500, 4500

    def at(self, rung: int) -> Plan:
        return Plan({}, PackSettings(group=self.smallest + rung * UPGRADE))

    def within(self, budget: int) -> Plan:
        assert self.smallest <= budget <= self.largest
        return self.at((budget - self.smallest) // UPGRADE)


class Files:
    """The sizes of files, deflated to a share of their tensors, and the plans that were packed."""

    def __init__(self, deflated_to: float) -> None:
        self.packed: list[int] = []
        self._deflated_to = deflated_to

    def size(self, tensors: int) -> int:
        return OVERHEAD + round(self._deflated_to * tensors)

    def __call__(self, plan: Plan) -> int:
        assert plan.settings.group is not None
        self.packed.append(plan.settings.group)
        return self.size(plan.settings.group)


@pytest.mark.parametrize("deflated_to", [0.7, 1.0, 1.2])
def test_any_budget_from_the_smallest_on_is_kept_and_used(deflated_to: float) -> None:
    ladder = Even()
    for most in range(Files(deflated_to).size(500), Files(deflated_to).size(4500), 37):
        files = Files(deflated_to)
        plan, least = plan_within_files(ladder, most, files)
        assert plan is not None
        # Within one plan of the budget, or within 0.5 % of it, where the search ends.
        assert most - max(deflated_to * UPGRADE + 1, 0.005 * most) <= files(plan) <= most
        assert least == files.size(500)
        assert len(set(files.packed)) <= 1 + ATTEMPTS


def test_a_budget_for_everything_takes_two_attempts() -> None:
    files = Files(0.9)
    plan, _ = plan_within_files(Even(), 10**6, files)
    assert plan == Even().at(100)
    assert files.packed == [500, 4500]


def test_a_budget_below_the_smallest_plan_has_none() -> None:
    files = Files(0.9)
    assert plan_within_files(Even(), 2449, files) == (None, 2450)
    assert files.packed == [500]

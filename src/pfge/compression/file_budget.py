"""The plan for a number of bytes on disk, which are known only once members are packed and deflated."""

from collections.abc import Callable

from pfge.compression.rate_distortion import Ladder, Plan

ATTEMPTS = 5
_CLOSE = 0.995  # of the budget
_AIM = 0.999


def plan_within_files(
    ladder: Ladder, most: int, file_bytes: Callable[[Plan], int]
) -> tuple[Plan | None, int]:
    """Return the largest plan found whose files take at most so many bytes, and the fewest that any took.

    Files are about proportional to tensors, so a few attempts come close.

    Args:
        ladder: Whose budgets count tensors.
        most: The bytes of all files.
        file_bytes: Packs a plan and returns the size of its files.
    """
    plan, sizes = None, dict[int, Plan]()
    tensors = most
    for _ in range(ATTEMPTS):
        before, plan = plan, ladder.within(max(tensors, ladder.smallest))
        if plan == before:  # there is none smaller, or none larger
            break
        size = file_bytes(plan)
        sizes[size] = plan
        if _CLOSE * most <= size <= most:
            break
        tensors = round(tensors * _AIM * most / size)
    best = max((size for size in sizes if size <= most), default=0)
    return sizes.get(best), min(sizes)

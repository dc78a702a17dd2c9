"""The plan for a number of bytes on disk, which are known only once members are packed and deflated."""

from collections.abc import Callable

from pfge.compression.rate_distortion import Ladder, Plan

ATTEMPTS = 5  # beside the smallest plan
_CLOSE = 0.995  # of the budget
_AIM = 0.999


def plan_within_files(
    ladder: Ladder, most: int, file_bytes: Callable[[Plan], int]
) -> tuple[Plan | None, int]:
    """Return the largest plan found whose files take at most so many bytes, and the bytes of the smallest.

    Files have bytes that do not depend on the plan. What a plan adds to those of the smallest one is about
    proportional to its tensors, so a few attempts come close.

    Args:
        ladder: Whose budgets count tensors.
        most: The bytes of all files.
        file_bytes: Packs a plan and returns the size of its files.
    """
    best = ladder.at(0)
    size = least = file_bytes(best)
    if least > most:
        return None, least
    too_large: Plan | None = None
    low, high = ladder.smallest, ladder.largest + 1  # the best plan's tensors, and tensors that are too large
    tensors = min(low + most - least, ladder.largest)
    attempts = 0
    while attempts < ATTEMPTS and high - low > 1 and not _CLOSE * most <= size <= most:
        if not low < tensors < high:
            tensors = (low + high) // 2
        plan = ladder.within(tensors)
        if plan == best:  # no attempt is needed to try a little more, or a little less
            low, tensors = tensors, round(tensors / _CLOSE)
        elif plan == too_large:
            high, tensors = tensors, round(tensors * _CLOSE)
        else:
            attempts += 1
            size = file_bytes(plan)
            if size <= most:
                best, low = plan, tensors
            else:
                too_large, high = plan, tensors
            share = (_AIM * most - least) / max(1, size - least)
            tensors = min(ladder.smallest + round(share * (tensors - ladder.smallest)), ladder.largest)
    return best, least

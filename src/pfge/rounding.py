"""Decisions between measured values that do not depend on rounding.

The same computation ends in other last digits on another processor, as sums are taken in another order. A
choice between two values that differ in these digits only would differ from machine to machine. So a fit is
kept only if it gains more than rounding, and of candidates that are equal up to rounding the first is taken.
"""

from collections.abc import Callable, Iterable
from math import inf, isnan
from typing import TypeVar

Item = TypeVar("Item")

ROUNDING = 1e-6
"""The largest difference that rounding may cause, relative to the values. Members predict in float32, whose
epsilon is 1.2e-7, and a few operations add up a few of them. A probability that is off by 1e-6 of its size
moves its logarithm by 1e-6 nats, so the limit of small log-likelihoods is absolute."""


def is_lower(value: float, other: float, *, error: float = 0.0, scale: float = 1.0) -> bool:
    """Return whether a value is below another by more than its standard error and by more than rounding.

    It is False if either is NaN. Every finite value is below infinity.

    Args:
        value: Such as the loss with what was fitted.
        other: Such as the loss without.
        error: The standard error of their difference.
        scale: The least size by which rounding is judged: 1 for log-likelihoods and shares, and 0 for values
            in a unit of the user, such as a root mean squared error.

    Example:
        >>> from pfge.rounding import is_lower
        >>> is_lower(0.5, 0.6), is_lower(0.5, 0.6, error=0.2), is_lower(0.5, 0.5 + 1e-7)
        (True, False, False)
    """
    rounding = ROUNDING * max(scale, min(abs(value), abs(other)))
    return other - value > max(error, rounding)


def first_lowest(items: Iterable[Item], key: Callable[[Item], float], *, scale: float = 1.0) -> Item:
    """Return the first of the items whose value is the lowest up to rounding; NaN counts as infinity.

    Args:
        items: At least one item, in the order of preference.
        key: Returns the value of an item.
        scale: The least size by which rounding is judged; see `is_lower`.

    Example:
        >>> from pfge.rounding import first_lowest
        >>> first_lowest([0.7, 0.5 + 1e-7, 0.5], key=float)
        0.5000001
    """
    found = [(inf if isnan(value := key(item)) else value, item) for item in items]
    lowest = min(value for value, _ in found)
    return next(item for value, item in found if not is_lower(lowest, value, scale=scale))


def lowest_first(items: Iterable[Item], key: Callable[[Item], float]) -> list[Item]:
    """Return the items by growing value; those that are equal up to rounding keep their order.

    Example:
        >>> from pfge.rounding import lowest_first
        >>> lowest_first([0.7, 0.5 + 1e-7, 0.5], key=float)
        [0.5000001, 0.5, 0.7]
    """
    left = [(key(item), item) for item in items]
    ordered = []
    while left:
        chosen = first_lowest(range(len(left)), key=lambda place: left[place][0])
        ordered.append(left.pop(chosen)[1])
    return ordered

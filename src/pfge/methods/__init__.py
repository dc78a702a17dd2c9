"""Methods: one table that everything else looks up, and the rows that results have of them."""

from pfge.methods.method import Method, TrainingPlan, Variant
from pfge.methods.table import (
    DEFAULT_METHODS,
    METHODS,
    START,
    base_of,
    find_reference,
    is_starred,
    known_rows,
    make_collector,
    method_of,
    reference_first,
    register,
    row_order,
    schedule_of,
    starred,
)

__all__ = [
    "DEFAULT_METHODS",
    "METHODS",
    "START",
    "Method",
    "TrainingPlan",
    "Variant",
    "base_of",
    "find_reference",
    "is_starred",
    "known_rows",
    "make_collector",
    "method_of",
    "reference_first",
    "register",
    "row_order",
    "schedule_of",
    "starred",
]

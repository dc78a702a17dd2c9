"""Rows by name: their order and their methods."""

from pfge.methods import (
    METHODS,
    TrainingPlan,
    base_of,
    is_starred,
    known_rows,
    method_of,
    row_order,
    schedule_of,
    starred,
)

SETTING = TrainingPlan(iterations=40, cycle=4, period=20, low=1e-3, high=0.1)
TABLE = [
    "SWA",
    "EMA",
    "FGE",
    "FGE*",
    "SWAG",
    "SWAG*",
    "PFGE",
    "Snapshot",
    "Star",
    "Cosine",
    "MCDropout",
    "TTA",
    "DeepEnsemble",
]


def test_rows_stand_in_the_order_of_the_table_whatever_order_they_come_in() -> None:
    assert known_rows() == TABLE
    shuffled = [*TABLE[::-1], "mine", "w0", "a"]
    assert row_order(shuffled) == ["w0", *TABLE, "mine", "a"]


def test_a_starred_row_belongs_to_its_method() -> None:
    assert (starred("FGE"), base_of("FGE*"), base_of("FGE")) == ("FGE*", "FGE", "FGE")
    assert is_starred("FGE*")
    assert not is_starred("FGE")
    assert method_of("FGE*") is METHODS["FGE"]
    assert method_of("w0") is method_of("mine") is None


def test_a_row_has_the_rates_of_its_method() -> None:
    at_4 = {row: schedule_of(row, SETTING)(4) for row in ("FGE*", "PFGE", "mine", "Snapshot")}
    snapshot = at_4.pop("Snapshot")
    assert set(at_4.values()) == {1e-3}  # the end of a cycle
    assert snapshot > 0.05  # not yet half of a period

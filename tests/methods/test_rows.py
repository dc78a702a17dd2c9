"""Rows by name: their order, their methods, and how they look."""

from pfge.methods import (
    METHODS,
    NEUTRAL,
    Setting,
    base_of,
    is_for_reference,
    is_starred,
    known_rows,
    method_of,
    row_order,
    schedule_of,
    starred,
    style_of,
    styles,
)

SETTING = Setting(iterations=40, cycle=4, period=20, low=1e-3, high=0.1)
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


def test_the_start_and_what_needs_many_times_the_memory_are_for_reference() -> None:
    assert [row for row in ["w0", *TABLE, "mine"] if is_for_reference(row)] == ["w0", "FGE", "SWAG"]


def test_a_row_has_the_rates_of_its_method() -> None:
    at_4 = {row: schedule_of(row, SETTING)(4) for row in ("FGE*", "PFGE", "mine", "Snapshot")}
    snapshot = at_4.pop("Snapshot")
    assert set(at_4.values()) == {1e-3}  # the end of a cycle
    assert snapshot > 0.05  # not yet half of a period


def test_last_members_look_like_their_method_with_open_marks() -> None:
    whole, last = style_of("FGE"), style_of("FGE*")
    assert (whole.light, whole.dark, whole.mark) == (last.light, last.dark, last.mark)
    assert (whole.open, last.open) == (False, True)


def test_rows_without_a_style_share_those_that_are_left() -> None:
    found = styles(["w0", "mine", "PFGE", "yours"])
    assert found["w0"] == style_of("mine") == NEUTRAL
    assert found["PFGE"] == METHODS["PFGE"].style
    assert len({found["mine"], found["yours"], *(style_of(row) for row in ["w0", *TABLE])}) == 2 + 1 + len(
        TABLE
    )

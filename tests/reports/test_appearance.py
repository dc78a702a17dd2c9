"""How methods look in reports, with and without an appearance of their own."""

from pfge.methods import METHODS, find_reference, known_rows
from pfge.reports.appearance import (
    APPEARANCES,
    NEUTRAL,
    Appearance,
    appearance_of,
    is_for_reference,
    style_of,
    styles,
)


def test_every_method_of_the_table_has_a_style_and_only_the_reference_is_strong() -> None:
    assert [*APPEARANCES] == [*METHODS]
    found = {name: appearance.style for name, appearance in APPEARANCES.items()}
    assert all(found.values())
    assert [name for name, style in found.items() if style and style.strong] == ["PFGE"]


def test_the_reference_is_compared_with_the_rival_of_the_paper() -> None:
    assert appearance_of(find_reference().name).rival == "FGE"


def test_an_unknown_method_looks_default() -> None:
    assert appearance_of("mine") == appearance_of("w0") == Appearance()


def test_the_start_and_what_needs_many_times_the_memory_are_for_reference() -> None:
    assert [row for row in ["w0", *known_rows(), "mine"] if is_for_reference(row)] == ["w0", "FGE", "SWAG"]


def test_last_members_look_like_their_method_with_open_marks() -> None:
    whole, last = style_of("FGE"), style_of("FGE*")
    assert (whole.light, whole.dark, whole.mark) == (last.light, last.dark, last.mark)
    assert (whole.open, last.open) == (False, True)


def test_rows_without_a_style_share_those_that_are_left() -> None:
    found = styles(["w0", "mine", "PFGE", "yours"])
    assert found["w0"] == style_of("mine") == NEUTRAL
    assert found["PFGE"] == APPEARANCES["PFGE"].style
    of_table = {style_of(row) for row in ["w0", *known_rows()]}
    assert len({found["mine"], found["yours"], *of_table}) == 2 + 1 + len(known_rows())

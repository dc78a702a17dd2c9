from tests.integrations.table import render, shown


def test_the_page_shows_the_laws_that_the_tests_check() -> None:
    """Run `python -m tests.integrations.table` to write it again."""
    assert shown() == render(failed=())


def test_a_law_that_failed_is_shown_as_broken() -> None:
    failed = "tests/x.py::test_a_resumed_training_has_the_same_members[4-lightning, manual]"
    rows = dict(row.split(" | ", 1) for row in render([failed]).splitlines())
    assert rows["| a resumed training has the same members"] == "yes | yes | yes | no | yes | yes |"
    assert rows["| members equal those of a bare loop"] == "yes | yes | yes | yes | yes | yes |"

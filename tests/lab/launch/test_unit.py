"""Which units of an experiment are run, and when each may start."""

from itertools import product
from pathlib import Path

from pfge.lab.launch.units import Unit, find_dependents, is_to_run, longest_chains, units_to_run


def unit(name: str, *needs: str, done: bool = False, early: Path | None = None) -> Unit:
    return Unit(name, lambda: done, lambda _: None, needs, early)


def test_units_that_are_not_done_are_run_in_their_order() -> None:
    units = [unit("a"), unit("b", "a", done=True), unit("c", "a"), unit("d", "b", "c")]
    assert [found.name for found in units_to_run(units)] == ["a", "c", "d"]


def test_what_only_finished_units_need_is_not_made_again() -> None:
    units = [unit("start"), unit("members", "start", done=True), unit("measure", "members")]
    assert [found.name for found in units_to_run(units)] == ["measure"]


def test_one_unit_is_to_run_if_it_is_among_all_that_are() -> None:
    for finished in product((True, False), repeat=5):
        a, b, c, d, e = finished
        units = [
            unit("a", done=a),
            unit("b", "a", done=b),
            unit("c", "a", done=c),
            unit("d", "b", "c", done=d),
            unit("e", "c", done=e),
        ]
        expected = {found.name for found in units_to_run(units)}
        found = {one.name for one in units if is_to_run(one, find_dependents(units, one.name))}
        assert found == expected


def test_a_unit_starts_when_nothing_that_it_needs_is_open() -> None:
    assert unit("c", "a", "b").may_start({"c": None})
    assert not unit("c", "a", "b").may_start({"b": None, "c": None})


def test_a_file_may_be_enough_for_a_unit_to_start(tmp_path: Path) -> None:
    waiting = unit("own path", "shared path", early=tmp_path / "fork")
    assert not waiting.may_start({"shared path": None})
    (tmp_path / "fork").touch()
    assert waiting.may_start({"shared path": None})


def test_a_chain_is_a_unit_and_the_longest_of_what_needs_it() -> None:
    def trained(name: str, iterations: int, *needs: str) -> Unit:
        return Unit(name, lambda: False, lambda _: None, needs, iterations=iterations)

    units = [
        trained("w0", 10, "done before"),
        trained("a", 5, "w0"),
        trained("b", 7, "w0"),
        trained("c", 4, "a"),
    ]
    assert longest_chains(units) == {"w0": 19, "a": 9, "b": 7, "c": 4}

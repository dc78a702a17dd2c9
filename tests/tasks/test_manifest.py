"""A task in a manifest: a name and options, which nothing is executed for."""

from typing import Any

import pytest

from pfge.tasks import Classification
from pfge.tasks.manifest import task_from_manifest, task_to_manifest
from tests.tasks.fractions import Fractions


def test_the_default_is_left_out_and_comes_back() -> None:
    assert task_to_manifest(Classification()) is None
    assert task_from_manifest(None) == Classification()


def test_another_task_is_its_name_and_its_options() -> None:
    assert task_to_manifest(Fractions(places=3)) == {"name": "Fractions", "options": {"places": 3}}


def test_a_known_task_is_made_of_its_entry() -> None:
    assert task_from_manifest({"name": "Classification", "options": {}}) == Classification()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"name": "Fractions", "options": {}},
            r"task must be one that this version knows, Classification, got 'Fractions'; update pfge, or",
        ),
        ({"name": "os.system", "options": {}}, r"this version knows, Classification, got 'os\.system'"),
        (
            {"name": "Classification", "options": {"dim": 1}},
            "options that Classification does not take: .*dim",
        ),
        ({"name": "Classification"}, "task must have a name and options, got {'name': 'Classification'}"),
        ("Classification", "task must have a name and options, got 'Classification'"),
        ({"name": 3, "options": {}}, "task must have a name and options"),
    ],
)
def test_what_is_no_known_task_is_refused(entry: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task_from_manifest(entry)

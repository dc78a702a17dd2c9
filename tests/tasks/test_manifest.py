"""A task in a manifest: a name and options, which nothing is executed for."""

import json
from typing import Any

import pytest

from pfge.tasks import (
    DEFAULT_TASK,
    CausalLM,
    Classification,
    MultiLabel,
    Raw,
    Regression,
    Task,
    task_from_manifest,
    task_to_manifest,
)
from tests.tasks.fractions import Fractions


def test_the_default_is_left_out_and_comes_back() -> None:
    assert task_to_manifest(DEFAULT_TASK) is None
    assert task_from_manifest(None) == DEFAULT_TASK


@pytest.mark.parametrize(
    "task",
    [
        Classification(),
        Classification(dim=-1, ignore_index=-100),
        CausalLM(),
        CausalLM(ignore_index=0),
        Raw(),
        MultiLabel(),
        Regression(),
        Regression(noise="predicted"),
    ],
)
def test_a_task_that_was_given_comes_back(task: Task) -> None:
    entry = json.loads(json.dumps(task_to_manifest(task)))
    assert task_from_manifest(entry) == task


def test_another_task_is_its_name_and_its_options() -> None:
    assert task_to_manifest(Fractions(places=3)) == {"name": "Fractions", "options": {"places": 3}}


def test_a_known_task_is_made_of_its_entry() -> None:
    assert task_from_manifest({"name": "Classification", "options": {}}) == Classification()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"name": "Fractions", "options": {}},
            r"knows, Classification, CausalLM, MultiLabel, Regression, Raw, got 'Fractions'; update pfge, or",
        ),
        (
            {"name": "os.system", "options": {}},
            r"this version knows, Classification, CausalLM, MultiLabel, Regression, Raw, got 'os\.system'",
        ),
        (
            {"name": "Classification", "options": {"dims": 1}},
            "options that Classification does not take: .*dims",
        ),
        (
            {"name": "Classification", "options": {"dim": 0}},
            "Classification does not take: dim must be .* got 0",
        ),
        ({"name": "Classification", "options": {"dim": True}}, "does not take: dim must be .* got True"),
        ({"name": "Classification", "options": {"dim": [1]}}, r"does not take: dim must be .* got \[1\]"),
        ({"name": "Classification", "options": {"ignore_index": 0.5}}, "ignore_index must be .* got 0.5"),
        ({"name": "Classification", "options": {"ignore_index": 2**63}}, "ignore_index must be .* 64 bits"),
        ({"name": "Regression", "options": {"noise": "none"}}, "noise must be .* got 'none'"),
        ({"name": "Regression", "options": {"noise": ["fixed"]}}, r"noise must be .* got \['fixed'\]"),
        ({"name": "MultiLabel", "options": {"labels": 3}}, "MultiLabel does not take: .*labels"),
        ({"name": "Classification"}, "task must have a name and options, got {'name': 'Classification'}"),
        ("Classification", "task must have a name and options, got 'Classification'"),
        ({"name": 3, "options": {}}, "task must have a name and options"),
    ],
)
def test_what_is_no_known_task_is_refused(entry: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task_from_manifest(entry)

"""Results as types: JSON and back without a change; anything else is an error that names the key."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfge.lab.config.typed import FieldError
from pfge.lab.run.results import (
    AdjacentMembers,
    ComparisonRow,
    ConnectivityRow,
    Diagnoses,
    Diagnosis,
    EnsembleEvaluation,
    FormatRow,
    Landscape,
    Result,
    expected_rows,
)
from pfge.tasks import Classification, Metric
from tests.reports.made_run import LANDSCAPE, connectivity_rows, evaluation, form_rows, result
from tests.tasks.fractions import Fractions

PAIR = AdjacentMembers((1, 2), 0.1, 30.0, 0.2, -0.01, 0.05)
DIAGNOSIS = Diagnosis(1, "PFGE", [PAIR], [0.1, 0.2], 0.1, "training", None, [None, 0.1], 0.1)
EXAMPLES: dict[type[Result], dict[str, Any]] = {
    ComparisonRow: result("PFGE", 1),
    ConnectivityRow: connectivity_rows()[0],
    FormatRow: form_rows()[0],
    EnsembleEvaluation: evaluation("PFGE", 1),
    Diagnoses: Diagnoses([DIAGNOSIS]).to_json(),
    Landscape: LANDSCAPE,
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_json_comes_back_as_it_was_with_a_version(kind: type[Result]) -> None:
    written = kind.from_json(EXAMPLES[kind]).to_json()
    assert list(written) == list({"version": 1} | EXAMPLES[kind])
    text = json.dumps(written)
    assert json.loads(text) == json.loads(json.dumps({"version": 1} | EXAMPLES[kind]))
    assert json.dumps(kind.from_json(json.loads(text)).to_json()) == text


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_key_without_which_a_result_is_none_is_named(kind: type[Result]) -> None:
    optional = {
        *("version", "trainings", "member_iterations", "calibrated", "calibrated_members", "each", "growing"),
        *("ensemble", "bytes_on_disk", "environment", "trajectory"),
    }
    needed = EXAMPLES[kind].keys() - optional
    assert needed
    for key in needed:
        with pytest.raises(FieldError, match=rf"^{key} is missing$"):
            kind.from_json({name: value for name, value in EXAMPLES[kind].items() if name != key})


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.just(10**400)
    | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any) -> list[Callable[[Any], None]]:
    """Return a setter for every place inside a JSON value."""
    found: list[Callable[[Any], None]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found.append(lambda new, key=key: value.__setitem__(key, new))
        found += places(item)
    return found


@given(st.sampled_from([*EXAMPLES]), JSON, st.integers(0, 10**6))
def test_any_value_anywhere_is_read_or_refused_with_a_reason(
    kind: type[Result], value: Any, number: int
) -> None:
    changed = json.loads(json.dumps(EXAMPLES[kind]))
    setters = places(changed)
    setters[number % len(setters)](value)
    for hostile in (value, changed):
        with suppress(FieldError):
            assert json.dumps(kind.from_json(hostile).to_json())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"members": 0}, "members must be at least 1, got 0"),
        ({"members": True}, "members must be a whole number, got True"),
        ({"bytes": 1.5}, "bytes must be a whole number, got 1.5"),
        ({"bytes": 10**400}, "bytes must be a number of at most 64 bits, got one of 1,329 bits"),
        ({"test": {"accuracy": 0.9, "nll": 1e300, "ece": 0.1}}, "test.nll must be at most 1e+100 in size"),
        ({"iterations": -1}, "iterations must be at least 0, got -1"),
        ({"method": 3}, "method must be a string, got 3"),
        ({"method": "\ud800"}, "method must be valid Unicode"),
        (
            {"method": "/etc/passwd"},
            "method must be a name of 1 to 100 printable characters without slashes",
        ),
        ({"method": ".."}, "method must be a name"),
        ({"method": "a\\b"}, "method must be a name"),
        (
            {"method": "\x1b[2J"},
            "method must be a name of 1 to 100 printable characters without slashes, and of at most 200 "
            "bytes, got '\\x1b[2J'",
        ),
        ({"method": ""}, "method must be a name"),
        ({"method": "x" * 101}, "method must be a name"),
        ({"method": "\u20ac" * 67}, "method must be a name"),
        ({"test": {"accuracy": 0.9, "ece": 0.1}}, "test.nll is missing"),
        (
            {"test": {"accuracy": 0.9, "nll": float("nan"), "ece": 0.1}},
            "test.nll must be finite, got nan",
        ),
        (
            {"test": {"accuracy": 0.9, "nll": float("-inf"), "ece": 0.1}},
            "test.nll must be finite, got -inf",
        ),
        (
            {"test": {"accuracy": 0.9, "nll": 10**400, "ece": 0.1}},
            "test.nll must be a number of at most 64",
        ),
        ({"test": "good"}, "test must be a JSON object, got 'good'"),
        ({"member_iterations": [1]}, "member_iterations must have an entry for each of 4 members, got 1"),
        ({"each": {"test": []}}, "each.test must have an entry for each of 4 members, got 0"),
        ({"growing": {"test": [{"nll": 1.0}] * 4}}, r"growing.test[0].accuracy is missing"),
        ({"calibrated": {"temperature": "hot"}}, "calibrated.temperature must be a number, got 'hot'"),
        ({"calibrated_members": [1.5]}, "calibrated_members must be a JSON object, got a list"),
    ],
)
def test_a_row_says_what_is_wrong_with_it(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(FieldError) as caught:
        ComparisonRow.from_json(result("PFGE", 1) | change)
    assert str(caught.value).startswith(expected)


def test_a_member_that_diverged_is_no_reason_to_refuse_its_ensemble() -> None:
    odd = result("PFGE", 1)
    odd["growing"]["test"][1]["nll"] = float("nan")
    assert ComparisonRow.from_json(odd).key == (1, "PFGE")


def test_samples_have_no_iterations() -> None:
    row = ComparisonRow.from_json(result("SWAG", 1) | {"member_iterations": [None] * 20})
    assert row.member_iterations == [None] * 20


def test_what_is_not_known_is_not_written() -> None:
    row = replace(ComparisonRow.from_json(result("PFGE", 1)), each=None, growing=None)
    assert not {"each", "growing"} & row.to_json().keys()


def test_a_new_main_metric_is_needed_and_kept_without_a_change_here(monkeypatch: pytest.MonkeyPatch) -> None:
    width = Metric("width", "width", "lower", lambda _: 0.0, is_main=True)
    monkeypatch.setattr(Classification, "metrics", (*Classification.metrics, width))
    row = result("SWA", 1)
    with pytest.raises(FieldError, match=r"test\.width is missing"):
        ComparisonRow.from_json(row)
    for found in (row, row["calibrated"], row["calibrated_members"]):
        found["test"]["width"] = 2.0
    for kind in ("each", "growing"):
        row[kind]["test"][0]["width"] = 2.0
    assert ComparisonRow.from_json(row).metrics["test"]["width"] == 2.0


OF_FRACTIONS = {"name": "Fractions", "options": {"places": 6}}


def test_a_row_needs_the_main_metrics_of_its_own_task(fractions: Fractions) -> None:
    row = {key: value for key, value in result("FGE*", 1).items() if "calibrated" not in key}
    with pytest.raises(FieldError, match=r"^test\.mse is missing$"):
        ComparisonRow.from_json(row | {"task": OF_FRACTIONS})
    found = ComparisonRow.from_json(row | {"task": OF_FRACTIONS, "test": {"mse": 0.5}})
    assert found.task == fractions
    assert found.to_json()["task"] == OF_FRACTIONS
    assert "task" not in ComparisonRow.from_json(row).to_json()


@pytest.mark.parametrize("kind", [ComparisonRow, FormatRow, EnsembleEvaluation])
@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ({"name": "Ranking", "options": {}}, "task must be one that this version knows, Classification"),
        (
            {"name": "Classification", "options": {"sides": 3}},
            "task has options that Classification",
        ),
        ("Classification", "task must have a name and options, got 'Classification'"),
    ],
)
def test_a_task_that_is_not_known_is_named(kind: type[Result], task: Any, expected: str) -> None:
    with pytest.raises(FieldError) as caught:
        kind.from_json(EXAMPLES[kind] | {"task": task})
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"t": [0.0]}, "trace.t must have at least 2 points, got 1"),
        ({"squared_norms": [1.0]}, "trace.squared_norms must have an entry for each of 3 points, got 1"),
        ({"values": {"train_loss": [1, 2, 3]}}, "trace.values.train_error is missing"),
    ],
)
def test_a_trace_has_every_quantity_at_every_point(change: dict[str, Any], expected: str) -> None:
    row = connectivity_rows()[0]
    with pytest.raises(FieldError) as caught:
        ConnectivityRow.from_json(row | {"trace": row["trace"] | change})
    assert str(caught.value) == expected


def test_a_setting_that_an_older_version_did_not_have_is_the_default() -> None:
    row = connectivity_rows()[0]
    assert ConnectivityRow.from_json(row | {"settings": {"rate": 0.5}}).settings.points == 31


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"x": [1.0, 1.0, 1.0]}, "x must be two or more growing numbers"),
        ({"values": [[1.0, 2.0]]}, "values must have 3 rows of 3 numbers"),
        ({"quantity": "<script>"}, "quantity must be one of 'train_loss', 'train_error', 'test_error'"),
        ({"members": ["<script>", 2, 3]}, r"members[0] must be a whole number"),
        ({"w0": [1.0]}, "w0 must have 2 entries, got 1"),
        (
            {"values": [[float("nan")] * 3] * 3},
            r"values[0][0] must be finite, got nan",
        ),
    ],
)
def test_a_landscape_can_be_drawn(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(FieldError) as caught:
        Landscape.from_json(LANDSCAPE | change)
    assert str(caught.value).startswith(expected)


def test_a_result_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        ComparisonRow.from_json(result("PFGE", 1)).members = 5  # type: ignore[misc]


def test_a_finished_comparison_has_a_row_for_each_method_and_for_the_last_of_some() -> None:
    assert expected_rows(["SWA", "FGE", "PFGE"]) == {"w0", "SWA", "FGE", "FGE*", "PFGE"}

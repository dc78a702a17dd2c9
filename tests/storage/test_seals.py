"""JSON that states the SHA-256 of its content."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from pfge.storage.files import (
    KEY,
    BrokenSealError,
    StorageError,
    is_sealed,
    read_json_object,
    seal,
    unseal,
    write_json,
)

VALUE: dict[str, Any] = {"name": "é\ud800", "numbers": [1, 1.0, -0.0, 1e-300, float("nan")], "none": None}


def test_the_digest_is_that_of_the_other_keys_as_json() -> None:
    assert seal({"a": 1})[KEY] == hashlib.sha256(b'{"a": 1}').hexdigest()
    assert is_sealed(seal({"a": 1}))
    assert not is_sealed({"a": 1})


def test_a_sealed_value_survives_json_and_any_spelling_of_it() -> None:
    for indent, ascii_only in ((None, True), (4, False)):
        read = json.loads(json.dumps(seal(VALUE), indent=indent, ensure_ascii=ascii_only))
        assert json.dumps(unseal(read)) == json.dumps(VALUE)
    assert unseal({"a": 1}) == {"a": 1}  # of an older version


@pytest.mark.parametrize(
    "change",
    [
        {"name": "e"},
        {"numbers": [1, 1, -0.0, 1e-300, float("nan")]},
        {"none": 0},
        {"more": 1},
        {KEY: "0" * 64},
        {KEY: None},
        {"content_sha257": "0" * 64},
    ],
)
def test_any_other_content_breaks_the_seal(change: dict[str, Any]) -> None:
    with pytest.raises(BrokenSealError, match="does not have the SHA-256 that it states"):
        unseal(seal(VALUE) | change)


def test_a_changed_file_is_refused_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    write_json(file, {"temperature": 1.25})
    assert read_json_object(file) == {"temperature": 1.25}
    file.write_text(file.read_text().replace("1.25", "1.35"))
    with pytest.raises(StorageError, match=rf"some\.json is not as it was written.*remove {KEY}"):
        read_json_object(file)


@pytest.mark.parametrize(
    ("key", "digest"),
    [
        ("conteot_sha256", "0" * 64),
        ("co, 3.11.a256", "0" * 64),  # eight bytes from elsewhere
        ("x", "0" * 28 + "\ufffdatform" + "0" * 28),
    ],
)
def test_a_damaged_key_is_not_a_missing_one(key: str, digest: str) -> None:
    with pytest.raises(BrokenSealError):
        unseal(VALUE | {key: digest})


@pytest.mark.parametrize("key", ["sha256", "members"])
def test_digests_of_other_things_are_no_damaged_seals(key: str) -> None:
    assert unseal({"a": 1, key: "0" * 64}) == {"a": 1, key: "0" * 64}
    assert unseal(seal({"a": 1, "commit": "0" * 40})) == {"a": 1, "commit": "0" * 40}

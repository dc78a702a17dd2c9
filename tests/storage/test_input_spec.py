"""What a manifest says of how an ensemble is used."""

import json
from pathlib import Path
from typing import Any

import pytest

from pfge import Ensemble, StorageError
from pfge.packed import PackSettings, pack_members
from pfge.storage.ensemble_folder import MANIFEST
from pfge.storage.record import EnsembleRecord, InputSpec
from tests.packed.close_members import close_members
from tests.toys import make_mlp

SPEC = InputSpec(
    classes=("cat", "dog", "ship"),
    mean=(0.5, 0.25),
    std=(0.25, 1.0),
    input_shape=(2, 8, 8),
    resize=9,
    outputs=3,
    channels=2,
)


@pytest.mark.parametrize("packed", [False, True])
def test_a_saved_ensemble_knows_how_it_is_used(packed: bool, tmp_path: Path) -> None:
    members = close_members(3)
    ensemble = Ensemble(
        pack_members(members, 3, PackSettings()) if packed else members, make_mlp, input_spec=SPEC
    )
    ensemble.last(2).to("cpu").save(tmp_path / "e")
    assert Ensemble.load(tmp_path / "e", make_mlp).input_spec == SPEC
    assert ensemble.last(2).file_bytes() == sum(file.stat().st_size for file in (tmp_path / "e").iterdir())


def test_nothing_is_written_of_what_is_not_known(tmp_path: Path) -> None:
    Ensemble(close_members(1), make_mlp).save(tmp_path / "e")
    assert "usage" not in json.loads((tmp_path / "e" / MANIFEST).read_text())
    assert Ensemble.load(tmp_path / "e", make_mlp).input_spec == InputSpec()


def spec_in(entry: Any) -> InputSpec:
    return EnsembleRecord.from_manifest(Path("manifest.json"), {"usage": entry}).input_spec


def test_what_a_later_version_adds_is_left_out() -> None:
    assert spec_in({"resize": 9, "colors": "many"}) == InputSpec(resize=9)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ([], r"manifest.json has an invalid `usage`: expected an object, got \[\]"),
        ({"classes": "cat"}, "classes must be a list, got 'cat'"),
        ({"classes": [1]}, r"classes must be strings, got \(1,\)"),
        ({"mean": [1.0]}, r"mean and std must have the same length, got \(1.0,\) and None"),
        ({"mean": [float("nan")], "std": [1]}, r"mean must be finite numbers, got \(nan,\)"),
        ({"mean": [0], "std": [0]}, r"std must be above 0, got \(0,\)"),
        ({"input_shape": [3, -1]}, r"input_shape must be above 0 and at most 16777216, got \(3, -1\)"),
        ({"input_shape": [1 << 60]}, "input_shape must be above 0 and at most"),
        ({"outputs": True}, "outputs must be above 0 and at most 16777216, got True"),
        ({"resize": "9"}, "resize must be above 0 and at most 16777216, got '9'"),
        ({"mean": [10**400], "std": [1]}, r"mean must be finite numbers, got \(1000"),
        ({"input_shape": [1, 20_000, 20_000]}, "at most 8 dimensions and 4,194,304 numbers"),
        ({"input_shape": [1, 8, 8], "resize": 33}, "resize must be at most 4 times the height"),
        ({"classes": ["a"], "outputs": 2}, "a name for each output, got 1 names and 2 outputs"),
        ({"input_shape": [3, 8, 8], "mean": [0], "std": [1]}, "a number for each channel of"),
        ({"channels": [3]}, r"channels must be above 0 and at most 16777216, got \[3\]"),
    ],
)
def test_a_strangers_entry_of_another_kind_is_one_sentence(entry: Any, expected: str) -> None:
    with pytest.raises(StorageError, match=expected):
        spec_in(entry)

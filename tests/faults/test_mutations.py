"""Damaged files of every kind: their readers say so in one line, or find the same content."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import mutations
from tests.faults.mutations import (
    ALLOWED,
    CLEAR,
    DIFFERENT,
    FOREIGN,
    HANG,
    IRRELEVANT,
    OUT_OF_MEMORY,
    TRACEBACK,
    Read,
    Specimen,
    judge,
    mutate,
)
from tests.faults.specimens import SPECIMENS

COUNT = 12


@pytest.mark.parametrize("name", SPECIMENS)
def test_no_damage_is_silent_or_ends_in_a_traceback(name: str, tmp_path: Path) -> None:
    judgment = judge(SPECIMENS[name], tmp_path / "specimen", COUNT, seed=1)
    assert judgment.examples == []
    assert judgment.counts.total() == COUNT
    assert {*judgment.counts} <= {*ALLOWED}


def test_mutations_are_of_many_kinds_and_those_of_their_seed() -> None:
    data = bytes(range(256)) + b"\na line\nanother\n"
    made = [mutate(data, random.Random(seed)) for seed in range(300)]
    assert made == [mutate(data, random.Random(seed)) for seed in range(300)]
    assert sum(mutated != data for _, mutated in made) > 250
    assert len({what.split()[0] for what, _ in made}) == 8
    assert min(len(mutated) for _, mutated in made) < 50
    assert mutate(b"", random.Random(1))


def write_lines(folder: Path) -> Path:
    (folder / "lines").write_bytes(b"first\nsecond\nthird\n")
    return folder / "lines"


def read_silently(path: Path) -> Read:
    return Read(path.read_bytes())


def read_with_an_error(path: Path) -> Read:
    if path.read_bytes() != b"first\nsecond\nthird\n":
        raise ValueError("it is damaged")
    return Read(None)


def read_with_a_complaint(path: Path) -> Read:
    return Read(None, (f"it is {path.read_bytes()!r}",))


def read_with_a_traceback(path: Path) -> Read:
    return Read({b"first\nsecond\nthird\n": 1}[path.read_bytes()])


def read_for_ever(path: Path) -> Read:
    while path.read_bytes() != b"first\nsecond\nthird\n":
        time.sleep(0.1)
    return Read(None)


def read_too_much(path: Path) -> Read:
    return Read(len(bytes(10_000_000_000 if path.read_bytes() != b"first\nsecond\nthird\n" else 1)))


@pytest.mark.parametrize(
    ("read", "outcome"),
    [
        (read_silently, DIFFERENT),
        (read_with_an_error, CLEAR),
        (read_with_a_complaint, CLEAR),
        (read_with_a_traceback, TRACEBACK),
        (read_for_ever, HANG),
        (read_too_much, OUT_OF_MEMORY),
    ],
)
def test_what_readers_do_is_told_apart(
    read: Callable[[Path], Read], outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutations, "SECONDS", 1)
    judgment = judge(Specimen(write_lines, read), tmp_path / "specimen", 3, seed=5)
    assert {*judgment.counts} - {IRRELEVANT} == {outcome}
    assert bool(judgment.examples) == (outcome not in ALLOWED)


def test_other_content_is_allowed_of_files_of_others(tmp_path: Path) -> None:
    specimen = Specimen(write_lines, read_silently, is_unknown=True)
    assert judge(specimen, tmp_path / "specimen", 3, seed=5).counts == {FOREIGN: 3}


UNKNOWN = {"IDX", "PNG", "JPEG", "weights, .pth", "weights, .safetensors"}


def test_only_files_of_others_may_have_other_content() -> None:
    assert {name for name, specimen in SPECIMENS.items() if specimen.is_unknown} == UNKNOWN
    assert {f"{name}, known to a run" for name in UNKNOWN} < {*SPECIMENS}


@pytest.mark.parametrize("name", ["results", "connectivity", "formats", "verify: results"])
def test_a_line_that_is_missing_or_double_is_noticed(name: str, tmp_path: Path) -> None:
    specimen = SPECIMENS[name]
    path = specimen.write(tmp_path)
    expected = specimen.read(path)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) > 1
    for number in range(len(lines)):
        for found in (lines[:number] + lines[number + 1 :], lines[: number + 1] + lines[number:]):
            path.write_bytes(b"".join(found))
            assert specimen.read(path).complaints != expected.complaints

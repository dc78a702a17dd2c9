"""Results of a study's comparisons that are kept in the repository.

A study that takes many hours can be continued on another machine: what is recorded is not run again. For each
stage and rate there is a folder with the rows of all its runs, without those of single members.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pfge.lab.run.folder import RunFolder
from pfge.lab.run.results import ComparisonRow, append_row
from pfge.methods import METHODS
from pfge.storage.files import read_json_object, write_json
from studies.rates import rate_folder, rows_of

MACHINES = "machines.json"
DESCRIBED = ("processor", "torch", "python", "cores", "threads")


@dataclass(frozen=True)
class Part:
    """Methods of a study that are compared from one w0.

    Attributes:
        stage: Of the study.
        rate: The highest rate.
        seed: Of the run.
        methods: What is compared.
    """

    stage: str
    rate: float
    seed: int
    methods: tuple[str, ...]

    def folder(self, out: Path) -> Path:
        """Return the run folder, which names everything that the part is made of."""
        return out / f"{self.stage}-{self.rate:g}-seed-{self.seed}-{'-'.join(self.methods)}"


_NAME = re.compile(r"(?P<stage>[a-z]+)-(?P<rate>[\d.]+)-seed-(?P<seed>\d+)-(?P<methods>[\w-]+)")


def parts_in(out: Path) -> Iterator[tuple[Part, Path]]:
    """Yield the parts that were begun in a folder, and where each is."""
    for folder in sorted(path.parent for path in out.glob("*/config.toml")):
        if found := _NAME.fullmatch(folder.name):
            methods = tuple(found["methods"].split("-"))
            yield Part(found["stage"], float(found["rate"]), int(found["seed"]), methods), folder


def begun_part(part: Part, out: Path) -> Part:
    """Return a part that was begun and has all methods of another one, or else that one."""
    for begun, _ in parts_in(out):
        if replace(begun, methods=part.methods) == part and {*begun.methods} >= {*part.methods}:
            return begun
    return part


def missing_part(part: Part, recorded: Path) -> Part | None:
    """Return what of a part is not recorded, or None if all is."""
    rows = rows_of(rate_folder(recorded, part.stage, part.rate))
    known = {row.method for row in rows if row.seed == part.seed}
    missing = [method for method in part.methods if method not in known]
    # A method that only measures another's model needs that model.
    bases = [METHODS[method].base for method in missing]
    found = tuple(method for method in part.methods if method in {*missing, *bases})
    return replace(part, methods=found) if found else None


def record_parts(out: Path, recorded: Path) -> None:
    """Add every row that the parts in a folder have measured so far to what is recorded."""
    for part, folder in parts_in(out):
        target = rate_folder(recorded, part.stage, part.rate)
        known = {row.key for row in rows_of(target)}
        target.mkdir(parents=True, exist_ok=True)
        for row in rows_of(folder):
            if row.key not in known:
                append_row(RunFolder(target).results, without_members(row))
        _record_machine(folder, recorded)


def without_members(row: ComparisonRow) -> ComparisonRow:
    """Return a row without what it has of each member, which takes most of its bytes."""
    return replace(row, each=None, growing=None, calibrated_members=None)


def _record_machine(folder: Path, recorded: Path) -> None:
    environment = read_json_object(RunFolder(folder).environment)
    machine = {key: environment[key] for key in DESCRIBED}
    if machine not in (known := machines(recorded)):
        write_json(recorded / MACHINES, {"machines": [*known, machine]})


def machines(recorded: Path) -> Sequence[dict[str, object]]:
    """Return on what the recorded runs were made."""
    file = recorded / MACHINES
    return list(json.loads(file.read_text(encoding="utf-8"))["machines"]) if file.exists() else []

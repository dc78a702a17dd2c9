"""Damage, kill and starve what reads and writes files, and count what becomes of it.

    python -m benchmarks.faults [--quick] [--seed 1] [--record FILE] [--write]

Small programs are struck at every change that they make to the file system (killed before it, killed again in
the run that continues, with the disk full or failing there), run again, and must end with the bytes of a
program that was never struck. Every kind of file that pfge reads is mutated (bits flipped, parts cut off,
deleted, doubled, swapped, inserted) and read. Counts are kept in --record as they are known, and what is
there is not tried again. With --write, the tables in docs/faults.md are replaced by them.
Run it at the root of the repository: the programs and specimens are those of tests/faults.
"""

import argparse
import json
import platform
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from tests.faults import mutations, strikes, target
from tests.faults.mutations import judge
from tests.faults.programs import PROGRAMS
from tests.faults.specimens import SPECIMENS
from tests.faults.strikes import strike_programs
from tests.faults.target import Tally

PAGE = Path("docs/faults.md")
MARKERS = "<!-- counts: python -m benchmarks.faults --write -->", "<!-- end of counts -->"
LONG = {
    **dict.fromkeys((kind for kind in strikes.ACTIONS if kind != strikes.SECOND_KILL), 1.0),
    strikes.INTERRUPT: 0.2,
    strikes.TERMINATE: 0.1,
    strikes.LITTLE_MEMORY: 12,
}
LAST = {strikes.SECOND_KILL: 2.0}
"""What is tried last, for its number."""
QUICK = {**dict.fromkeys(strikes.ACTIONS, 0.02), strikes.LITTLE_MEMORY: 2}
BAD = (mutations.DIFFERENT, mutations.TRACEBACK, mutations.HANG, mutations.OUT_OF_MEMORY)
"""Outcomes of mutations that no file may have."""


class Record:
    """Counts that are known, in a file of JSON lines.

    Args:
        path: The file, or None to keep them in memory.
    """

    def __init__(self, path: Path | None):
        self._path = path
        self.tallies: dict[tuple[str, str], Tally] = {}
        self.mutations: dict[str, Counter[str]] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path and path.exists() else ():
            self._take(json.loads(line))

    def add_tally(self, tally: Tally) -> None:
        """Keep what became of strikes, in place of an earlier tally of the same kind on the same program."""
        self._add({"tally": vars(tally)})

    def add_mutations(self, file: str, counts: Counter[str]) -> None:
        """Keep what became of the mutations of a file."""
        self._add({"file": file, "counts": counts})

    def is_done(self, program: str, kind: str) -> bool:
        """Return whether all strikes of a kind on a program are known."""
        tally = self.tallies.get((program, kind))
        return tally is not None and tally.strikes == tally.planned

    def _add(self, line: dict[str, object]) -> None:
        text = json.dumps(line)
        if self._path:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text + "\n")
        self._take(json.loads(text))

    def _take(self, line: dict[str, object]) -> None:
        match line:
            case {"tally": dict(found)}:
                tally = Tally(**{**found, "endings": Counter(found["endings"])})
                self.tallies[tally.program, tally.kind] = tally
            case {"file": str(name), "counts": dict(counts)}:
                self.mutations[name] = Counter(counts)


def count_strikes(record: Record, plan: dict[str, float], folder: Path, seed: int) -> None:
    plans = {
        name: {kind: share for kind, share in plan.items() if not record.is_done(name, kind)}
        for name in PROGRAMS
    }
    folder.mkdir()
    for tally in strike_programs(folder, {name: todo for name, todo in plans.items() if todo}, seed):
        record.add_tally(tally)
        _say(f"{tally.strikes:>5} of {tally.planned} {tally.kind}: {tally.program}", tally.problems)


def count_mutations(record: Record, count: int, folder: Path, seed: int) -> None:
    for number, (name, specimen) in enumerate(SPECIMENS.items()):
        if name not in record.mutations:
            judgment = judge(specimen, folder / f"specimen-{number}", count, seed + number)
            record.add_mutations(name, judgment.counts)
            _say(f"{count:>5} mutations: {name}", {"": judgment.examples} if judgment.examples else {})


def _say(text: str, problems: dict[str, list[str]]) -> None:
    print(text, file=sys.stderr, flush=True)
    for kind, examples in problems.items():
        for example in examples[:5]:
            print(f"      {kind}: {example}", file=sys.stderr, flush=True)


def page(record: Record, seed: int) -> str:
    """Return the tables in Markdown."""
    tallies = list(record.tallies.values())
    kills = sum(tally.strikes for tally in tallies if tally.kind in strikes.KILLS)
    changes = {tally.program: tally.changes for tally in tallies}
    mutated = sum(counts.total() for counts in record.mutations.values())
    by_kind = {kind: [t for t in tallies if t.kind == kind] for kind in strikes.KINDS}
    by_program = {name: [t for t in tallies if t.program == name] for name in PROGRAMS}
    bad = sum(len(found) for t in tallies for found in t.problems.values())
    bad += sum(counts[outcome] for counts in record.mutations.values() for outcome in BAD)
    parts = [
        f"Seed {seed}, Python {platform.python_version()}, torch {torch.__version__}: {kills:,} kills, "
        f"{sum(tally.strikes for tally in tallies) - kills:,} other strikes, {mutated:,} mutations; "
        f"{bad:,} with a bad end.{_unfinished(record)}",
        *_table(
            ("strike", "places", "strikes", *target.ENDINGS, *target.PROBLEMS),
            (
                (kind, _places(found), *_sums(found))
                for kind, found in [*by_kind.items(), ("all", tallies)]
                if found
            ),
        ),
        *_table(
            ("program", "changes", "strikes", *target.ENDINGS, *target.PROBLEMS),
            ((name, changes[name], *_sums(found)) for name, found in by_program.items() if found),
        ),
    ]
    if record.mutations:
        counted = [*record.mutations.items(), ("all", sum(record.mutations.values(), Counter[str]()))]
        rows = ((name, counts.total(), *(counts[o] for o in mutations.OUTCOMES)) for name, counts in counted)
        parts += _table(("mutated file", "mutations", *mutations.OUTCOMES), rows)
    return "\n".join(parts)


def _unfinished(record: Record) -> str:
    """Return what of the long campaign is missing, as a sentence."""
    kinds = Counter(kind for kind in {**LONG, **LAST} for name in PROGRAMS if not record.is_done(name, kind))
    missing = [f"{kind} of {count} programs" for kind, count in kinds.items()]
    if files := len(SPECIMENS) - len(record.mutations):
        missing.append(f"mutations of {files} files")
    return f" Not finished: {', '.join(missing)}." if missing else ""


def _places(tallies: Sequence[Tally]) -> str:
    """Return how many of the places were struck, where a place is struck once."""
    if any(tally.strikes > tally.places for tally in tallies):
        return ""
    struck, places = (sum(counts) for counts in zip(*((t.strikes, t.places) for t in tallies), strict=True))
    return f"all {places:,}" if struck == places else f"{struck:,} of {places:,}"


def _sums(tallies: Sequence[Tally]) -> Iterator[int]:
    yield sum(tally.strikes for tally in tallies)
    for ending in target.ENDINGS:
        yield sum(tally.endings[ending] for tally in tallies)
    for problem in target.PROBLEMS:
        yield sum(len(tally.problems.get(problem, ())) for tally in tallies)


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield ""
    yield f"| {' | '.join(heads)} |"
    yield f"| --- |{' ---: |' * (len(heads) - 1)}"
    for row in rows:
        yield f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else str(cell) for cell in row)} |"


def write_page(text: str) -> None:
    """Replace what is between the markers."""
    begin, end = MARKERS
    before = PAGE.read_text(encoding="utf-8")
    pattern = f"{re.escape(begin)}.*{re.escape(end)}"
    PAGE.write_text(
        re.sub(pattern, lambda _: f"{begin}\n{text}\n{end}", before, flags=re.DOTALL), encoding="utf-8"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a sample that takes less than a minute")
    parser.add_argument("--seed", type=int, default=1, help="of samples and mutations (default: 1)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep counts there, and go on from them")
    parser.add_argument("--only-record", action="store_true", help="count nothing more than --record has")
    parser.add_argument("--write", action="store_true", help=f"replace the tables in {PAGE}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = Record(options.record)
    if not options.only_record:
        with tempfile.TemporaryDirectory() as folder:
            first, mutated, last = (QUICK, 8, {}) if options.quick else (LONG, 160, LAST)
            count_strikes(record, first, Path(folder) / "first", options.seed)
            count_mutations(record, mutated, Path(folder), options.seed)
            count_strikes(record, last, Path(folder) / "last", options.seed)
    text = page(record, options.seed)
    print(text)
    if options.write:
        write_page(text)


if __name__ == "__main__":
    main()

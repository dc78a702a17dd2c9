"""Damage, kill and starve what reads and writes files, and count what becomes of it.

    python -m benchmarks.faults [--mutations 200] [--seed 1] [--strikes]

Every kind of file that pfge reads is mutated so many times (bits flipped, parts cut off, deleted, doubled,
swapped, inserted) and read with a limit on time and memory. With --strikes, small programs are also killed
before every change that they make to the file system, or find the disk full or failing there, and run again.
Run it at the root of the repository: the specimens and programs are those of tests/faults.
"""

import argparse
import errno
import json
import tempfile
from pathlib import Path

import torch

from tests.faults.harness import KILL, strike_everywhere
from tests.faults.mutations import OUTCOMES, judge
from tests.faults.programs import PROGRAMS
from tests.faults.specimens import SPECIMENS

ACTIONS = {"kill": KILL, "full disk": errno.ENOSPC, "I/O error": errno.EIO}


def count_mutations(folder: Path, count: int, seed: int) -> dict[str, dict[str, int]]:
    print(f"| file | {' | '.join(OUTCOMES)} |")
    print(f"| --- |{' ---: |' * len(OUTCOMES)}")
    found = {}
    for number, (name, specimen) in enumerate(SPECIMENS.items()):
        judgment = judge(specimen, folder / str(number), count, seed + number)
        found[name] = {outcome: judgment.counts[outcome] for outcome in OUTCOMES}
        print(f"| {name} | {' | '.join(map(str, found[name].values()))} |", flush=True)
        for example in judgment.examples[:5]:
            print(f"    {example}")
    totals = {outcome: sum(counts[outcome] for counts in found.values()) for outcome in OUTCOMES}
    print(f"| all {sum(totals.values()):,} | {' | '.join(map(str, totals.values()))} |\n")
    return {**found, "all": totals}


def count_strikes(folder: Path) -> dict[str, dict[str, dict[str, int]]]:
    columns = ("changes", "survived", "stuck", "different", "left")
    print(f"| strike | program | {' | '.join(columns)} |")
    print(f"| --- | --- |{' ---: |' * len(columns)}")
    found: dict[str, dict[str, dict[str, int]]] = {}
    for action, number in ACTIONS.items():
        found[action] = {}
        for index, name in enumerate(PROGRAMS):
            place = folder / f"strike-{len(found)}-{index}"  # a path to preload must not have a space
            place.mkdir()
            outcome = strike_everywhere(place, [name], number)[name]
            found[action][name] = {column: len(getattr(outcome, column)) for column in columns}
            print(f"| {action} | {name} | {' | '.join(map(str, found[action][name].values()))} |", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--mutations", type=int, default=200, help="of each kind of file (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="of the mutations (default: 1)")
    parser.add_argument("--strikes", action="store_true", help="also kill programs, fill and fail the disk")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "seed": options.seed,
            "mutations": count_mutations(Path(folder), options.mutations, options.seed),
        }
        if options.strikes:
            found["strikes"] = count_strikes(Path(folder))
    print(json.dumps(found))


if __name__ == "__main__":
    main()

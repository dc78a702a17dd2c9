"""Strike programs at their changes to the file system, as planned, and tell what came of it.

`strike_programs` starts `python -m tests.faults.strikes FOLDER PLAN` with the shim preloaded, which prints
lines of JSON for each program and kind of strike.
"""

import errno
import json
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch

from tests.faults.faulty_programs import FAULTY
from tests.faults.harness import Strike, start_preloaded
from tests.faults.programs import PROGRAMS
from tests.faults.target import Tally, Target

SHORT, TORN = 1000, 1001  # as in shim.c
KILL, TORN_WRITE, SECOND_KILL = "kill", "kill inside a write", "second kill, in the resumed run"
FULL, FAILING, SHORT_WRITE = "full disk", "I/O error", "short write"
INTERRUPT, TERMINATE, LITTLE_MEMORY = "Ctrl-C", "SIGTERM", "too little memory"
ACTIONS = {
    KILL: -signal.SIGKILL,
    SECOND_KILL: -signal.SIGKILL,
    TORN_WRITE: TORN,
    FULL: errno.ENOSPC,
    FAILING: errno.EIO,
    SHORT_WRITE: SHORT,
    INTERRUPT: -signal.SIGINT,
    TERMINATE: -signal.SIGTERM,
}
KINDS = (*ACTIONS, LITTLE_MEMORY)
KILLS = (KILL, SECOND_KILL, TORN_WRITE)
OF_WRITES = (TORN_WRITE, SHORT_WRITE)
"""Kinds of strikes that are at writes only."""

MOST_MEMORY = 64 << 20
"""Bytes beside what a program begins with."""
OFTEN = 20
"""Strikes after which it is told what became of them so far."""


def strike_programs(folder: Path, plans: Mapping[str, Mapping[str, float]], seed: int = 1) -> Iterator[Tally]:
    """Strike programs in a process of its own; yield what became of each so far, again and again.

    Args:
        folder: Exists and is empty.
        plans: For each program and kind of strike, the share of the places to strike at, chosen by the seed;
            of second kills, more than 1 is how many for each place; of too little memory, how many limits.
        seed: Of the choices.
    """
    given = json.dumps({"plans": plans, "seed": seed})
    with start_preloaded(folder, "tests.faults.strikes", given) as process:
        for line in process.stdout or ():
            tally = json.loads(line)
            yield Tally(**{**tally, "endings": Counter(tally["endings"])})
    if process.returncode:
        raise RuntimeError(f"the campaign ended with {process.returncode}")


def strike_target(target: Target, name: str, plan: Mapping[str, float], seed: int) -> Iterator[Tally]:
    """Strike a program as planned; yield what became of it so far, again and again."""
    changes = target.whole.changes
    for kind, share in plan.items():
        chosen = random.Random(f"{seed} {name} {kind}")
        places = [n for n, change in enumerate(changes, 1) if kind not in OF_WRITES or change[:5] == "write"]
        tally = Tally(name, kind, len(changes), len(places))
        for planned, strike in _plan(target, kind, share, places, chosen, tally):
            tally.planned = planned
            strike()
            if tally.strikes % OFTEN == 0:
                yield tally
        yield tally


def _plan(
    target: Target, kind: str, share: float, places: list[int], chosen: random.Random, tally: Tally
) -> Iterator[tuple[int, Callable[[], None]]]:
    """Yield how many strikes there are in all, and each of them."""
    if kind == LITTLE_MEMORY:
        for number in range(int(share)):
            limit = Strike(memory=MOST_MEMORY * number // int(share))
            yield int(share), partial(target.strike, limit, tally)
        return
    places = sorted(chosen.sample(places, max(round(share * len(places)), 1))) if share < 1 else places
    each = max(round(share), 1)
    for number in places:
        strike = Strike(number, ACTIONS[kind])
        if kind != SECOND_KILL:
            yield len(places), partial(target.strike, strike, tally)
            continue
        for _ in range(each):
            yield each * len(places), partial(target.strike_again, strike, chosen.random(), tally)


def main() -> None:
    """Strike the programs that are asked for, and print a line for each kind of strike."""
    torch.set_num_threads(1)
    folder, given = Path(sys.argv[1]).resolve(), json.loads(sys.argv[2])
    for number, (name, plan) in enumerate(given["plans"].items()):
        target = Target({**PROGRAMS, **FAULTY}[name], folder / str(number))
        for tally in strike_target(target, name, plan, given["seed"]):
            print(json.dumps(vars(tally)), flush=True)
        shutil.rmtree(folder / str(number))


if __name__ == "__main__":
    main()

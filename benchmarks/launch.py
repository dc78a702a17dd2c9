"""How much faster two processes finish a comparison than one, each with one thread.

    python -m benchmarks.launch [--rounds N] [--quick | --twice]

A comparison of three seeds on the digits is run by `pfge compare` in one process and with
`--launcher here:2`, in turns, each in a new folder. The time is that of the whole command, with all imports;
the last line is the ratio of the medians. `--quick` has one round of a shorter comparison, in which imports
weigh more, and `--twice` has paths of twice the length, in which they weigh less.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

START = "from pfge_command import main; raise SystemExit(main())"
LAUNCHERS = ("here", "here:2")
SHORTER = ("pretrain.epochs=4", "ensemble.length=20")
TWICE = ("pretrain.epochs=40", "ensemble.length=80")


def seconds_of(launcher: str, settings: Sequence[str], folder: Path) -> float:
    """Return how long a comparison takes in a new folder."""
    overrides = [part for setting in settings for part in ("--set", setting)]
    arguments = ["compare", "--seeds", "1,2,3", "--out", str(folder), "--launcher", launcher, *overrides]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", START, *arguments], env=environment, capture_output=True, check=True
    )
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    lengths = parser.add_mutually_exclusive_group()
    lengths.add_argument("--quick", action="store_true", help="one round of a shorter comparison")
    lengths.add_argument("--twice", action="store_true", help="paths of twice the length")
    options = parser.parse_args()
    settings = SHORTER if options.quick else TWICE if options.twice else ()
    found: dict[str, list[float]] = {launcher: [] for launcher in LAUNCHERS}
    with tempfile.TemporaryDirectory() as parent:
        for number in range(1 if options.quick else options.rounds):
            for launcher in LAUNCHERS:
                folder = Path(parent, f"{launcher.replace(':', '-')}-{number}")
                seconds = seconds_of(launcher, settings, folder)
                found[launcher].append(seconds)
                print(f"{launcher:<7} {seconds:7.1f} s", flush=True)
    one, two = (median(found[launcher]) for launcher in LAUNCHERS)
    print(json.dumps({"two_processes_to_one": round(two / one, 3)}))


if __name__ == "__main__":
    main()

"""How long a command takes from its start to its first line, beside `python -c "import torch"`.

    python -m benchmarks.startup [--quick]

A small run on the digits is made first. In each round, `import torch` and every command are started in turn,
each in a process of its own; the difference of the medians is what a command adds. What a command imports is
counted once, in a process of its own, which does not depend on the load of the machine.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from PIL import Image

from pfge.lab.data import ImageSet, load_data
from tests.cli.every_command import ALL, RUN_SETTINGS
from tests.lab.tiny import run, tiny

HEAVY = (
    "lightning_fabric",
    "torchmetrics",
    "timm",
    "matplotlib",
    "scipy",
    "sklearn",
    "torch._dynamo",
    "onnx",
)
COMMANDS = {"--help": [], **ALL}
FEW = ("--help", "plan", "table", "report", "predict")
TORCH = "import torch"
START = "from pfge_command import main; raise SystemExit(main())"
COUNT = f"""
import atexit, os, sys
import torch
before = set(sys.modules)
def tell():
    found = set(sys.modules) - before
    heavy = [name for name in {HEAVY!r} if name in found]
    os.write(2, ("\\n@" + " ".join([str(len(found)), *heavy])).encode())
atexit.register(tell)
{START}
"""


def seconds_to_first_line(code: str, arguments: list[str], folder: Path) -> float:
    """Return the time from the start of a Python process to its first line on either stream, or its end."""
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        if process.stdout is None:
            raise RuntimeError("the output of a process must be a pipe")
        process.stdout.readline()
        seconds = time.perf_counter() - start
        process.stdout.read()  # so that a later line finds its reader
    return seconds


def imported(arguments: list[str], folder: Path) -> str:
    """Return how many modules a command imports beside torch, and which heavy packages."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    count, *heavy = done.stderr.rpartition("@")[2].split()
    return f"{count:>5} modules{': ' if heavy else ''}{', '.join(heavy)}"


def make_run(folder: Path) -> None:
    """Make a small run, and a picture of a digit."""
    images = load_data("digits").test
    if not isinstance(images, ImageSet):
        raise TypeError("the digits are in memory")
    run(tiny(*RUN_SETTINGS), folder)
    Image.fromarray(images.images[0, 0].numpy()).save(folder / "digit.png")


def main() -> None:
    """Print the median seconds of each command, what that is beyond torch's import, and what is imported."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few commands, once, under 50 s")
    quick = parser.parse_args().quick
    commands = {name: COMMANDS[name] for name in FEW} if quick else COMMANDS
    rounds = 1 if quick else 5
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        make_run(folder)
        torch_alone = "import torch; print()"
        seconds: dict[str, list[float]] = {TORCH: [], **{command: [] for command in commands}}
        for _ in range(rounds):
            seconds[TORCH].append(seconds_to_first_line(torch_alone, [], folder))
            for command, arguments in commands.items():
                seconds[command].append(seconds_to_first_line(START, [command, *arguments], folder))
        medians = {command: median(found) for command, found in seconds.items()}
        base = medians.pop(TORCH)
        print(f"import torch: {base:.2f} s, median of {rounds}")
        for command, own in medians.items():
            modules = imported([command, *commands[command]], folder)
            print(f"{command:9} {own:6.2f} s, {own - base:+6.2f} s  {modules}")
    print(json.dumps({command: round(own / base, 3) for command, own in medians.items()}))


if __name__ == "__main__":
    main()

"""What collecting costs beside a bare training loop: time, and peak extra memory.

    python -m benchmarks.overhead [--quick]

Time: both loops train the same network on the same batches, in alternating blocks of one run; the ratio
is the median over pairs of blocks. Memory: each loop runs in a process of its own, with members going to
disk; the difference of their peak resident sizes is given in copies of the weights.

Share: the CPU time of the calls that a tool adds to a loop, as a share of that of forward, backward and
step, on one thread. EMA at every step is compared with timm's ModelEmaV3 and torch's AveragedModel,
and PFGE with c = 10 is compared with an AveragedModel that is updated at every tenth step.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

from pfge import EMA, PFGE, Collector, Trajectory, Triangular
from pfge.lab.models import build_model

CYCLE = 10
PERIOD = 50
BLOCK = PERIOD
DECAY = 0.999


def make_loop(batches: list[tuple[Tensor, Tensor]], model: nn.Module, *, collect: bool) -> Callable[[], None]:
    """Return a function that trains for one block."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    schedule = Triangular(CYCLE, 1e-4, 1e-2)
    trajectory = Trajectory(model, optimizer, schedule, [PFGE(CYCLE, PERIOD)]) if collect else None

    def block() -> None:
        for index in range(BLOCK):
            inputs, labels = batches[index % len(batches)]
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            if trajectory is None:
                optimizer.param_groups[0]["lr"] = schedule(index + 1)  # a bare loop has a schedule, too
                optimizer.step()
            else:
                trajectory.before_update()
                optimizer.step()
                trajectory.after_update()

    return block


def measure_time(name: str, channels: int, size: int, batch: int, pairs: int) -> float:
    """Return the median ratio of a block with PFGE to a bare one."""
    torch.manual_seed(0)
    batches = [(torch.randn(batch, channels, size, size), torch.randint(10, (batch,))) for _ in range(4)]
    loops = [
        make_loop(batches, build_model(name, classes=10, channels=channels), collect=collect)
        for collect in (False, True)
    ]
    ratios = []
    for pair in range(pairs + 1):
        seconds = [0.0, 0.0]
        for which in (0, 1) if pair % 2 else (1, 0):  # who goes first alternates
            start = time.perf_counter()
            loops[which]()
            seconds[which] = time.perf_counter() - start
        if pair:  # the first pair warms up
            ratios.append(seconds[1] / seconds[0])
    return median(ratios)


def load_timm_ema() -> Callable[..., Any] | None:
    """Return timm's ModelEmaV3, or None without timm; its file alone, as the package needs torchvision."""
    if (package := find_spec("timm")) is None or not package.submodule_search_locations:
        return None
    file = Path(package.submodule_search_locations[0]) / "utils" / "model_ema.py"
    spec = spec_from_file_location("timm_model_ema", file)
    if spec is None or spec.loader is None:
        return None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(Callable[..., Any], module.ModelEmaV3)


def make_averagers(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Callable[[int], None]]:
    """Return what each tool does after the step of an iteration."""
    by_ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    by_swa = AveragedModel(model, multi_avg_fn=get_swa_multi_avg_fn())

    def every_cycle(iteration: int) -> None:
        if iteration % CYCLE == 0:
            by_swa.update_parameters(model)

    def follow(collector: Collector) -> Callable[[int], None]:
        trajectory = Trajectory(model, optimizer, None, [collector])
        trajectory.before_update()

        def update(iteration: int) -> None:  # noqa: ARG001
            trajectory.after_update()
            trajectory.before_update()  # of the next iteration

        return update

    averagers = {
        "EMA": follow(EMA(DECAY)),
        "AveragedModel, EMA": lambda _: by_ema.update_parameters(model),
        "PFGE": follow(PFGE(CYCLE, PERIOD)),
        "AveragedModel": every_cycle,
    }
    if timm_ema := load_timm_ema():
        timm_average = timm_ema(model, decay=DECAY)
        averagers["ModelEmaV3"] = lambda _: timm_average.update(model)
    return averagers


def measure_shares(name: str, batch: int, blocks: int) -> dict[str, float]:
    """Return the CPU time of each tool's calls as a share of forward, backward and step.

    All tools follow one training. Each is called after every step, in an order that changes, so that what
    else the machine does meets all of them alike. A share is the median over blocks of a whole period.
    """
    torch.manual_seed(0)
    model = build_model(name, classes=10, channels=3).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    averagers = list(make_averagers(model, optimizer).items())
    inputs, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    shares: dict[str, list[float]] = {name: [] for name, _ in averagers}
    for block in range(blocks):
        step_time = 0.0
        times = dict.fromkeys(shares, 0.0)
        for iteration in range(block * PERIOD + 1, (block + 1) * PERIOD + 1):
            start = time.process_time()
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            step_time += time.process_time() - start
            averagers = [*averagers[1:], averagers[0]]
            for tool, average in averagers:
                start = time.process_time()
                average(iteration)
                times[tool] += time.process_time() - start
        for tool, seconds in times.items():
            shares[tool].append(seconds / step_time)
    return {tool: median(values) for tool, values in shares.items()}


def peak_memory_of_one_loop(collect: bool) -> None:
    """Print the peak resident bytes of training a wide network; runs in a process of its own."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(512, 8192), nn.ReLU(), nn.Linear(8192, 4096), nn.ReLU(), nn.Linear(4096, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    with tempfile.TemporaryDirectory() as folder:
        collectors = [PFGE(2, 4, store=folder)] if collect else []
        trajectory = Trajectory(model, optimizer, Triangular(2, 1e-4, 1e-3), collectors)
        for _ in range(12):
            optimizer.zero_grad()
            cross_entropy(model(torch.randn(8, 512)), torch.randint(10, (8,))).backward()
            trajectory.before_update()
            optimizer.step()
            trajectory.after_update()
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "weights": weights}))


def measure_memory() -> float:
    """Return the peak extra memory of PFGE in copies of the weights."""
    found = []
    for collect in ("0", "1"):
        command = [sys.executable, "-m", "benchmarks.overhead", "--memory-of", collect]
        found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return float((found[1]["peak"] - found[0]["peak"]) / found[0]["weights"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, under 50 s")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        peak_memory_of_one_loop(options.memory_of == "1")
        return
    pairs = 7 if options.quick else 151
    small = measure_time("small_conv", 1, 8, 50, pairs)
    large = measure_time("small_conv", 3, 32, 64, 1 if options.quick else 41)
    copies = measure_memory()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, c = {CYCLE}, P = {PERIOD}\n")
    print(f"{'measured':<58}{'value':>8}{'at most':>9}")
    print(f"{'time of a step, 8x8 images, batch 50 (PFGE / bare)':<58}{small:>8.3f}{1.02:>9}")
    print(f"{'time of a step, 32x32 images, batch 64 (PFGE / bare)':<58}{large:>8.3f}{1.02:>9}")
    print(f"{'peak extra memory, in copies of the weights':<58}{copies:>8.2f}{2:>9}")
    torch.set_num_threads(1)
    found = {"time_8x8": round(small, 4), "time_32x32": round(large, 4), "memory_copies": round(copies, 3)}
    shares = {}
    for name, batch in (("resnet20", 32), ("preresnet164", 4)):
        shares[name] = measure_shares(name, batch, 1 if options.quick else 9)
        print(f"\nCPU time of the calls in % of a step: {name}, 32x32 images, batch {batch}, 1 thread")
        for tool, share in shares[name].items():
            print(f"{tool:<66}{100 * share:>11.3f}")
        shares[name] = {tool: round(share, 6) for tool, share in shares[name].items()}
    print(json.dumps({**found, "cpu_shares": shares}))


if __name__ == "__main__":
    main()

"""Training steps a second of ResNet-20 at batch 128: the lab against the plain recipe and a bare loop.

    python -m benchmarks.throughput [--quick]

Three loops take turns in one run, a block of steps each; ratios are medians over rounds.
- plain: contiguous memory, eager, a DataLoader whose 2 workers crop, flip and normalize image by image, as
  the reference programs do; in a process of its own, since the lab changes how its process keeps memory.
  Batches that its workers made while the others had their turn are used up before its time starts.
- lab: what `pfge compare` runs with channels-last memory and torch.compile, PFGE collecting at c = 10.
- bare: a hand-written loop with the lab's settings and batches.
Images are random: they cost what real ones do, and nothing has to be downloaded.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from statistics import median
from typing import Any

import torch
import torch.multiprocessing as processes
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode

from pfge import PFGE, Trajectory, Triangular, follow
from pfge.lab.config.settings import EngineSettings
from pfge.lab.data import (
    IMAGENET_NORMALIZATION,
    Augmentation,
    Batch,
    ImageSet,
    TrainingBatches,
    training_batches,
)
from pfge.lab.engine import Engine
from pfge.lab.models import build_model
from pfge.lab.models.packages import import_torchvision

BATCH = 128
IMAGES = 20 * BATCH
SCHEDULE = Triangular(10, 1e-4, 1e-2)
WORKERS = 2
AHEAD = 2 * WORKERS
"""Batches that a DataLoader keeps ready if it is not told otherwise."""

Loop = Callable[[int], None]
"""Trains for a number of steps."""
TimedLoop = Callable[[int], float]
"""Trains for a number of steps, and returns the seconds of one."""


def timed(loop: Loop) -> TimedLoop:
    """Return a loop that measures itself."""

    def run(steps: int) -> float:
        start = time.perf_counter()
        loop(steps)
        return (time.perf_counter() - start) / steps

    return run


class OneByOne(Dataset[tuple[Tensor, int]]):
    """Images that are transformed one at a time, through Pillow."""

    def __init__(self, data: ImageSet):
        transforms = import_torchvision().transforms
        self._images = data.images.permute(0, 2, 3, 1).numpy()
        self._labels = data.labels.tolist()
        self._transform = transforms.Compose(
            [
                transforms.ToPILImage(),
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(IMAGENET_NORMALIZATION.mean, IMAGENET_NORMALIZATION.std),
            ]
        )

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._transform(self._images[index]), self._labels[index]


def make_sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=1e-4)


def bare_loop(model: nn.Module, called: nn.Module, batches: Iterator[Batch]) -> Loop:
    """Return a hand-written loop."""
    optimizer = make_sgd(model)
    done = 0

    def run(steps: int) -> None:
        nonlocal done
        for inputs, labels in islice(batches, steps):
            done += 1
            optimizer.param_groups[0]["lr"] = SCHEDULE(done)
            optimizer.zero_grad()
            cross_entropy(called(inputs), labels).backward()
            optimizer.step()

    return run


def make_images() -> ImageSet:
    """Return random images, the same in every process."""
    torch.manual_seed(0)
    images = torch.randint(256, (IMAGES, 3, 32, 32), dtype=torch.uint8)
    return ImageSet(images, torch.randint(10, (IMAGES,)), tuple("0123456789"))


def plain_recipe() -> Loop:
    """Return the loop of the reference programs."""
    loader = DataLoader(
        OneByOne(make_images()),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
        multiprocessing_context="fork",  # as on Linux without being asked, which a spawned process forgets
    )

    def endless() -> Iterator[Batch]:
        while True:
            yield from loader

    model = build_model("resnet20", classes=10)
    return bare_loop(model, model, endless())


def serve_plain_recipe(orders: Any) -> None:
    """Run the plain recipe in this process: a number of steps for each that comes, until it is 0."""
    loop = plain_recipe()
    while steps := orders.recv():
        loop(AHEAD)
        orders.send(timed(loop)(steps))


@contextmanager
def plain_recipe_elsewhere() -> Iterator[TimedLoop]:
    """Give the plain recipe as a loop of another process."""
    context = processes.get_context("spawn")
    orders, theirs = context.Pipe()
    process = context.Process(target=serve_plain_recipe, args=(theirs,))
    process.start()
    theirs.close()

    def run(steps: int) -> float:
        orders.send(steps)
        seconds: float = orders.recv()
        return seconds

    yield run
    orders.send(0)
    process.join()


def lab_loop(batches: TrainingBatches, engine: Engine) -> Loop:
    """Return the lab's own loop, with PFGE collecting."""
    model = engine.place(build_model("resnet20", classes=10))
    trajectory = Trajectory(model, make_sgd(model), SCHEDULE, [PFGE(10, 50)])
    wrapped = engine.wrap(model, trajectory.optimizer)

    def loss(_: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(wrapped(batch[0]), batch[1])

    def run(steps: int) -> None:
        source = batches.starting_after(trajectory.iteration)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a block is shorter than a period
            follow(trajectory, source, loss, iterations=steps, backward=engine.backward)

    return run


def take_turns(loops: dict[str, TimedLoop], rounds: int, steps: int) -> dict[str, list[float]]:
    """Return each loop's seconds a step, round by round."""
    for loop in loops.values():  # compilation and worker processes start here
        loop(2)
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, loop in loops.items():
            seconds[name].append(loop(steps))
    return seconds


def seconds_of_arithmetic() -> float:
    """Return how long the operations of a step take at the speed of a large matrix product."""
    model = build_model("resnet20", classes=10)
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(BATCH, 3, 32, 32)).sum().backward()
    size = 2048
    left, right = torch.randn(2, size, size)
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - start)
    operations: int = counter.get_total_flops()
    return operations / (2 * size**3) * median(seconds)


def input_seconds(batches: TrainingBatches) -> float:
    """Return the median time to make a batch."""
    seconds = []
    for iteration in range(1, 31):
        start = time.perf_counter()
        batches.at(iteration)
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, under 50 s once compiled")
    options = parser.parse_args()
    rounds, steps = (3, 4) if options.quick else (15, 10)

    data = make_images()
    batches = training_batches(
        data,
        IMAGENET_NORMALIZATION,
        batch_size=BATCH,
        seed=0,
        augmentation=Augmentation(),
        channels_last=True,
    )
    engine = Engine(EngineSettings(accelerator="cpu", channels_last=True, compile=True))
    bare_model = engine.place(build_model("resnet20", classes=10))
    loops = {
        "lab": timed(lab_loop(batches, engine)),
        "bare": timed(bare_loop(bare_model, torch.compile(bare_model), batches.starting_after(0))),  # type: ignore[arg-type]
    }
    with plain_recipe_elsewhere() as plain:
        seconds = take_turns({"plain": plain} | loops, rounds, steps)
    against_plain = median(p / m for p, m in zip(seconds["plain"], seconds["lab"], strict=True))
    against_bare = median(b / m for b, m in zip(seconds["bare"], seconds["lab"], strict=True))
    bound = median(seconds["plain"]) / seconds_of_arithmetic()
    share = input_seconds(batches) / median(seconds["lab"])

    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, ResNet-20, batch {BATCH}\n")
    print(f"{'loop':<8}{'steps a second':>16}")
    for name, times in seconds.items():
        print(f"{name:<8}{1 / median(times):>16.2f}")
    print(f"\n{'measured':<44}{'value':>8}{'wanted':>10}")
    print(f"{'speed of the lab against the plain recipe':<44}{against_plain:>8.2f}{'>= 1.8':>10}")
    print(f"{'  if all but the arithmetic cost nothing':<44}{bound:>8.2f}{'':>10}")
    print(f"{'speed of the lab against a bare loop':<44}{against_bare:>8.2f}{'>= 0.97':>10}")
    print(f"{'share of a step that makes the batch':<44}{share:>8.3f}{'< 0.05':>10}")
    ratios = {
        "against_plain": against_plain,
        "against_plain_bound": bound,
        "against_bare": against_bare,
        "input_share": share,
    }
    print(json.dumps({name: round(value, 4) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()

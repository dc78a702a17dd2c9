"""What measuring an ensemble costs beside its forward passes: 10 members, 10,000 images, all metrics.

    python -m benchmarks.evaluation [--quick]

Time: of each member, what the lab does with its predictions (pooled, alone, the growing ensemble,
temperatures) against the forward passes that gave them, in one run; the ratio is the median over members.
Memory: peaks of processes of their own, in copies of the pooled predictions [N, C], with more members and
with more batches; and of masks of 128 x 128 pixels in 20 classes by 10 members, with four times as many
images, in copies of one member's predictions for them.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from statistics import median

import torch
from torch import Tensor

from pfge import Ensemble
from pfge.lab.data import ImageSet, Normalization, evaluation_batches
from pfge.lab.evaluation.evaluate import evaluate
from pfge.lab.malloc import keep_freed_memory
from pfge.lab.models import build_model
from pfge.tasks import Classification
from pfge.weights import view_weights

CLASSES = 10
MANY_CLASSES = 1_000
MASK_CLASSES, SIDE = 20, 128
NORMALIZATION = Normalization((0.5,) * 3, (0.25,) * 3)


def make_images(count: int) -> ImageSet:
    """Return random images."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return ImageSet(images, labels, tuple("0123456789"))


def measure_time(members: int, images: int) -> tuple[float, float]:
    """Return the median ratio of measuring a member to its forward passes, and the seconds of those."""
    data = make_images(images)
    batches = evaluation_batches(data, NORMALIZATION, batch_size=500, channels_last=True)
    weights = [view_weights(build_model("resnet20", classes=CLASSES)) for _ in range(members)]
    warnings.simplefilter("ignore")  # random images have no temperature
    ensemble = Ensemble(weights, lambda: build_model("resnet20", classes=CLASSES))
    forward: list[float] = []
    whole: list[float] = []

    def predictions() -> Iterator[Tensor]:
        # The time between two requests is what evaluation spends on a member; that inside one, the passes.
        each = ensemble.predict_each(batches)
        while True:
            start = time.perf_counter()
            member = next(each, None)
            if member is None:
                return
            forward.append(time.perf_counter() - start)
            given = time.perf_counter()
            yield member
            whole.append(forward[-1] + time.perf_counter() - given)

    evaluate(ensemble, predictions(), data.labels, last=4, fit=True)
    return median(w / f for w, f in zip(whole, forward, strict=True)), median(forward)


def peak_memory(call: str) -> int:
    """Return the peak resident bytes of a process that calls a function of this module."""
    code = f"from benchmarks.evaluation import *; {call}"
    # Without the threshold, the C library keeps freed blocks of which none shows what is needed.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "10000"}
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    )
    return int(run.stdout)


def evaluate_masks(images: int) -> None:
    """Evaluate masks of made images, and print the peak resident bytes."""
    torch.manual_seed(0)
    weights = [{"weight": torch.randn(MASK_CLASSES, 3, 1, 1)} for _ in range(10)]
    ensemble = Ensemble(
        weights, lambda: torch.nn.Conv2d(3, MASK_CLASSES, 1, bias=False), task=Classification()
    )

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(images // 5):
            yield torch.randn(5, 3, SIDE, SIDE), torch.randint(MASK_CLASSES, (5, SIDE, SIDE))

    ensemble.evaluate(batches())
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def evaluate_made(members: int, batches: int, images: int) -> None:
    """Evaluate a linear model on made inputs, and print the peak resident bytes."""
    torch.manual_seed(0)
    weights = [{"weight": torch.randn(MANY_CLASSES, 8)} for _ in range(members)]
    ensemble = Ensemble(weights, lambda: torch.nn.Linear(8, MANY_CLASSES, bias=False))
    inputs = list(torch.randn(images, 8).chunk(batches))
    # Mostly what the first member predicts, so that temperatures exist.
    targets = torch.cat([x @ weights[0]["weight"].T for x in inputs]).argmax(dim=1)
    targets[::3] = 0
    evaluate(ensemble, ensemble.predict_each(inputs), targets, last=2, fit=True)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer images, under 50 s")
    options = parser.parse_args()
    members, images = (5, 2_000) if options.quick else (10, 10_000)
    keep_freed_memory()  # as the lab does
    # Before anything else: a process begins with the peak of the one that starts it.
    many = 2_500 if options.quick else 10_000
    copy = 4 * many * MANY_CLASSES
    few, more_members, more_batches = (
        peak_memory(f"evaluate_made({members}, {batches}, {many})")
        for members, batches in ((4, 20), (12, 20), (4, 200))
    )
    fewer_masks, more_masks = (peak_memory(f"evaluate_masks({images})") for images in (25, 100))
    ratio, seconds = measure_time(members, images)
    by_members, by_batches = (more_members - few) / copy, (more_batches - few) / copy
    by_masks = (more_masks - fewer_masks) / (4 * 75 * MASK_CLASSES * SIDE**2)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, ResNet-20, {members} members, "
        f"{images} images, {seconds:.2f} s of forward passes a member\n"
    )
    print(f"{'measured':<64}{'value':>8}{'wanted':>10}")
    print(f"{'time with all metrics to forward passes alone':<64}{ratio:>8.3f}{'< 1.05':>10}")
    print(
        f"{'more memory for 12 members than 4, in pooled predictions':<64}{by_members:>8.2f}{'about 0':>10}"
    )
    print(
        f"{'more memory for 200 batches than 20, in pooled predictions':<64}{by_batches:>8.2f}{'about 0':>10}"
    )
    print(
        f"{'more memory for 100 masks than 25, in predictions of the 75':<64}{by_masks:>8.2f}{'about 0':>10}"
    )
    ratios = {
        "time": ratio,
        "memory_by_members": by_members,
        "memory_by_batches": by_batches,
        "memory_by_masks": by_masks,
    }
    print(json.dumps({name: round(value, 4) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()

"""What a step of fitting a curve costs beside an ordinary training step of the same model.

    python -m benchmarks.curves [--quick]

Both train ResNet-20 on the same batches of 128 images with SGD and momentum, in alternating blocks of one
run. The curve is a Bezier curve with one bend; its step draws a point, trains there with the weight penalty
and updates the bend. The ratio is the median over pairs of blocks.
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfge.connectivity import Bezier, fit_curve
from pfge.lab.models import build_model
from pfge.weights import trained_names, view_weights

BLOCK = 2
WEIGHT_DECAY = 5e-4

Batches = list[tuple[Tensor, Tensor]]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = build_model("resnet20", classes=10)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def make_training(batches: Batches) -> Callable[[], None]:
    """Return a function that makes a block of ordinary steps."""
    model = make_model(0).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=WEIGHT_DECAY)

    def block() -> None:
        for batch in batches:
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()

    return block


def make_fitting(batches: Batches) -> Callable[[], None]:
    """Return a function that makes a block of steps on a curve."""
    model, other = make_model(0), make_model(1)
    curve = Bezier(view_weights(model), view_weights(other), trained=trained_names(model))
    optimizer = torch.optim.SGD(curve.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(0)

    def block() -> None:
        fit_curve(
            curve,
            model,
            batches,
            loss,
            optimizer=optimizer,
            iterations=len(batches),
            generator=generator,
            weight_decay=WEIGHT_DECAY,
        )

    return block


def measure(pairs: int) -> tuple[float, float, float]:
    """Return the median seconds of a training step and of a fitting step, and the median of their ratio."""
    generator = torch.Generator().manual_seed(0)
    batches = [
        (
            torch.randn(128, 3, 32, 32, generator=generator).to(memory_format=torch.channels_last),
            torch.randint(10, (128,), generator=generator),
        )
        for _ in range(BLOCK)
    ]
    blocks = [make_training(batches), make_fitting(batches)]
    found: list[list[float]] = []
    for pair in range(pairs + 1):
        seconds = [0.0, 0.0]
        for which in (0, 1) if pair % 2 else (1, 0):  # who goes first alternates
            start = time.perf_counter()
            blocks[which]()
            seconds[which] = (time.perf_counter() - start) / BLOCK
        if pair:  # the first pair warms up
            found.append(seconds)
    training, fitting = zip(*found, strict=True)
    return median(training), median(fitting), median(after / before for before, after in found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, under a minute")
    training, fitting, ratio = measure(7 if parser.parse_args().quick else 41)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, ResNet-20, batch 128\n")
    print(f"{'measured':<44}{'value':>10}{'at most':>9}")
    print(f"{'ordinary training step':<44}{training * 1000:>7.1f} ms")
    print(f"{'curve-fitting step':<44}{fitting * 1000:>7.1f} ms")
    print(f"{'ratio (fitting / training)':<44}{ratio:>10.3f}{1.25:>9}")
    print(
        json.dumps(
            {"training_ms": round(training * 1e3, 2), "fitting_ms": round(fitting * 1e3, 2)}
            | {"ratio": round(ratio, 4)}
        )
    )


if __name__ == "__main__":
    main()

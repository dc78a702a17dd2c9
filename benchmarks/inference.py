"""What an ensemble costs at test time: plain loop, vmap, streaming, packed, cascade, ONNX Runtime.

    python -m benchmarks.inference [--quick] [--run RUN]

All predict the same images in the same batches and take turns in one run; times are medians of ratios to one
model. With --run, the members, data and splits are those of a finished `pfge compare`, the cascade is fitted
on its validation data and accuracy is that of its test data; without, a small run on digits is made first.
Weights: bytes that must be resident at once to predict.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from pfge import Ensemble, compress, fit_cascade
from pfge.lab.bench import Bench
from pfge.lab.compare import compare
from pfge.lab.config_file import load_experiment
from pfge.lab.data import Batch, evaluation_batches, take
from pfge.lab.engine import Engine
from pfge.lab.progress import Reporter
from pfge.lab.run_folder import RunFolder
from pfge.weights import count_bytes, load_weights

DEMO = ["seeds=[1]", "data.halve_test=true", "ensemble.methods=['PFGE']", "pretrain.epochs=3"]

Predict = Callable[[], Tensor]


def open_run(path: Path) -> tuple[Bench, Ensemble]:
    """Return the data and models of a run, and its PFGE ensemble."""
    experiment = load_experiment(path / "config.toml")
    bench = Bench.set_up(experiment, RunFolder(path), Engine(experiment.engine), Reporter(quiet=True))
    return bench, bench.load_ensemble(bench.folder.ensemble(experiment.seeds[0], "PFGE"))


def make_modules(ensemble: Ensemble) -> list[nn.Module]:
    """Return a module of its own for each member, as most programs have."""
    modules = []
    for member in ensemble.members:
        module = ensemble.build_model().eval().requires_grad_(False)
        load_weights(module, member)
        modules.append(module)
    return modules


@torch.no_grad()
def predict_by_loop(modules: Sequence[nn.Module], inputs: Sequence[Tensor]) -> Tensor:
    """Pool batch by batch, all modules resident."""
    return torch.cat([torch.stack([m(x).softmax(dim=1) for m in modules]).mean(0) for x in inputs])


def make_vmap(modules: list[nn.Module], inputs: Sequence[Tensor]) -> Predict:
    """Return a prediction by all members at once, stacked."""
    parameters, buffers = stack_module_state(modules)
    skeleton = modules[0]

    def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        logits: Tensor = functional_call(skeleton, (parameters, buffers), (x,))
        return logits.softmax(dim=1)

    @torch.no_grad()
    def predict() -> Tensor:
        return torch.cat([vmap(one, in_dims=(0, 0, None))(parameters, buffers, x).mean(0) for x in inputs])

    return predict


def take_turns(ways: dict[str, Predict], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each way, round by round."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, predict in ways.items():
            start = time.perf_counter()
            predict()
            if turn:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    return seconds


def measure(bench: Bench, ensemble: Ensemble, images: int, rounds: int) -> dict[str, float]:
    """Print the table and return its ratios."""
    splits, settings = bench.splits, bench.experiment.data

    def batches(count: int, part: str) -> tuple[list[Batch], Tensor]:
        data = take(getattr(splits, part), min(count, len(getattr(splits, part))), 0, part=part)
        source = evaluation_batches(data, splits.normalization, batch_size=settings.evaluation_batch_size)
        return list(source), data.labels

    validation, validation_labels = batches(0, "validation")
    test, labels = batches(images, "test")
    inputs = [x for x, _ in test]
    packed = compress(ensemble, delta_bits=3, small_bits=16)
    cascade = fit_cascade(packed, validation, validation_labels, max_accuracy_loss=0.001)
    modules = make_modules(ensemble)
    one, members = count_bytes(ensemble.members[0]), len(ensemble)
    ways: dict[str, Predict] = {
        "one model": lambda: predict_by_loop(modules[:1], inputs),
        f"{members} modules, loop": lambda: predict_by_loop(modules, inputs),
        f"{members} modules, vmap": make_vmap(modules, inputs),
        "streaming float32": lambda: ensemble.predict_batches(test),
        "streaming packed": lambda: packed.predict_batches(test),
        "cascade, packed": lambda: cascade.predict_batches(packed, test).probabilities,
    }
    resident = [
        one,
        members * one,
        members * one,
        (members + 1) * one,
        packed.nbytes + one,
        packed.nbytes + one,
    ]
    accuracies = {
        name: (predict().argmax(dim=1) == labels).double().mean().item() for name, predict in ways.items()
    }
    seconds = take_turns(ways, rounds)
    asked = cascade.predict_batches(packed, test).asked.double().mean().item()
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {ensemble.model}, "
        f"{len(labels)} images\n"
    )
    print(f"{'way':<22}{'time, x one model':>18}{'weights, x one':>16}{'accuracy %':>12}")
    ratios: dict[str, float] = {}
    for (name, times), size in zip(seconds.items(), resident, strict=True):
        ratios[name] = median(t / o for t, o in zip(times, seconds["one model"], strict=True))
        print(f"{name:<22}{ratios[name]:>18.2f}{size / one:>16.2f}{100 * accuracies[name]:>12.2f}")
    print(
        f"\nThe cascade asks {asked:.2f} members on average, at confidence {cascade.threshold:.3f} "
        f"({cascade.rule})."
    )
    unpacking = _seconds_of_unpacking(packed)
    forward = median(seconds["one model"]) * settings.evaluation_batch_size / len(labels)
    print(f"Unpacking a member takes {unpacking / forward:.1%} of a forward pass of a batch.")
    return {
        **{name.replace(" ", "_").replace(",", ""): value for name, value in ratios.items()},
        "cascade_accuracy_loss_points": 100
        * (accuracies["streaming float32"] - accuracies["cascade, packed"]),
        "cascade_mean_members": asked,
        "packed_bytes_of_one_model": packed.nbytes / one,
        "unpacking_share_of_a_batch": unpacking / forward,
    }


def _seconds_of_unpacking(packed: Ensemble) -> float:
    seconds = []
    for turn in range(9):
        start = time.perf_counter()
        packed.predictor(turn % len(packed))
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer images and rounds, under 50 s")
    parser.add_argument("--run", type=Path, help="a finished run with a PFGE ensemble and validation data")
    options = parser.parse_args()
    images, rounds = (1000, 3) if options.quick else (0, 7)
    with tempfile.TemporaryDirectory() as folder:
        path = options.run or Path(folder) / "digits"
        if options.run is None:
            compare(load_experiment(None, DEMO), path, Reporter(quiet=True))
        ratios = measure(*open_run(path), images, rounds)
    print(json.dumps({name: round(value, 4) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()

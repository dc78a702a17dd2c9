"""What an ensemble costs at test time: plain loop, vmap, streaming, packed, cascade, three ways of ONNX.

    python -m benchmarks.inference [--quick] [--run RUN]

All predict the same images in the same batches, from files as they would be shipped, and take turns in one
run; times are medians of ratios to one model, of wall time and of CPU time. With --run, the members, data and
splits are those of a finished `pfge compare`, the cascade is fitted on its validation data and accuracy is
that of its test data; without, a small run on digits is made first. The packed form is an int8 base and 3
bits for each member. Weights: bytes that must be resident at once to predict. Peak: the most memory that
predicting took, weights and activations, each way in a process of its own. "ONNX, one by one" has a float32
file for each member; the other two ONNX files are of the packed members, in a loop or side by side.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import cast

import torch
from torch import Tensor, nn

from benchmarks import ways
from benchmarks.ways import Predict, Shipped, Way, peak_bytes
from pfge import Ensemble, fit_cascade
from pfge.compression import Bits, Budget, PackSettings, compress
from pfge.export.onnx import resident_bytes
from pfge.lab.config.toml import load_experiment
from pfge.lab.data import evaluation_batches, take
from pfge.lab.engine import Engine
from pfge.lab.experiments.compare import compare
from pfge.lab.models import build_model
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.progress import Reporter
from pfge.lab.session import Session
from pfge.packed import PackedMembers
from pfge.weights import count_bytes

SIDE_BY_SIDE = "ONNX, side by side"
SEPARATE = "ONNX, one by one"
DEMO = ["seeds=[1]", "data.validation_from_test=true", "ensemble.methods=['PFGE']", "pretrain.epochs=3"]


@dataclass(frozen=True)
class Contender:
    """A way to predict, with the weights that it keeps resident."""

    name: str
    way: Way
    weights: int


def open_run(path: Path) -> tuple[Session, Ensemble]:
    """Return the data of a run, and its PFGE ensemble."""
    folder = RunFolder(path)
    experiment = folder.load_experiment()
    session = Session.set_up(experiment, folder, Engine(experiment.engine), Reporter(quiet=True))
    members = session.folder.ensemble(experiment.seeds[0], "PFGE")
    return session, Ensemble.load(members, partial(channels_last_model, *model_arguments(session)))


def model_arguments(session: Session) -> tuple[str, int, int]:
    """Return what another process needs to build the model."""
    splits = session.splits
    channels = len(splits.normalization_for("this benchmark").mean)
    return session.experiment.model.name, len(splits.train.class_names), channels


def channels_last_model(name: str, classes: int, channels: int) -> nn.Module:
    """Return a new model in the memory format that is faster on CPUs."""
    model = build_model(name, classes=classes, channels=channels)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def read(session: Session, part: str, images: int) -> tuple[Tensor, Tensor]:
    """Return inputs and classes of a part of the data."""
    data = getattr(session.splits, part)
    data = take(data, min(images, len(data)), 0, part=part)
    ((inputs, labels),) = evaluation_batches(data, session.splits.normalization, batch_size=len(data))
    return inputs, labels


def make_contenders(ensemble: Ensemble, packed: Ensemble) -> list[Contender]:
    members, one = len(ensemble), count_bytes(ensemble.members[0])
    return [
        Contender("one model", ways.one_model, one),
        Contender(f"{members} modules, loop", ways.loop, members * one),
        Contender(f"{members} modules, vmap", ways.by_vmap, members * one),
        Contender("streaming float32", ways.streaming, 2 * one),
        Contender("streaming packed", ways.packed, packed.nbytes + one),
        Contender("cascade, packed", ways.cascade, packed.nbytes + one),
        Contender("ONNX, packed, loop", ways.onnx_loop, resident_bytes(packed, "loop")),
        Contender(SIDE_BY_SIDE, ways.onnx_side_by_side, resident_bytes(packed, "side by side")),
        Contender(SEPARATE, ways.onnx_separate, members * one),
    ]


@dataclass(frozen=True)
class Times:
    """Seconds of each way, round by round, so that ways can be compared within a round."""

    seconds: dict[str, list[float]]

    @classmethod
    def of(cls, names: Iterable[str]) -> "Times":
        """Return no times yet."""
        return cls({name: [] for name in names})

    def ratio(self, name: str, to: str) -> float:
        """Return the median over rounds of how much longer one way takes than another."""
        return median(t / o for t, o in zip(self.seconds[name], self.seconds[to], strict=True))


def take_turns(predictions: dict[str, Predict], rounds: int) -> tuple[Times, Times]:
    """Return the wall times and the CPU times."""
    wall, cpu = Times.of(predictions), Times.of(predictions)
    for turn in range(rounds + 1):
        for name, predict in predictions.items():
            print(f"round {turn} of {rounds}: {name}", file=sys.stderr)
            starts = time.perf_counter(), time.process_time()
            predict()
            if turn:  # the first round warms up
                wall.seconds[name].append(time.perf_counter() - starts[0])
                cpu.seconds[name].append(time.process_time() - starts[1])
    return wall, cpu


def measure(session: Session, ensemble: Ensemble, folder: Path, images: int, rounds: int) -> dict[str, float]:
    """Print the table and return its ratios."""
    batch_size = session.experiment.data.evaluation_batch_size
    validation, validation_labels = read(session, "validation", 0)
    inputs, labels = read(session, "test", images)
    packed = compress(ensemble, Bits(3), settings=PackSettings(small_bits=16))
    parts = zip(validation.split(batch_size), validation_labels.split(batch_size), strict=True)
    cascade = fit_cascade(packed, list(parts), max_accuracy_loss=0.001)
    shipped = Shipped(folder, ensemble.build_model, batch_size)
    shipped.write(ensemble, cascade, inputs)
    contenders = make_contenders(ensemble, packed)
    predictions = {contender.name: contender.way(shipped, shipped.inputs()) for contender in contenders}
    accuracies = {
        name: (predict().argmax(dim=1) == labels).double().mean().item()
        for name, predict in predictions.items()
    }
    wall, cpu = take_turns(predictions, rounds)
    peaks = {c.name: peak_bytes(c.way, shipped, torch.get_num_threads()) for c in contenders}
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {ensemble.model}, "
        f"{len(labels)} images in batches of {batch_size}\n"
    )
    print(
        f"{'way':<22}{'time, x one':>12}{'CPU, x one':>12}{'weights, x one':>16}{'peak, MB':>10}"
        f"{'accuracy %':>12}"
    )
    one = contenders[0]
    for c in contenders:
        print(
            f"{c.name:<22}{wall.ratio(c.name, one.name):>12.2f}{cpu.ratio(c.name, one.name):>12.2f}"
            f"{c.weights / one.weights:>16.2f}{peaks[c.name] / 1e6:>10.1f}{100 * accuracies[c.name]:>12.2f}"
        )
    asked = cascade.predict_batches(packed, inputs.split(batch_size)).evaluated.double().mean().item()
    print(f"\nThe cascade evaluates {asked:.2f} members on average ({cascade}).")
    print(
        f"{SIDE_BY_SIDE}, takes {wall.ratio(SIDE_BY_SIDE, SEPARATE):.3f}x the time, "
        f"{cpu.ratio(SIDE_BY_SIDE, SEPARATE):.3f}x the CPU time and "
        f"{peaks[SIDE_BY_SIDE] / peaks[SEPARATE]:.2f}x the memory of {SEPARATE}."
    )
    mixed = compress(ensemble, Budget(packed.nbytes))
    forward = median(wall.seconds[one.name]) * batch_size / len(labels)
    shares = [_seconds_of_unpacking(form) / forward for form in (packed, mixed)]
    print(
        f"Unpacking a member takes {shares[0]:.1%} of a forward pass of a batch, and {shares[1]:.1%} if "
        "members share components."
    )
    return {
        **{_key(c.name): wall.ratio(c.name, one.name) for c in contenders},
        **{f"cpu_{_key(c.name)}": cpu.ratio(c.name, one.name) for c in contenders},
        **{f"peak_{_key(name)}": peak / peaks[one.name] for name, peak in peaks.items()},
        "cascade_accuracy_loss_points": 100
        * (accuracies["streaming float32"] - accuracies["cascade, packed"]),
        "cascade_mean_members": asked,
        "onnx_side_by_side_of_one_by_one": wall.ratio(SIDE_BY_SIDE, SEPARATE),
        "cpu_onnx_side_by_side_of_one_by_one": cpu.ratio(SIDE_BY_SIDE, SEPARATE),
        "peak_onnx_side_by_side_of_one_by_one": peaks[SIDE_BY_SIDE] / peaks[SEPARATE],
        "packed_bytes_of_one_model": packed.nbytes / one.weights,
        "unpacking_share_of_a_batch": shares[0],
        "unpacking_share_of_a_batch_components": shares[1],
    }


def _key(name: str) -> str:
    return name.replace(" ", "_").replace(",", "")


def _seconds_of_unpacking(packed: Ensemble) -> float:
    members, model, seconds = cast(PackedMembers, packed.members), packed.build_model(), []
    for turn in range(9):
        start = time.perf_counter()
        members.load_into(model, turn % len(members))
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
        ratios = measure(*open_run(path), Path(folder) / "shipped", images, rounds)
    print(json.dumps({name: round(value, 4) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()

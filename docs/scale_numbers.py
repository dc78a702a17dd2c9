"""Compute what comparisons cost on large machines, and write the tables of scale.md.

    python docs/scale_numbers.py

Bytes and numbers of operations are counted on the models themselves. Copies of the weights that collectors
hold are measured. Speeds of machines are assumptions, all of which are in `Cluster`.
"""

import tempfile
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from torch.utils.flop_counter import FlopCounterMode

from pfge.lab.config.settings import Experiment
from pfge.lab.config.toml import load_experiment
from pfge.lab.data.batches import count_batches
from pfge.lab.experiments.compare import comparison_units
from pfge.lab.experiments.cost import Failures, SimulatedUnit, simulate
from pfge.lab.launch.units import Unit, longest_chains
from pfge.lab.models import build_model
from pfge.lab.run.folder import RunFolder
from pfge.methods import METHODS, TrainingPlan, base_of, is_starred, make_collector
from pfge.weights import Weights, copy_weights, count_bytes, view_weights

PAGE = Path(__file__).with_name("scale.md")
PAPER = Path(__file__).parents[1] / "configs" / "paper"
MODELS = {
    "vgg16": (10, 32),
    "preresnet164": (10, 32),
    "wideresnet28-10": (10, 32),
    "torchvision:resnet50": (1000, 224),
    "torchvision:resnet152": (1000, 224),
    "torchvision:densenet161": (1000, 224),
}
"""The classes and the sides of images of each model."""
IMAGES = {"cifar10": (50_000, 10_000), "cifar100": (50_000, 10_000), "imagenet": (1_281_167, 50_000)}
"""Training and test images."""
SETTING = TrainingPlan(iterations=20, cycle=1, period=5, low=1e-5, high=1e-3)
"""That of the paper, with an iteration for each cycle of 2 epochs: 4 members of PFGE, 20 of FGE."""
EPOCHS, EPOCHS_OF_CYCLE, MEMBERS = 40, 2, 4
GB = 1e9


@dataclass(frozen=True)
class Cluster:
    """What is assumed of a cluster with 8 GPUs in each machine; all speeds are of one second."""

    operations: float = 312e12 * 0.2  # of a GPU: its peak in bfloat16, and what convolutions reach of it
    gpu_memory: float = 2e12  # bytes read and written
    inside: float = 250e9  # bytes that a GPU sends to others of its machine
    network: float = 25e9  # bytes that a GPU sends to other machines
    decoded: float = 96 * 150.0  # pictures that the cores of a machine decode
    read: float = 20e9  # bytes of the file system, for all machines
    written: float = 1e9  # bytes of one process to the file system
    picture: float = 110e3  # bytes
    batch: int = 256  # pictures of a GPU in an iteration
    checkpoint_seconds: float = 60.0


def count_operations(name: str) -> int:
    """Return the operations of one image through a model: each multiplication and addition is one."""
    classes, side = MODELS[name]
    with torch.device("meta"):
        model = build_model(name, classes=classes, channels=3).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.empty(1, 3, side, side))
    return counter.get_total_flops()


def describe(name: str) -> Weights:
    """Return the weights of a model without their values."""
    with torch.device("meta"):
        return view_weights(build_model(name, classes=MODELS[name][0], channels=3))


def measure_copies(method: str) -> tuple[float, float]:
    """Return the copies of the weights that a collector holds while training, and those of its members.

    Members are in a folder, as the lab has them.
    """
    weights = copy_weights(view_weights(torch.nn.Linear(100, 100)))
    with tempfile.TemporaryDirectory() as folder:
        collector = make_collector(method, SETTING, seed=1, store=folder)
        collector.begin(weights)
        for iteration in range(1, SETTING.iterations + 1):
            collector.observe(iteration, weights)
        held = sum(tensor.nbytes for tensor in _tensors(collector.state_dict()))
        members = sum(count_bytes(member) for member in collector.members())
    return held / count_bytes(weights), members / count_bytes(weights)


def _tensors(value: object) -> list[torch.Tensor]:
    match value:
        case torch.Tensor():
            return [value] if value.numel() > 1 else []
        case Mapping():
            return [tensor for item in value.values() for tensor in _tensors(item)]
        case list() | tuple():
            return [tensor for item in value for tensor in _tensors(item)]
    return []


def sizes_table() -> list[str]:
    """Return the bytes of models and of what methods keep."""
    methods = [name for name in ("SWA", "FGE", "SWAG", "PFGE") if name in METHODS]
    copies = {name: measure_copies(name) for name in methods}
    lines = [
        "| model | parameters | one model | " + " | ".join(f"{name} members" for name in methods) + " |",
        "|---|---:|---:|" + "---:|" * len(methods),
    ]
    for name in MODELS:
        layout = describe(name)
        size = count_bytes(layout)
        numbers = " | ".join(f"{copies[method][1] * size / GB:.2f} GB" for method in methods)
        parameters = sum(tensor.numel() for tensor in layout.values() if tensor.is_floating_point())
        lines.append(f"| {name} | {parameters / 1e6:.1f} M | {size / 1e6:.1f} MB | {numbers} |")
    held = " | ".join(f"{copies[method][0]:.1f}" for method in methods)
    lines.append(f"| copies of the weights held while training | | | {held} |")
    return lines


@dataclass(frozen=True)
class Costs:
    """Seconds of a part of ResNet-50's 40 epochs, with a number of GPUs.

    Attributes:
        streams: What goes on at the same time in every iteration; the slowest decides.
        waits: What everything waits for, by turns.
    """

    streams: dict[str, float]
    waits: dict[str, float]

    @property
    def bottleneck(self) -> str:
        """The slowest of what goes on at the same time."""
        return max(self.streams, key=lambda name: self.streams[name])

    @property
    def seconds(self) -> float:
        """All of it."""
        return max(self.streams.values()) + sum(self.waits.values())


def find_costs(gpus: int, *, sharded: bool, cluster: Cluster | None = None) -> Costs:
    """Return what 40 epochs of PFGE with ResNet-50 on ImageNet cost."""
    cluster = cluster or Cluster()
    name = "torchvision:resnet50"
    size, operations = count_bytes(describe(name)), count_operations(name)
    images, tests = IMAGES["imagenet"]
    iterations = EPOCHS * images / (gpus * cluster.batch)
    link = cluster.inside if gpus <= 8 else cluster.network
    sent = (3 if sharded else 2) * (gpus - 1) / gpus * size  # all-gathers and reduce-scatter, or all-reduce
    speed = gpus * cluster.operations
    streams = {
        "computing": 3 * operations * EPOCHS * images / speed,
        "traffic of gradients and weights" if sharded else "traffic of gradients": iterations * sent / link,
        "decoding pictures": EPOCHS * images / (max(gpus / 8, 1) * cluster.decoded),
        "reading pictures": EPOCHS * images * cluster.picture / cluster.read,
    }
    held = size / gpus if sharded else size
    gathered = (gpus - 1) / gpus * size / link if sharded else 0.0
    pass_over_training = max(
        operations * images / speed,
        images / (max(gpus / 8, 1) * cluster.decoded),
        images * cluster.picture / cluster.read,
    )
    saved = (size * 3) / cluster.written + 3 * gathered  # weights, momentum and the mean
    training = max(streams.values())
    waits = {
        "averaging": EPOCHS / EPOCHS_OF_CYCLE * 3 * held / cluster.gpu_memory,
        "writing members": MEMBERS * (size / cluster.written + gathered),
        "refreshing BatchNorm": MEMBERS * pass_over_training,
        "evaluating members": MEMBERS
        * max(operations * tests / speed, tests * cluster.picture / cluster.read),
        "writing checkpoints": saved * max(training / cluster.checkpoint_seconds, 1),
    }
    return Costs(streams, waits)


def cluster_table() -> list[str]:
    """Return what ResNet-50 costs on 8, 64 and 512 GPUs."""
    found = {
        (gpus, sharded): find_costs(gpus, sharded=sharded)
        for gpus in (8, 64, 512)
        for sharded in (False, True)
    }
    heads = [f"{gpus} GPUs, {'FSDP' if sharded else 'DDP'}" for gpus, sharded in found]
    lines = ["| minutes | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    names = ["computing", "traffic", "decoding pictures", "reading pictures"]
    for name in names:
        values = [next(v for k, v in costs.streams.items() if k.startswith(name)) for costs in found.values()]
        lines.append(f"| {name} | " + " | ".join(f"{value / 60:.2f}" for value in values) + " |")
    for name in next(iter(found.values())).waits:
        numbers = " | ".join(f"{costs.waits[name] / 60:.3f}" for costs in found.values())
        lines.append(f"| {name} | {numbers} |")
    lines.append("| all | " + " | ".join(f"{costs.seconds / 60:.1f}" for costs in found.values()) + " |")
    lines.append("| bottleneck | " + " | ".join(costs.bottleneck for costs in found.values()) + " |")
    share = [sum(costs.waits.values()) / costs.seconds for costs in found.values()]
    lines.append("| share of the ensemble in it | " + " | ".join(f"{100 * s:.1f} %" for s in share) + " |")
    batches = [IMAGES["imagenet"][0] // (gpus * Cluster().batch) for gpus, _ in found]
    lines.append("| iterations of an epoch | " + " | ".join(f"{count:,}" for count in batches) + " |")
    return lines


def simulated_units() -> tuple[list[SimulatedUnit], dict[Hashable, int]]:
    """Return the units of the paper's 27 runs, with the seconds that they take on one GPU each, and chains.

    The iterations of the longest chain that a unit begins decide which starts first, as in a driver.
    """
    units: list[SimulatedUnit] = []
    chains: dict[Hashable, int] = {}
    for file in sorted(PAPER.glob("*.toml")):
        experiment = load_experiment(file)
        train, _ = IMAGES[experiment.data.name]
        per_epoch = count_batches(train, experiment.data.batch_size)
        # No such folder: nothing is done yet.
        made = comparison_units(experiment, RunFolder(Path("no-such-run")), per_epoch)
        operations = count_operations(experiment.model.name)
        forked = {need for unit in made if unit.early for need in unit.needs}
        share = experiment.ensemble.period / experiment.ensemble.length
        lengths = longest_chains(made)
        for unit in made:
            seconds = find_seconds(unit, experiment, operations)
            needs = [f"{need}, to the fork" if unit.early else need for need in unit.needs]
            if unit.name in forked:  # as two units: others start at the fork
                fork = f"{unit.name}, to the fork"
                units.append(_simulated(experiment, fork, share * seconds, needs))
                chains[experiment.name, fork] = lengths[unit.name]
                seconds, needs = (1 - share) * seconds, [fork]
            units.append(_simulated(experiment, unit.name, seconds, needs))
            chains[experiment.name, unit.name] = lengths[unit.name]
    return units, chains


def _simulated(experiment: Experiment, name: str, seconds: float, needs: Sequence[str]) -> SimulatedUnit:
    return SimulatedUnit((experiment.name, name), seconds, [(experiment.name, need) for need in needs])


def find_seconds(unit: Unit, experiment: Experiment, operations: int) -> float:
    """Return how long a unit takes on one GPU: a step is three passes, measuring one pass for each member."""
    images = 3.0 * unit.iterations * experiment.data.batch_size
    _, _, row = unit.name.partition("measure ")
    if row:
        copies = 1.0 if row not in METHODS and not is_starred(row) else measure_copies(base_of(row))[1]
        images = copies * IMAGES[experiment.data.name][1]
    return operations * images / Cluster().operations


def workers_table(draws: int = 20) -> list[str]:
    """Return the hours of the paper's 27 runs on some workers, without and with failures."""
    in_order, chains = simulated_units()
    units = sorted(in_order, key=lambda unit: -chains[unit.name])
    total = sum(unit.seconds for unit in units)
    lines = [
        "| workers | hours | busy | hours, in the order of configs | hours, a failure a day | an hour |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for workers in (1, 2, 4, 8, 16, 32, 64):
        hours = max(simulate(units, workers).values()) / 3600
        hours_in_order = max(simulate(in_order, workers).values()) / 3600
        failing = [
            mean(
                max(simulate(units, workers, Failures(every, lost_seconds=180, seed=seed)).values()) / 3600
                for seed in range(draws)
            )
            for every in (24 * 3600, 3600)
        ]
        numbers = " | ".join(f"{value:.1f}" for value in (hours_in_order, *failing))
        lines.append(f"| {workers} | {hours:.1f} | {total / 36 / workers / hours:.0f} % | {numbers} |")
    return lines


TABLES = {"sizes": sizes_table, "clusters": cluster_table, "workers": workers_table}


def fill(text: str) -> str:
    """Return the page with its tables."""
    for name, make in TABLES.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = head + begin + "\n".join(make()) + "\n" + end + tail
    return text


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

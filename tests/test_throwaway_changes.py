"""Ten changes that contributors make, applied to a copy of the package: each touches few files and works.

The table "Where a change goes" in docs/architecture.md has the files of each.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "pfge"
PATIENCE = 300  # seconds, for a machine that is busy with something else

BEGIN = """
import contextlib, io
from pathlib import Path

import torch

import pfge

assert Path(pfge.__file__).is_relative_to(Path.cwd()), pfge.__file__
Path("tiny.toml").write_text('name = "tiny"\\n')


def run(*arguments):
    from pfge.cli.main import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main(list(arguments))
    assert code == 0, (arguments, code)
    return printed.getvalue()


def compare(folder, *settings):
    from tests.lab.tiny import SETTINGS

    return run("compare", "tiny.toml", "--out", folder, *(f"--set={each}" for each in (*SETTINGS, *settings)))


def rows(folder):
    # The cells of the main table, by the first cell of each row and by the heads of columns.
    first = run("table", folder).partition("\\n\\n")[0].replace("\\\\", "")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in first.splitlines()]
    return {cells[0]: dict(zip(lines[0], cells)) for cells in lines if "---" not in cells[0]}
"""
"""What every program begins with: it runs commands in its own process, in an empty folder."""


class Copy:
    """A copy of src, which a change edits."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        shutil.copytree(SOURCE, folder / "src" / "pfge")  # compiled modules too, which saves seconds

    def add(self, name: str, text: str) -> None:
        """Add a file."""
        file = self._folder / "src" / "pfge" / name
        assert not file.exists()
        file.write_text(text.lstrip())

    def replace(self, name: str, anchor: str, text: str) -> None:
        """Replace the only place of a file that has the anchor."""
        file = self._folder / "src" / "pfge" / name
        before = file.read_text()
        assert before.count(anchor) == 1, f"{name} has {before.count(anchor)} places with {anchor!r}"
        file.write_text(before.replace(anchor, text))

    def changed(self) -> list[str]:
        """Return the names of the files that differ from those of the package."""
        copy = self._folder / "src" / "pfge"
        files = {path.relative_to(root) for root in (copy, SOURCE) for path in root.rglob("*.*")}
        sources = {file for file in files if "__pycache__" not in file.parts}
        return sorted(file.as_posix() for file in sources if _read(copy / file) != _read(SOURCE / file))

    def run(self, program: str) -> None:
        """Run a program that imports the copy."""
        (self._folder / "program.py").write_text(BEGIN + program)
        done = subprocess.run(
            [sys.executable, "program.py"],
            cwd=self._folder,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": f"{self._folder}/src:{self._folder}:{ROOT}",
                "PYTHONSAFEPATH": "1",
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def _read(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


# A change edits the copy and returns a program that uses it.
Change = Callable[[Copy], str]


def a_collector(copy: Copy) -> str:
    """LAWA: the mean of the weights at the end of the last few cycles (Kaddour, 2022)."""
    copy.add(
        "collectors/lawa.py",
        '''
"""LAWA: the mean of the last few points of a path."""

from collections.abc import Collection, Sequence
from typing import Any

from pfge.collectors.averaging import RunningMean
from pfge.collectors.base import Collector, require_cycle
from pfge.weights import Weights, copy_weights, to_cpu


class LAWA(Collector):
    """Keep the mean of the weights at the end of the last few cycles: one member."""

    averages = True

    def __init__(self, cycle: int, points: int, *, phase: int = 0):
        require_cycle(cycle, phase)
        self.cycle = cycle
        self.points = points
        self.phase = phase
        self._kept: dict[int, Weights] = {}
        self._buffers: frozenset[str] = frozenset()

    def begin(self, weights: Weights, buffers: Collection[str] = ()) -> None:
        self._kept, self._buffers = {}, frozenset(buffers)

    def due(self, iteration: int) -> bool:
        return iteration % self.cycle == self.phase

    def collect(self, iteration: int, weights: Weights) -> None:
        kept = {**self._kept, iteration: copy_weights(weights)}
        self._kept = dict(list(kept.items())[-self.points :])

    def members(self) -> Sequence[Weights]:
        if not self._kept:
            return []
        first, *others = self._kept.values()
        mean = RunningMean(first, counted=True, copied=self._buffers)
        for weights in others:
            mean.add(weights)
        return [to_cpu(mean.weights())]

    @property
    def iterations(self) -> Sequence[int | None]:
        return list(self._kept)[-1:]

    def state_dict(self) -> dict[str, Any]:
        kept = [{"iteration": iteration, "weights": weights} for iteration, weights in self._kept.items()]
        return {"kept": kept, "buffers": sorted(self._buffers)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._kept = {point["iteration"]: point["weights"] for point in state["kept"]}
        self._buffers = frozenset(state["buffers"])
''',
    )
    copy.replace(
        "collectors/__init__.py",
        "from pfge.collectors.stored import",
        "from pfge.collectors.lawa import LAWA\nfrom pfge.collectors.stored import",
    )
    copy.replace("collectors/__init__.py", '    "FolderStore",', '    "LAWA",\n    "FolderStore",')
    copy.replace(
        "methods/table.py",
        "from pfge.collectors import EMA, FGE, PFGE",
        "from pfge.collectors import EMA, FGE, LAWA, PFGE",
    )
    copy.replace(
        "methods/table.py",
        '    _shared(\n        "FGE",',
        """    _shared(
        "LAWA",
        description="One model: the mean of the weights at the end of the last few cycles.",
        source="Kaddour, Stop Wasting My Time! Saving Days of ImageNet and BERT Training, 2022",
        collector=lambda setting, _seed, _store: LAWA(setting.cycle, 3, phase=setting.phase),
        members="one",
        averages=True,
    ),
    _shared(
        "FGE",""",
    )
    return """
compare("run", "ensemble.methods=['PFGE','FGE','LAWA']")
assert list(rows("run")) == ["method", "w0", "LAWA", "FGE", "FGE*", "PFGE"]
run("report", "run")
assert "LAWA" in Path("run/report.html").read_text()
folder = Path("run/seed-1/ensembles")
lawa, fge = (pfge.Ensemble.load(folder / name, torch.nn.Identity) for name in ("LAWA", "FGE"))
assert lawa.method == "LAWA(cycle=2, points=3, phase=0)"
(mean,) = lawa.members
for name in (name for name in mean if name.endswith((".weight", ".bias"))):
    torch.testing.assert_close(mean[name], sum(point[name] for point in list(fge.members)[-3:]) / 3)
"""


def learned_soup_weights(copy: Copy) -> str:
    """One model: a convex combination of the members' weights, fitted on held-out data."""
    copy.add(
        "soup.py",
        '''
"""One model out of an ensemble: a convex combination of its members, fitted on held-out data."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from pfge.ensemble import Ensemble
from pfge.forward import arguments_of, pick_logits
from pfge.weights import Weights, buffer_names, is_averaged


def learned_soup(
    ensemble: Ensemble, batches: Iterable[Any], *, steps: int = 50, rate: float = 0.1
) -> Ensemble:
    """Return an ensemble of one model whose weights are a convex combination of the members'.

    References:
        Wortsman et al., "Model soups", ICML 2022, appendix I.
    """
    members, data = list(ensemble.members), list(batches)
    module, task = ensemble.new_module(), ensemble.task
    buffers = buffer_names(module)
    logits = torch.zeros(len(members), requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=rate)
    for step in range(steps):
        batch = data[step % len(data)]
        arguments, named = arguments_of(batch)
        combined = _combine(members, logits.softmax(0))
        combined |= {name: combined[name].detach() for name in buffers}  # no loss depends on them
        outputs = functional_call(module, combined, arguments, named)
        optimizer.zero_grad()
        task.loss(pick_logits(outputs), task.targets_of(batch)).backward()
        optimizer.step()
    shares = logits.detach().softmax(0)
    method = "soup of " + ", ".join(f"{share:.3f}" for share in shares.tolist())
    soup = ensemble.with_members([_combine(members, shares)], iterations=[None])
    return soup.with_record(method=method)


def _combine(members: list[Weights], shares: Tensor) -> Weights:
    return {
        name: sum(share * member[name] for share, member in zip(shares, members)).to(tensor.dtype)
        if is_averaged(tensor)
        else tensor
        for name, tensor in members[-1].items()
    }
''',
    )
    copy.replace("__init__.py", '    "schedules": (', '    "soup": ("learned_soup",),\n    "schedules": (')
    return """
from tests.toys import make_batch, make_mlp

x, y = make_batch(1, size=60)
start = make_mlp().state_dict()
good = make_mlp()
good.load_state_dict(start)
optimizer = torch.optim.SGD(good.parameters(), lr=0.5)
for _ in range(30):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(good(x), y).backward()
    optimizer.step()
generator = torch.Generator().manual_seed(0)
bad = {name: t + torch.randn(t.shape, generator=generator) if t.is_floating_point() else t
       for name, t in start.items()}
ensemble = pfge.Ensemble([start, good.state_dict(), bad], make_mlp)
soup = pfge.learned_soup(ensemble, [(x, y)], steps=300)


def nll(ensemble):
    return ensemble.task.summarize(ensemble.evaluate([(x, y)]))["nll"]


assert len(soup) == 1
singles = [nll(ensemble.with_members([member], iterations=[None])) for member in ensemble.members]
assert nll(soup) < min(singles) + 0.01, (nll(soup), singles)
soup.save("soup")
loaded = pfge.Ensemble.load("soup", make_mlp)
assert torch.equal(loaded.predict(x), soup.predict(x))
assert loaded.method.startswith("soup of 0.")
"""


def an_attribute_of_ensembles(copy: Copy) -> str:
    """A note of the user's, which folders, packed members and copies keep."""
    copy.replace(
        "storage/record.py",
        "    views: Views | None = field(default=None, metadata=_codec(",
        """    note: str | None = field(default=None, metadata=_string("note"))
    views: Views | None = field(default=None, metadata=_codec(""",
    )
    copy.replace(
        "ensemble.py",
        "        views: Views | None = None,\n    ):",
        "        views: Views | None = None,\n        note: str | None = None,\n    ):",
    )
    copy.replace(
        "ensemble.py",
        "            views=views,\n        )\n",
        "            views=views,\n            note=note,\n        )\n",
    )
    return """
from tests.toys import make_batch, make_mlp

x, y = make_batch(1, size=20)
ensemble = pfge.Ensemble([make_mlp(k).state_dict() for k in range(3)], make_mlp, note="for the paper")
packed = pfge.compress(ensemble, pfge.Bits(3))
ensemble.save("plain")
packed.save("packed")
found = [
    packed,
    pfge.Ensemble.load("plain", make_mlp),
    pfge.Ensemble.load("packed", make_mlp),
    ensemble.last(2),
    ensemble.to("cpu"),
    ensemble.calibrated([(x, y)]),
    ensemble.with_members(ensemble.members),
]
assert [each.record.note for each in found] == ["for the paper"] * len(found)
assert pfge.Ensemble([make_mlp().state_dict()], make_mlp).record.note is None
"""


def a_structured_task(copy: Copy) -> str:
    """Detection: boxes with scores, fused across members where they overlap."""
    copy.add(
        "metrics/detection_scores.py",
        '''
"""Scores of detected boxes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pfge.metrics.scores import ExampleScores

OVERLAP = 0.5


@dataclass(frozen=True, eq=False)
class DetectionScores(ExampleScores):
    """How well the boxes of each image are found.

    Attributes:
        score: The score of each predicted box, [N, B].
        hit: Whether it is the best for an object that no box of a higher score has found, [N, B].
        objects: Number of objects, [N].
        overlap: Mean over objects of the overlap with the best box, [N].
    """

    score: Tensor
    hit: Tensor
    objects: Tensor
    overlap: Tensor

    def average_precision(self) -> float:
        """Return the area under precision and recall, over all boxes by their score."""
        order = self.score.flatten().argsort(descending=True, stable=True)
        hits = self.hit.flatten()[order].double()
        precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
        return ((precision * hits).sum() / self.objects.sum().clamp(min=1)).item()

    def mean_overlap(self) -> float:
        """Return the mean overlap."""
        return self.overlap.mean().item()


def overlaps(first: Tensor, second: Tensor) -> Tensor:
    """Return the intersection over union of boxes (x1, y1, x2, y2), [A, B]."""
    low = torch.maximum(first[:, None, :2], second[None, :, :2])
    high = torch.minimum(first[:, None, 2:4], second[None, :, 2:4])
    shared = (high - low).clamp(min=0).prod(-1)
    areas = [(boxes[:, 2:4] - boxes[:, :2]).clamp(min=0).prod(-1) for boxes in (first, second)]
    return shared / (areas[0][:, None] + areas[1][None] - shared).clamp(min=1e-9)


def score_detections(predictions: Tensor, targets: Tensor) -> DetectionScores:
    """Return the scores of each image.

    Args:
        predictions: Boxes and scores, [N, B, 5].
        targets: Boxes, and 1 where there is an object, [N, M, 5].
    """
    hits, best = torch.zeros(predictions.shape[:2], dtype=torch.uint8), []
    for image, (boxes, target) in enumerate(zip(predictions, targets, strict=True)):
        objects = target[target[:, 4] > 0.5]
        found = overlaps(boxes, objects)
        best.append(found.amax(0).mean() if len(objects) else torch.ones(()))
        free = torch.ones(len(objects), dtype=torch.bool)
        for box in boxes[:, 4].argsort(descending=True).tolist():
            matching = found[box] * free
            if len(objects) and matching.max() >= OVERLAP:
                hits[image, box] = 1
                free[matching.argmax()] = False
    count = (targets[..., 4] > 0.5).sum(1)
    return DetectionScores(predictions[..., 4].double(), hits, count, torch.stack(best).double())
''',
    )
    copy.add(
        "tasks/detection.py",
        '''
"""Boxes with scores."""

from dataclasses import dataclass
from operator import methodcaller
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, smooth_l1_loss

from pfge.calibration import Calibration
from pfge.errors import InvalidValueError
from pfge.metrics.detection_scores import DetectionScores, overlaps, score_detections
from pfge.tasks.base import MemberVariance, Metric, Task, sum_type


class FusingPool:
    """Boxes of all members, of which those that overlap become one, weighted by their scores.

    References:
        Solovyev et al., "Weighted boxes fusion", 2021.
    """

    def __init__(self, overlap: float) -> None:
        self._overlap = overlap
        self._members: list[tuple[Tensor, float]] = []

    def add(self, predictions: Tensor, weight: float = 1.0) -> None:
        self._members.append((predictions.detach().to(sum_type(predictions.device)), weight))

    def take(self, index: Tensor) -> "FusingPool":
        taken = FusingPool(self._overlap)
        taken._members = [(predictions[index], weight) for predictions, weight in self._members]
        return taken

    def result(self) -> Tensor:
        slots = self._members[0][0].shape[1]
        total = sum(weight for _, weight in self._members)
        shares = torch.tensor([weight / total for _, weight in self._members]).repeat_interleave(slots)
        images = torch.cat([predictions for predictions, _ in self._members], dim=1)
        return torch.stack([self._fuse(boxes, shares.to(boxes), slots) for boxes in images])

    def _fuse(self, boxes: Tensor, shares: Tensor, slots: int) -> Tensor:
        fused, free = [], torch.ones(len(boxes), dtype=torch.bool)
        near = overlaps(boxes, boxes) >= self._overlap
        near |= torch.eye(len(boxes), dtype=torch.bool)
        for box in boxes[:, 4].argsort(descending=True).tolist():
            if free[box] and len(fused) < slots:
                group = near[box] & free
                free &= ~group
                weight = (shares * boxes[:, 4])[group, None]
                mean = (weight * boxes[group, :4]).sum(0) / weight.sum().clamp(min=1e-9)
                fused.append(torch.cat([mean, weight.sum()[None].clamp(max=1)]))
        fused += [boxes.new_zeros(5)] * (slots - len(fused))
        return torch.stack(fused)


@dataclass(frozen=True)
class Detection(Task):
    """Outputs [N, B, 5] are boxes (x1, y1, x2, y2) and a logit for each of B slots.

    Targets [N, B, 5] have 1 in place of the logit where a slot has an object, and else 0.
    """

    overlap: float = 0.5
    result_type: ClassVar[torch.dtype | None] = torch.float32
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("ap50", "AP50", "higher", methodcaller("average_precision"), "%", 2, None, True, False),
        Metric("overlap", "overlap", "higher", methodcaller("mean_overlap"), "%", 2, "overlap", True, False),
    )

    def loss(self, outputs: Tensor, targets: Tensor, *, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
        present = targets[..., 4]
        distance = smooth_l1_loss(outputs[..., :4], targets[..., :4], reduction="none").sum(-1)
        mean = (present * distance).mean() + binary_cross_entropy_with_logits(outputs[..., 4], present)
        return mean if reduction == "mean" else mean * len(targets)

    def predictions(self, outputs: Any) -> Tensor:
        if not isinstance(outputs, Tensor) or outputs.ndim != 3 or outputs.shape[2] != 5:
            raise InvalidValueError(f"{self} takes outputs [N, B, 5]; pass forward= to pick them")
        return torch.cat([outputs[..., :4], outputs[..., 4:].sigmoid()], dim=-1)

    def pool(self) -> FusingPool:
        return FusingPool(self.overlap)

    def diversity(self) -> MemberVariance:
        return MemberVariance("score_variance", lambda predictions: predictions[..., 4].sort().values)

    def score(self, predictions: Tensor, targets: Tensor) -> DetectionScores:
        return score_detections(predictions, targets)

    def divergence(self, expected: Tensor, predictions: Tensor) -> float:
        return (expected.double() - predictions.double()).square().mean().item() / 2

    @property
    def has_calibration(self) -> bool:
        return False

    def fit_calibration(self, predictions: Tensor, targets: Tensor) -> float:
        return 1.0

    def calibrate(self, predictions: Tensor, calibration: Calibration | Tensor) -> Tensor:
        return predictions
''',
    )
    copy.replace(
        "tasks/__init__.py",
        "from pfge.tasks.multi_label import",
        "from pfge.tasks.detection import Detection\nfrom pfge.tasks.multi_label import",
    )
    copy.replace("tasks/__init__.py", '    "Classification",\n', '    "Classification",\n    "Detection",\n')
    copy.replace("tasks/__init__.py", "(Classification, CausalLM,", "(Classification, Detection, CausalLM,")
    copy.replace(
        "cli/deploy.py",
        "    if isinstance(task, Raw):\n",
        """    if isinstance(task, Detection):
        boxes = [{"box": box[:4], "score": box[4]} for box in predictions.tolist()]
        return {"boxes": sorted(boxes, key=lambda box: -box["score"])}
    if isinstance(task, Raw):
""",
    )
    copy.replace("cli/deploy.py", "import MultiLabel, Raw", "import Detection, MultiLabel, Raw")
    copy.replace(
        "cli/deploy.py",
        """        case {"outputs": outputs}:
""",
        """        case {"boxes": boxes}:
            return ", ".join(f"{box['score']:.2f} at {box['box']}" for box in boxes)
        case {"outputs": outputs}:
""",
    )
    return """
import json

import numpy as np

Path("shapes.py").write_text('''
import torch
from torch import nn
from pfge.lab.data import Splits
from pfge.lab.data.in_memory import TensorSet


def data():
    generator = torch.Generator().manual_seed(0)
    corner = torch.randint(0, 5, (360, 2, 2), generator=generator).float()
    corner[:, 1] += 6
    size = torch.randint(2, 5, (360, 2, 2), generator=generator).float()
    present = torch.ones(360, 2, 1)
    present[::3, 1] = 0
    boxes = torch.cat([corner, corner + size, present], dim=-1)
    images = torch.zeros(360, 1, 12, 12)
    for image, found in zip(images, boxes):
        for x1, y1, x2, y2, there in found.int().tolist():
            image[0, y1:y2, x1:x2] = there
    boxes[..., :4] *= present
    parts = [TensorSet(images[a:b], boxes[a:b]) for a, b in ((0, 240), (240, 300), (300, 360))]
    return Splits(train=parts[0], validation=parts[1], test=parts[2])


def net(classes):
    layers = nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 10)
    return nn.Sequential(nn.Flatten(), *layers, nn.Unflatten(1, (2, 5)))
''')
given = "data.name=shapes:data", "model.name=shapes:net", "task.name=detection"
trained = "pretrain.epochs=30", "pretrain.rate=0.02", "ensemble.low=0.001", "ensemble.high=0.01"
compare("run", *given, *trained, "ensemble.methods=['PFGE']")
found = rows("run")
assert list(found) == ["method", "w0", "PFGE"]
assert float(found["PFGE"]["AP50 %"].split()[0]) > 10
run("report", "run")
ensemble = "run/seed-1/ensembles/PFGE"
run("compress", ensemble, "small")
import shapes

test = shapes.data().test
np.save("images.npy", test.inputs[:2].numpy())
printed = run("predict", ensemble, "images.npy", "--trust-code", "--json")
opened = pfge.Ensemble.load(ensemble, lambda: shapes.net(2))
expected = opened.predict(test.inputs[:2])
for line, boxes in zip(printed.splitlines(), expected, strict=True):
    best = json.loads(line)["boxes"][0]
    torch.testing.assert_close(torch.tensor([*best["box"], best["score"]]), boxes[boxes[:, 4].argmax()])
assert run("predict", ensemble, "images.npy", "--trust-code").count(" at [") == 4
"""


def a_metric(copy: Copy) -> str:
    """Overconfidence: how much the mean confidence exceeds the accuracy."""
    copy.replace(
        "metrics/scores.py",
        "    def area_under_risk_coverage(self",
        '''    def overconfidence(self) -> float:
        """Return the mean confidence minus the accuracy."""
        return (self.confidence.double().mean() - self.correct.double().mean()).item()

    def area_under_risk_coverage(self''',
    )
    copy.replace(
        "tasks/classification.py",
        '        Metric("ece", ',
        """        Metric(
            "overconfidence",
            "overconfidence",
            "closer",
            methodcaller("overconfidence"),
            "%",
            2,
            aim=0.0,
            of=Scores,
            is_main=True,
        ),
        Metric("ece", """,
    )
    return """
compare("run", "ensemble.methods=['PFGE']", "data.validation=0.2")
assert float(rows("run")["PFGE"]["overconfidence %"].split()[0]) != 0
run("report", "run")
assert "overconfidence" in Path("run/report.html").read_text()
for written in ("markdown", "latex", "csv"):
    assert "overconfidence" in run("report", "run", "--format", written, "--table", "methods")
assert "overconfidence" in run("evaluate", "run/seed-1/ensembles/PFGE")
"""


def a_storage_format(copy: Copy) -> str:
    """An int8 base and 2 bits for each member."""
    copy.replace(
        "compression/compress.py",
        '    StorageFormat("int8 base + 1 bit"',
        """    StorageFormat("int8 base + 2 bits", PackSettings(small_bits=16), 2),
    StorageFormat("int8 base + 1 bit\"""",
    )
    return """
import json

planned = run("plan", "--memory=200kB", "--epochs=40", "--model=small_conv", "--classes=10", "--channels=1")
assert "int8 base + 2 bits" in planned
compare("run", "ensemble.methods=['PFGE']")
assert "int8 base + 2 bits" in run("formats", "run")
run("report", "run")
assert "int8 base + 2 bits" in Path("run/report.html").read_text()
measured = [json.loads(line) for line in Path("run/formats.jsonl").read_text().splitlines()]
sizes = {row["format"]: row["bytes"] for row in measured if row["method"] == "PFGE"}
assert sizes["int8 base + 1 bit"] < sizes["int8 base + 2 bits"] < sizes["int8 base + 3 bits"]
"""


def a_launcher(copy: Copy) -> str:
    """Units run through a worker in the process of the driver, one after another, for a debugger."""
    copy.add(
        "lab/launch/inline.py",
        '''
"""Run units through a worker in this process, one after another."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pfge.lab.launch.worker import Executor, Worker, WorkerTask


@contextmanager
def inline() -> Iterator[Executor]:
    """Provide the worker."""
    yield _Inline()


class _Inline:
    size = 1

    def __init__(self) -> None:
        self._worker = Worker()

    def start(self, tasks: Sequence[WorkerTask]) -> "list[_Over]":
        for task in tasks:
            self._worker.run(task)
        return [_Over() for _ in tasks]

    def wait(self, seconds: float) -> None:
        pass


class _Over:
    def is_over(self) -> bool:
        return True

    def ending(self) -> str:
        return "it failed in this process"

    def stop(self) -> None:
        pass
''',
    )
    copy.replace(
        "lab/config/launchers.py",
        '    "slurm": LauncherSyntax(',
        '    "inline": LauncherSyntax("(?!)", "inline"),\n    "slurm": LauncherSyntax(',
    )
    copy.replace(
        "lab/launch/driver.py",
        "from pfge.lab.launch.processes import",
        "from pfge.lab.launch.inline import inline\nfrom pfge.lab.launch.processes import",
    )
    copy.replace(
        "lab/launch/driver.py",
        '    "slurm": _workers',
        '    "inline": lambda *_: (inline(), lambda _: torch.get_num_threads()),\n    "slurm": _workers',
    )
    return """
from pfge.cli.main import main
from tests.lab.tiny import outcome

compare("here", "ensemble.methods=['PFGE','SWA']")
compare("inline", "ensemble.methods=['PFGE','SWA']", "engine.launcher=inline")
assert outcome(Path("inline")) == outcome(Path("here"))
assert 'launcher = "inline"' in Path("inline/config.toml").read_text()
refused = io.StringIO()
with contextlib.redirect_stderr(refused):
    assert main(["compare", "tiny.toml", "--launcher=outline"]) == 2
assert "ray:HOST:PORT, inline, slurm" in refused.getvalue()
"""


def a_section_of_the_page(copy: Copy) -> str:
    """What each method is, and where it was published."""
    copy.add(
        "reports/tables/described.py",
        '''
"""What methods are, and where they were published."""

from collections.abc import Iterable

from pfge.methods import method_of
from pfge.reports.tables.table import Row, Table, Text, columns


def described_table(rows: Iterable[str]) -> Table | None:
    """Return a table of the methods of some rows; None if there is nothing to describe."""
    methods = dict.fromkeys(method for row in rows if (method := method_of(row)))
    described = [Row([Text(m.name), Text(m.description), Text(m.source)]) for m in methods]
    if not described:
        return None
    return Table("described", "methods", columns("method", "description", "source"), described)
''',
    )
    copy.replace(
        "reports/page.py",
        "from pfge.reports.tables.methods import",
        "from pfge.reports.tables.described import described_table\nfrom pfge.reports.tables.methods import",
    )
    copy.replace(
        "reports/page.py",
        '    parts.append(("source", ',
        """    if described := described_table(run.methods):
        parts.append(("described", "What the methods are", sheet(described)))
    parts.append(("source", """,
    )
    return """
compare("run", "ensemble.methods=['PFGE','SWA']")
run("report", "run")
page = Path("run/report.html").read_text()
assert '<section id="run-1-described"><h2>What the methods are</h2>' in page
assert '<a href="#run-1-described">' in page
assert "SWA once a period; each mean is a member" in page and "UAI 2018" in page
"""


def an_export_target(copy: Copy) -> str:
    """A .npz file of the members' weights, for programs without torch."""
    copy.add(
        "export/npz.py",
        '''
"""An ensemble's weights as one .npz file, for `numpy.load`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from pfge.ensemble import Ensemble
from pfge.export.ensemble_graph import ExampleInputs, Exported, write_checked


def export_npz(ensemble: Ensemble, path: str | Path, example: Any) -> Exported:
    """Write every tensor of member k as the array `k/name`; packed members are unpacked."""
    ensemble = ensemble.to("cpu")

    def write(file: Path) -> None:
        arrays = {
            f"{number}/{name}": tensor.numpy()
            for number, member in enumerate(ensemble.members)
            for name, tensor in member.items()
        }
        with file.open("wb") as opened:
            numpy.savez(opened, **arrays)

    def read(file: Path) -> Callable[[ExampleInputs], Tensor]:
        members: list[dict[str, Tensor]] = [{} for _ in ensemble.members]
        with numpy.load(file) as arrays:
            for key, array in arrays.items():
                number, _, name = key.partition("/")
                members[int(number)][name] = torch.from_numpy(array)
        loaded = ensemble.with_members(members, temperatures=ensemble.temperatures)
        return lambda inputs: loaded.predict(inputs.batch())

    return write_checked(ensemble, ExampleInputs.of(ensemble, example, None), Path(path), write, read)
''',
    )
    copy.replace(
        "export/__init__.py",
        "from pfge.export.onnx import",
        "from pfge.export.npz import export_npz\nfrom pfge.export.onnx import",
    )
    copy.replace("export/__init__.py", '"export_onnx",', '"export_npz", "export_onnx",')
    copy.replace("cli/deploy.py", '"torch": ".pt2"}', '"torch": ".pt2", "npz": ".npz"}')
    copy.replace("cli/deploy.py", 'choices=("onnx", "torch"),', 'choices=("onnx", "torch", "npz"),')
    copy.replace("cli/deploy.py", "import export_onnx,", "import export_npz, export_onnx,")
    copy.replace(
        "cli/deploy.py",
        "    else:\n        exported = export_torch(",
        """    elif options.format == "npz":
        exported = export_npz(ensemble, options.out, batch)
    else:
        exported = export_torch(""",
    )
    return """
import numpy as np

compare("run", "ensemble.methods=['PFGE']")
printed = run("export", "run/seed-1/ensembles/PFGE", "ensemble.npz", "--format=npz")
assert "within 0 of PyTorch's" in printed, printed
with np.load("ensemble.npz") as arrays:
    assert {name.partition("/")[0] for name in arrays} == {"0", "1", "2", "3"}
"""


def a_data_set(copy: Copy) -> str:
    """The wine data of scikit-learn."""
    copy.replace(
        "lab/data/packaged.py",
        "def load_diabetes(",
        '''def load_wine() -> tuple[TensorSet, TensorSet]:
    """Return 125 training and 53 test rows of 13 features, always the same ones."""
    bunch = _load("wine")
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    test, train = stratified(labels, 53, SPLIT_SEED)
    inputs = _standardize(torch.from_numpy(bunch.data), train).float()
    rows = TensorSet(inputs, labels, tuple(map(str, bunch.target_names)))
    return rows.select(train), rows.select(test)


def load_diabetes(''',
    )
    copy.replace("lab/data/registry.py", "load_digits, load_mnist1d", "load_digits, load_mnist1d, load_wine")
    copy.replace(
        "lab/data/registry.py",
        '    "breast_cancer": ',
        '    "wine": partial(_table, load_wine, DEFAULT_TASK),\n    "breast_cancer": ',
    )
    return """
compare("run", "data.name=wine", "model.name=mlp", "ensemble.methods=['PFGE']", "pretrain.epochs=5")
assert "PFGE" in rows("run")
manifest = Path("run/seed-1/ensembles/PFGE/manifest.json").read_text()
assert '"class_0"' in manifest
"""


CHANGES: dict[Change, tuple[str, int]] = {
    a_collector: ("a collector that configs, tables and figures know", 3),
    learned_soup_weights: ("learned soup weights, for one model", 3),
    an_attribute_of_ensembles: ("an attribute of ensembles", 3),
    a_structured_task: ("a task with structured predictions, such as boxes", 5),
    a_metric: ("a metric in every table of a task", 3),
    a_storage_format: ("a storage format", 3),
    a_launcher: ("a launcher", 3),
    a_section_of_the_page: ("a section of the page", 3),
    an_export_target: ("an export target", 3),
    a_data_set: ("a data set", 3),
}
"""Each change with its row in docs/architecture.md and the most files that it may touch."""


def _name(change: Change) -> str:
    return change.__name__


@pytest.mark.parametrize("change", CHANGES, ids=_name)
def test_a_change_touches_few_files_which_the_documentation_lists(change: Change, tmp_path: Path) -> None:
    row, most = CHANGES[change]
    copy = Copy(tmp_path)
    assert copy.changed() == []
    change(copy)
    touched = copy.changed()
    assert 0 < len(touched) <= most
    table = (ROOT / "docs" / "architecture.md").read_text()
    (cells,) = re.findall(rf"^\| {re.escape(row)} \|[^|]*\| (\d+) \| (.*) \|$", table, re.MULTILINE)
    assert cells[0] == str(len(touched))
    assert sorted(re.findall(r"`([^`]*)`", cells[1])) == touched


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES, ids=_name)
def test_the_changed_package_does_what_the_change_is_for(change: Change, tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.run(change(copy))

"""Bytes of all files against what is lost: how an ensemble of a finished run can be shipped.

    python -m benchmarks.shipped RUN METHOD [--files 0.45 ...] [--distil 60] [--integers 4 ...] [--images N]

Every row is written to a folder, read again and measured on the run's test data, against the members as they
are. Rows: members as they are; for each of --files, what `compress` chooses for so many float32 models on
disk, and the same distilled; for each of --integers, each member by itself in so many bits a number, rounded
to the nearest level and as GPTQ does (`benchmarks/integers.py`), and what `compress` chooses for the same
bytes on disk. All choices are made on validation data, of which --images limits the number; --develop
measures the rows there as well, and does not read test data. --store keeps all folders. The last line is
JSON.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.integers import round_by_inputs, round_to_nearest
from pfge import Budget, Ensemble, compress
from pfge.compression import Distillation, Quality, distil
from pfge.lab.run.progress import Reporter
from pfge.lab.session import Session, open_run
from pfge.packed import PackedMembers
from pfge.weights import count_bytes

CALIBRATION_IMAGES = 256


@dataclass(frozen=True)
class Row:
    """What a form of an ensemble takes and answers; changes are those from float32."""

    ensemble: str
    form: str
    bytes: int
    size: float
    kl: float
    accuracy: float
    accuracy_change: float
    nll: float
    nll_change: float

    HEAD = (
        "| stored as | bytes of all files | of one model | KL | accuracy % | change | NLL | change |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    )

    def __str__(self) -> str:
        return (
            f"| {self.form} | {self.bytes:,} | {self.size:.3f}x | {self.kl:.5f} | {100 * self.accuracy:.2f} "
            f"| {100 * self.accuracy_change:+.2f} | {self.nll:.4f} | {self.nll_change:+.4f} |"
        )


@dataclass(frozen=True)
class Measure:
    """Measures ensembles from their files, on data that chose nothing unless --develop is given."""

    method: str
    original: Ensemble
    session: Session
    batches: list[tuple[Tensor, Tensor]]
    expected: Tensor
    targets: Tensor

    @classmethod
    def of(
        cls, method: str, session: Session, original: Ensemble, batches: list[tuple[Tensor, Tensor]]
    ) -> "Measure":
        """Predict with the original."""
        targets = torch.cat([targets for _, targets in batches])
        return cls(method, original, session, batches, original.predict_batches(batches), targets)

    def row(self, form: str, ensemble: Ensemble, folder: Path) -> Row:
        """Write an ensemble, read it, and return its row."""
        save(ensemble, folder)
        files = sum(file.stat().st_size for file in folder.iterdir())
        if ensemble is self.original:
            predictions = self.expected
        else:
            predictions = self.session.load_ensemble(folder).uncalibrated().predict_batches(self.batches)
        task = self.session.task
        before, after = (task.summarize(task.score(p, self.targets)) for p in (self.expected, predictions))
        kl = task.divergence(self.expected, predictions)
        return Row(
            self.method,
            form,
            files,
            round(files / count_bytes(self.original.members[0]), 4),
            round(kl, 6),
            *(
                round(number, 5)
                for key in ("accuracy", "nll")
                for number in (after[key], after[key] - before[key])
            ),
        )


def save(ensemble: Ensemble, folder: Path) -> None:
    """Save an ensemble; members of fixed widths are deflated as those of chosen ones are."""
    if isinstance(members := ensemble.members, PackedMembers) and not members.has_components:
        folder.mkdir(parents=True, exist_ok=True)
        members.write(folder, ensemble.record, deflated=True)
    else:
        ensemble.save(folder)


class Shipping:
    """The ways to store an ensemble, each with its name."""

    def __init__(self, original: Ensemble, session: Session, options: argparse.Namespace):
        self._original, self._session, self._options = original, session, options
        batches = list(session.in_batches(session.splits.validation))
        images = len(batches[0][1])
        self._validation = batches[: -(-options.images // images)] if options.images else batches
        self._training = session.batch_norm_batches(session.experiment.seeds[0])

    def ways(self, sizes: dict[str, int]) -> Iterator[tuple[str, Ensemble]]:
        """Yield each way; `sizes` has the bytes of those that were yielded before."""
        original = self._original
        yield "float32", original
        for files in self._options.files:
            yield from self._chosen(
                f"compressed to {files}x", round(files * count_bytes(original.members[0]))
            )
        for bits in self._options.integers:
            name = f"each in int{bits}"
            yield f"{name}, nearest", round_to_nearest(original, bits)
            inputs = torch.cat([inputs for inputs, _ in self._training])[:CALIBRATION_IMAGES]
            yield f"{name}, GPTQ", round_by_inputs(original, bits, inputs)
            yield from self._chosen(f"compressed to the bytes of int{bits}", sizes[f"{name}, nearest"])

    def _chosen(self, name: str, files: int) -> Iterator[tuple[str, Ensemble]]:
        original, told = self._original, self._session.reporter.say

        def say(_: Ensemble, quality: Quality) -> None:
            told(f"{name}: validation KL {quality.kl:.6f}")

        chosen = compress(original, Budget(files, files=True), validation=self._validation, on_attempt=say)
        yield name, chosen
        if not self._options.distil:
            return
        settings = Distillation(iterations=self._options.distil)
        with self._session.reporter.task("distillation", settings.iterations * len(original)) as advance:
            made = distil(
                original,
                chosen,
                self._training,
                settings,
                lambda done, _, loss: advance(done, f"KL {loss:.2g}"),
            )
        kl = partial(original.task.divergence, original.predict_batches(self._validation))
        before, after = (kl(ensemble.predict_batches(self._validation)) for ensemble in (chosen, made))
        kept = "kept" if after < before else "not kept"
        yield f"{name}, distilled ({kept}: validation KL {before:.5f} to {after:.5f})", made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="a finished run with validation data")
    parser.add_argument("method", help="whose ensemble")
    parser.add_argument("--files", type=float, nargs="*", default=[0.45], help="all files, in float32 models")
    parser.add_argument("--distil", type=int, default=0, help="iterations for each member")
    parser.add_argument("--integers", type=int, nargs="*", default=[], help="bits of rows of single members")
    parser.add_argument("--images", type=int, default=0, help="of the validation data; all by default")
    parser.add_argument(
        "--develop", action="store_true", help="measure on validation data instead of test data"
    )
    parser.add_argument("--store", type=Path, help="folder that keeps the ensembles")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, open_run(options.run, Reporter()) as session:
        path = session.folder.ensemble(session.experiment.seeds[0], options.method)
        original = session.load_ensemble(path).uncalibrated()
        part = session.splits.validation if options.develop else session.splits.test
        batches = list(session.in_batches(part))
        if options.develop and options.images:
            batches = batches[: -(-options.images // len(batches[0][1]))]
        measure = Measure.of(options.method, session, original, batches)
        about = f"{len(measure.targets):,} {'validation' if options.develop else 'test'} images"
        print(f"{options.method}, {len(original)} members, {about}\n\n{Row.HEAD}")
        folder = options.store or Path(temporary)
        rows: list[Row] = []
        sizes: dict[str, int] = {}
        for number, (name, ensemble) in enumerate(Shipping(original, session, options).ways(sizes)):
            rows.append(measure.row(name, ensemble, folder / str(number)))
            sizes[name] = rows[-1].bytes
            print(rows[-1], flush=True)
    found = {"members": len(original), "images": about, "validation_images": options.images or "all"}
    print(json.dumps({"rows": [asdict(row) for row in rows], **found}))


if __name__ == "__main__":
    main()

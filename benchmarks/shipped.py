"""Bytes of all files against what is lost: how an ensemble of a finished run can be shipped.

    python -m benchmarks.shipped RUN METHOD [--files 0.45] [--distil 100] [--images 1500] [--chosen]

Every row is written to a folder, read again and measured on the run's test data, against the members as they
are. What is chosen is chosen on validation data, of which --images limits the number. Rows: members as they
are; each member by itself in 4 bits a number, and in the width that takes about --files, with a step for each
output channel; an int8 base and 3 bits or 1 bit for each member; and what `compress` chooses for --files of
one float32 model, without and with distillation. --chosen leaves out the fixed forms; --store keeps all
folders.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from pfge import Bits, Budget, Ensemble, compress
from pfge.compression import Distillation, PackSettings, distil
from pfge.compression.formats import FORMATS
from pfge.lab.run.progress import Reporter
from pfge.lab.session import Session, open_run
from pfge.weights import count_bytes

FILES_BEYOND_TENSORS = 12_000
"""About the bytes of a manifest and of a file's layout, which a budget of tensors leaves out."""
ALONE = PackSettings(base_bits=None, group=None, small_bits=16)


@dataclass(frozen=True)
class Measure:
    """Measures ensembles on the test data, from their files."""

    original: Ensemble
    session: Session
    batches: list[tuple[Tensor, Tensor]]
    expected: Tensor
    targets: Tensor

    @classmethod
    def of(cls, session: Session, original: Ensemble) -> "Measure":
        """Predict with the original."""
        batches = list(session.in_batches(session.splits.test))
        targets = torch.cat([targets for _, targets in batches])
        return cls(original, session, batches, original.predict_batches(batches), targets)

    def row(self, name: str, ensemble: Ensemble, folder: Path) -> str:
        """Write an ensemble, read it, and return its line of the table."""
        ensemble.save(folder)
        files = sum(file.stat().st_size for file in folder.iterdir())
        if ensemble is self.original:
            predictions = self.expected
        else:
            predictions = self.session.load_ensemble(folder).uncalibrated().predict_batches(self.batches)
        task = self.session.task
        before, after = (task.summarize(task.score(p, self.targets)) for p in (self.expected, predictions))
        changes = {key: after[key] - before[key] for key in ("accuracy", "nll")}
        kl = task.divergence(self.expected, predictions)
        return (
            f"| {name} | {files:,} | {files / self.one:.3f}x | {kl:.5f} "
            f"| {100 * after['accuracy']:.2f} | {100 * changes['accuracy']:+.2f} | {after['nll']:.4f} "
            f"| {changes['nll']:+.4f} |"
        )

    @property
    def one(self) -> int:
        """The bytes of one model."""
        return count_bytes(self.original.members[0])


def ways_to_ship(
    original: Ensemble, session: Session, options: argparse.Namespace, one: int
) -> Iterator[tuple[str, Ensemble]]:
    """Yield each way with its name."""
    yield "float32", original
    budget = round(options.files * one) - FILES_BEYOND_TENSORS
    alone = {bits: compress(original, Bits(bits), settings=ALONE) for bits in range(1, 9)}
    near = min(alone, key=lambda bits: abs(alone[bits].nbytes - budget))
    if not options.chosen:
        for bits in dict.fromkeys((4, near)):
            yield f"each in int{bits}, a step per channel", alone[bits]
        for stored_as in FORMATS[2:]:
            yield stored_as.name, stored_as.store(original)
    validation = list(session.in_batches(session.splits.validation))
    images = len(validation[0][1])
    validation = validation[: -(-options.images // images)] if options.images else validation
    chosen = compress(original, Budget(budget), validation=validation)
    yield f"compressed to {options.files}x", chosen
    if options.distil:
        seed = session.experiment.seeds[0]
        settings = Distillation(iterations=options.distil)
        with session.reporter.task("distillation", options.distil * len(original)) as advance:
            made = distil(
                original,
                chosen,
                session.batch_norm_batches(seed),
                settings,
                lambda done, _, loss: advance(done, f"KL {loss:.2g}"),
            )
        expected = original.predict_batches(validation)
        kl = partial(original.task.divergence, expected)
        before, after = (kl(ensemble.predict_batches(validation)) for ensemble in (chosen, made))
        kept = "kept" if after < before else "not kept"
        yield f"the same, distilled ({kept}: validation KL {before:.5f} to {after:.5f})", made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="a finished run with validation data")
    parser.add_argument("method", help="whose ensemble")
    parser.add_argument("--files", type=float, default=0.45, help="all files, in float32 models")
    parser.add_argument("--distil", type=int, default=0, help="iterations for each member")
    parser.add_argument("--images", type=int, default=0, help="of the validation data; all by default")
    parser.add_argument("--chosen", action="store_true", help="leave out the rows of fixed forms")
    parser.add_argument("--store", type=Path, help="folder that keeps the ensembles")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, open_run(options.run, Reporter()) as session:
        path = session.folder.ensemble(session.experiment.seeds[0], options.method)
        original = session.load_ensemble(path).uncalibrated()
        measure = Measure.of(session, original)
        print(f"{options.method}, {len(original)} members, {len(measure.targets):,} test images\n")
        print("| stored as | bytes of all files | of one model | KL | accuracy % | change | NLL | change |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        folder = options.store or Path(temporary)
        for number, (name, ensemble) in enumerate(ways_to_ship(original, session, options, measure.one)):
            print(measure.row(name, ensemble, folder / str(number)), flush=True)


if __name__ == "__main__":
    main()

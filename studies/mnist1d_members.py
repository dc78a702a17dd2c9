"""What weights of members, and 3 or 5 bits for each, change in ensembles of the study's finished runs."""

import warnings
from collections.abc import Collection
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from pfge import Bits, Ensemble, compress
from pfge.calibration import CalibrateBy
from pfge.compression import Distillation, PackSettings, distil
from pfge.lab.run.progress import Reporter
from pfge.lab.session import Session, open_run
from pfge.methods import METHODS, base_of

PACKED = {
    "3 bits": (Bits(3), PackSettings(group=128, small_bits=16)),
    "5 bits alone": (Bits(5), PackSettings(base_bits=None, small_bits=16)),
}
DISTILLED = "5 bits alone, distilled"
KINDS = ("as they are", "weights", *PACKED, DISTILLED)


@dataclass(frozen=True)
class MeasuredMembers:
    """Test metrics of one ensemble at a temperature fitted on validation data.

    Attributes:
        method: A row of the comparison.
        seed: Of its run.
        kind: One of KINDS.
        size: Bytes of its tensors, relative to one float32 model.
        weighted: Whether weights were kept.
        accuracy: From 0 to 1.
        nll: Negative log-likelihood.
    """

    method: str
    seed: int
    kind: str
    size: float
    weighted: bool
    accuracy: float
    nll: float


def measure(
    folder: Path, methods: dict[str, int], seeds: tuple[int, ...], known: Collection[tuple[str, int, str]]
) -> list[dict[str, object]]:
    """Return what members of each kind are worth.

    Args:
        folder: Of a finished run.
        methods: Rows to measure, and how many members each has.
        seeds: To measure.
        known: Methods, seeds and kinds that were measured before.
    """
    found = []
    with open_run(folder, Reporter()) as session:
        for seed, (method, members) in product(seeds, methods.items()):
            path = session.folder.ensemble(seed, base_of(method))
            ensemble = session.load_ensemble(path).uncalibrated().last(members)
            for kind in _kinds_of(method):
                if (method, seed, kind) not in known:
                    found += [asdict(_measure(session, ensemble, method, seed, kind))]
    return found


def _kinds_of(method: str) -> list[str]:
    """Return the kinds of a method: members that lie close together need no distillation."""
    return [kind for kind in KINDS if kind != DISTILLED or METHODS[base_of(method)].far_apart]


def _measure(session: Session, ensemble: Ensemble, method: str, seed: int, kind: str) -> MeasuredMembers:
    validation, test = session.splits.validation, session.splits.test
    with warnings.catch_warnings():
        # The table shows what comes of weights that do not help, and of members that lie far apart.
        warnings.simplefilter("ignore")
        original = ensemble
        if packed := PACKED.get(kind.removesuffix(", distilled")):
            ensemble = compress(original, packed[0], settings=packed[1])
        if kind == DISTILLED:
            training = session.batch_norm_batches(seed)
            ensemble = distil(original, ensemble, training, Distillation(iterations=300))
        by: CalibrateBy = "weights" if kind == "weights" else "pooled"
        calibrated = ensemble.calibrated(session.in_batches(validation), by=by)
    metrics = ensemble.task.summarize(calibrated.evaluate(session.in_batches(test)))
    return MeasuredMembers(
        method,
        seed,
        kind,
        ensemble.nbytes / session.bytes_of_one,
        calibrated.temperatures.weights is not None,
        metrics["accuracy"],
        metrics["nll"],
    )

"""What weights of members, and 3 or 5 bits for each, change in ensembles of the study's finished runs."""

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

from pfge import Bits, Ensemble, compress
from pfge.compression import PackSettings
from pfge.lab.run.progress import Reporter
from pfge.lab.session import Session, open_run
from pfge.methods import base_of

PACKED = {
    "3 bits": (Bits(3), PackSettings(group=128, small_bits=16)),
    "5 bits alone": (Bits(5), PackSettings(base_bits=None, small_bits=16)),
}
KINDS = ("as they are", "weights", *PACKED)


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


def measure(folder: Path, methods: dict[str, int], seeds: tuple[int, ...]) -> list[dict[str, object]]:
    """Return what members as they are, with weights, and at 3 bits are worth.

    Args:
        folder: Of a finished run.
        methods: Rows to measure, and how many members each has.
        seeds: To measure.
    """
    found = []
    with open_run(folder, Reporter()) as session:
        for seed in seeds:
            for method, members in methods.items():
                path = session.folder.ensemble(seed, base_of(method))
                ensemble = session.load_ensemble(path).uncalibrated().last(members)
                found += [asdict(_measure(session, ensemble, method, seed, kind)) for kind in KINDS]
    return found


def _measure(session: Session, ensemble: Ensemble, method: str, seed: int, kind: str) -> MeasuredMembers:
    validation, test = session.splits.validation, session.splits.test
    with warnings.catch_warnings():
        # The table shows what comes of weights that do not help, and of members that lie far apart.
        warnings.simplefilter("ignore")
        if kind in PACKED:
            ensemble = compress(ensemble, PACKED[kind][0], settings=PACKED[kind][1])
        calibrated = ensemble.calibrated(
            session.in_batches(validation), validation.labels, by="weights" if kind == "weights" else "pooled"
        )
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

"""What views of each picture, and fewer bits, change in ensembles of the study's finished runs."""

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from pfge.compression.compress import FORMATS, FORMATS_OF_ONE, StorageFormat
from pfge.lab.evaluation.passes import views_in
from pfge.lab.run.progress import Reporter
from pfge.lab.session import Session, open_run
from pfge.storage.files import read_json_object, write_json
from studies.rates import by_seed
from studies.tables import NOT_RUN, RIVALS, change, mean_and_error, table

VIEWS = 4
STORED: tuple[tuple[str, StorageFormat], ...] = (("SWA", FORMATS_OF_ONE[1]), ("Star", FORMATS[0]))
"""Which ensembles see the views, and how they are stored."""


@dataclass(frozen=True)
class Viewed:
    """Test metrics of an ensemble whose members see several views, at a temperature of validation data.

    Attributes:
        method: How its members were made.
        stored: Their format.
        seed: Of the run.
        passes: Forward passes for each picture.
        size: Bytes of the members, relative to one float32 model.
        accuracy: From 0 to 1.
        nll: Negative log-likelihood.
        ece: Expected calibration error.
    """

    method: str
    stored: str
    seed: int
    passes: int
    size: float
    accuracy: float
    nll: float
    ece: float


def record_views(folder: Path, seed: int, recorded: Path) -> None:
    """Measure what is not recorded of a finished run, and record it."""
    rows = _read(recorded)
    for row in measure(folder, seed, {(row.method, row.stored, row.seed) for row in rows}):
        rows.append(row)
        write_json(recorded, {"rows": [asdict(row) for row in rows]})


def measure(folder: Path, seed: int, known: Collection[tuple[str, str, int]] = ()) -> Iterator[Viewed]:
    """Yield what the ensembles of a finished run are worth.

    Args:
        folder: Of the run.
        seed: Of the run.
        known: Methods, formats and seeds to leave out.
    """
    with open_run(folder, Reporter()) as session:
        for method, stored in STORED:
            is_there = session.folder.has_ensemble(seed, method)
            if is_there and (method, stored.name, seed) not in known:
                yield _measure(session, method, stored, seed)


def _measure(session: Session, method: str, stored: StorageFormat, seed: int) -> Viewed:
    splits, views = session.splits, views_in(session, VIEWS, "a mean over views")
    ensemble = stored.store(session.load_ensemble(session.folder.ensemble(seed, method)).in_views(views))
    calibrated = ensemble.calibrated(session.in_batches(splits.validation))
    found = session.task.summarize(calibrated.evaluate(session.in_batches(splits.test)))
    size = ensemble.nbytes / session.bytes_of_one
    metrics = found["accuracy"], found["nll"], found["ece"]
    return Viewed(method, stored.name, seed, len(views) * len(ensemble), size, *metrics)


def viewed_table(recorded: Path, rivals: Path) -> str:
    """Return what was recorded, and how it differs from the rivals, which see each picture once.

    Args:
        recorded: As of `record_views`.
        rivals: The folder of their results.
    """
    lines = []
    for method, stored in STORED:
        found = sorted(
            (row for row in _read(recorded) if (row.method, row.stored) == (method, stored.name)),
            key=lambda row: row.seed,
        )
        line = [method, stored.name]
        if len(found) < 2:
            lines.append([*line, *[NOT_RUN] * (5 + len(RIVALS))])
            continue
        nll = [row.nll for row in found]
        line += [str(found[0].passes), f"{fmean(row.size for row in found):.3f}x"]
        line += [mean_and_error([row.accuracy for row in found], 2, 100), mean_and_error(nll, 4)]
        line += [mean_and_error([row.ece for row in found], 2, 100)]
        for rival in RIVALS:
            of_rival = by_seed(rivals, rival, "nll", calibrated=True)
            line.append(change(nll, [of_rival[row.seed] for row in found]))
        lines.append(line)
    heads = ["members of", "stored as", "passes", "size", "accuracy %", "NLL at T", "ECE % at T"]
    return table([*heads, *(f"NLL at T minus {rival}, 95 %" for rival in RIVALS)], lines)


def _read(recorded: Path) -> list[Viewed]:
    return [Viewed(**row) for row in read_json_object(recorded)["rows"]] if recorded.exists() else []

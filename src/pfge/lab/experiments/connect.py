"""Measure how well adjacent members are connected: fit a curve between them and trace it."""

import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD

from pfge.connectivity.curves import Bezier, Curve
from pfge.connectivity.fitting import CurveTrace, fit_curve, trace_curve
from pfge.ensemble import Ensemble
from pfge.errors import InvalidValueError
from pfge.lab.config.settings import ConnectSettings, Experiment
from pfge.lab.data import Batch, take
from pfge.lab.data.base import derive_seed, generator, seed_torch
from pfge.lab.launch.driver import launch
from pfge.lab.launch.units import Unit
from pfge.lab.run.folder import RunFolder, curve_checkpoint
from pfge.lab.run.progress import Reporter
from pfge.lab.run.results import ConnectivityRow, append_row, put_in_order, require_rows
from pfge.lab.session import Session, open_run
from pfge.methods import METHODS, find_reference, reference_first
from pfge.metrics.scores import score_examples
from pfge.schedules import pretraining_schedule
from pfge.storage.checkpoint import load_checkpoint, save_checkpoint
from pfge.storage.ensemble_folder import MANIFEST
from pfge.storage.files import StorageError, make_folder
from pfge.tasks.classification import require_classification
from pfge.weights import Weights, load_weights, trained_names, view_weights


@dataclass(frozen=True)
class Pair:
    """Two adjacent members of an ensemble; `first` counts from 1."""

    seed: int
    method: str
    first: int

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.method}, members {self.first} and {self.first + 1}"

    @property
    def key(self) -> Hashable:
        """The key of its line of results."""
        return self.seed, self.method, (self.first, self.first + 1)


def connect(
    path: Path,
    reporter: Reporter,
    *,
    overrides: Sequence[str] = (),
    trust_code: bool = False,
    pairs: int | Literal["all"] | None = None,
    choice_seed: int = 0,
) -> list[ConnectivityRow]:
    """Fit and trace curves between adjacent members of a finished comparison, and return their results.

    Each finished pair is a line in the run folder and is not computed again. Each pair is a unit, so workers
    share them if an override chooses a launcher.

    Args:
        path: The run folder.
        reporter: Shows progress.
        overrides: Settings that replace the run's, such as `connect.rate=0.01`.
        trust_code: Whether the run's own config may name functions and paths, as in `load_run_config`.
        pairs: Number of adjacent pairs of each ensemble, or "all"; None means all of PFGE and as many of FGE.
        choice_seed: Seed of the random choice of pairs.
    """
    with open_run(path, reporter, overrides=overrides, trust_code=trust_code) as session:
        session.require_one_class("the error along a curve")
        experiment = session.experiment
        methods = _chosen_methods(session)
        _require_same_settings(session.folder, experiment.connect)
        # All are checked before the long work starts.
        ensembles = {
            (seed, method): _open(session, seed, method) for seed in experiment.seeds for method in methods
        }
        counts = {key: len(ensemble) for key, ensemble in ensembles.items()}
        chosen = choose_pairs(counts, pairs, choice_seed)
        del ensembles
        reporter.say(f"{path}: fits and traces {len(chosen)} curves between adjacent members")
        launch([session], partial(curve_units, pairs=tuple(chosen)))
        results = session.folder.connectivity
        put_in_order(results, ConnectivityRow, [pair.key for pair in choose_pairs(counts, "all", 0)])
        rows = {row.key: row for row in require_rows(results, ConnectivityRow)}
        return [rows[pair.key] for pair in chosen]


def curve_units(
    experiment: Experiment, folder: RunFolder, per_epoch: int, *, pairs: Sequence[Pair]
) -> list[Unit]:
    """Return a unit for each pair; none needs another."""
    iterations = experiment.connect.iterations(per_epoch)
    return [
        Unit(
            str(pair),
            partial(_is_connected, folder, pair),
            partial(_connect, pair=pair),
            iterations=iterations,
        )
        for pair in pairs
    ]


def choose_pairs(
    members: dict[tuple[int, str], int], pairs: int | Literal["all"] | None, choice_seed: int
) -> list[Pair]:
    """Return the adjacent pairs of each ensemble to connect, in their order.

    Args:
        members: Number of members of each seed and method.
        pairs: Number of pairs, as in `connect`.
        choice_seed: Seed of the random choice; a larger choice includes a smaller one.
    """
    chosen = []
    for (seed, method), count in members.items():
        possible = count - 1
        if possible < 1:
            raise InvalidValueError(
                f"a curve needs two members, but {method} of seed {seed} has {count}; run it longer"
            )
        of_reference = members.get((seed, find_reference().name), count)
        wanted = min(of_reference - 1, possible) if pairs is None else pairs
        if wanted == "all":
            wanted = possible
        if not 1 <= wanted <= possible:
            raise InvalidValueError(
                f"{method} of seed {seed} has {possible} adjacent pairs, so 1 to {possible} can be chosen, "
                f"got {wanted}"
            )
        order = torch.randperm(possible, generator=generator(choice_seed, f"pairs of {method}", seed))
        chosen += [Pair(seed, method, first + 1) for first in sorted(order[:wanted].tolist())]
    return chosen


def _chosen_methods(session: Session) -> list[str]:
    """Return the methods of a run whose members can be connected; without any, raise a ValueError."""
    possible = [m.name for m in reference_first([m for m in METHODS.values() if m.curves])]
    made = session.experiment.ensemble.methods
    if chosen := [name for name in possible if name in made]:
        return chosen
    raise InvalidValueError(
        f"{session.folder.path} must have members of {' or '.join(possible)} to connect, got "
        f"{', '.join(made) or 'no methods'}; run pfge compare with one of them in ensemble.methods and "
        "another --out"
    )


def _open(session: Session, seed: int, method: str) -> Ensemble:
    path = session.folder.ensemble(seed, method)
    if not (path / MANIFEST).exists():
        raise StorageError(
            f"{session.folder.path} has no finished {method} for seed {seed} yet; "
            f"run pfge compare --out {session.folder.path} to its end"
        )
    return session.load_ensemble(path)


def _is_connected(folder: RunFolder, pair: Pair) -> bool:
    rows = require_rows(folder.connectivity, ConnectivityRow)
    return pair.key in {row.key for row in rows} and not _checkpoint(folder, pair).exists()


def _connect(session: Session, pair: Pair) -> None:
    """Compute the result of a pair unless it exists, and remove the checkpoint."""
    rows = require_rows(session.folder.connectivity, ConnectivityRow)
    if pair.key not in {row.key for row in rows}:
        try:
            row = _find_result(session, pair)
        except ValueError as error:
            raise InvalidValueError(f"{pair}: {error}") from error
        append_row(session.folder.connectivity, row)
    _checkpoint(session.folder, pair).unlink(missing_ok=True)


def _checkpoint(folder: RunFolder, pair: Pair) -> Path:
    return folder.seed_path(pair.seed) / curve_checkpoint(pair.method, pair.first)


def _find_result(session: Session, pair: Pair) -> ConnectivityRow:
    settings = session.experiment.connect
    ensemble = _open(session, pair.seed, pair.method)
    model = session.build_model()
    start, end = (_as_in(model, ensemble.members[index]) for index in (pair.first - 1, pair.first))
    curve = Bezier(start, end, settings.bends, trained=trained_names(model))
    _fit(
        session,
        curve,
        model,
        seed=pair.seed,
        stream=f"curve {pair.method} {pair.first}",
        checkpoint=_checkpoint(session.folder, pair),
        name=f"{pair}: fit",
    )
    traced = _trace(session, curve, model, seed=pair.seed, name=f"{pair}: trace")
    file = session.folder.curve(pair.seed, pair.method, pair.first)
    make_folder(file.parent)
    save_checkpoint(file, curve.state_dict())
    return ConnectivityRow(
        seed=pair.seed,
        method=pair.method,
        members=(pair.first, pair.first + 1),
        member_iterations=ensemble.iterations[pair.first - 1 : pair.first + 1],
        settings=settings,
        trace=traced,
    )


def _as_in(model: nn.Module, member: Weights) -> Weights:
    """Return a member on the device of the model, in its types and memory format."""
    load_weights(model, member)
    return {name: tensor.clone() for name, tensor in view_weights(model).items()}


def _require_same_settings(folder: RunFolder, settings: ConnectSettings) -> None:
    for row in require_rows(folder.connectivity, ConnectivityRow):
        for key, value in asdict(settings).items():
            if value != (before := getattr(row.settings, key)):
                raise StorageError(
                    f"{folder.connectivity} was made with connect.{key} = {before}, got {value}; "
                    "give the same settings, or move the file away"
                )


def _fit(
    session: Session, curve: Curve, model: nn.Module, *, seed: int, stream: str, checkpoint: Path, name: str
) -> None:
    """Fit a curve, from a checkpoint with the same settings if it exists, and write one at the end.

    A batch, the random numbers of a forward pass and t are functions of the seed, the stream and the
    iteration, so a killed fit continues bit for bit.

    Args:
        session: The experiment; the settings in [connect] apply.
        curve: The curve at its start.
        model: A model of the members' architecture.
        seed: Seed of all random numbers.
        stream: Name of the random stream, which separates the curves of a seed.
        checkpoint: The checkpoint file.
        name: Name of the work in progress displays.
    """
    settings = session.experiment.connect
    source = session.batches(seed, f"batches of {stream}")
    iterations = settings.iterations(source.per_epoch)
    optimizer = SGD(curve.parameters(), lr=settings.rate, momentum=settings.momentum)
    places = generator(seed, f"t of {stream}")
    done = 0
    state = load_checkpoint(checkpoint) if checkpoint.exists() else None
    if state and state["settings"] == asdict(settings):
        done = state["iteration"]
        curve.load_state_dict(state["curve"])
        optimizer.load_state_dict(state["optimizer"])
        places.set_state(state["generator"])
    last_saved = time.monotonic()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        seed_torch(derive_seed(seed, f"forward of {stream}", done + 1))
        return session.task.loss(session.engine.forward(model, batch).float(), batch[1])

    with session.reporter.task(name, iterations) as advance, torch.random.fork_rng():

        def after(iteration: int, value: Tensor) -> None:
            nonlocal done, last_saved
            done = iteration
            if (
                done == iterations
                or time.monotonic() - last_saved > session.experiment.engine.checkpoint_seconds
            ):
                save_checkpoint(
                    checkpoint,
                    {
                        "settings": asdict(settings),
                        "iteration": done,
                        "curve": curve.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "generator": places.get_state(),
                    },
                )
                last_saved = time.monotonic()
            if done == iterations or done % 10 == 0:
                advance(done, f"loss {value.item():.4f}")

        fit_curve(
            curve,
            model,
            source.starting_after(done),
            loss,
            optimizer=optimizer,
            iterations=iterations - done,
            generator=places,
            weight_decay=settings.weight_decay,
            schedule=pretraining_schedule(iterations, settings.rate),
            after=done,
            on_update=after,
        )


def _trace(session: Session, curve: Curve, model: nn.Module, *, seed: int, name: str) -> CurveTrace:
    """Return loss and error along a curve, on training images without augmentation and on the test set."""
    settings, data = session.experiment.connect, session.experiment.data
    images = min(settings.images, len(session.splits.train))
    parts = {
        "train": take(session.splits.train, images, data.split_seed, part="training data"),
        "test": session.splits.test,
    }
    sources = {part: session.in_batches(chosen) for part, chosen in parts.items()}

    def evaluate(model: nn.Module) -> dict[str, float]:
        measured: dict[str, float] = {}
        for part, source in sources.items():
            measured[f"{part}_loss"], measured[f"{part}_error"] = _loss_and_error(session, model, source)
        return measured

    with session.reporter.task(name, settings.points) as advance:
        return trace_curve(
            curve,
            model,
            evaluate,
            settings.points,
            refresh=session.batch_norm_batches(seed, settings.images),
            forward=session.engine.forward,
            on_point=lambda done: advance(done, ""),
        )


def _loss_and_error(session: Session, model: nn.Module, source: Iterable[Batch]) -> tuple[float, float]:
    """Return the mean loss and the error rate."""
    task = session.task
    require_classification(task, "the error along a curve")
    loss = errors = 0.0
    count = 0
    for batch in source:
        outputs = session.engine.forward(model, batch).float()
        loss += task.loss(outputs, batch[1], reduction="sum").item()
        scores = score_examples(task.predictions(outputs).cpu(), batch[1].cpu())
        errors += (1 - scores.correct).sum().item()
        count += len(scores)
    return loss / count, errors / count

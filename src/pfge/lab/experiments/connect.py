"""Measure how well adjacent members are connected: fit a curve between them and trace it."""

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from pfge.connectivity.curves import Bezier
from pfge.ensemble import Ensemble
from pfge.lab.config.schema import ConnectSettings
from pfge.lab.data.seeding import generator
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.progress import Reporter
from pfge.lab.run.result_lines import append_row, require_rows
from pfge.lab.run.results import ConnectivityRow
from pfge.lab.session import Session, open_run
from pfge.lab.training.resumable_curve import fit_resumable, trace
from pfge.methods import METHODS, find_reference, reference_first
from pfge.storage.atomic_files import make_folder
from pfge.storage.checkpoint import save_checkpoint
from pfge.storage.files import StorageError
from pfge.storage.manifest import MANIFEST
from pfge.weights import Weights, load_weights, trained_names, view_weights


@dataclass(frozen=True)
class Pair:
    """A member of an ensemble, counted from 1, and the one after it."""

    seed: int
    method: str
    first: int

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.method}, members {self.first} and {self.first + 1}"

    @property
    def key(self) -> Hashable:
        """That of its line of results."""
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

    Each finished pair is a line in the run folder and is not computed again. One process does it all.

    Args:
        path: The run folder.
        reporter: Where progress is shown.
        overrides: Other settings than the run's, such as `connect.rate=0.01`.
        trust_code: Whether the run's own config may name functions and paths, as of `load_run_config`.
        pairs: How many adjacent pairs of each ensemble, or all; None is all of PFGE's and as many of FGE's.
        choice_seed: Decides which pairs those are.
    """
    with open_run(path, reporter, overrides=overrides, trust_code=trust_code) as session:
        session.require_one_class("the error along a curve")
        experiment = session.experiment
        _require_same_settings(session.folder, experiment.connect)
        # All are checked before the long work starts.
        ensembles = {
            (seed, method): _open(session, seed, method)
            for seed in experiment.seeds
            for method in _connected_methods()
            if method in experiment.ensemble.methods
        }
        chosen = choose_pairs({key: len(ensemble) for key, ensemble in ensembles.items()}, pairs, choice_seed)
        return [_result(session, pair, ensembles[pair.seed, pair.method]) for pair in chosen]


def choose_pairs(
    members: dict[tuple[int, str], int], pairs: int | Literal["all"] | None, choice_seed: int
) -> list[Pair]:
    """Return the adjacent pairs of each ensemble that are to be connected, in their order.

    Args:
        members: How many each seed and method has.
        pairs: How many pairs, as in `connect`.
        choice_seed: Decides which; more pairs include those of fewer.
    """
    chosen = []
    for (seed, method), count in members.items():
        possible = count - 1
        if possible < 1:
            raise ValueError(
                f"a curve needs two members, but {method} of seed {seed} has {count}; run it longer"
            )
        of_reference = members.get((seed, find_reference().name), count)
        wanted = min(of_reference - 1, possible) if pairs is None else pairs
        if wanted == "all":
            wanted = possible
        if not 1 <= wanted <= possible:
            raise ValueError(
                f"{method} of seed {seed} has {possible} adjacent pairs, so 1 to {possible} can be chosen, "
                f"got {wanted}"
            )
        order = torch.randperm(possible, generator=generator(choice_seed, f"pairs of {method}", seed))
        chosen += [Pair(seed, method, first + 1) for first in sorted(order[:wanted].tolist())]
    return chosen


def _connected_methods() -> list[str]:
    return [method.name for method in reference_first([m for m in METHODS.values() if m.shows_members])]


def _open(session: Session, seed: int, method: str) -> Ensemble:
    path = session.folder.ensemble(seed, method)
    if not (path / MANIFEST).exists():
        raise StorageError(
            f"{session.folder.path} has no finished {method} for seed {seed} yet; "
            f"run pfge compare --out {session.folder.path} to its end"
        )
    return session.load_ensemble(path)


def _result(session: Session, pair: Pair, ensemble: Ensemble) -> ConnectivityRow:
    """Return the result of a pair; compute it if it is missing."""
    checkpoint = session.folder.of_seed(pair.seed) / f"curve-{pair.method}-{pair.first}.checkpoint"
    rows = require_rows(session.folder.connectivity, ConnectivityRow)
    found = [row for row in rows if row.key == pair.key]
    if not found:
        try:
            found = [_connect(session, pair, ensemble, checkpoint)]
        except ValueError as error:
            raise ValueError(f"{pair}: {error}") from error
        append_row(session.folder.connectivity, found[0])
    checkpoint.unlink(missing_ok=True)
    return found[0]


def _connect(session: Session, pair: Pair, ensemble: Ensemble, checkpoint: Path) -> ConnectivityRow:
    settings = session.experiment.connect
    model = session.build_model()
    start, end = (_as_in(model, ensemble.members[index]) for index in (pair.first - 1, pair.first))
    curve = Bezier(start, end, settings.bends, trained=trained_names(model))
    stream = f"curve {pair.method} {pair.first}"
    fit_resumable(
        session, curve, model, seed=pair.seed, stream=stream, checkpoint=checkpoint, name=f"{pair}: fit"
    )
    traced = trace(session, curve, model, seed=pair.seed, name=f"{pair}: trace")
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
    """Return a member in the types and the memory order of the model, and where it is."""
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

"""Measure the plane through three members: loss or error on a grid, and points of the run on it."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from pfge.connectivity.curves import Bezier, Plane
from pfge.lab.config.settings import ConfigError
from pfge.lab.data import DataPart, take
from pfge.lab.evaluation.evaluate import evaluate_on
from pfge.lab.run.progress import Reporter
from pfge.lab.run.results import Landscape, Point, Quantity
from pfge.lab.session import Session, open_run
from pfge.lab.training.pretrain import read_w0
from pfge.methods import METHODS, Method, find_reference
from pfge.storage.checkpoint import load_checkpoint
from pfge.storage.ensemble_folder import MANIFEST, LazyMembers
from pfge.storage.files import StorageError
from pfge.weights import Weights, trained_names

MARGIN = 0.25
"""Margin around the members and marks, as a share of the grid's width."""


def make_landscape(
    path: Path,
    reporter: Reporter,
    *,
    members: Sequence[int] = (1, 2, 3),
    quantity: Quantity = "train_loss",
    grid: int = 11,
    images: int = 2000,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    trust_code: bool = False,
) -> Landscape:
    """Measure a grid over the plane through three members of PFGE, and project other points of the run on it.

    BatchNorm is refreshed at every point of the grid.

    Args:
        path: A run folder with a finished PFGE.
        reporter: Shows progress.
        members: Numbers of the three members, counted from 1.
        quantity: The quantity to measure at each point.
        grid: Number of points on each side.
        images: Number of images for measuring and for refreshing BatchNorm at each point.
        seed: A seed of the run; None means the first.
        overrides: Settings that replace the run's.
        trust_code: Whether the run's own config may name functions and paths, as in `load_run_config`.
    """
    if grid < 2:
        raise ConfigError(f"grid must be at least 2 points on each side, got {grid}")
    with open_run(path, reporter, overrides=overrides, trust_code=trust_code) as session:
        session.require_one_class("a landscape")
        seed = session.experiment.seeds[0] if seed is None else seed
        pfge = _members(session, seed, find_reference().name)
        if len(pfge) < 3:
            raise ConfigError(
                f"a plane needs three members, and {find_reference().name} of seed {seed} has {len(pfge)}; "
                "train it for at least three periods (ensemble.length, ensemble.period)"
            )
        if len(set(members)) != 3 or not all(1 <= number <= len(pfge) for number in members):
            raise ConfigError(
                f"members must be three different ones of 1 to {len(pfge)}, got {list(members)}"
            )
        first, second, third = (pfge[number - 1] for number in members)
        plane = Plane((first, second, third), trained=trained_names(session.build_model()))
        marks = _find_marks(session, seed, plane, pfge)
        xs, ys = _axes([plane.coordinates(p) for p in (first, second, third)], marks, grid)
        points = LazyMembers(grid * grid, lambda i: plane.at(xs[i % grid], ys[i // grid]))
        found = _measure(session, seed, points, quantity, images)
    return Landscape(
        seed=seed,
        members=(members[0], members[1], members[2]),
        quantity=quantity,
        images=images,
        x=xs,
        y=ys,
        values=[found[row * grid : (row + 1) * grid] for row in range(grid)],
        **marks._asdict(),
    )


def _members(session: Session, seed: int, method: str) -> Sequence[Weights]:
    path = session.folder.ensemble(seed, method)
    if not (path / MANIFEST).exists():
        raise StorageError(
            f"{session.folder.path} has no finished {method} for seed {seed}; run pfge compare to its end"
        )
    return session.load_ensemble(path).members


class _Marks(NamedTuple):
    """Coordinates of the points of a run; None for points that it does not have."""

    w0: Point
    pfge: list[Point]
    means: dict[str, Point]
    trajectory: list[Point] | None
    curves: list[list[Point]]


def _find_marks(session: Session, seed: int, plane: Plane, pfge: Sequence[Weights]) -> _Marks:
    reference = find_reference().name
    there = [m for m in METHODS.values() if (session.folder.ensemble(seed, m.name) / MANIFEST).exists()]

    def places(method: Method) -> list[Point]:
        return [plane.coordinates(member) for member in _members(session, seed, method.name)]

    # The members of these methods are points on the shared path.
    trajectories = [m for m in there if m.path == "shared" and m.members == "cycle"]
    curves = [
        _shadow(plane, start, end, session.folder.curve(seed, reference, number))
        for number, (start, end) in enumerate(pairwise(pfge), 1)
        if session.folder.curve(seed, reference, number).exists()
    ]
    return _Marks(
        w0=plane.coordinates(read_w0(session, seed)),
        pfge=[plane.coordinates(member) for member in pfge],
        means={method.name: places(method)[0] for method in there if method.members == "one"},
        trajectory=places(trajectories[0]) if trajectories else None,
        curves=curves,
    )


def _shadow(plane: Plane, start: Weights, end: Weights, file: Path) -> list[tuple[float, float]]:
    state = load_checkpoint(file)
    curve = Bezier(start, end, len(state["bends"]), trained=plane.names)
    curve.load_state_dict(state)
    return [plane.coordinates(curve.at(i / 20)) for i in range(21)]


def _axes(
    corners: Sequence[tuple[float, float]], marks: _Marks, grid: int
) -> tuple[list[float], list[float]]:
    """Return the coordinates of a square grid around the three members and all marks."""
    shown = [*corners, marks.w0, *marks.pfge, *(marks.trajectory or ())]
    spans = [(min(p[axis] for p in shown), max(p[axis] for p in shown)) for axis in (0, 1)]
    side = max(high - low for low, high in spans) * (1 + 2 * MARGIN)
    middles = [(low + high) / 2 for low, high in spans]
    axes = [[middle + side * (i / (grid - 1) - 0.5) for i in range(grid)] for middle in middles]
    return axes[0], axes[1]


def _measure(
    session: Session, seed: int, points: Sequence[Weights], quantity: Quantity, images: int
) -> list[float]:
    data: DataPart = session.splits.test if quantity == "test_error" else session.splits.train
    data = take(data, min(images, len(data)), seed, part="the data")
    raw = session.make_ensemble(points)
    fresh = session.refresh_batch_norm(raw, seed, "BatchNorm of the grid", images=images)
    found = evaluate_on(session, fresh, data, f"{quantity} on the grid").members
    if quantity == "train_loss":
        return [member["nll"] for member in found]
    return [1 - member["accuracy"] for member in found]

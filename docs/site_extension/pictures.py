"""One picture of each method: the method itself, run on a loss of two weights or on a picture."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

from pfge.collectors import Collector
from pfge.methods import Method, TrainingPlan
from pfge.reports.appearance import style_of
from pfge.reports.figures.plots import MARKS, METADATA, STYLE
from pfge.views import usual_views

SETTING = TrainingPlan(iterations=240, cycle=12, period=60, low=0.01, high=0.5, ema_decay=0.97)
WELLS = ((0.0, 0.0), (4.4, 2.6), (-4.2, 2.8), (3.2, -3.2))
"""Minima that independent trainings reach; a single path stays in the first."""
W0 = (-1.9, -0.7)
Loss = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass
class Walk:
    """A path of SGD in pieces, between which the method moved the weights, and what was kept of it."""

    pieces: list[np.ndarray] = field(default_factory=list)
    taken: list[np.ndarray] = field(default_factory=list)
    members: list[np.ndarray] = field(default_factory=list)
    iterations: list[int] = field(default_factory=list)


def valley(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the loss near one minimum: flat along one direction and steep across it."""
    along, across = 0.9 * x + 0.44 * y, 0.9 * y - 0.44 * x
    return 0.09 * along**2 + 0.45 * across**2


def wells(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return a loss with several minima."""
    return -sum(np.exp(-0.6 * valley(x - a, y - b) - 0.25 * ((x - a) ** 2 + (y - b) ** 2)) for a, b in WELLS)


def descend(loss: Loss, place: np.ndarray, rate: float, random: np.random.Generator) -> np.ndarray:
    """Return the place after a step of SGD, whose gradients are noisy."""
    step = 1e-4
    ways = np.array([step, 0]), np.array([0, step])
    slope = [(loss(*(place + way)) - loss(*(place - way))) / (2 * step) for way in ways]
    return place - rate * (np.array(slope) + random.normal(size=2) * 0.8)


def walk(method: Method, setting: TrainingPlan = SETTING) -> Walk:
    """Return what a method with a collector does from w0."""
    if method.collector is None:
        raise ValueError(f"{method.name} has no collector, so there is no path to walk")
    random = np.random.default_rng(7)
    collector = method.collector(setting, 0, None)
    schedule = method.schedule(setting)
    place = np.array(W0)
    collector.begin({"w": torch.tensor(place)})
    found, piece = Walk(), [place]
    for iteration in range(1, setting.iterations + 1):
        place = descend(valley, place, schedule(iteration), random)
        piece.append(place)
        if collector.due(iteration):
            found.taken.append(place)
        restart = collector.observe(iteration, {"w": torch.tensor(place)})
        if restart and iteration < setting.iterations:
            found.pieces.append(np.array(piece))
            place = restart.weights["w"].numpy().copy()  # the mean goes on in the same memory
            piece = [place]
    found.pieces.append(np.array(piece))
    found.members = [member["w"].numpy() for member in collector.members()]
    found.iterations = _iterations(collector, setting)
    return found


def _iterations(collector: Collector, setting: TrainingPlan) -> list[int]:
    return [at or setting.iterations for at in collector.iterations]


@mpl.rc_context(STYLE)
def draw(method: Method, file: Path) -> None:
    """Draw a method as SVG."""
    if method.path == "augmented":
        figure = Figure(figsize=(8.6, 2.2), layout="constrained")
        _draw_views(figure)
    elif method.collector is None:
        figure = Figure(figsize=(5.4, 3.4), layout="constrained")
        _draw_without_path(figure.add_subplot(), method)
    else:
        figure = Figure(figsize=(8.6, 3.2), layout="constrained")
        space, rates = figure.subplots(1, 2, width_ratios=(1.35, 1))
        found = walk(method)
        _draw_path(space, method, found)
        _draw_rates(rates, method, found)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, format="svg", metadata=METADATA["svg"])


def _draw_land(axes: Axes, loss: Loss, width: float, height: float) -> None:
    x, y = np.meshgrid(np.linspace(-width, width, 60), np.linspace(-height, height, 60))
    axes.contourf(x, y, loss(x, y), levels=9, cmap="Greys", alpha=0.35)
    axes.set_xlim(-width, width)
    axes.set_ylim(-height, height)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel("one weight")
    axes.set_ylabel("another weight")


def _draw_members(axes: Axes, method: Method, members: list[np.ndarray]) -> None:
    style = style_of(method.name)
    label = "the model" if method.members == "one" else "members"
    # A star is larger, as most of its square is empty.
    size = 190 if style.mark == "star" else 90
    x, y = np.array(members).T
    mark = {"marker": MARKS[style.mark], "edgecolors": "white", "zorder": 4}
    axes.scatter(x, y, size, style.light, label=label, **mark)


def _draw_start(axes: Axes) -> None:
    axes.scatter(*W0, 70, "black", marker="P", edgecolors="white", zorder=5, label="w0")


def _draw_path(axes: Axes, method: Method, found: Walk) -> None:
    _draw_land(axes, valley, 2.6, 1.7)
    for number, piece in enumerate(found.pieces):
        label = "path of SGD" if number == 0 else None
        axes.plot(*piece.T, color="#444", linewidth=0.6, alpha=0.75, zorder=2, label=label)
    for before, after in zip(found.pieces, found.pieces[1:], strict=False):
        arrow = {"arrowstyle": "->", "color": style_of(method.name).light, "linestyle": "--"}
        axes.annotate("", xy=after[0], xytext=before[-1], arrowprops=arrow, zorder=3)
    if len(found.taken) < SETTING.iterations / 2:
        taken = np.array(found.taken)
        ring = {"edgecolors": "#222", "linewidths": 0.8, "zorder": 3}
        axes.scatter(*taken.T, 14, "white", label="points it takes", **ring)
    _draw_members(axes, method, found.members)
    _draw_start(axes)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.17), ncols=4, frameon=False, handletextpad=0.3)


def _draw_rates(axes: Axes, method: Method, found: Walk) -> None:
    schedule = method.schedule(SETTING)
    iterations = range(1, SETTING.iterations + 1)
    axes.plot(iterations, [schedule(i) for i in iterations], color="#444", linewidth=1)
    style = style_of(method.name)
    for at in found.iterations:
        axes.axvline(at, color=style.light, linewidth=2 if len(found.iterations) < 8 else 1)
    what = "the model is taken" if method.members == "one" else "a member is taken"
    axes.set_title(f"colored: {what}", fontsize=9)
    axes.set_xlabel("iteration")
    axes.set_ylabel("learning rate")
    axes.set_ylim(bottom=0)


def _draw_views(figure: Figure) -> None:
    picture = torch.tensor(load_digits().images[5] / 16)[None, None]
    views = usual_views(6, shift=1, mirror=True)
    for place, view in enumerate(views.views, 1):
        axes = figure.add_subplot(1, len(views), place)
        axes.imshow(view.of(picture)[0, 0].numpy(), cmap="Greys_r")
        moves = {"up": view.down < 0, "down": view.down > 0, "mirrored": view.mirrored}
        axes.set_title(", ".join(word for word, is_so in moves.items() if is_so) or "as it is", fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])


def _draw_without_path(axes: Axes, method: Method) -> None:
    random = np.random.default_rng(3)
    if method.path == "trainings":
        _draw_land(axes, wells, 6, 5)
        members = _draw_trainings(axes, random)
    else:
        _draw_land(axes, valley, 3.2, 2.2)
        members = [np.array(W0) + random.normal(size=2) * (0.45, 0.35) for _ in range(8)]
        for number, member in enumerate(members):
            label = "what dropout changes" if number == 0 else None
            axes.plot(*np.array([W0, member]).T, color="#444", linewidth=0.8, linestyle=":", label=label)
        _draw_start(axes)
    _draw_members(axes, method, members)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.17), ncols=3, frameon=False)


def _draw_trainings(axes: Axes, random: np.random.Generator) -> list[np.ndarray]:
    members = []
    for number, start in enumerate(((-1.6, -1.6), (2.4, 3.6), (-5.2, 1.6), (4.8, -2.0))):
        path = [np.array(start)]
        for step in range(400):
            path.append(descend(wells, path[-1], 0.3 * (1 - step / 400), random))
        label = "trainings, each from its own start" if number == 0 else None
        axes.plot(*np.array(path).T, color="#444", linewidth=0.7, alpha=0.8, label=label)
        members.append(path[-1])
    return members

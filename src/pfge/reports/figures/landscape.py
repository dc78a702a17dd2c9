"""The figure of a loss plane as SVG: a map of the grid, and what lies on it."""

from collections.abc import Sequence
from math import ceil, floor, log, log10
from typing import Any

from pfge.lab.run.results import Landscape, Place
from pfge.methods import METHODS, START, find_reference, style_of

SIDE, LEFT, TOP = 420, 70, 40
WIDTH, HEIGHT = 640, 520
FINER = 4
"""Cells of the map for each cell of the grid, filled in linearly."""
# Dark to light, in steps that look equal: low is dark blue, high is yellow.
COLORS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
LABELS = {"train_loss": "training loss", "train_error": "training error", "test_error": "test error"}


def draw_landscape(found: Landscape) -> str:
    """Return the figure of what `make_landscape` found; colors are spaced by the logarithm.

    Only numbers and known names go into it, so that a file from a stranger cannot bring markup along.
    """
    xs, ys = found.x, found.y

    def place(point: Sequence[float]) -> Place:
        across = (point[0] - xs[0]) / (xs[-1] - xs[0])
        up = (point[1] - ys[0]) / (ys[-1] - ys[0])
        return LEFT + across * SIDE, TOP + (1 - up) * SIDE

    low = min(min(row) for row in found.values)
    high = max(max(row) for row in found.values)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" role="img" '
        f'aria-label="{LABELS[found.quantity]} from {low:.4g} to {high:.4g} on the plane through members '
        f'{", ".join(map(str, found.members))}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        '<g shape-rendering="crispEdges">',
        *_map(found.values, low, high),
        "</g>",
        *_axes(xs, ys, place),
        *_marks(found, place),
        *_legend(found, low, high),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def ticks(low: float, high: float) -> list[float]:
    """Return three to seven round numbers that include the range."""
    if high <= low:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / 4
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    rounding = 1e-9  # a bound that is a round number is a tick itself
    return [k * step for k in range(floor(low / step + rounding), ceil(high / step - rounding) + 1)]


def _shade(value: float, low: float, high: float) -> str:
    offset = 0.01 * (high - low) or 1.0  # a loss may be 0, whose logarithm is not
    share = log((value - low + offset) / offset) / log((high - low + offset) / offset) if high > low else 0.0
    position = share * (len(COLORS) - 1)
    index = min(int(position), len(COLORS) - 2)
    rest = position - index
    mixed = (round(a + rest * (b - a)) for a, b in zip(COLORS[index], COLORS[index + 1], strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _map(values: Sequence[Sequence[float]], low: float, high: float) -> list[str]:
    """Return cells whose colors go linearly from one grid point to the next."""
    cells = (len(values) - 1) * FINER
    size = SIDE / cells
    parts = []
    for row in range(cells):
        for column in range(cells):
            (i, v), (j, u) = divmod(row + 0.5, FINER), divmod(column + 0.5, FINER)
            below, above = values[int(i)], values[int(i) + 1]
            u, v, at = u / FINER, v / FINER, int(j)
            value = (1 - v) * ((1 - u) * below[at] + u * below[at + 1])
            value += v * ((1 - u) * above[at] + u * above[at + 1])
            parts.append(
                f'<rect x="{LEFT + column * size:.1f}" y="{TOP + SIDE - (row + 1) * size:.1f}" '
                f'width="{size + 0.3:.1f}" height="{size + 0.3:.1f}" fill="{_shade(value, low, high)}"/>'
            )
    return parts


def _axes(xs: Sequence[float], ys: Sequence[float], place: Any) -> list[str]:
    bottom = TOP + SIDE
    parts = [f'<rect x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="black"/>']
    for value in (v for v in ticks(xs[0], xs[-1]) if xs[0] <= v <= xs[-1]):
        x = place((value, ys[0]))[0]
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>')
    for value in (v for v in ticks(ys[0], ys[-1]) if ys[0] <= v <= ys[-1]):
        y = place((xs[0], value))[1]
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle = LEFT + SIDE / 2
    parts.append(
        f'<text x="{middle:g}" y="{bottom + 38}" text-anchor="middle">distance in weight space</text>'
    )
    return parts


def _marks(found: Landscape, place: Any) -> list[str]:
    parts = []
    trajectory = [place(p) for p in [found.w0, *(found.trajectory or [])]]
    if len(trajectory) > 1:
        parts.append(_line(trajectory, "white", 1.2))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="white"/>' for x, y in trajectory[1:]]
    parts += [_line([place(p) for p in curve], "#ff7f0e", 2.5) for curve in found.curves]
    x, y = place(found.w0)
    parts.append(_labelled(x, y, START, "black"))
    for name, point in _means(found).items():
        x, y = place(point)
        parts.append(_labelled(x, y, name, style_of(name).light))
    for number, point in enumerate(found.pfge, 1):
        x, y = place(point)
        parts.append(_labelled(x, y, str(number), "#d62728"))
    return parts


def _means(found: Landscape) -> dict[str, Place]:
    return {name: point for name, point in found.means.items() if name in METHODS}


def _line(points: Sequence[Place], color: str, width: float) -> str:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="{width}"/>'


def _labelled(x: float, y: float, label: str, color: str) -> str:
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" fill="{color}" stroke="white"/>'
        f'<text x="{x + 8:.1f}" y="{y - 6:.1f}" fill="white" stroke="black" stroke-width="2.5" '
        f'paint-order="stroke" font-weight="bold">{label}</text>'
    )


def _legend(found: Landscape, low: float, high: float) -> list[str]:
    x, steps = LEFT + SIDE + 24, 40
    parts = [
        f'<text x="{LEFT}" y="{TOP - 14}">{LABELS[found.quantity]} on the plane through members '
        f"{', '.join(map(str, found.members))}</text>"
    ]
    for step in range(steps):
        # The same spacing as of the map: equal heights are equal shares of the logarithm.
        offset = 0.01 * (high - low) or 1.0
        value = low - offset + offset * ((high - low + offset) / offset) ** ((step + 0.5) / steps)
        y = TOP + SIDE - (step + 1) * SIDE / steps
        parts.append(
            f'<rect x="{x}" y="{y:.1f}" width="16" height="{SIDE / steps + 0.3:.1f}" '
            f'fill="{_shade(value, low, high)}"/>'
        )
        if step % 8 == 4 or step in (0, steps - 1):
            parts.append(f'<text x="{x + 22}" y="{y + 9:.1f}">{value:.3g}</text>')
    what = {f"members of {find_reference().name}": "#d62728", START: "black"}
    what |= {name: style_of(name).light for name in _means(found)}
    what |= {"trajectory": "white"} if found.trajectory else {}
    what |= {"fitted curve": "#ff7f0e"} if found.curves else {}
    left = float(LEFT)
    for text, color in what.items():
        parts.append(f'<circle cx="{left}" cy="{HEIGHT - 8}" r="5" fill="{color}" stroke="black"/>')
        parts.append(f'<text x="{left + 10}" y="{HEIGHT - 4}">{text}</text>')
        left += 28 + 6.5 * len(text)
    return parts

"""The figure of a loss plane as SVG: a map of the grid, and what lies on it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, floor, log, log10

from pfge.lab.run.results import Landscape, Place
from pfge.methods import METHODS, START, find_reference
from pfge.reports.appearance import style_of

SIDE, LEFT, TOP = 380, 58, 26
WIDTH, HEIGHT = 460, 560
BAR_TOP, BAR_HEIGHT, LEGEND_TOP = TOP + SIDE + 58, 12, TOP + SIDE + 108
FONT_SIZE, LETTER = 14, 8
"""Large enough for a phone, which shows the figure at three quarters of its size; a letter's mean width."""
FINER = 4
"""Cells of the map for each cell of the grid, filled in linearly."""
# Dark to light, in steps that look equal: low is dark blue, high is yellow.
COLORS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
LABELS = {"train_loss": "training loss", "train_error": "training error", "test_error": "test error"}
CURVE, TRAJECTORY, OF_W0 = "#ff7f0e", "white", "black"
MARK = 5.5
STYLE = f"""
.landscape {{ width: 100%; max-width: {WIDTH * 1.25:g}px; height: auto; display: block;
  font: {FONT_SIZE}px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; color: #1d2129; }}
.landscape text {{ fill: currentColor; }}
.landscape .frame {{ fill: none; stroke: currentColor; }}
.landscape .name {{ fill: white; stroke: black; stroke-width: 3px; paint-order: stroke; font-weight: bold; }}
.landscape .leader {{ stroke: white; }}
@media screen and (prefers-color-scheme: dark) {{ .landscape {{ color: #e8eaee; }} }}
"""


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
        f'<svg xmlns="http://www.w3.org/2000/svg" class="landscape" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'role="img" '
        f'aria-label="{LABELS[found.quantity]} from {low:.4g} to {high:.4g} on the plane through members '
        f'{", ".join(map(str, found.members))}">',
        f"<style>{STYLE}</style>",
        '<g shape-rendering="crispEdges">',
        *_map(found.values, low, high),
        "</g>",
        *_axes(found, place),
        *_marks(found, place),
        *_scale_of_colors(found, low, high),
        *_legend(found),
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


def _axes(found: Landscape, place: Callable[[Sequence[float]], Place]) -> list[str]:
    xs, ys, bottom = found.x, found.y, TOP + SIDE
    first, second, _ = found.members
    parts = [f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}"/>']
    for value in (v for v in ticks(xs[0], xs[-1]) if xs[0] <= v <= xs[-1]):
        x = place((value, ys[0]))[0]
        parts.append(_text(x, bottom + 18, f"{value:g}", "middle"))
    for value in (v for v in ticks(ys[0], ys[-1]) if ys[0] <= v <= ys[-1]):
        y = place((xs[0], value))[1]
        parts.append(_text(LEFT - 6, y + 5, f"{value:g}", "end"))
    across = f"distance from member {first} towards member {second}"
    parts.append(_text(LEFT + SIDE / 2, bottom + 38, across, "middle"))
    middle = TOP + SIDE / 2
    turned = f'text-anchor="middle" transform="rotate(-90 14 {middle:g})"'
    return [*parts, f'<text x="14" y="{middle:g}" {turned}>distance from that line</text>']


@dataclass(frozen=True)
class _Point:
    """A mark with a name, at a place of the figure."""

    x: float
    y: float
    name: str
    color: str


def _points(found: Landscape, place: Callable[[Sequence[float]], Place]) -> list[_Point]:
    members = style_of(find_reference().name).light
    return [
        _Point(*place(found.w0), START, OF_W0),
        *(_Point(*place(point), name, style_of(name).light) for name, point in _means(found).items()),
        *(_Point(*place(point), str(number), members) for number, point in enumerate(found.pfge, 1)),
    ]


def _marks(found: Landscape, place: Callable[[Sequence[float]], Place]) -> list[str]:
    parts = []
    trajectory = [place(p) for p in [found.w0, *(found.trajectory or [])]]
    if len(trajectory) > 1:
        parts.append(_line(trajectory, TRAJECTORY, 1.2))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="white"/>' for x, y in trajectory[1:]]
    parts += [_line([place(p) for p in curve], CURVE, 2.5) for curve in found.curves]
    points = _points(found, place)
    places = _place_names(points)
    parts += [
        f'<line class="leader" x1="{point.x:.1f}" y1="{point.y:.1f}" x2="{x:.1f}" y2="{y - 5:.1f}"/>'
        for point, (x, y) in zip(points, places, strict=True)
    ]
    parts += [
        f'<circle cx="{point.x:.1f}" cy="{point.y:.1f}" r="{MARK}" fill="{point.color}" stroke="white"/>'
        for point in points
    ]
    parts += [
        f'<text class="name" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{point.name}</text>'
        for point, (x, y) in zip(points, places, strict=True)
    ]
    return parts


def _place_names(points: Sequence[_Point]) -> list[Place]:
    """Return where the middle of each name's base line is: near its mark, within the map, and on no other."""
    taken = [_Box(p.x - MARK, p.y - MARK, p.x + MARK, p.y + MARK) for p in points]
    found = []
    for point in points:
        half = LETTER * len(point.name) / 2 + 2
        choices = [
            (point.x + across * (half + MARK + away), point.y + 5 + down * (MARK + 8 + away))
            for away in (3, 14, 26, 40, 56)
            for across, down in sorted(product((1, 0, -1), (-1, 0, 1)), key=lambda way: abs(way[1]) < 1)
            if (across, down) != (0, 0)
        ]
        boxes = [_Box(x - half, y - FONT_SIZE, x + half, y + 3) for x, y in choices]
        free = [i for i, box in enumerate(boxes) if box.is_in_map() and not any(map(box.overlaps, taken))]
        best = free[0] if free else 0
        taken.append(boxes[best])
        found.append(choices[best])
    return found


@dataclass(frozen=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "_Box") -> bool:
        apart = self.right < other.left or other.right < self.left
        return not (apart or self.bottom < other.top or other.bottom < self.top)

    def is_in_map(self) -> bool:
        across = self.left >= LEFT and self.right <= LEFT + SIDE
        return across and self.top >= TOP and self.bottom <= TOP + SIDE


def _means(found: Landscape) -> dict[str, Place]:
    return {name: point for name, point in found.means.items() if name in METHODS}


def _line(points: Sequence[Place], color: str, width: float) -> str:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="{width}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _scale_of_colors(found: Landscape, low: float, high: float) -> list[str]:
    """Return a bar with the same spacing as the map: equal lengths are equal shares of the logarithm."""
    steps = 40
    offset = 0.01 * (high - low) or 1.0
    parts = [
        _text(LEFT, TOP - 9, f"{LABELS[found.quantity]}, plane through members {_listed(found.members)}")
    ]
    for step in range(steps):
        value = low - offset + offset * ((high - low + offset) / offset) ** ((step + 0.5) / steps)
        x = LEFT + step * SIDE / steps
        parts.append(
            f'<rect x="{x:.1f}" y="{BAR_TOP}" width="{SIDE / steps + 0.3:.1f}" height="{BAR_HEIGHT}" '
            f'fill="{_shade(value, low, high)}"/>'
        )
        if step in (0, 10, 20, 29, steps - 1):
            anchor = {0: "start", steps - 1: "end"}.get(step, "middle")
            at = x + (SIDE / steps if anchor == "end" else 0)
            parts.append(_text(at, BAR_TOP + BAR_HEIGHT + 16, f"{value:.3g}", anchor))
    return parts


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _legend(found: Landscape) -> list[str]:
    reference = find_reference().name
    what = {f"members of {reference}": style_of(reference).light, START: OF_W0}
    what |= {name: style_of(name).light for name in _means(found)}
    what |= {"trajectory": TRAJECTORY} if found.trajectory else {}
    what |= {"fitted curve": CURVE} if found.curves else {}
    parts: list[str] = []
    x, y = float(LEFT), float(LEGEND_TOP)
    for text, color in what.items():
        width = 34 + LETTER * len(text)
        if x > LEFT and x + width > WIDTH:
            x, y = float(LEFT), y + 24
        parts.append(
            f'<circle cx="{x + MARK:.1f}" cy="{y:.1f}" r="{MARK}" fill="{color}" stroke="currentColor"/>'
        )
        parts.append(_text(x + 17, y + 5, text))
        x += width
    return parts

"""The figure of connectivity as SVG: training loss and test error along the curves, method against method."""

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from statistics import fmean

from pfge.lab.run.results import ConnectivityRow
from pfge.reports.statistics import by_method

PANELS = (("train_loss", 1, "training loss"), ("test_error", 100, "test error, %"))
COLORS = ("#c0392b", "#2471a3", "#7d6608", "#1e8449")
WIDTH, HEIGHT = 760, 330
PANEL_WIDTH, PANEL_HEIGHT = 300, 220
TOP = 54

Line = Sequence[tuple[float, float]]


def draw_curves(results: Sequence[ConnectivityRow]) -> str:
    """Return the figure: each pair a thin line, the mean of a method's pairs a thick one."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for number, (quantity, factor, label) in enumerate(PANELS):
        lines = _lines(results, quantity, factor)
        parts += _panel(lines, left=60 + number * (PANEL_WIDTH + 70), label=label)
    for number, method in enumerate(by_method(results)):
        x, color = 60 + 90 * number, COLORS[number % len(COLORS)]
        parts.append(f'<path d="M{x} 14h24" stroke="{color}" stroke-width="2.5"/>')
        parts.append(f'<text x="{x + 30}" y="18">{escape(method)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def ticks(low: float, high: float) -> list[float]:
    """Return three to seven round numbers that include the range."""
    if high <= low:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / 4
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    rounding = 1e-9  # a bound that is a round number is a tick itself
    return [k * step for k in range(floor(low / step + rounding), ceil(high / step - rounding) + 1)]


def _lines(results: Sequence[ConnectivityRow], quantity: str, factor: float) -> list[tuple[str, list[Line]]]:
    """Return for each method its color and its lines, the mean last."""
    found = []
    for number, pairs in enumerate(by_method(results).values()):
        traces = [row.trace for row in pairs]
        columns = [[factor * value for value in trace.of(quantity)] for trace in traces]
        mean = [fmean(values) for values in zip(*columns, strict=True)]
        lines: list[Line] = [list(zip(traces[0].t, column, strict=True)) for column in [*columns, mean]]
        found.append((COLORS[number % len(COLORS)], lines))
    return found


def _panel(methods: list[tuple[str, list[Line]]], left: int, label: str) -> list[str]:
    heights = [y for _, lines in methods for line in lines for _, y in line]
    scale = ticks(min(heights), max(heights))
    bottom = TOP + PANEL_HEIGHT

    def place(x: float, y: float) -> str:
        share = (y - scale[0]) / (scale[-1] - scale[0])
        return f"{left + x * PANEL_WIDTH:.1f} {bottom - share * PANEL_HEIGHT:.1f}"

    parts = [f'<path d="M{left} {TOP}v{PANEL_HEIGHT}h{PANEL_WIDTH}" fill="none" stroke="black"/>']
    for t in (0, 0.25, 0.5, 0.75, 1):
        x = left + t * PANEL_WIDTH
        parts.append(f'<path d="M{x:g} {bottom}v5" stroke="black"/>')
        parts.append(f'<text x="{x:g}" y="{bottom + 18}" text-anchor="middle">{t:g}</text>')
    for value in scale:
        parts.append(f'<path d="M{place(0, value)}h-5" stroke="black"/>')
        y = float(place(0, value).split()[1]) + 4
        parts.append(f'<text x="{left - 8}" y="{y:g}" text-anchor="end">{value:g}</text>')
    for color, lines in methods:
        for line in lines:
            thick = 'stroke-width="2.5"' if line is lines[-1] else 'stroke-width="0.8" stroke-opacity="0.4"'
            points = "L".join(place(x, y) for x, y in line)
            parts.append(f'<path d="M{points}" fill="none" stroke="{color}" {thick}/>')
    middle = left + PANEL_WIDTH // 2
    parts.append(f'<text x="{middle}" y="{bottom + 40}" text-anchor="middle" font-style="italic">t</text>')
    parts.append(f'<text x="{middle}" y="{TOP - 10}" text-anchor="middle">{escape(label)}</text>')
    return parts

"""Figures along the path of training: rates, members, curves, the loss plane."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from pfge.lab.run.results import ComparisonRow, ConnectivityRow, Landscape, Point
from pfge.methods import METHODS, START, Method, TrainingPlan, find_reference
from pfge.reports.appearance import appearance_of
from pfge.reports.figures.figure import Figure, Grid, Label, Panel, Series, Shape, axis_label, figure_of
from pfge.reports.run import Run
from pfge.reports.statistics import Estimate, by_method, paired_metrics
from pfge.tasks import Metric

ANNEALING_POINTS = 24
"""How many points a half cosine is drawn with."""


def rates(run: Run) -> Figure | None:
    """Return the learning rate of each path, with the points where weights were taken (Figure 1)."""
    setting = run.setting
    if setting is None:
        return None
    rows = {method: found[0] for method, found in by_method(run.results).items()}
    panels = [
        _rate_panel(setting, method, _iterations(rows[method.name]))
        for method in METHODS.values()
        if appearance_of(method.name).rates_title and method.name in rows
    ]
    return figure_of(
        "rates",
        "Learning rates and collected weights",
        f"As run: a cycle of {setting.cycle:,} iterations, a period of {setting.period:,}, rates from "
        f"{setting.low:g} to {setting.high:g}. Vertical lines end {find_reference().name}'s periods, where "
        "its path starts again from the average.",
        panels,
    )


def _rate_panel(setting: TrainingPlan, method: Method, collected: Sequence[int]) -> Panel:
    name, schedule = method.name, method.schedule(setting)
    places = _places(setting.iterations, setting.cycle)
    if schedule != setting.schedule():
        places = _places(setting.iterations, setting.period, ANNEALING_POINTS)
    members = [iteration for iteration in collected if iteration >= 1]
    series = [Series("learning rate", places, [schedule(i) for i in places], shape="line")]
    if method.averages and method.members == "period":
        averaged = _averaged(setting)
        rates = [schedule(i) for i in averaged]
        series.append(Series(f"{name} averages", averaged, rates, name, shape="marks", faint=True))
    series.append(Series(f"{name} members", members, [schedule(i) for i in members], name, shape="marks"))
    periods = range(setting.period, setting.iterations + 1, setting.period)
    guides = [*periods] if method.forks(setting) else []
    return Panel(
        f"{name}: {appearance_of(name).rates_title}", "iteration", "learning rate", series, guides=guides
    )


def _averaged(setting: TrainingPlan) -> list[int]:
    """Return where PFGE averages weights: in the paper, every period begins a new cycle."""
    first = setting.phase or setting.cycle
    if setting.variant == "reference":
        return [*range(first, setting.iterations + 1, setting.cycle)]
    return [
        start + since
        for start in range(0, setting.iterations, setting.period)
        for since in range(first, setting.period + 1, setting.cycle)
        if start + since <= setting.iterations
    ]


def _places(iterations: int, cycle: int, inside: int = 2) -> list[int]:
    """Return the iterations that the line of a rate has corners at, or enough points of a bent one."""
    found = {1, iterations}
    for start in range(0, iterations, cycle):
        found |= {start + 1, *(start + -(-cycle * part // inside) for part in range(1, inside + 1))}
        found |= {start + cycle // 2, start + cycle + 1}
    return sorted(place for place in found if 1 <= place <= iterations)


def members(run: Run) -> Figure | None:
    """Return the paired metrics of members and of the growing ensemble by iteration (Figures 2 and 3)."""
    rows = by_method(run.results)
    panels = []
    for metric in paired_metrics(run.results):
        label = axis_label(metric)
        series = [
            s
            for method in METHODS.values()
            if appearance_of(method.name).shows_members
            for s in _member_series(rows.get(method.name, []), metric)
        ]
        if START in rows and series:
            first = min(x for s in series for x in s.x)
            last = max(x for s in series for x in s.x)
            w0 = Estimate.of([metric.factor * row.metrics["test"][metric.name] for row in rows[START]]).mean
            series.insert(0, Series(START, [first, last], [w0, w0], START, shape="line", dashed=True))
        panels.append(Panel(label, "iteration", label, series))
    return figure_of(
        "members",
        "Members and the ensemble as it grows",
        "Solid: the ensemble of all members so far. Dashed: each member on its own. Mean over seeds; bands "
        "are one standard error.",
        panels,
    )


def _member_series(rows: Sequence[ComparisonRow], metric: Metric) -> list[Series]:
    """Return the separate members and the growing ensemble, over the seeds whose members are alike."""
    rows = [row for row in rows if len(_iterations(row)) == row.members]
    rows = [row for row in rows if _iterations(row) == _iterations(rows[0])]

    def series(label: str, of_seeds: Sequence[Sequence[Mapping[str, float]]], *, each: bool) -> Series:
        values = [[metric.factor * found[metric.name] for found in of_seed] for of_seed in of_seeds]
        estimates = [Estimate.of(of_point) for of_point in zip(*values, strict=True)]
        return Series.of_estimates(
            f"{rows[0].method}, {label}",
            _iterations(rows[0]),
            estimates,
            method=rows[0].method,
            faint=each,
            dashed=each,
        )

    each = [row.each["test"] for row in rows if row.each and "test" in row.each]
    growing = [row.growing["test"] for row in rows if row.growing and "test" in row.growing]
    if not each or not growing:
        return []
    return [series("each member", each, each=True), series("ensemble so far", growing, each=False)]


def _iterations(row: ComparisonRow) -> list[int]:
    """Return where members were taken; samples have no such place."""
    return [iteration for iteration in row.member_iterations or [] if iteration is not None]


def curves(rows: Sequence[ConnectivityRow]) -> Figure | None:
    """Return training loss and test error along the curves between adjacent members (Figure 4)."""
    panels = []
    for quantity, factor, label in (
        ("train_loss", 1.0, "training loss"),
        ("test_error", 100.0, "test error, %"),
    ):
        series = []
        for method, of_method in by_method(rows).items():
            t = of_method[0].trace.t
            pairs = {
                f"{method}, seed {row.seed}, members {row.members[0]} and {row.members[1]}": [
                    factor * value for value in row.trace.of(quantity)
                ]
                for row in of_method
                if row.trace.t == t
            }
            series += [
                Series(pair, t, values, method, shape="line", faint=True) for pair, values in pairs.items()
            ]
            mean = [fmean(values) for values in zip(*pairs.values(), strict=True)]
            series.append(Series(f"{method}, mean of {len(pairs)} pairs", t, mean, method, shape="line"))
        panels.append(Panel(label, "t, from one member to the next", label, series))
    return figure_of(
        "curves",
        "Along the curve from one member to the next",
        "Thin: one pair of adjacent members. Thick: the mean of a method's pairs. A flat line means that the "
        "members lie in one valley.",
        panels,
    )


QUANTITIES = {"train_loss": "training loss", "train_error": "training error", "test_error": "test error"}
CURVE_COLOR, TRAJECTORY_COLOR = "#ff7f0e", "#ffffff"


def plane(found: Landscape | None) -> Figure | None:
    """Return the loss on the plane through three members, with w0, means, the trajectory and curves on it."""
    if found is None:
        return None
    label, reference = QUANTITIES[found.quantity], find_reference().name
    grid = Grid.of(label, found.x, found.y, found.values)
    members = {f"member {number}": point for number, point in enumerate(found.pfge, 1)}
    means = {name: point for name, point in found.means.items() if name in METHODS}
    trajectory = [found.w0, *(found.trajectory or [])]
    series = [_on_plane("fitted curve", curve, color=CURVE_COLOR) for curve in found.curves]
    if len(trajectory) > 1:
        series.insert(0, _on_plane("trajectory", trajectory, faint=True, color=TRAJECTORY_COLOR))
    series += [_on_plane(name, [point], method=name) for name, point in {START: found.w0, **means}.items()]
    series.append(
        _on_plane(f"members of {reference}", [*members.values()], method=reference, names=[*members])
    )
    points = [
        (START, found.w0, START),
        *((name, point, name) for name, point in means.items()),
        *((str(number), point, reference) for number, point in enumerate(found.pfge, 1)),
    ]
    first, second, _ = found.members
    return figure_of(
        "landscape",
        "The loss plane",
        "Points off the plane are projected onto it.",
        [
            Panel(
                f"{label}, plane through members {', '.join(map(str, found.members))}",
                f"distance from member {first} towards member {second}",
                "distance from that line",
                series,
                grid=grid,
                labels=_place_labels(points, grid),
            )
        ],
    )


def _on_plane(
    label: str,
    points: Sequence[Point],
    *,
    method: str = "",
    faint: bool = False,
    color: str = "",
    names: Sequence[str] = (),
) -> Series:
    """Return points of the plane as a series: marks of a method, or a line of no method."""
    x, y = [point[0] for point in points], [point[1] for point in points]
    shape: Shape = "marks" if method else "both" if faint else "line"
    return Series(label, x, y, method, shape=shape, faint=faint, names=names, color=color)


SIDE, LETTER_WIDTH, LETTER_HEIGHT, MARK = 380, 8, 14, 5.5
"""Sizes that names are placed by: the side of the plane, a letter, half a mark. Renderers keep ratios."""


def _place_labels(points: Sequence[tuple[str, Point, str]], grid: Grid) -> list[Label]:
    """Return each name with its place: near its mark, within the plane, and on no other name or mark."""
    (left, right), (bottom, top) = ((axis[0], axis[-1]) for axis in (grid.x, grid.y))
    across, up = SIDE / (right - left), SIDE / (top - bottom)
    at = [((x - left) * across, (y - bottom) * up) for _, (x, y), _ in points]
    taken = [_Box(x - MARK, y - MARK, x + MARK, y + MARK) for x, y in at]
    labels = []
    for (text, point, method), (x, y) in zip(points, at, strict=True):
        half = LETTER_WIDTH * len(text) / 2 + 2
        choices = [
            (x + way * (half + MARK + away), y + rise * (MARK + 8 + away))
            for away in (3, 14, 26, 40, 56)
            for way, rise in sorted(product((1, 0, -1), (1, 0, -1)), key=lambda step: abs(step[1]) < 1)
            if (way, rise) != (0, 0)
        ]
        boxes = [
            _Box(cx - half, cy - LETTER_HEIGHT / 2, cx + half, cy + LETTER_HEIGHT / 2) for cx, cy in choices
        ]
        free = [i for i, box in enumerate(boxes) if box.is_on_plane() and not any(map(box.overlaps, taken))]
        best = free[0] if free else 0
        taken.append(boxes[best])
        place = left + choices[best][0] / across, bottom + choices[best][1] / up
        labels.append(Label(text, point, place, method))
    return labels


@dataclass(frozen=True)
class _Box:
    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: "_Box") -> bool:
        apart = self.right < other.left or other.right < self.left
        return not (apart or self.top < other.bottom or other.top < self.bottom)

    def is_on_plane(self) -> bool:
        return min(self.left, self.bottom) >= 0 and max(self.right, self.top) <= SIDE

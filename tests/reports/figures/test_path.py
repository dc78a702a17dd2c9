"""What figures show: every point worked out from the made results."""

from math import inf, nan, sqrt
from pathlib import Path

import pytest

from pfge.methods import make_collector
from pfge.reports.figures import path as figures
from pfge.reports.figures.figure import Panel, Series, figure_of
from pfge.reports.printable import show_bytes
from pfge.reports.run import Run
from pfge.reports.statistics import Estimate
from tests.reports.figures.drawn_series import drawn
from tests.reports.made_run import config, make_run, result, write_connectivity, write_results


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(make_run(tmp_path / "run", examples=0))


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1 kB"),
        (97_152, "97.2 kB"),
        (999_499, "999 kB"),
        (999_600, "1 MB"),
        (4_338_176, "4.34 MB"),
        (999_700_000, "1 GB"),
        (2 * 10**9, "2 GB"),
        (1_200 * 10**9, "1.2 TB"),
    ],
)
def test_sizes_are_for_people(count: int, expected: str) -> None:
    assert show_bytes(count) == expected


def test_rates_are_lowest_where_members_are_taken_and_highest_between(run: Run) -> None:
    figure = figures.rates(run)
    rate = drawn(figure, 0, "learning rate")
    at = dict(zip(rate.x, rate.y, strict=True))
    # A triangle of 20 iterations from 0.0005 to 0.05.
    assert at[20] == at[400] == 0.0005
    assert at[10] == at[390] == 0.05
    assert at[1] == pytest.approx(0.0005 + 0.1 * 0.0495)
    members = drawn(figure, 0, "FGE members")
    assert members.x == list(range(20, 401, 20))
    assert members.y == [0.0005] * 20


def test_pfge_averages_every_cycle_and_has_a_member_every_period(run: Run) -> None:
    figure = figures.rates(run)
    assert figure is not None
    assert drawn(figure, 1, "PFGE averages").x == list(range(20, 401, 20))
    assert drawn(figure, 1, "PFGE members").x == [100, 200, 300, 400]
    assert figure.panels[1].guides == [100, 200, 300, 400]


@pytest.mark.filterwarnings("ignore:period=")
@pytest.mark.parametrize("variant", ["paper", "reference"])
@pytest.mark.parametrize(("cycle", "period"), [(4, 10), (20, 100), (7, 30)])
def test_the_collector_takes_weights_where_the_figure_says(
    tmp_path: Path, cycle: int, period: int, variant: str
) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    chosen = config(ensemble__cycle=cycle, ensemble__period=period, ensemble__variant=variant)
    (folder / "config.toml").write_text(chosen)
    members = list(range(period, 401, period))
    numbers = result("PFGE", 1)["each"]["test"][0]
    of_members = {"test": [numbers] * len(members)}
    row = result("PFGE", 1) | {
        "members": len(members),
        "member_iterations": members,
        "each": of_members,
        "growing": of_members,
    }
    del row["calibrated_members"]
    write_results(folder, [row])
    run = Run(folder)
    assert run.setting is not None
    collector = make_collector("PFGE", run.setting)
    figure = figures.rates(run)
    taken = {*drawn(figure, 0, "PFGE averages").x, *drawn(figure, 0, "PFGE members").x}
    assert taken == {i for i in range(1, 401) if collector.due(i)}


def test_epochs_become_the_iterations_that_were_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    in_epochs = config(ensemble__unit="epochs", ensemble__cycle=2, ensemble__period=10, ensemble__length=40)
    (folder / "config.toml").write_text(in_epochs)
    setting = Run(folder).setting  # 400 iterations are 40 epochs of 10
    assert setting is not None
    assert (setting.cycle, setting.period, setting.iterations) == (20, 100, 400)


def test_there_are_no_rates_before_a_method_says_how_long_it_ran(tmp_path: Path) -> None:
    assert figures.rates(Run(make_run(tmp_path / "run", methods=["w0"], examples=0))) is None


def test_snapshot_has_its_own_rates(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    write_results(folder, [result("Snapshot", 1, like="PFGE")])
    rate = drawn(figures.rates(Run(folder)), 0, "learning rate")
    at = dict(zip(rate.x, rate.y, strict=True))
    # Half a cosine over 100 iterations: the middle has the mean of both ends, and then it jumps back.
    assert at[50] == pytest.approx((0.0005 + 0.05) / 2)
    assert at[100] == 0.0005
    assert at[101] > 0.0499


def test_members_and_the_growing_ensemble_are_means_over_seeds(run: Run) -> None:
    figure = figures.members(run)
    each, growing = drawn(figure, 0, "PFGE, each member"), drawn(figure, 0, "PFGE, ensemble so far")
    assert each.x == growing.x == [100, 200, 300, 400]
    # Shares 1/4 to 1; mean accuracy 93.75, minus 2 points a share, or minus 1 point for what is missing.
    assert each.y == pytest.approx([93.25, 92.75, 92.25, 91.75])
    assert growing.y == pytest.approx([93.0, 93.25, 93.5, 93.75])
    assert growing.error == pytest.approx([0.25] * 4)
    assert drawn(figure, 1, "FGE, ensemble so far").y[-1] == pytest.approx(0.205)


def test_a_seed_that_is_not_like_the_others_is_left_out_of_the_mean(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    other = result("PFGE", 2) | {"member_iterations": [50, 100, 150, 200]}
    write_results(folder, [result("PFGE", 1), other])
    growing = drawn(figures.members(Run(folder)), 0, "PFGE, ensemble so far")
    assert growing.y[-1] == pytest.approx(93.5)
    assert growing.error is None


def test_results_without_members_have_no_figure_of_them(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    write_results(folder, [{k: v for k, v in result("PFGE", 1).items() if k not in ("each", "growing")}])
    assert figures.members(Run(folder)) is None


def test_curves_are_drawn_with_the_mean_of_each_methods_pairs(run: Run) -> None:
    assert figures.curves(run.connectivity) is None
    write_connectivity(run.folder.path)
    figure = figures.curves(Run(run.folder.path).connectivity)
    mean = drawn(figure, 0, "PFGE, mean of 2 pairs")
    assert (mean.x, mean.y) == ([0.0, 0.5, 1.0], [0.0, 2.0, 0.0])
    assert drawn(figure, 1, "FGE, seed 1, members 1 and 2").y == pytest.approx([10.0, 15.0, 10.0])


def test_points_that_cannot_be_drawn_are_left_out() -> None:
    series = Series("a", [1, 2, 3, 4], [1.0, nan, inf, 4.0], "a", error=[0.1, 0.2, 0.3, 0.4])
    figure = figure_of("f", "F", "", [Panel("p", "x", "y", [series, Series("b", [1], [nan], "b")])])
    assert figure is not None
    assert figure.panels[0].series == [Series("a", [1, 4], [1.0, 4.0], "a", error=[0.1, 0.4])]
    assert figure_of("f", "F", "", [Panel("p", "x", "y", [Series("b", [1], [nan], "b")])]) is None


def test_a_series_has_errors_only_if_every_point_has_one() -> None:
    known = Series.of_estimates("a", [1, 2], [Estimate.of([1.0, 2.0]), Estimate.of([1.0, 3.0])])
    assert known.error == pytest.approx([sqrt(0.5) / sqrt(2), 1.0])
    assert Series.of_estimates("a", [1, 2], [Estimate(1.0, 0.1), Estimate(1.0, None)]).error is None


def test_a_panel_is_also_a_table() -> None:
    series = Series("a", [1, 2], [0.5, 0.123456], "a", error=[0.01, 0.022])
    panel = Panel("p", "x", "y", [series], x_ticks=[(1, "one\nmore")])
    assert panel.rows() == [["a", "one more", "0.5", "0.01"], ["a", "2", "0.12346", "0.022"]]
    assert len(panel.columns) == 4

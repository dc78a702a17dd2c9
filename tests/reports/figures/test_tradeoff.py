"""What memory and forward passes buy: every point worked out from the made results."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pfge.reports.figures.figure import Figure, Series
from pfge.reports.figures.tradeoff import tradeoff
from pfge.reports.run import Run
from tests.reports.figures.drawn_series import drawn
from tests.reports.made_run import MEMBERS, form_rows, make_run, result, write_forms, write_results


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(make_run(tmp_path / "run", examples=0))


@pytest.fixture
def with_forms(tmp_path: Path) -> Run:
    folder = make_run(tmp_path / "run", examples=0)
    write_forms(folder)
    return Run(folder)


def points(series: Series) -> dict[str, tuple[float, float]]:
    return {n: (x, y) for n, x, y in zip(series.names, series.x, series.y, strict=True)}


# Without formats


def test_a_method_stands_at_its_memory_and_its_mean_over_seeds(run: Run) -> None:
    pfge = drawn(tradeoff(run), 0, "PFGE")
    assert pfge.x == [4_000_000]
    assert pfge.y == pytest.approx([93.75])  # 93.5 and 94.0
    assert pfge.error == pytest.approx([0.25])  # half of the difference between two seeds
    nll = drawn(tradeoff(run), 1, "PFGE")
    assert nll.y == pytest.approx([0.215])


def test_the_front_leaves_out_what_a_smaller_method_beats(run: Run) -> None:
    front = drawn(tradeoff(run), 0, "Pareto front")
    # SWA beats w0 at one model, PFGE beats the starred at four, FGE beats SWAG at twenty.
    assert front.x == [1_000_000, 4_000_000, 20_000_000]
    assert front.y == pytest.approx([91.25, 93.75, 94.25])


def test_memory_is_named_in_models_and_in_bytes(run: Run) -> None:
    figure = tradeoff(run)
    assert figure is not None
    assert figure.panels[0].x_ticks == [
        (1_000_000, "1×\n1 MB"),
        (4_000_000, "4×\n4 MB"),
        (20_000_000, "20×\n20 MB"),
    ]


def test_the_caption_says_how_forms_are_measured_until_they_are(run: Run) -> None:
    figure = tradeoff(run)
    assert figure is not None
    command = f"pfge formats {run.folder.path}"
    assert command in figure.caption
    write_forms(run.folder.path)
    figure = tradeoff(Run(run.folder.path))
    assert figure is not None
    assert "pfge formats" not in figure.caption


# With formats


def four(figure: Figure | None) -> list[tuple[str, str]]:
    assert figure is not None
    return [(panel.y_label, panel.x_label.partition(",")[0]) for panel in figure.panels]


def test_both_metrics_are_drawn_against_memory_and_against_passes(with_forms: Run) -> None:
    memory, passes = "memory at test time", "forward passes an example"
    assert four(tradeoff(with_forms)) == [
        ("accuracy, %", memory),
        ("NLL", memory),
        ("accuracy, %", passes),
        ("NLL", passes),
    ]


def test_every_form_is_a_point_of_its_method_and_all_but_the_plain_one_are_faint(with_forms: Run) -> None:
    figure = tradeoff(with_forms)
    plain, small = drawn(figure, 0, "PFGE"), drawn(figure, 0, "PFGE, compressed or cascade")
    assert (plain.method, small.method) == ("PFGE", "PFGE")
    assert (plain.faint, small.faint) == (False, True)
    # 8 + 4 * 3 bits of 32, and a tenth of a point less than 93.75; the cascade half a tenth less again.
    assert points(small)["PFGE, int8 base + 3 bits"] == (625_000, pytest.approx(93.65))
    assert points(small)["PFGE, int8 base + 3 bits, cascade"] == (625_000, pytest.approx(93.60))
    assert points(small)["PFGE, float32, cascade"] == (4_000_000, pytest.approx(93.70))
    assert points(plain) == {"PFGE, float32": (4_000_000, pytest.approx(93.75))}
    assert plain.error == pytest.approx([0.25])
    every = [name for s in figure.panels[0].series if s.method for name in s.names] if figure else []
    assert len(every) == len(set(every)) == 2 * 2 + 5 * 8


def test_a_cascade_stands_at_the_passes_that_it_takes(with_forms: Run) -> None:
    figure = tradeoff(with_forms)
    small = points(drawn(figure, 3, "FGE, compressed or cascade"))
    assert small["FGE, int8"] == (20, pytest.approx(0.205))
    assert small["FGE, int8, cascade"] == (10.5, pytest.approx(0.2055))


COSTS: list[Callable[[dict[str, float]], float]] = [lambda row: row["bytes"], lambda row: row["mean_members"]]


@pytest.mark.parametrize("panel", range(4))
def test_the_front_is_over_all_methods_and_forms(with_forms: Run, panel: int) -> None:
    cost, metric, sign = COSTS[panel // 2], ("accuracy", "nll")[panel % 2], (-100, 1)[panel % 2]
    # Both seeds have the same order, so one of them tells who is on the front.
    found = [(cost(r), sign * round(r["test"][metric], 9)) for r in form_rows(seeds=[1])]
    best = {p for p in found if not any(o[0] <= p[0] and o[1] <= p[1] and o != p for o in found)}
    front = drawn(tradeoff(with_forms), panel, "Pareto front")
    assert front.x == sorted(x for x, _ in best)
    half = 0.25 if metric == "accuracy" else 0.005  # from the first seed to the mean
    assert [abs(y) - half for y in front.y] == pytest.approx([abs(y) for _, y in sorted(best)])


def test_only_the_front_is_named_in_the_chart_and_shortly(with_forms: Run) -> None:
    figure = tradeoff(with_forms)
    assert figure is not None
    assert [[s.label for s in panel.series if s.named] for panel in figure.panels] == [["Pareto front"]] * 4
    assert not any(panel.labeled for panel in figure.panels)
    memory, passes = (drawn(figure, panel, "Pareto front").names for panel in (0, 2))
    assert memory == ["SWA int8", "PFGE 1 bit", "PFGE 3 bits", "FGE 1 bit", "FGE 3 bits", "FGE int8"]
    # Here int8 is as good as float32: of equals the smaller has the name.
    assert passes == ["SWA int8", "PFGE int8 cascade", "PFGE int8", "FGE int8 cascade", "FGE int8"]


def test_float32_members_on_the_front_have_the_methods_name_alone(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    write_forms(folder, [row for row in form_rows(methods=["FGE"]) if row["format"] == "float32"])
    write_results(folder, [])
    assert drawn(tradeoff(Run(folder)), 2, "Pareto front").names == ["FGE cascade", "FGE"]


def test_ticks_are_powers_of_two_or_four(with_forms: Run) -> None:
    figure = tradeoff(with_forms)
    assert figure is not None
    # Of 4 where there are more than five, as from 0.25 to 20 models; passes are from 1 to 20.
    assert figure.panels[0].x_ticks == [
        (250_000, "0.25×\n250 kB"),
        (1_000_000, "1×\n1 MB"),
        (4_000_000, "4×\n4 MB"),
        (16_000_000, "16×\n16 MB"),
    ]
    assert figure.panels[2].x_ticks == [(2.0**k, f"{2**k}") for k in range(5)]


def test_a_method_without_forms_stands_where_the_comparison_has_it(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    write_results(folder, [result("MCDropout", 1, like="PFGE") | {"bytes": 1_000_000}, result("w0", 1)])
    write_forms(folder, form_rows(seeds=[1], methods=["w0"]))
    figure = tradeoff(Run(folder))
    assert points(drawn(figure, 0, "MCDropout")) == {"MCDropout, float32": (1_000_000, pytest.approx(93.5))}
    assert points(drawn(figure, 2, "MCDropout")) == {"MCDropout, float32": (4, pytest.approx(93.5))}


def test_the_numbers_of_a_figure_name_each_point(with_forms: Run) -> None:
    figure = tradeoff(with_forms)
    assert figure is not None
    rows = figure.panels[0].rows()
    assert ["PFGE, int8 base + 3 bits", "625,000", "93.65", "0.25"] in rows
    assert {row[0].partition(",")[0] for row in rows} >= MEMBERS.keys()


def test_methods_are_drawn_over_the_seeds_that_all_have(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", seeds=[1, 2], examples=0)
    write_results(folder, [result(m, seed) for seed in (1, 2) for m in MEMBERS if (m, seed) != ("SWAG", 1)])
    figure = tradeoff(Run(folder))
    # Over both seeds FGE has 94.25 and would be beaten by nobody; SWAG has 93.5 on seed 2 alone.
    assert drawn(figure, 0, "FGE").y == pytest.approx([94.5])
    assert drawn(figure, 0, "SWAG").y == pytest.approx([93.5])
    assert drawn(figure, 0, "Pareto front").y == pytest.approx([91.5, 94.0, 94.5])
    assert figure is not None
    assert figure.caption.endswith(" Drawn over seed 2, which all methods have.")


def test_without_a_seed_of_all_methods_there_is_no_front(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    write_results(folder, [result("FGE", 1), result("PFGE", 2)])
    figure = tradeoff(Run(folder))
    assert figure is not None
    assert [series.label for series in figure.panels[0].series] == ["FGE", "PFGE"]
    assert figure.caption.endswith(" The Pareto front is left out until a seed has results of all methods.")

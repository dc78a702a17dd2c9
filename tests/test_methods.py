"""The paper's methods by name: what each collector is given, and what the methods share."""

from dataclasses import replace
from pathlib import Path

import pytest

from pfge import EMA, FGE, PFGE, SWA, SWAG, CosineRestarts, Triangular
from pfge.methods import LISTENERS, METHODS, Setting, make_collector
from tests.toys import make_mlp, train

SETTING = Setting(iterations=40, cycle=2, period=10, low=1e-3, high=0.1)
REFERENCE = Setting(iterations=40, cycle=4, period=20, low=1e-3, high=0.1, variant="reference")


def averaged_start(name: str, setting: Setting) -> bool:
    collector = make_collector(name, setting)
    assert isinstance(collector, SWA | PFGE)
    return collector.average_start


def test_each_name_gives_its_own_collector() -> None:
    kinds = {name: type(make_collector(name, SETTING)) for name in METHODS}
    assert kinds == {
        "SWA": SWA,
        "FGE": FGE,
        "SWAG": SWAG,
        "PFGE": PFGE,
        "EMA": EMA,
        "Snapshot": FGE,  # with a schedule of its own
    }


def test_an_unknown_method_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match="no method 'Swa'; choose from SWA, FGE, SWAG, PFGE, EMA, Snapshot"):
        make_collector("Swa", SETTING)


def test_listeners_do_not_steer_and_share_the_schedule() -> None:
    assert {
        name
        for name in METHODS
        if not make_collector(name, SETTING).steers and SETTING.schedule(name) == SETTING.schedule()
    } == set(LISTENERS)


def test_a_snapshot_is_taken_where_a_cosine_of_one_period_is_lowest() -> None:
    snapshot = make_collector("Snapshot", SETTING)
    assert SETTING.schedule("Snapshot") == CosineRestarts(10, 1e-3, 0.1)
    assert [i for i in range(1, 41) if snapshot.due(i)] == [10, 20, 30, 40]


def test_the_decay_reaches_ema() -> None:
    ema = make_collector("EMA", replace(SETTING, ema_decay=0.9))
    assert isinstance(ema, EMA)
    assert (ema.decay, ema.every) == (0.9, 1)


def test_pfge_makes_a_member_for_each_whole_period() -> None:
    assert [replace(SETTING, iterations=n).members for n in (10, 19, 20, 40)] == [1, 1, 2, 4]


def test_in_the_paper_the_rate_is_lowest_where_weights_are_taken() -> None:
    schedule = SETTING.schedule()
    fge = make_collector("FGE", SETTING)
    assert {schedule(i) for i in range(1, 41) if fge.due(i)} == {1e-3}
    assert [i for i in range(1, 7) if fge.due(i)] == [2, 4, 6]


def test_in_the_reference_weights_are_taken_at_mid_cycle_where_the_rate_is_lowest_too() -> None:
    schedule = REFERENCE.schedule()
    fge = make_collector("FGE", REFERENCE)
    assert schedule == Triangular(4, 1e-3, 0.1, start="high")
    assert {schedule(i) for i in range(1, 41) if fge.due(i)} == {1e-3}
    assert [i for i in range(1, 13) if fge.due(i)] == [2, 6, 10]


@pytest.mark.parametrize("name", ["SWA", "PFGE"])
@pytest.mark.parametrize(("variant", "expected"), [("paper", True), ("reference", False)])
def test_the_variant_decides_whether_a_start_point_is_averaged(
    name: str, variant: str, expected: bool
) -> None:
    setting = SETTING if variant == "paper" else REFERENCE
    assert averaged_start(name, setting) is expected


@pytest.mark.parametrize("name", ["SWA", "PFGE"])
@pytest.mark.parametrize("setting", [SETTING, REFERENCE], ids=["paper", "reference"])
@pytest.mark.parametrize("wanted", [True, False])
def test_the_start_point_can_be_decided_against_the_variant(
    name: str, setting: Setting, wanted: bool
) -> None:
    assert averaged_start(name, replace(setting, average_start=wanted)) is wanted


def test_the_reference_variant_is_the_authors_rule() -> None:
    assert str(make_collector("PFGE", REFERENCE)) == str(PFGE.reference(4, 20))


@pytest.mark.parametrize("clear", [True, False])
def test_clearing_the_momentum_reaches_pfge(clear: bool) -> None:
    pfge = make_collector("PFGE", replace(SETTING, clear_momentum=clear))
    assert isinstance(pfge, PFGE)
    assert pfge.clear_momentum is clear


@pytest.mark.parametrize("setting", [SETTING, REFERENCE], ids=["paper", "reference"])
@pytest.mark.parametrize("iterations", [20, 21, 22, 23, 40, 41, 42, 43])
def test_swag_has_as_many_samples_as_fge_has_members(setting: Setting, iterations: int) -> None:
    setting = replace(setting, iterations=iterations)
    fge, swag = make_collector("FGE", setting), make_collector("SWAG", setting)
    assert isinstance(swag, SWAG)
    assert swag.samples == sum(fge.due(i) for i in range(1, iterations + 1))


def test_the_seed_decides_swags_samples() -> None:
    seeds = [
        collector.seed
        for seed in (0, 7)
        if isinstance(collector := make_collector("SWAG", SETTING, seed=seed), SWAG)
    ]
    assert seeds == [0, 7]


@pytest.mark.parametrize(("name", "members"), [("FGE", 4), ("PFGE", 2)])
def test_members_made_one_by_one_go_to_the_store(name: str, members: int, tmp_path: Path) -> None:
    setting = Setting(iterations=8, cycle=2, period=4, low=1e-3, high=0.1)
    train(make_mlp(), [make_collector(name, setting, store=tmp_path / name)], 8)
    assert len(list((tmp_path / name).glob("*.safetensors"))) == members

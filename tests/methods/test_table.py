"""The table of methods: what each collector is given, and what an entry must be."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pfge import EMA, FGE, PFGE, SWA, SWAG, CosineRestarts, Triangular
from pfge.collectors import Star
from pfge.methods import (
    METHODS,
    Method,
    TrainingPlan,
    find_reference,
    make_collector,
    reference_first,
    register,
)
from tests.toys import make_mlp, train

SETTING = TrainingPlan(iterations=40, cycle=2, period=10, low=1e-3, high=0.1)
REFERENCE = TrainingPlan(iterations=40, cycle=4, period=20, low=1e-3, high=0.1, variant="reference")


COLLECTING = [name for name, method in METHODS.items() if method.collector]


def averaged_start(name: str, setting: TrainingPlan) -> bool:
    collector = make_collector(name, setting)
    assert isinstance(collector, SWA | PFGE)
    return collector.average_start


def test_each_name_gives_its_own_collector() -> None:
    kinds = {name: type(make_collector(name, SETTING)) for name in COLLECTING}
    assert kinds == {
        "SWA": SWA,
        "FGE": FGE,
        "SWAG": SWAG,
        "PFGE": PFGE,
        "EMA": EMA,
        "Snapshot": FGE,  # with a schedule of its own
        "Star": Star,
        "Cosine": Star,  # of one period
    }


@pytest.mark.parametrize("name", ["Swa", "DeepEnsemble"])
def test_a_method_without_a_collector_is_refused_with_those_that_have_one(name: str) -> None:
    expected = (
        f"'{name}' is not a method with a collector; choose from SWA, EMA, FGE, SWAG, PFGE, Snapshot, Star, "
        "Cosine"
    )
    with pytest.raises(ValueError, match=expected):
        make_collector(name, SETTING)


@pytest.mark.parametrize("name", COLLECTING)
def test_a_path_is_shared_by_methods_that_do_not_steer_and_have_the_same_rates(name: str) -> None:
    method = METHODS[name]
    steers, same = make_collector(name, SETTING).steers, method.schedule(SETTING) == SETTING.schedule()
    assert (method.path == "shared") == (not steers and same)
    assert method.forks(SETTING) == (steers and same)


@pytest.mark.parametrize("name", [name for name in COLLECTING if METHODS[name].members])
def test_members_are_as_many_as_the_table_says(name: str) -> None:
    setting = TrainingPlan(iterations=8, cycle=2, period=4, low=1e-3, high=0.1)
    collector = make_collector(name, setting)
    train(make_mlp(), [collector], 8)
    assert len(collector.members()) == {"one": 1, "cycle": 4, "period": 2}[METHODS[name].members or ""]


def test_every_method_says_what_it_is_and_where_it_comes_from() -> None:
    for method in METHODS.values():
        assert method.description.endswith(".")
        assert method.source


def test_the_reference_is_that_of_the_paper() -> None:
    assert find_reference().name == "PFGE"
    assert [m.name for m in reference_first([*METHODS.values()])][:3] == ["PFGE", "SWA", "EMA"]


def mine(**changes: Any) -> Method:
    entry = {"name": "Mine", "description": "", "source": "", "path": "trainings"}
    return Method(**entry | changes)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"name": "A*"}, "must have ASCII letters, digits and underscores only, .* got 'A\\*'"),
        ({"name": "a/b"}, "got 'a/b'"),
        ({"name": ""}, "got ''"),
        ({"name": "Ä"}, "got 'Ä'"),
        ({"name": "W0"}, "must not be one of w0, shared, pretrain, got 'W0'"),
        (
            {"path": "own"},
            "needs a collector if its path is 'shared' or 'own', .* got path='own'",
        ),
        ({"collector": METHODS["FGE"].collector}, "got path='trainings'"),
    ],
)
def test_an_entry_that_cannot_be_is_refused(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        mine(**change)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"name": "pfge"}, "must differ from SWA, .* in more than upper and lower case, got 'pfge'"),
        ({"reference": True}, "only one method can be the reference, which is PFGE, got Mine"),
    ],
)
def test_a_second_of_its_kind_is_not_registered(change: dict[str, Any], expected: str) -> None:
    before = dict(METHODS)
    with pytest.raises(ValueError, match=expected):
        register(mine(**change))
    assert before == METHODS


def test_a_snapshot_is_taken_where_a_cosine_of_one_period_is_lowest() -> None:
    snapshot = make_collector("Snapshot", SETTING)
    assert METHODS["Snapshot"].schedule(SETTING) == CosineRestarts(10, 1e-3, 0.1)
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


def test_in_the_reference_weights_are_taken_at_mid_cycle_one_iteration_before_the_lowest_rate() -> None:
    schedule = REFERENCE.schedule()
    fge = make_collector("FGE", REFERENCE)
    assert schedule == Triangular(4, 1e-3, 0.1, start="high")
    assert {schedule(i + 1) for i in range(1, 41) if fge.due(i)} == {1e-3}
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
    name: str, setting: TrainingPlan, wanted: bool
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
def test_swag_has_as_many_samples_as_fge_has_members(setting: TrainingPlan, iterations: int) -> None:
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
    setting = TrainingPlan(iterations=8, cycle=2, period=4, low=1e-3, high=0.1)
    train(make_mlp(), [make_collector(name, setting, store=tmp_path / name)], 8)
    assert len(list((tmp_path / name).glob("*.safetensors"))) == members

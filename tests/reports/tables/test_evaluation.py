"""The tables of one ensemble."""

from typing import Any

from pfge.lab.run.results import EnsembleEvaluation
from pfge.reports.tables.ensembles import count_members, evaluation_tables
from tests.reports.made_run import evaluation, heads, texts


def made(**changes: Any) -> EnsembleEvaluation:
    return EnsembleEvaluation.from_json(
        evaluation("PFGE", 1) | {"test": {"accuracy": 0.9, "nll": 0.3, "ece": 0.02}} | changes
    )


def test_one_member_is_one_member() -> None:
    assert [count_members(made(members=count)) for count in (1, 4)] == ["1 member", "4 members"]


def test_an_evaluation_has_a_table_for_all_that_was_measured() -> None:
    strengths = [{"strength": s, "accuracy": 0.9 - s / 10, "nll": s, "ece": 0.1} for s in range(1, 6)]
    test, ood, corruptions = evaluation_tables(made(corruptions={"blur": strengths}), "mine")
    assert test.heading == "mine: 400 test examples of made"
    assert texts(test) == [["accuracy", "0.9000"], ["nll", "0.3000"], ["ece", "0.0200"]]
    assert ood.title == "telling 100 images of other from these"
    assert texts(ood)[0] == ["entropy", "81.00", "70.00", "30.00"]
    assert texts(corruptions)[0] == [
        "blur",
        "accuracy %",
        "90.00",
        "80.00",
        "70.00",
        "60.00",
        "50.00",
        "40.00",
    ]
    assert heads(corruptions)[2:] == ["none", *(f"strength {number}" for number in range(1, 6))]
    assert [table.key for table in (test, ood, corruptions)] == [
        "evaluation",
        "unknown-inputs",
        "corruptions",
    ]
    assert len(evaluation_tables(made(ood={}, corruptions={}), "mine")) == 1


def test_a_strength_that_one_corruption_lacks_is_missing_there() -> None:
    at = {"accuracy": 0.5, "nll": 1.0, "ece": 0.1}
    measured = {"blur": [{"strength": 1, **at}, {"strength": 3, **at}], "noise": [{"strength": 3, **at}]}
    table = evaluation_tables(made(ood={}, corruptions=measured), "mine")[-1]
    assert heads(table)[2:] == ["none", "strength 1", "strength 3"]
    assert texts(table)[3] == ["noise", "accuracy %", "90.00", "", "50.00"]

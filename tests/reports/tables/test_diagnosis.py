"""A diagnosis in words."""

from dataclasses import replace
from typing import Any

import pytest

from pfge.lab.run.results import AdjacentMembers, Change, Diagnosis, Gains
from pfge.reports.tables.diagnosis import diagnosis_table, in_words
from tests.reports.made_run import texts

PAIRS = [
    AdjacentMembers((1, 2), 0.06, 40.0, 0.20, 0.005, 0.05),
    AdjacentMembers((2, 3), 0.05, 30.0, 0.18, -0.001, 0.04),
]
GOOD = Diagnosis(1, "PFGE", PAIRS, [0.08, 0.08, 0.07], 0.065, "validation", 0.9, [5e-4] * 3, 5e-4)


def words(found: Diagnosis) -> str:
    return "\n".join(in_words(found))


def test_members_that_connect_and_differ_need_no_change() -> None:
    said = words(GOOD)
    assert "Connected: half-way between adjacent members the training loss is at most 0.0050 above" in said
    assert "They differ: adjacent members disagree on 4.50 % of the validation examples" in said
    assert "each is wrong on 7.67 % and all together on 6.50 %" in said
    assert "would be 0.9000 instead of 0.1900" in said
    assert "Every member was taken at the lowest learning rate, 0.0005." in said
    assert "Change nothing" in said


def test_a_barrier_is_named_with_its_pair_and_a_smaller_rate() -> None:
    said = words(replace(GOOD, pairs=[PAIRS[0], replace(PAIRS[1], barrier=0.5)]))
    assert "A barrier: half-way between members 2 and 3 the training loss is 0.5000 above" in said
    assert "a smaller ensemble.high" in said
    assert "Change nothing" not in said


def test_the_barrier_that_is_named_is_one_by_the_rule() -> None:
    # 0.05 is less than a tenth of the loss of 1, 0.03 is more than a tenth of the loss of 0.1.
    pairs = [replace(PAIRS[0], loss=1.0, barrier=0.05), replace(PAIRS[1], loss=0.1, barrier=0.03)]
    said = words(replace(GOOD, pairs=pairs))
    assert "A barrier: half-way between members 2 and 3 the training loss is 0.0300 above" in said
    lower = [pairs[0], replace(pairs[1], barrier=0.009)]
    assert "is at most 0.0500 above their mean of 1.0000 (between members 1 and 2)." in words(
        replace(GOOD, pairs=lower)
    )


def test_a_tiny_rise_of_a_tiny_loss_is_no_barrier() -> None:
    said = words(replace(GOOD, pairs=[replace(PAIRS[0], loss=0.001, barrier=0.002)]))
    assert "A barrier" not in said


def test_members_that_hardly_differ_want_a_larger_rate() -> None:
    said = words(replace(GOOD, pairs=[replace(pair, disagreement=0.01) for pair in PAIRS]))
    assert "They hardly differ: adjacent members disagree on 1.00 %" in said
    assert "a larger ensemble.high" in said


def test_a_member_taken_off_the_minimum_is_named() -> None:
    said = words(replace(GOOD, rates=[5e-4, 0.02, 5e-4]))
    assert "Members 2 were taken at a learning rate above the lowest, 0.0005: up to 0.02." in said
    assert "make ensemble.period a multiple of ensemble.cycle" in said


def test_without_batch_norm_or_iterations_it_says_nothing_of_them() -> None:
    said = words(replace(GOOD, stale_loss=None, rates=[None] * 3))
    assert "BatchNorm:" not in said
    assert "their learning rates are unknown" in said


def test_each_pair_has_a_row() -> None:
    table = diagnosis_table(GOOD)
    assert texts(table)[0] == ["1 and 2", "6.00", "40.0", "0.2000", "+0.0050", "5.00"]
    assert (len(table.rows), table.heading) == (2, "seed 1: PFGE, adjacent members")


HELPS = Gains(
    pooled_error=Change(-0.012, 0.002),
    pooled_loss=Change(-0.03, 0.004),
    member_error=Change(-0.002, 0.002),
    member_loss=Change(-0.01, 0.005),
    w0_error=0.08,
    w0_training_loss=0.22,
    tempered_loss=Change(0.03, 0.004),
)
MEASURED = replace(GOOD, gains=HELPS)


def with_gains(**changes: Any) -> str:
    return words(replace(MEASURED, gains=replace(HELPS, **changes)))


def test_training_data_does_not_tell_whether_pooling_helps() -> None:
    said = words(replace(MEASURED, judged_on="training", gains=replace(HELPS, pooled_error=Change(0.1, 0))))
    assert "Whether pooling helps is unknown without validation data." in said
    assert "Change nothing: the members connect and differ." in said


def test_members_that_are_never_wrong_are_not_said_to_differ() -> None:
    pairs = [replace(pair, disagreement=0.0) for pair in PAIRS]
    said = words(replace(GOOD, pairs=pairs, errors=[0.0] * 3, pooled_error=0.0))
    assert "every member is right on all of the validation examples" in said


@pytest.mark.parametrize("rounding", [-3e-17, 0.0, 3e-17])
def test_errors_that_are_as_many_up_to_rounding_neither_help_nor_hurt(rounding: float) -> None:
    assert "Pooling helps" in with_gains(pooled_error=Change(rounding, 0.001))
    of_identical = Change(rounding, 0.0)
    said = with_gains(pooled_error=of_identical, pooled_loss=of_identical)
    assert "Pooling does not help beyond noise" in said


def test_pooling_that_helps_needs_no_change() -> None:
    said = words(MEASURED)
    assert (
        "Pooling helps: against each alone, the error changes by -1.20 ± 0.20 points and the NLL by "
        "-0.0300 ± 0.0040." in said
    )
    assert said.endswith("Change nothing: the members connect, differ, and are better together.")
    assert "undertrained" not in said
    assert "temperature" not in said


@pytest.mark.parametrize(
    ("error", "loss", "expected"),
    [
        (Change(0.002, 0.0005), Change(-0.03, 0.001), "Pooling hurts: against each alone, the error"),
        (Change(0.002, 0.002), Change(-0.03, 0.001), "Pooling does not help beyond noise"),
        (Change(-0.001, 0.002), Change(-0.001, 0.001), "Pooling does not help beyond noise"),
    ],
)
def test_pooling_that_does_not_help_is_said_and_advised_against(
    error: Change, loss: Change, expected: str
) -> None:
    said = with_gains(pooled_error=error, pooled_loss=loss)
    assert expected in said
    assert "Change: use one member, or one mean of the weights" in said
    assert "Change nothing" not in said


@pytest.mark.parametrize(
    "changes",
    [
        {"member_error": Change(-0.03, 0.002)},  # of 8 %
        {"w0_training_loss": 0.9},  # the members have 0.19
    ],
)
def test_a_w0_that_had_far_to_go_is_undertrained(changes: dict[str, Any]) -> None:
    said = with_gains(**changes)
    assert "w0 is undertrained: each member alone changes its error of 8.00 % by" in said
    assert "Change: train w0 longer (pretrain.epochs)" in said


@pytest.mark.parametrize(
    "changes", [{"member_error": Change(-0.03, 0.02)}, {"w0_training_loss": 0.3}, {"w0_error": 0.0}]
)
def test_a_gain_that_noise_or_averaging_explains_is_no_lack_of_training(changes: dict[str, Any]) -> None:
    assert "undertrained" not in with_gains(**changes)


def test_a_temperature_that_does_as_much_as_the_members_is_named() -> None:
    said = with_gains(tempered_loss=Change(-0.002, 0.001))
    assert "A temperature does as much: the NLL of one member at its temperature" in said
    assert "Change: if only the NLL matters, use one member at a temperature" in said
    assert "A temperature" not in with_gains(tempered_loss=None)

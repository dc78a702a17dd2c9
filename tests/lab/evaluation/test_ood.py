import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pfge.lab.evaluation.evaluate import PooledMembers
from pfge.lab.evaluation.robustness import ood_metrics, ood_scores
from pfge.tasks import Classification

FIRST = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
SECOND = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])


def pool_of(*members: Tensor) -> PooledMembers:
    pool = PooledMembers(Classification())
    for member in members:
        pool.add(member)
    return pool


def by_counting(known: Tensor, unknown: Tensor) -> dict[str, float]:
    """Every pair of a known and an unknown input, and every threshold from the highest on."""
    gaps = unknown[:, None] - known
    recalls, precisions, false = [0.0], [], []
    for threshold in torch.cat((known, unknown)).unique().flip(0):
        caught, alarms = int((unknown >= threshold).sum()), int((known >= threshold).sum())
        recalls.append(caught / len(unknown))
        precisions.append(caught / (caught + alarms))
        if 100 * caught >= 95 * len(unknown):  # in whole inputs, as 0.95 of them need not be an exact float
            false.append(alarms / len(known))
    steps = np.diff(recalls)
    return {
        "auroc": ((gaps > 0).double().mean() + (gaps == 0).double().mean() / 2).item(),
        "aupr": float((steps * precisions).sum()),
        "fpr_at_95": min(false),
    }


def test_metrics_worked_out_by_hand() -> None:
    # Of the 6 pairs the unknown input is higher in 4, and equal in the pair (2, 2): 4.5 / 6.
    # From the top: 4 is unknown (precision 1), 3 is known, then both 2s: 2 of 4 are unknown, so
    # the precision is 1/2 at the second half of recall. All of the unknown ones are caught from 2 on.
    metrics = ood_metrics(known=torch.tensor([1.0, 2.0, 3.0]), unknown=torch.tensor([4.0, 2.0]))
    assert metrics == pytest.approx({"auroc": 4.5 / 6, "aupr": 0.5 * 1 + 0.5 * 0.5, "fpr_at_95": 2 / 3})


def test_95_percent_of_20_unknown_inputs_are_19() -> None:
    unknown = torch.arange(20).double()  # 19 of them are at 1 or above
    metrics = ood_metrics(torch.tensor([0.0, 0.5, 1.0, 1.0, 2.0]), unknown)
    assert metrics["fpr_at_95"] == 3 / 5
    # Of 21, 19.95 would do: 20 of them.
    assert ood_metrics(torch.tensor([0.0, 0.5, 1.0]), torch.arange(21).double())["fpr_at_95"] == 1 / 3


def test_equal_scores_have_no_skill() -> None:
    metrics = ood_metrics(torch.full((6,), 0.3), torch.full((2,), 0.3))
    assert metrics == pytest.approx({"auroc": 0.5, "aupr": 2 / 8, "fpr_at_95": 1.0})


def test_separated_scores_are_perfect_and_reversed_ones_as_bad_as_can_be() -> None:
    low, high = torch.linspace(0, 1, 30), torch.linspace(2, 3, 40)
    assert ood_metrics(low, high) == pytest.approx({"auroc": 1.0, "aupr": 1.0, "fpr_at_95": 0.0})
    reverse = ood_metrics(high, low)
    assert (reverse["auroc"], reverse["fpr_at_95"]) == (0.0, 1.0)


@settings(max_examples=40, deadline=None)
@given(
    known=st.lists(st.integers(0, 12), min_size=1, max_size=45),
    unknown=st.lists(st.integers(0, 12), min_size=1, max_size=45),
)
def test_counting_agrees_with_many_ties(known: list[int], unknown: list[int]) -> None:
    scores = torch.tensor(known).double(), torch.tensor(unknown).double()
    assert ood_metrics(*scores) == pytest.approx(by_counting(*scores), abs=1e-6)


def test_counting_agrees_on_many_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    known = torch.randn(3000, generator=generator)
    unknown = 1 + torch.randn(5000, generator=generator)
    assert ood_metrics(known, unknown) == pytest.approx(by_counting(known, unknown), abs=1e-6)


def test_only_the_order_of_scores_matters() -> None:
    known, unknown = torch.tensor([0.1, 0.5, 0.3]), torch.tensor([0.4, 0.6])
    expected = ood_metrics(known, unknown)
    assert expected["auroc"] == pytest.approx(5 / 6)
    assert ood_metrics(1000 * known, 1000 * unknown) == expected
    assert ood_metrics(known - 100, unknown - 100) == expected


@pytest.mark.parametrize(
    ("known", "unknown", "message"),
    [
        (torch.tensor([]), torch.ones(2), r"known scores must be a tensor \[N\] of at least one, .* \[0\]"),
        (torch.ones(2), torch.tensor([]), "unknown scores must be"),
        (torch.ones(2, 3), torch.ones(2), r"got shape \[2, 3\]"),
        (torch.ones(2), torch.tensor([1.0, math.nan]), "unknown scores must be numbers, got 1 NaN of 2"),
    ],
)
def test_what_is_no_score_is_refused(known: Tensor, unknown: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ood_metrics(known, unknown)


def test_scores_worked_out_by_hand() -> None:
    # Both inputs are pooled to (1/2, 1/2, 0), whose entropy is log 2. The members agree about the first, each
    # with entropy log 2, and contradict each other about the second, each with entropy 0.
    scores = ood_scores(pool_of(FIRST, SECOND))
    torch.testing.assert_close(scores["max_probability"], torch.tensor([0.5, 0.5]).double())
    torch.testing.assert_close(scores["entropy"], torch.full((2,), math.log(2)).double())
    torch.testing.assert_close(scores["mutual_information"], torch.tensor([0, math.log(2)]).double())


def test_the_pooled_probabilities_are_the_mean_of_the_members() -> None:
    expected = torch.tensor([[0.5, 0.5, 0.0], [2 / 3, 1 / 3, 0.0]]).double()
    torch.testing.assert_close(pool_of(FIRST, SECOND, FIRST).predictions, expected)


def test_scores_streamed_member_by_member_agree_with_numpy_on_all_at_once() -> None:
    generator = torch.Generator().manual_seed(0)
    members = (2 * torch.randn(4, 50, 6, generator=generator, dtype=torch.float64)).softmax(dim=2)
    p = members.numpy()
    pooled = p.mean(0)
    # Mutual information as the mean divergence of the members from the pooled probabilities.
    divergence = (p * np.log(p / pooled)).sum(2).mean(0)
    scores = ood_scores(pool_of(*members))
    np.testing.assert_allclose(scores["max_probability"], 1 - pooled.max(1))
    np.testing.assert_allclose(scores["entropy"], -(pooled * np.log(pooled)).sum(1))
    np.testing.assert_allclose(scores["mutual_information"], divergence, rtol=1e-10)


def test_a_single_member_has_no_mutual_information() -> None:
    generator = torch.Generator().manual_seed(0)
    member = torch.randn(50, 6, generator=generator).softmax(dim=1)
    assert ood_scores(pool_of(member))["mutual_information"].tolist() == [0.0] * 50


def test_the_members_tensors_stay_as_they_are() -> None:
    member = FIRST.clone()
    pool_of(member, SECOND)
    assert torch.equal(member, FIRST)


def test_scores_before_any_member_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at least one member, got none; call add\(\) first"):
        ood_scores(PooledMembers(Classification()))


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (FIRST[:1], r"same examples, got predictions of shape \[2, 3\] and then \[1, 3\]"),
        (2 * FIRST, "sum"),
        (FIRST * math.nan, "NaN"),
        (torch.tensor([[1.5, -0.5, 0.0]] * 2), "negative"),
    ],
)
def test_what_is_no_prediction_is_refused(member: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pool_of(SECOND, member)

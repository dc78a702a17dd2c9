"""What the lab reports of pooled members, against all of them at once."""

import math

import pytest
import torch
from torch import Tensor

from pfge.calibration import Temperatures
from pfge.lab.evaluation.evaluate import PooledMembers
from pfge.lab.evaluation.robustness import ood_scores
from pfge.tasks import Classification, Regression

MEMBERS = torch.randn(5, 40, 3, generator=torch.Generator().manual_seed(0)).double().mul(2).softmax(dim=2)


def pooled(
    *temperatures: float,
    members: Tensor = MEMBERS,
    temperature: float = 1.0,
    weights: tuple[float, ...] | None = None,
) -> PooledMembers:
    pool = PooledMembers(Classification(), Temperatures(temperature, weights=weights))
    for member, own in zip(members, temperatures or [1.0] * len(members), strict=True):
        pool.add(member, own)
    return pool


def test_the_prediction_is_the_mean_of_the_probabilities() -> None:
    torch.testing.assert_close(pooled().predictions, MEMBERS.mean(0))


def test_members_count_by_their_weights() -> None:
    weights = (0.1, 0.3, 0.2, 0.25, 0.15)
    expected = torch.einsum("k,knc->nc", torch.tensor(weights, dtype=torch.float64), MEMBERS)
    torch.testing.assert_close(pooled(weights=weights).predictions, expected)


def test_a_temperature_of_the_pool_sharpens_the_mean_and_not_what_the_members_disagree_about() -> None:
    sharp = pooled(temperature=0.5)
    squares = MEMBERS.mean(0).square()  # p^(1/T), made to sum to 1
    torch.testing.assert_close(sharp.predictions, squares / squares.sum(dim=1, keepdim=True))
    assert sharp.differences() == pooled().differences()


def test_members_are_pooled_at_their_own_temperatures_too() -> None:
    squares, roots = MEMBERS.square(), MEMBERS.sqrt()
    expected = [
        (squares / squares.sum(dim=2, keepdim=True))[0],
        *MEMBERS[1:4],
        (roots / roots.sum(dim=2, keepdim=True))[4],
    ]
    found = pooled(0.5, 1, 1, 1, 2).at_temperatures
    torch.testing.assert_close(found, torch.stack(expected).mean(0))


def test_members_differ_by_mutual_information_and_disagreement() -> None:
    # H(mean) - mean H(p_k) = mean KL(p_k || mean)
    divergence = (MEMBERS * (MEMBERS / MEMBERS.mean(0)).log()).sum(dim=2).mean(0)
    classes = MEMBERS.argmax(dim=2)
    pairs = [(classes[i] != classes[j]).double().mean() for i in range(5) for j in range(i)]
    assert pooled().differences() == {
        "mutual_information": pytest.approx(divergence.mean().item()),
        "disagreement": pytest.approx(torch.stack(pairs).mean().item()),
    }


@pytest.mark.parametrize("weights", [(0.98, 0.02), (0.02, 0.98)])
def test_mutual_information_of_two_members_with_weights_worked_out_by_hand(
    weights: tuple[float, float],
) -> None:
    one, other = [0.5, 0.5], [0.99, 0.01]
    mean = [weights[0] * p + weights[1] * q for p, q in zip(one, other, strict=True)]
    members = torch.tensor([[one], [other]], dtype=torch.float64)
    found = pooled(members=members, weights=weights)
    of_members = weights[0] * by_hand(one) + weights[1] * by_hand(other)
    expected = by_hand(mean) - of_members
    assert found.differences()["mutual_information"] == pytest.approx(expected)
    assert ood_scores(found)["mutual_information"].item() == pytest.approx(expected)


def by_hand(probabilities: list[float]) -> float:
    return -sum(p * math.log(p) for p in probabilities)


def test_the_mean_divergence_from_the_mean_is_weighted_as_the_mean_is() -> None:
    weights = (0.1, 0.3, 0.2, 0.25, 0.15)
    shares = torch.tensor(weights, dtype=torch.float64)
    mean = torch.einsum("k,knc->nc", shares, MEMBERS)
    divergence = torch.einsum("k,kn->n", shares, (MEMBERS * (MEMBERS / mean).log()).sum(dim=2))
    found = pooled(weights=weights).differences()
    assert found["mutual_information"] == pytest.approx(divergence.mean().item())
    assert found["disagreement"] == pooled().differences()["disagreement"]


def test_the_variance_of_means_is_weighted_as_their_mean_is() -> None:
    pool = PooledMembers(Regression(), Temperatures(weights=(0.9, 0.1)))
    for mean in (0.0, 10.0):
        pool.add(torch.tensor([[[mean, 1.0]]]))
    # 0.9 * (0 - 1)^2 + 0.1 * (10 - 1)^2
    assert pool.differences() == {"variance_of_means": pytest.approx(9)}


def test_one_member_does_not_differ() -> None:
    assert pooled(members=MEMBERS[:1]).differences() == {}

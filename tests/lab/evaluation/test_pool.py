"""Members' predictions pooled one by one, against all of them at once."""

import pytest
import torch

from pfge.lab.evaluation.pool import Pool

MEMBERS = torch.randn(5, 40, 3, generator=torch.Generator().manual_seed(0)).double().mul(2).softmax(dim=2)


def pooled(*temperatures: float, pool: Pool | None = None) -> Pool:
    pool = pool or Pool()
    for member, temperature in zip(MEMBERS, temperatures or [1.0] * 5, strict=True):
        pool.add(member, temperature)
    return pool


def test_the_mean_is_that_of_the_probabilities() -> None:
    assert pooled().members == 5
    torch.testing.assert_close(pooled().mean, MEMBERS.mean(0))


def test_a_temperature_of_the_pool_sharpens_the_mean_and_not_what_the_members_disagree_about() -> None:
    sharp = pooled(pool=Pool(0.5))
    squares = MEMBERS.mean(0).square()  # p^(1/T), made to sum to 1
    torch.testing.assert_close(sharp.mean, squares / squares.sum(dim=1, keepdim=True))
    torch.testing.assert_close(sharp.mutual_information, pooled().mutual_information)


def test_members_are_pooled_at_their_own_temperatures_too() -> None:
    squares, roots = MEMBERS.square(), MEMBERS.sqrt()
    expected = [
        (squares / squares.sum(dim=2, keepdim=True))[0],
        *MEMBERS[1:4],
        (roots / roots.sum(dim=2, keepdim=True))[4],
    ]
    found = pooled(0.5, 1, 1, 1, 2).mean_at_temperatures
    torch.testing.assert_close(found, torch.stack(expected).mean(0))


def test_mutual_information_is_the_mean_divergence_of_a_member_from_the_mean() -> None:
    # H(mean) - mean H(p_k) = mean KL(p_k || mean)
    mean = MEMBERS.mean(0)
    divergence = (MEMBERS * (MEMBERS / mean).log()).sum(dim=2).mean(0)
    torch.testing.assert_close(pooled().mutual_information, divergence)


def test_disagreement_counts_the_pairs_that_differ() -> None:
    classes = MEMBERS.argmax(dim=2)
    pairs = [(classes[i] != classes[j]).float().mean() for i in range(5) for j in range(i)]
    assert pooled().disagreement == pytest.approx(torch.stack(pairs).mean().item())


def test_one_member_agrees_with_itself() -> None:
    pool = Pool()
    pool.add(MEMBERS[0])
    assert pool.disagreement == 0
    assert pool.mutual_information.max() == pytest.approx(0, abs=1e-6)

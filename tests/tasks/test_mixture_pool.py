"""Means and variances of members, pooled as a mixture."""

import pytest
import torch

from pfge.tasks import MixturePool

GENERATOR = torch.Generator().manual_seed(0)
MEMBERS = torch.rand(4, 5, 2, 2, generator=GENERATOR)


def test_mean_and_variance_are_those_of_samples_of_the_mixture() -> None:
    pool = MixturePool()
    for member in MEMBERS:
        pool.add(member)
    means, variances = MEMBERS.double().unbind(dim=-1)
    expected = torch.stack([means.mean(0), variances.mean(0) + means.var(0, correction=0)], dim=-1)
    torch.testing.assert_close(pool.result(), expected, rtol=0, atol=1e-12)
    drawn = means[:, 0, 0] + variances[:, 0, 0].sqrt() * torch.randn(200_000, 4, generator=GENERATOR)
    assert drawn.var().item() == pytest.approx(expected[0, 0, 1].item(), rel=0.02)


def test_a_member_that_counts_twice_is_two_members() -> None:
    weighted, repeated = MixturePool(), MixturePool()
    for member, times in zip(MEMBERS, (1, 2, 3, 1), strict=True):
        weighted.add(member, times / 7)
        for _ in range(times):
            repeated.add(member)
    torch.testing.assert_close(weighted.result(), repeated.result(), rtol=0, atol=1e-12)
    torch.testing.assert_close(weighted.variance_of_means(), repeated.variance_of_means(), rtol=0, atol=1e-12)


def test_members_that_nearly_agree_about_large_numbers_keep_their_variance() -> None:
    # E[m^2] - E[m]^2 of these is 0 or negative in float64.
    pool = MixturePool()
    for mean in (1e9, 1e9 + 1e-4, 1e9 + 2e-4):
        pool.add(torch.tensor([[[mean, 0.0]]], dtype=torch.float64))
    means = torch.tensor([1e9, 1e9 + 1e-4, 1e9 + 2e-4], dtype=torch.float64) - 1e9
    assert pool.result()[0, 0, 1].item() == pytest.approx(means.var(correction=0).item(), rel=1e-3)


def test_some_examples_of_a_pool_are_a_pool_of_them() -> None:
    pool = MixturePool()
    for member in MEMBERS[:3]:
        pool.add(member)
    some = pool.take(torch.tensor([3, 0]))
    pool.add(MEMBERS[3])
    some.add(MEMBERS[3][[3, 0]])
    assert torch.equal(some.result(), pool.result()[[3, 0]])


def test_a_pool_needs_members_of_one_shape() -> None:
    pool = MixturePool()
    with pytest.raises(ValueError, match="a pool needs at least one member, got none"):
        pool.result()
    pool.add(MEMBERS[0])
    with pytest.raises(ValueError, match=r"shape \[5, 2, 2\] and then \[3, 2, 2\]"):
        pool.add(MEMBERS[0, :3])

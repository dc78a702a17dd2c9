"""Members' predictions pooled one by one, against all of them at once."""

import pytest
import torch

from pfge.tasks import MeanPool

MEMBERS = torch.randn(5, 40, 3, generator=torch.Generator().manual_seed(0)).mul(2).softmax(dim=2)


def pooled() -> MeanPool:
    pool = MeanPool()
    for member in MEMBERS:
        pool.add(member)
    return pool


def test_the_result_is_the_mean_in_float64() -> None:
    assert torch.equal(pooled().result(), MEMBERS.double().sum(0) / 5)


def test_a_member_counts_by_its_weight() -> None:
    pool, weights = MeanPool(), torch.tensor([0.1, 2.0, 0.7, 0.2, 1.0], dtype=torch.float64)
    for member, weight in zip(MEMBERS, weights.tolist(), strict=True):
        pool.add(member, weight)
    expected = torch.einsum("k,knc->nc", weights / weights.sum(), MEMBERS.double())
    torch.testing.assert_close(pool.result(), expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(pool.take(torch.tensor([3])).result(), expected[[3]], rtol=0, atol=1e-14)


def test_many_members_lose_no_bit_that_float32_would() -> None:
    pool = MeanPool()
    for _ in range(1000):
        pool.add(torch.tensor([0.1]))
    assert pool.result().item() == pytest.approx(torch.tensor(0.1).item(), rel=1e-12)
    assert sum([torch.tensor(0.1)] * 1000).item() / 1000 != pytest.approx(0.1, rel=1e-6)  # type: ignore[union-attr]


def test_members_are_left_as_they_were_and_a_result_is_not_changed_by_later_members() -> None:
    pool, first = MeanPool(), MEMBERS[0].clone()
    pool.add(first)
    before = pool.result()
    pool.add(MEMBERS[1])
    assert torch.equal(first, MEMBERS[0])
    assert torch.equal(before, MEMBERS[0].double())


@pytest.mark.parametrize("index", [torch.arange(40) % 3 == 0, torch.tensor([7, 2])], ids=["mask", "numbers"])
def test_some_examples_are_taken_with_what_was_added_and_go_on_alone(index: torch.Tensor) -> None:
    pool = pooled()
    some = pool.take(index)
    some.add(torch.ones_like(MEMBERS[0][index]))
    assert torch.equal(some.result(), (MEMBERS.double().sum(0)[index] + 1) / 6)
    assert torch.equal(pool.result(), pooled().result())


def test_predictions_of_other_examples_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"same examples, got predictions of shape \[40, 3\] and then \[39, 3\]"
    ):
        pooled().add(MEMBERS[0][1:])


def test_a_pool_of_nothing_has_no_result() -> None:
    with pytest.raises(ValueError, match=r"at least one member, got none; call add\(\) first"):
        MeanPool().result()

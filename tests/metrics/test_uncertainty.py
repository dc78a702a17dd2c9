import math

import pytest
import torch
from scipy.stats import entropy
from sklearn.metrics import accuracy_score
from torch import Tensor

from pfge.metrics import disagreement, kl_divergence, mutual_information, predictive_entropy
from pfge.metrics.uncertainty import ClassDiversity


def random_members(members: int = 4, examples: int = 30, classes: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (2 * torch.randn(members, examples, classes, generator=generator, dtype=torch.float64)).softmax(2)


def test_entropies_of_a_coin_of_certainty_and_of_four_sides() -> None:
    found = predictive_entropy(torch.tensor([[0.5, 0.5, 0, 0], [1, 0, 0, 0], [0.25] * 4]))
    assert found.tolist() == pytest.approx([math.log(2), 0, math.log(4)])


def test_scipy_finds_the_same_entropy() -> None:
    probabilities = random_members()[0]
    assert predictive_entropy(probabilities).numpy() == pytest.approx(entropy(probabilities.numpy(), axis=1))


def test_members_that_are_sure_of_different_classes_share_no_information() -> None:
    sure = torch.tensor([[[1.0, 0], [0.5, 0.5]], [[0, 1.0], [0.5, 0.5]]])
    assert mutual_information(sure).tolist() == pytest.approx([math.log(2), 0])


def test_mutual_information_is_the_mean_divergence_of_members_from_their_mean() -> None:
    members = random_members()
    mean = members.mean(0).numpy()
    expected = sum(entropy(member.numpy(), mean, axis=1) for member in members) / len(members)
    assert mutual_information(members).numpy() == pytest.approx(expected)


def test_equal_members_have_a_mutual_information_of_zero_and_never_less() -> None:
    found = mutual_information(random_members(1, 300).float().repeat(7, 1, 1))
    assert found.min() >= 0
    assert found.max() < 1e-12


def test_members_of_bfloat16_have_nearly_the_numbers_of_float64() -> None:
    members = random_members(classes=100)
    narrow = members.bfloat16()
    expected = mutual_information(members).mean().item()
    assert mutual_information(narrow).mean().item() == pytest.approx(expected, rel=0.01)
    expected = kl_divergence(members[0], members[1])
    assert kl_divergence(narrow[0], narrow[1]) == pytest.approx(expected, rel=0.01)
    assert kl_divergence(members[0].bfloat16(), members[0]) == pytest.approx(0, abs=1e-5)


def test_disagreement_worked_out_by_hand() -> None:
    # Classes 0 0, 0 1 and 1 1 on two examples: the pairs differ on 1, 2 and 1 of 2.
    sides = torch.tensor([[0, 0], [0, 1], [1, 1]])
    members = torch.nn.functional.one_hot(sides, 2).double() * 0.8 + 0.1
    assert disagreement(members) == pytest.approx((0.5 + 1 + 0.5) / 3)


def test_scikit_learn_finds_the_same_disagreement() -> None:
    members = random_members()
    sides = members.argmax(2).numpy()
    pairs = [1 - accuracy_score(sides[i], sides[j]) for i in range(4) for j in range(i)]
    assert disagreement(members) == pytest.approx(sum(pairs) / 6)


def test_members_may_come_one_at_a_time() -> None:
    members = random_members()
    assert torch.equal(mutual_information(iter(list(members))), mutual_information(members))
    assert disagreement(iter(list(members))) == disagreement(members)


def test_a_member_of_weight_two_is_that_member_twice() -> None:
    one, other = random_members(2)
    weighted = ClassDiversity()
    weighted.add(one, 2.0)
    weighted.add(other)
    found = weighted.mutual_information((2 * one + other) / 3)
    assert found.numpy() == pytest.approx(mutual_information([one, one, other]).numpy())


def test_what_are_no_members_is_refused() -> None:
    members = random_members()
    with pytest.raises(ValueError, match="at least two members, got 1"):
        disagreement(members[:1])
    for function in (mutual_information, disagreement):
        with pytest.raises(ValueError, match="at least one member, got none"):
            function([])
        with pytest.raises(ValueError, match=r"got \[30, 3\] and \[29, 3\]"):
            function([members[0], members[1][1:]])
        with pytest.raises(ValueError, match="sums to 2"):
            function(2 * members)
        with pytest.raises(ValueError, match=r"predictions are \[N, C\], got \[3\]"):
            function(members[0])
    with pytest.raises(ValueError, match="at least two classes, got 1"):
        predictive_entropy(torch.ones(3, 1))

import math

import pytest
import torch
from scipy.stats import entropy

from pfge.metrics import kl_divergence


def test_divergence_worked_out_by_hand() -> None:
    p, q = torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    first = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert kl_divergence(p, q) == pytest.approx((first + math.log(2)) / 2)


def test_scipy_agrees() -> None:
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(2, 50, 7, generator=generator, dtype=torch.float64).softmax(dim=2)
    assert kl_divergence(p, q) == pytest.approx(entropy(p.numpy(), q.numpy(), axis=1).mean())


def test_equal_predictions_do_not_diverge_even_with_zeros() -> None:
    p = torch.tensor([[1.0, 0.0], [0.3, 0.7]])
    assert kl_divergence(p, p) == 0


def test_predictions_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"two sets of probabilities \[N, C\], got \[2, 3\] and \[2, 4\]"):
        kl_divergence(torch.ones(2, 3), torch.ones(2, 4))

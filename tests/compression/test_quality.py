import math

import pytest
import torch
from scipy.stats import entropy

from pfge import Ensemble
from pfge.compression.compress import Quality, QualityEvaluator
from pfge.metrics import kl_divergence
from tests.tasks.fractions import Fractions
from tests.toy_members import X, make_members
from tests.toys import make_mlp


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


def test_the_cost_is_the_divergence_of_the_task() -> None:
    def first(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).softmax(dim=1)[:, 0]  # type: ignore[no-any-return]

    members = make_members()
    original, other = (Ensemble(m, make_mlp, task=Fractions(), forward=first) for m in (members, members[:2]))
    farthest = (original.predict(X) - other.predict(X)).abs().max().item()
    assert QualityEvaluator(original, [X], with_targets=False).measure(other) == Quality(
        pytest.approx(farthest), None
    )

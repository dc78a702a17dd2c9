"""How unsure predictions are, and how much predictors differ; targets play no part."""

from collections.abc import Iterable
from itertools import combinations

import torch
from torch import Tensor

from pfge.metrics.checks import SMALLEST, require_probabilities


def predictive_entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy of each row of [N, C] in nats, [N], from 0 to log C."""
    require_probabilities(probabilities)
    return _entropy(probabilities.double())


def mutual_information(members: Iterable[Tensor]) -> Tensor:
    """Return the entropy of the mean prediction minus the mean entropy of the members, [N], in nats.

    Args:
        members: Each member's probabilities [N, C]: a tensor [K, N, C], or anything that gives them one
            at a time, as `Ensemble.predict_each` does.
    """
    total, entropies, count = torch.zeros(()), torch.zeros(()), 0
    for member in _checked(members):
        wide = member.double()
        total, entropies, count = total + wide, entropies + _entropy(wide), count + 1
    # Entropy is concave, so only rounding takes the difference below 0.
    return (_entropy(total / count) - entropies / count).clamp(min=0)


def disagreement(members: Iterable[Tensor]) -> float:
    """Return the share of examples whose most probable classes differ, over all pairs of members.

    Args:
        members: Each member's probabilities, as for `mutual_information`.
    """
    predicted = [member.argmax(dim=1) for member in _checked(members)]
    if len(predicted) < 2:
        raise ValueError(f"disagreement needs at least two members, got {len(predicted)}")
    shares = [(one != other).double().mean().item() for one, other in combinations(predicted, 2)]
    return sum(shares) / len(shares)


def kl_divergence(expected: Tensor, probabilities: Tensor) -> float:
    """Return the mean over examples of KL(expected || probabilities), in nats; both are [N, C]."""
    if expected.shape != probabilities.shape or expected.ndim != 2 or not len(expected):
        raise ValueError(
            f"the divergence takes two sets of probabilities [N, C], got {list(expected.shape)} and "
            f"{list(probabilities.shape)}"
        )
    # float32 softmax rounds tiny probabilities to 0; one such class must not make the mean infinite.
    p, q = expected.double(), probabilities.double().clamp(min=SMALLEST)
    return (p * (p.clamp(min=SMALLEST).log() - q.log())).sum(dim=1).mean().item()


def _checked(members: Iterable[Tensor]) -> Iterable[Tensor]:
    shape = None
    for member in members:
        require_probabilities(member)
        if member.shape != (shape := shape or member.shape):
            raise ValueError(
                f"members must predict the same examples and classes, got {list(shape)} and "
                f"{list(member.shape)}"
            )
        yield member
    if shape is None:
        raise ValueError("an ensemble needs at least one member, got none")


def _entropy(probabilities: Tensor) -> Tensor:
    terms: Tensor = torch.special.entr(probabilities)  # 0 for a probability of 0
    return terms.sum(dim=1)

"""How unsure predictions are, and how much predictors differ; targets play no part."""

from collections.abc import Iterable
from itertools import combinations

import torch
from torch import Tensor

from pfge.metrics.checks import SMALLEST, require_probabilities


def predictive_entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy of each row of [N, C] in nats, [N], from 0 to log C.

        H(p) = - sum over classes c of p[c] * log p[c]

    Args:
        probabilities: [N, C], each row summing to one.

    References:
        Shannon, "A Mathematical Theory of Communication", Bell System Technical Journal, 1948.

    Example:
        >>> import torch
        >>> from pfge.metrics import predictive_entropy
        >>> predictive_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))  # log(2) and 0
        tensor([0.6931, 0.0000], dtype=torch.float64)
    """
    require_probabilities(probabilities)
    return _entropy(probabilities.double())


def mutual_information(members: Iterable[Tensor]) -> Tensor:
    """Return the entropy of the mean prediction minus the mean entropy of the members, [N], in nats.

        I = H((1 / K) * sum over k of p_k) - (1 / K) * sum over k of H(p_k)

    It is the part of the uncertainty on which the members differ: 0 where all predict the same, however
    unsure, and at most log K.

    Args:
        members: Each member's probabilities [N, C]: a tensor [K, N, C], or anything that gives them one
            at a time, as `Ensemble.predict_each` does.

    References:
        Houlsby et al., "Bayesian Active Learning for Classification and Preference Learning", 2011.

    Example:
        The members contradict each other on the first example, and are equally unsure of the second:

        >>> import torch
        >>> from pfge.metrics import mutual_information
        >>> members = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]])
        >>> mutual_information(members)
        tensor([0.6931, 0.0000], dtype=torch.float64)
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

    References:
        Fort, Hu, Lakshminarayanan, "Deep Ensembles: A Loss Landscape Perspective", 2019.

    Example:
        Three members; the last one names another class in one of two examples, so that two pairs of three
        differ on half of the examples:

        >>> import torch
        >>> from pfge.metrics import disagreement
        >>> one, other = torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([[0.7, 0.3], [0.4, 0.6]])
        >>> round(disagreement([one, one, other]), 4)
        0.3333
    """
    predicted = [member.argmax(dim=1) for member in _checked(members)]
    if len(predicted) < 2:
        raise ValueError(f"disagreement needs at least two members, got {len(predicted)}")
    shares = [(one != other).double().mean().item() for one, other in combinations(predicted, 2)]
    return sum(shares) / len(shares)


def kl_divergence(expected: Tensor, probabilities: Tensor) -> float:
    """Return the mean over examples of KL(expected || probabilities), in nats.

        KL(p || q) = sum over classes c of p[c] * log(p[c] / q[c])

    Args:
        expected: p, [N, C], as of an original.
        probabilities: q, [N, C], as of an approximation to it.

    References:
        Kullback, Leibler, "On Information and Sufficiency", The Annals of Mathematical Statistics, 1951.

    Example:
        >>> import torch
        >>> from pfge.metrics import kl_divergence
        >>> certain, even = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])
        >>> round(kl_divergence(certain, even), 4)  # log(2)
        0.6931
    """
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

"""How uncertain predictions are, and how much predictors differ, without targets."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from pfge.errors import InvalidValueError
from pfge.metrics.scores import SMALLEST, require_probabilities, smallest_of, widen


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
    terms: Tensor = torch.special.entr(widen(probabilities))  # 0 for a probability of 0
    return terms.sum(dim=1)


class ClassDiversity:
    """Measures how much members disagree, from one member's probabilities [N, C] at a time.

    Args:
        to_rows: Converts predictions of another shape to rows [N, C], or selects the rows that count.
    """

    def __init__(self, to_rows: Callable[[Tensor], Tensor] | None = None) -> None:
        self._to_rows = to_rows or (lambda predictions: predictions)
        self.members = 0
        self._weight = 0.0
        self._entropy = self._votes = torch.zeros(())

    def add(self, predictions: Tensor, weight: float = 1.0) -> None:
        """Add one more member's probabilities.

        Args:
            predictions: Probabilities for the same examples as the other members'.
            weight: The member's weight in the mean of entropies, as in the pooled probabilities;
                disagreement counts every pair of members alike.
        """
        examples, predictions = len(predictions), self._to_rows(predictions)
        if examples and not len(predictions):  # every position is ignored: nothing to differ in
            return
        entropy = predictive_entropy(predictions)
        if not self.members:
            self._entropy = torch.zeros_like(entropy)
            self._votes = torch.zeros_like(predictions, dtype=torch.int32)
        elif predictions.shape != self._votes.shape:
            raise InvalidValueError(
                f"members must predict the same examples and classes, got {list(self._votes.shape)} and "
                f"{list(predictions.shape)}"
            )
        self.members += 1
        self._weight += weight
        self._entropy += weight * entropy
        named = predictions.argmax(dim=1, keepdim=True)
        self._votes.scatter_add_(1, named, torch.ones_like(named, dtype=torch.int32))

    def mutual_information(self, pooled: Tensor) -> Tensor:
        """Return the entropy of the members' mean minus the mean of their entropies, [N], in nats.

        Args:
            pooled: The mean of the probabilities that were added, by the same weights, in float64, as it is
                a small difference.
        """
        self._require(1)
        # Entropy is concave, so only rounding takes the difference below 0.
        return (predictive_entropy(self._to_rows(pooled)) - self._entropy / self._weight).clamp(min=0)

    def disagreement(self) -> float:
        """Return the share of examples whose most probable classes differ, over all pairs of members."""
        self._require(2)
        # Of K^2 ordered pairs, those of one class agree; K of them are a member with itself.
        agreeing = self._votes.double().square().sum(dim=1)
        pairs = self.members * (self.members - 1)
        return ((self.members**2 - agreeing) / pairs).mean().item()

    def metrics(self, pooled: Tensor) -> dict[str, float]:
        """Return the mean mutual information and the disagreement; nothing for a single member."""
        if self.members < 2:
            return {}
        return {
            "mutual_information": self.mutual_information(pooled).mean().item(),
            "disagreement": self.disagreement(),
        }

    def _require(self, members: int) -> None:
        if not self.members:
            raise InvalidValueError("an ensemble needs at least one member, got none")
        if self.members < members:
            raise InvalidValueError(f"disagreement needs at least two members, got {self.members}")


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
    diversity, total = ClassDiversity(), torch.zeros(())
    for member in members:
        diversity.add(member)
        total = total + widen(member)
    return diversity.mutual_information(total / max(diversity.members, 1))


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
    diversity = ClassDiversity()
    for member in members:
        diversity.add(member)
    return diversity.disagreement()


def kl_divergence(expected: Tensor, probabilities: Tensor) -> float:
    """Return the mean over examples of KL(expected || probabilities), in nats.

        KL(p || q) = sum over classes c of p[c] * log(p[c] / q[c])

    Args:
        expected: The expected probabilities p, [N, C], for example of an original.
        probabilities: The probabilities q, [N, C], for example of an approximation to the original.

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
        raise InvalidValueError(
            f"the divergence takes two sets of probabilities [N, C], got {list(expected.shape)} and "
            f"{list(probabilities.shape)}"
        )
    return kl_loss(expected, probabilities).item()


def kl_loss(expected: Tensor, probabilities: Tensor) -> Tensor:
    """Return `kl_divergence` as a scalar tensor that can be differentiated."""
    # softmax rounds tiny probabilities to 0; one such class must not make the mean infinite.
    p, q = widen(expected), widen(probabilities).clamp(min=smallest_of(probabilities.dtype))
    return (p * (p.clamp(min=SMALLEST).log() - q.log())).sum(dim=1).mean()

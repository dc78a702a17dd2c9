"""How well an ensemble's uncertainty tells inputs of unknown kinds from those it was trained for."""

from importlib.util import find_spec

import torch
from torch import Tensor

from pfge.lab.models.torchvision_models import import_torchvision


class PooledUncertainty:
    """The pooled probabilities of members and how uncertain they are, from one member at a time.

    The members' own probabilities are not kept, so memory does not grow with their number.
    """

    def __init__(self) -> None:
        self._members = 0
        # float64, because mutual information is a small difference of two entropies.
        self._total = torch.zeros((), dtype=torch.float64)
        self._entropies = torch.zeros((), dtype=torch.float64)

    def update(self, member_probabilities: Tensor) -> None:
        """Add a member's probabilities for all inputs, [N, C]."""
        _require_probabilities(member_probabilities)
        if self._members and member_probabilities.shape != self._total.shape:
            raise ValueError(
                f"every member must predict the same inputs and classes, got {list(self._total.shape)} and "
                f"then {list(member_probabilities.shape)}"
            )
        probabilities = member_probabilities.double().cpu()
        self._members += 1
        self._total = self._total + probabilities
        self._entropies = self._entropies + _entropy(probabilities)

    @property
    def pooled(self) -> Tensor:
        """The mean of the members' probabilities, float64 [N, C]."""
        if not self._members:
            raise ValueError("uncertainty needs at least one member, got none; call update() first")
        return self._total / self._members

    def scores(self) -> dict[str, Tensor]:
        """Return three scores [N] that are high where an input looks unknown; entropies are in nats.

        `max_probability` is one minus the largest pooled probability, `entropy` that of the pooled
        probabilities, and `mutual_information` how much of it comes from members that disagree:
        the entropy of the mean minus the mean of the entropies, 0 for a single member.
        """
        pooled = self.pooled
        entropy = _entropy(pooled)
        return {
            "max_probability": 1 - pooled.amax(dim=1),
            "entropy": entropy,
            # Never below 0 but for rounding.
            "mutual_information": (entropy - self._entropies / self._members).clamp(min=0),
        }


def ood_metrics(known: Tensor, unknown: Tensor) -> dict[str, float]:
    """Return how well scores tell unknown inputs, which should have the higher ones, from known ones.

    `auroc` is the probability that an unknown input has a higher score than a known one, ties
    counting half. `aupr` is the average precision with the unknown inputs as the positive class, so
    without any skill it is their share. `fpr_at_95` is the share of known inputs whose score
    is at or above the highest threshold that at least 95 % of the unknown ones reach.

    Args:
        known: The scores of inputs of the kinds that the ensemble was trained for, [N].
        unknown: The scores of other inputs, [M].
    """
    for name, scores in (("known", known), ("unknown", unknown)):
        _require_scores(name, scores)
    _make_torchmetrics_importable()
    from torchmetrics.functional.classification import binary_auroc, binary_average_precision

    known, unknown = known.double().cpu(), unknown.double().cpu()
    # Ranks in 0..1 tell as much as the scores, and torchmetrics would squash scores outside 0..1
    # by a sigmoid, which makes large ones equal.
    scores = torch.cat((known, unknown))
    rank = torch.searchsorted(scores.sort().values, scores).double() / len(scores)
    is_unknown = (torch.arange(len(rank)) >= len(known)).long()
    # Rounded up, in whole numbers: 0.95 is no exact float.
    caught = -(-19 * len(unknown) // 20)
    threshold = unknown.sort(descending=True).values[caught - 1]
    return {
        "auroc": binary_auroc(rank, is_unknown).item(),
        "aupr": binary_average_precision(rank, is_unknown).item(),
        "fpr_at_95": (known >= threshold).double().mean().item(),
    }


def _entropy(probabilities: Tensor) -> Tensor:
    return -torch.xlogy(probabilities, probabilities).sum(dim=1)


def _make_torchmetrics_importable() -> None:
    # It imports torchvision where that is installed, and fails with it beside a torch of another build.
    if find_spec("torchvision") is not None:
        import_torchvision()


def _require_probabilities(probabilities: Tensor) -> None:
    if probabilities.ndim != 2 or not len(probabilities) or probabilities.shape[1] < 2:
        raise ValueError(
            f"probabilities must be [N, C] of at least one input and two classes, "
            f"got {list(probabilities.shape)}"
        )
    off = (probabilities.double().sum(dim=1) - 1).abs()
    # NaN compares false, so the test asks for what must hold.
    if not bool((off < 1e-3).all()) or bool((probabilities < 0).any()):
        raise ValueError(
            "each row of probabilities must sum to 1 without negative or NaN entries, got rows that "
            f"are off by up to {off.max().item():.6g}; apply softmax to logits first"
        )


def _require_scores(name: str, scores: Tensor) -> None:
    if scores.ndim != 1 or not len(scores):
        raise ValueError(
            f"{name} scores must be a tensor [N] of at least one, got shape {list(scores.shape)}"
        )
    if bool(scores.isnan().any()):
        raise ValueError(
            f"{name} scores must be numbers, got {int(scores.isnan().sum())} NaN of {len(scores)}; "
            "check the model's outputs"
        )

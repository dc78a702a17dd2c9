"""Measure how well an ensemble's uncertainty separates unknown inputs from known ones."""

import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from pfge.lab.evaluation.pooled_members import PooledMembers
from pfge.metrics.uncertainty import MemberSpread, predictive_entropy


def ood_scores(pooled: PooledMembers) -> dict[str, Tensor]:
    """Return three scores [N] that are high where an input looks unknown; entropies are in nats.

    `max_probability` is one minus the largest pooled probability, `entropy` that of the pooled
    probabilities, and `mutual_information` how much of it comes from members that disagree,
    0 for a single member.
    """
    if not isinstance(pooled.spread, MemberSpread):
        raise ValueError(
            "unknown inputs are detected by class probabilities, which this task does not predict"
        )
    probabilities = pooled.predictions
    return {
        "max_probability": 1 - probabilities.amax(dim=1),
        "entropy": predictive_entropy(probabilities),
        "mutual_information": pooled.spread.mutual_information(pooled.plain),
    }


def ood_metrics(known: Tensor, unknown: Tensor) -> dict[str, float]:
    """Return how well scores separate unknown inputs, which should have higher ones, from known ones.

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
    known, unknown = known.double().cpu(), unknown.double().cpu()
    both = torch.cat((known, unknown)).numpy()
    is_unknown = [False] * len(known) + [True] * len(unknown)
    # Rounded up in integer arithmetic, because 0.95 is not exact as a float.
    caught = -(-19 * len(unknown) // 20)
    threshold = unknown.sort(descending=True).values[caught - 1]
    return {
        "auroc": float(roc_auc_score(is_unknown, both)),
        "aupr": float(average_precision_score(is_unknown, both)),
        "fpr_at_95": (known >= threshold).double().mean().item(),
    }


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

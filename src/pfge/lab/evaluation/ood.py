"""How well an ensemble's uncertainty tells inputs of unknown kinds from those it was trained for."""

from importlib.util import find_spec

import torch
from torch import Tensor

from pfge.lab.evaluation.pool import Pool
from pfge.lab.models.torchvision_models import import_torchvision
from pfge.metrics.uncertainty import predictive_entropy


def ood_scores(pool: Pool) -> dict[str, Tensor]:
    """Return three scores [N] that are high where an input looks unknown; entropies are in nats.

    `max_probability` is one minus the largest pooled probability, `entropy` that of the pooled
    probabilities, and `mutual_information` how much of it comes from members that disagree,
    0 for a single member.
    """
    return {
        "max_probability": 1 - pool.mean.amax(dim=1),
        "entropy": predictive_entropy(pool.mean),
        "mutual_information": pool.mutual_information,
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


def _make_torchmetrics_importable() -> None:
    # It imports torchvision where that is installed, and fails with it beside a torch of another build.
    if find_spec("torchvision") is not None:
        import_torchvision()


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

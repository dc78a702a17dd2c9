"""Choose a cascade on validation data: the fewest members for a stated loss."""

from collections.abc import Iterable
from itertools import accumulate, product
from typing import Any

import torch
from torch import Tensor

from pfge.calibration import scale_probabilities
from pfge.cascade import NEVER, RULES, Cascade
from pfge.ensemble import Ensemble
from pfge.metrics import negative_log_likelihood

_THRESHOLDS = 100  # tried for each order and rule


def fit_cascade(
    ensemble: Ensemble,
    batches: Iterable[Any],
    targets: Tensor,
    *,
    max_accuracy_loss: float | None = None,
    max_nll_increase: float | None = None,
) -> Cascade:
    """Return the cascade that asks fewest members on validation data and loses no more than is stated.

    Three orders are tried, as they are, the last first, and the best first, each with both rules. One that
    asks all members loses nothing, so there always is one.

    Args:
        ensemble: Whose members answer.
        batches: Validation data, read once for each member.
        targets: Their classes, in order.
        max_accuracy_loss: The share of examples that all members together get right and the cascade does
            not; 0.001 is 0.1 points. Those that only the cascade gets right make up for none of them:
            on other data that luck would be gone.
        max_nll_increase: Above the negative log-likelihood of all members.
    """
    if max_accuracy_loss is None and max_nll_increase is None:
        raise ValueError("a cascade is fitted to a loss; pass max_accuracy_loss, max_nll_increase or both")
    answers = torch.stack([member.cpu() for member in ensemble.predict_each(batches)])
    temperature = ensemble.temperatures.pooled
    whole = scale_probabilities(answers.mean(dim=0), temperature)
    right = whole.argmax(dim=1) == targets
    most_lost = 1.0 if max_accuracy_loss is None else max_accuracy_loss
    most_nll = torch.inf
    if max_nll_increase is not None:
        most_nll = negative_log_likelihood(whole, targets) + max_nll_increase
    best, fewest = Cascade(range(len(ensemble)), NEVER), (float(len(ensemble)), torch.inf)
    for order, rule in product(_orders(answers, targets), RULES):
        stages = _Stages(answers[order], temperature)
        for threshold in stages.thresholds():
            probabilities, asked = stages.stop(threshold, rule)
            cost = asked.double().mean().item(), negative_log_likelihood(probabilities, targets)
            lost = (right & (probabilities.argmax(dim=1) != targets)).double().mean().item()
            if cost < fewest and cost[1] <= most_nll and lost <= most_lost:
                best, fewest = Cascade(tuple(order), threshold, rule), cost
    return best


def _orders(answers: Tensor, targets: Tensor) -> list[list[int]]:
    forwards = list(range(len(answers)))
    best_first = sorted(forwards, key=lambda member: negative_log_likelihood(answers[member], targets))
    return [forwards, forwards[::-1], best_first]


class _Stages:
    """The mean of the first 1, 2, ... members, and how sure each is."""

    def __init__(self, answers: Tensor, temperature: float):
        # Added as a cascade adds them, so that rounding lets the same examples stop.
        means = [total / asked for asked, total in enumerate(accumulate(answers), 1)]
        self._means = scale_probabilities(torch.stack(means), temperature)
        self._confidence = self._means.max(dim=2).values
        votes = answers.argmax(dim=2)
        self._agreed = (votes == votes[0]).cummin(dim=0).values

    def thresholds(self) -> list[float]:
        """Return confidences that occur, evenly spread."""
        found = self._confidence.flatten().sort().values
        chosen = found[torch.linspace(0, len(found) - 1, _THRESHOLDS).long()]
        return sorted({float(confidence) for confidence in chosen})

    def stop(self, threshold: float, rule: str) -> tuple[Tensor, Tensor]:
        """Return the probabilities [N, C] and the members asked [N] by a threshold and a rule."""
        sure = self._confidence >= threshold
        if rule == "agreement":
            sure &= self._agreed
        sure[-1] = True
        last = sure.to(torch.uint8).argmax(dim=0)  # the first stage that is sure
        return self._means[last, torch.arange(len(last))], last + 1

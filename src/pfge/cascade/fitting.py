"""Choose a cascade on validation data: the fewest members for a stated loss."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor

from pfge.calibration import UNSCALED, Temperatures
from pfge.cascade.cascade import NEVER, RULES, Cascade
from pfge.cascade.fitted_to import temperatures_digest
from pfge.ensemble import Ensemble
from pfge.errors import InvalidValueError
from pfge.forward import TargetsAt
from pfge.metrics.scores import negative_log_likelihood, score_examples
from pfge.prediction import MemberPool
from pfge.rounding import ROUNDING, is_lower, lowest_first
from pfge.tasks import Classification
from pfge.tasks.classification import require_classification, require_one_class

_THRESHOLDS = 100  # tried for each order and rule
_ENDS = 30  # tried for the first and the last of thresholds that fall


def fit_cascade(
    ensemble: Ensemble,
    batches: Iterable[Any],
    *,
    targets: TargetsAt = None,
    max_accuracy_loss: float | None = None,
    max_nll_increase: float | None = None,
) -> Cascade:
    """Return the cascade that evaluates the fewest members on validation data and loses no more than stated.

    Three orders are tried, as they are, the last first, and the best first, each with both rules and one
    threshold for all members. Then the threshold may fall, evenly from the first member to the last: two
    numbers, because one of its own for each member would fit the luck of the validation data. A cascade that
    evaluates all members loses nothing, so there always is one.

    Args:
        ensemble: Whose members answer.
        batches: Validation data, inputs and classes, read once for each member.
        targets: Where batches other than pairs and dicts with `labels` have the classes, as of
            `Ensemble.evaluate`.
        max_accuracy_loss: The share of examples that all members together get right and the cascade does
            not; 0.001 is 0.1 points. Those that only the cascade gets right make up for none of them:
            on other data that luck would be gone.
        max_nll_increase: Above the negative log-likelihood of all members, up to rounding (1e-6 nats).

    References:
        Wang et al., "Wisdom of Committees: An Overlooked Approach To Faster and More Accurate Models",
        ICLR 2022.

    Example:
        Three examples, whose numbers are the inputs. The first member is right about all and least sure of
        the last, so it is enough on its own.

        >>> import torch, pfge
        >>> first = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        >>> second = torch.tensor([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
        >>> members = [{"weight": first.log()}, {"weight": second.log()}]
        >>> ensemble = pfge.Ensemble(members, lambda: torch.nn.Embedding(3, 2))
        >>> examples, targets = torch.arange(3), torch.tensor([0, 1, 0])
        >>> cascade = pfge.fit_cascade(ensemble, [(examples, targets)], max_accuracy_loss=0.0)
        >>> cascade.predict(ensemble, examples).evaluated
        tensor([1, 1, 1])
    """
    require_classification(ensemble.task, "a cascade")
    require_a_loss(max_accuracy_loss, max_nll_increase)  # before any prediction
    classes: dict[int, Tensor] = {}

    def keep(predictions: Tensor, batch: Any, start: int) -> Tensor:
        require_one_class(predictions, "a cascade")
        classes[start] = ensemble.task.targets_of(batch, targets).cpu()
        return predictions.cpu()

    answers = torch.stack(list(ensemble.predict_each(batches, targets=targets, keep=keep)))
    cascade = fit_to_answers(
        answers,
        torch.cat(list(classes.values())),
        ensemble.temperatures,
        max_accuracy_loss=max_accuracy_loss,
        max_nll_increase=max_nll_increase,
    )
    return bind_to(cascade, ensemble)


def bind_to(cascade: Cascade, ensemble: Ensemble) -> Cascade:
    """Return a cascade with the digests of the ensemble that it was fitted to, so that others are refused."""
    temperatures = temperatures_digest(ensemble.temperatures, len(ensemble))
    return replace(cascade, members=ensemble.digest, temperatures=temperatures)


def fit_to_answers(
    answers: Tensor,
    targets: Tensor,
    temperatures: Temperatures = UNSCALED,
    *,
    max_accuracy_loss: float | None = None,
    max_nll_increase: float | None = None,
) -> Cascade:
    """Return what `fit_cascade` does, from probabilities [K, N, C] that the members gave already."""
    require_a_loss(max_accuracy_loss, max_nll_increase)
    members = len(answers)
    orders = [_Stages(order, answers, targets, temperatures) for order in _orders(answers, targets)]
    whole_nll, right = orders[0].log_loss[-1].mean().item(), orders[0].correct[-1]
    most_lost = torch.inf if max_accuracy_loss is None else max_accuracy_loss
    most_nll = torch.inf if max_nll_increase is None else whole_nll + max_nll_increase

    best, fewest, lowest = (orders[0], RULES[0], [NEVER] * (members - 1)), float(members), torch.inf

    def try_out(stages: _Stages, rule: str, thresholds: list[float]) -> None:
        nonlocal best, fewest, lowest
        stop = stages.stop(rule, thresholds)
        nll = stages.log_loss.gather(0, stop).mean().item()
        lost = (right - stages.correct.gather(0, stop)).clamp(min=0).mean().item()
        if is_lower(most_nll, nll) or is_lower(most_lost, lost):
            return  # it loses more than stated, also up to rounding
        evaluated = (stop + 1).double().mean().item()
        if evaluated < fewest or (evaluated == fewest and is_lower(nll, lowest)):
            best, fewest, lowest = (stages, rule, thresholds), evaluated, nll

    for stages, rule in product(orders, RULES):
        for threshold in stages.confidences(_THRESHOLDS):
            try_out(stages, rule, [threshold] * (members - 1))
    stages, rule, _ = best
    for last, first in combinations(stages.confidences(_ENDS), 2):
        try_out(stages, rule, torch.linspace(first, last, members - 1).tolist())
    stages, rule, thresholds = best
    even = len(set(thresholds)) == 1
    return Cascade(tuple(stages.order), thresholds[0] if even else tuple(thresholds), rule)


def require_a_loss(max_accuracy_loss: float | None, max_nll_increase: float | None) -> None:
    """Raise a ValueError unless there is a loss that a cascade can be fitted to."""
    if max_accuracy_loss is None and max_nll_increase is None:
        raise InvalidValueError(
            "a cascade is fitted to a loss; pass max_accuracy_loss, max_nll_increase or both"
        )
    for name, most in (("max_accuracy_loss", max_accuracy_loss), ("max_nll_increase", max_nll_increase)):
        if most is not None and not most >= 0:
            raise InvalidValueError(f"{name} must be at least 0, got {most}")


def _orders(answers: Tensor, targets: Tensor) -> list[list[int]]:
    forwards = list(range(len(answers)))
    best_first = lowest_first(forwards, key=lambda member: negative_log_likelihood(answers[member], targets))
    return [forwards, forwards[::-1], best_first]


def even_places(length: int, count: int) -> Tensor:
    """Return so many indices of a tensor, from the first to the last, evenly spread."""
    # Float32 would round the last one beyond the end of more than 2^24 numbers.
    return torch.linspace(0, length - 1, count, dtype=torch.float64).long()


class _Stages:
    """How sure and how good the mean of the first 1, 2, ... members of an order is, [K, N] each."""

    def __init__(self, order: Sequence[int], answers: Tensor, targets: Tensor, temperatures: Temperatures):
        self.order = order
        # Pooled as a cascade pools them, so that rounding lets the same examples stop.
        pool = MemberPool(Classification(), temperatures)
        scores = [score_examples(pool.add(answers[member], member).predictions, targets) for member in order]
        self.log_loss = torch.stack([score.log_loss for score in scores])
        self.correct = torch.stack([score.correct for score in scores])
        self._confidence = torch.stack([score.confidence for score in scores])
        votes = torch.stack([answers[member].argmax(dim=1) for member in order])
        self._agreed = (votes == votes[0]).cummin(dim=0).values

    def confidences(self, count: int) -> list[float]:
        """Return so many confidences that occur, evenly spread, the lowest first.

        They are lower by what rounding may change, so that an example stops on any machine if its confidence
        is a threshold.
        """
        found = self._confidence.flatten().sort().values
        return sorted(set((found[even_places(len(found), count)] - ROUNDING).tolist()))

    def stop(self, rule: str, thresholds: list[float]) -> Tensor:
        """Return the number of the stage, from 0, at which each example stops, [1, N]."""
        sure = self._confidence >= torch.tensor([*thresholds, 0.0], dtype=torch.float64)[:, None]
        if rule == "agreement":
            sure[:-1] &= self._agreed[:-1]
        return sure.to(torch.uint8).argmax(dim=0, keepdim=True)  # the first that is sure

"""Members that answer one after another until an example is sure, and fitting when it is."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from pfge.calibration import UNSCALED, Temperatures
from pfge.ensemble import Ensemble
from pfge.errors import InvalidValueError
from pfge.forward import TargetsAt
from pfge.metrics.scores import negative_log_likelihood, score_examples
from pfge.prediction import MemberPool
from pfge.rounding import ROUNDING, is_lower, lowest_first
from pfge.storage.files import StorageError, json_text, read_json_object, write_json
from pfge.tasks import Classification
from pfge.tasks.classification import require_classification, require_one_class

__all__ = ["Cascade", "fit_cascade"]

FORMAT = "pfge-cascade"
VERSION = 2
READABLE = (1, VERSION)  # the first had one threshold for all
RULES = ("confidence", "agreement")
NEVER = 2.0  # a threshold that no confidence reaches


@dataclass(frozen=True)
class CascadePrediction:
    """Probabilities [N, C], and how many members were evaluated for each example, [N]."""

    probabilities: Tensor
    evaluated: Tensor


@dataclass(frozen=True)
class Cascade:
    """An order of members, and the confidence from which an example needs no more of them.

    The first member answers every example. With the probabilities q_1, ..., q_k of the members so far and
    their mean p_k, an example stops after k members where max(p_k) >= threshold, and p_k is its prediction.
    Probabilities are those at the ensemble's temperatures, so a cascade that evaluates all members is the
    ensemble.

    Args:
        order: The numbers of the members, in the order in which they answer.
        threshold: The confidence from which an example stops; the confidence is the largest of the mean
            probabilities. A sequence has one threshold after each member but the last.
        rule: "confidence" for the threshold alone; "agreement" if all members so far must also name the same
            class.
        members: `Ensemble.digest` of the ensemble that the cascade was fitted to; other ensembles are
            refused. None accepts any ensemble of as many members.
        temperatures: Digest of the temperatures that the cascade was fitted at; an ensemble that was
            calibrated again is refused. None accepts any.

    References:
        Wang et al., "Wisdom of Committees: An Overlooked Approach To Faster and More Accurate Models",
        ICLR 2022.

    Example:
        Two members and two examples. The first member is sure of the first example only; the second is
        answered by the mean of both.

        >>> import torch
        >>> from pfge import Cascade
        >>> answers = torch.tensor([[[0.95, 0.05], [0.60, 0.40]], [[0.50, 0.50], [0.20, 0.80]]])
        >>> found = Cascade(order=(0, 1), threshold=0.9).replay(answers)
        >>> found.evaluated
        tensor([1, 2])
        >>> found.probabilities
        tensor([[0.9500, 0.0500],
                [0.4000, 0.6000]])
    """

    order: Sequence[int]
    threshold: float | Sequence[float]
    rule: str = "confidence"
    members: str | None = None
    temperatures: str | None = None

    def __post_init__(self) -> None:
        if not self.order or sorted(self.order) != list(range(len(self.order))):
            raise InvalidValueError(f"order must have each number from 0 on once, got {list(self.order)}")
        if len(self.thresholds) != len(self.order) - 1:
            raise InvalidValueError(
                f"threshold must be one number, or {len(self.order) - 1} for {len(self.order)} members, got "
                f"{len(self.thresholds)}"
            )
        given = self.threshold if isinstance(self.threshold, Sequence) else [self.threshold]
        if not all(threshold > 0 for threshold in given):
            raise InvalidValueError(f"threshold must be above 0, got {self.threshold}")
        if self.rule not in RULES:
            raise InvalidValueError(f"rule must be one of {', '.join(RULES)}, got {self.rule!r}")

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The confidence from which an example is sure after each member but the last."""
        if isinstance(self.threshold, Sequence):
            return tuple(self.threshold)
        return (self.threshold,) * (len(self.order) - 1)

    def predict(self, ensemble: Ensemble, x: Any) -> CascadePrediction:
        """Return the prediction for one batch."""
        return self.predict_batches(ensemble, [x])

    def predict_batches(
        self, ensemble: Ensemble, batches: Iterable[Any], *, targets: TargetsAt = None
    ) -> CascadePrediction:
        """Return the prediction for a data set, which is read once; unsure examples are kept in memory.

        Args:
            ensemble: An ensemble of as many members as `order` has.
            batches: Tensors, or tuples, lists or dicts of tensors, with examples along the first dimension.
            targets: Where batches have their targets, as for `Ensemble.evaluate`.
        """
        require_classification(ensemble.task, "a cascade")
        if len(ensemble) != len(self.order):
            raise InvalidValueError(
                f"this cascade was fitted to {len(self.order)} members, got an ensemble of {len(ensemble)}; "
                "fit a cascade to this ensemble"
            )
        require_fitted_to(ensemble, self.members, self.temperatures)
        stopped: list[tuple[Tensor, Tensor, Tensor]] = []
        predict = ensemble._predictor(self.order[0], targets=targets)
        waiting: list[_Waiting] = []
        examples = 0
        for batch in batches:
            found = predict(batch)
            require_one_class(found, "a cascade")
            rows = torch.arange(examples, examples + len(found), device=found.device)
            examples += len(found)
            pool = MemberPool(ensemble.task, ensemble.temperatures).add(found, self.order[0])
            group = _Waiting(rows, batch, pool, found.argmax(dim=1))
            waiting += self._settle(group, 1, stopped)
        if not examples:
            raise InvalidValueError("predicting needs at least one batch, got none")
        for asked, member in enumerate(self.order[1:], 2):
            if not waiting:
                break
            predict = ensemble._predictor(member, targets=targets)
            for group in waiting:
                group.add(predict(group.batch), member)
            waiting = [g for group in waiting for g in self._settle(group, asked, stopped)]
        rows, probabilities, asked_of = (torch.cat(parts) for parts in zip(*stopped, strict=True))
        order = rows.argsort()
        return CascadePrediction(probabilities[order], asked_of[order])

    def replay(self, answers: Tensor, temperatures: Temperatures = UNSCALED) -> CascadePrediction:
        """Return the prediction, given the answers of every member to every example.

        Args:
            answers: The members' probabilities, [K, N, C], at temperatures of their own if they have any.
            temperatures: The temperature of the mean and the weights of the members.
        """
        pool, votes = MemberPool(Classification(), temperatures), answers.argmax(dim=2)
        probabilities, asked = torch.zeros_like(answers[0]), torch.zeros_like(votes[0])
        agreed = torch.ones_like(asked, dtype=torch.bool)
        for count, member in enumerate(self.order, 1):
            mean = pool.add(answers[member], member).predictions
            agreed &= votes[member] == votes[self.order[0]]
            stops = self._are_sure(mean, agreed, count) & (asked == 0)
            probabilities[stops], asked[stops] = mean[stops].to(probabilities.dtype), count
        return CascadePrediction(probabilities, asked)

    def save(self, path: str | Path) -> None:
        """Write the cascade as JSON, for example as cascade.json in the ensemble's folder."""
        write_json(Path(path), self._to_json())

    def file_bytes(self) -> int:
        """Return the size of the file that `save` writes, without writing it."""
        return len(json_text(self._to_json()).encode())

    def _to_json(self) -> dict[str, Any]:
        said = {name: value for name, value in asdict(self).items() if value is not None}
        return {"format": FORMAT, "version": VERSION, **said, "order": list(self.order)}

    @classmethod
    def load(cls, path: str | Path) -> "Cascade":
        """Read a saved cascade."""
        match read_json_object(Path(path)):
            case {
                "format": str(name),
                "version": int(version),
                "order": [*order],
                "threshold": float() | int() | [*_] as threshold,
                "rule": str(rule),
            } as found if name == FORMAT and version in READABLE and _are_numbers(order, threshold):
                thresholds = tuple(threshold) if isinstance(threshold, list) else threshold
                members, temperatures = found.get("members"), found.get("temperatures")
                if isinstance(members, str | None) and isinstance(temperatures, str | None):
                    return cls(tuple(order), thresholds, rule, members, temperatures)
        raise StorageError(f"{path} must be a cascade of format {FORMAT!r}, version {VERSION} or older")

    def _are_sure(self, mean: Tensor, agreed: Tensor, asked: int) -> Tensor:
        """Return which examples stop after so many members, [N]; after the last all do, numbers or not."""
        if asked == len(self.order):
            return torch.ones_like(agreed)
        sure = mean.max(dim=1).values >= self.thresholds[asked - 1]
        return sure & agreed if self.rule == "agreement" else sure

    def _settle(
        self, group: "_Waiting", asked: int, stopped: list[tuple[Tensor, Tensor, Tensor]]
    ) -> list["_Waiting"]:
        """Note the examples that stop after so many members, and return the others, if there are any."""
        mean = group.pool.predictions
        sure = self._are_sure(mean, group.vote >= 0, asked)
        stopped.append((group.rows[sure], mean[sure].float(), torch.full_like(group.rows[sure], asked)))
        return [] if bool(sure.all()) else [group.only(~sure)]


@dataclass
class _Waiting:
    """Examples of one batch that are not sure yet.

    Args:
        rows: Their places in the data set.
        batch: Their inputs.
        pool: The answers so far.
        vote: The class that all members so far name; -1 where they do not agree.
    """

    rows: Tensor
    batch: Any
    pool: MemberPool
    vote: Tensor

    def add(self, answer: Tensor, member: int) -> None:
        self.pool.add(answer, member)
        self.vote = torch.where(answer.argmax(dim=1) == self.vote, self.vote, -1)

    def only(self, chosen: Tensor) -> "_Waiting":
        return _Waiting(
            self.rows[chosen], _select(self.batch, chosen), self.pool.take(chosen), self.vote[chosen]
        )


def _are_numbers(order: list[Any], threshold: Any) -> bool:
    thresholds = threshold if isinstance(threshold, list) else [threshold]
    return all(isinstance(m, int) for m in order) and all(isinstance(t, float | int) for t in thresholds)


def _select(batch: Any, chosen: Tensor) -> Any:
    match batch:
        case Tensor():
            return batch[chosen.to(batch.device)]
        case PackedSequence():
            padded, lengths = pad_packed_sequence(batch, batch_first=True)
            of_chosen = lengths[chosen.to(lengths.device)]
            # Sequences that had to be sorted by their lengths still are.
            is_sorted = batch.sorted_indices is None
            return pack_padded_sequence(
                padded[chosen.to(padded.device)], of_chosen, batch_first=True, enforce_sorted=is_sorted
            )
        case Mapping():  # a batch of transformers is not a dict
            return {name: _select(value, chosen) for name, value in batch.items()}
        case tuple() if hasattr(batch, "_fields"):
            return type(batch)(*(_select(value, chosen) for value in batch))
        case tuple() | list():
            return type(batch)(_select(value, chosen) for value in batch)
    return batch


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
    """Return the cascade that evaluates the fewest members on validation data within the given losses.

    Three orders are tried: the ensemble's, its reverse, and the best members first, each with both rules and
    one threshold for all members. Then the threshold may fall evenly from the first member to the last. That
    takes two numbers; one for each member would overfit the validation data. A cascade that evaluates all
    members loses nothing, so a result always exists.

    Args:
        ensemble: The ensemble whose members answer.
        batches: Validation data, inputs and classes, read once for each member.
        targets: Where batches other than pairs and dicts with `labels` have the classes, as for
            `Ensemble.evaluate`.
        max_accuracy_loss: The largest fraction of examples that all members together get right and the
            cascade does not; 0.001 is 0.1 points. Examples that only the cascade gets right do not make up
            for them, because that may be luck.
        max_nll_increase: The largest increase of the negative log-likelihood over that of all members, up to
            rounding (1e-6 nats).

    References:
        Wang et al., "Wisdom of Committees: An Overlooked Approach To Faster and More Accurate Models",
        ICLR 2022.

    Example:
        Three examples; the inputs are their numbers. The first member is right about all and least sure of
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
    """Return a cascade that refuses other ensembles than the one that it was fitted to."""
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
    """Do what `fit_cascade` does, given the members' probabilities [K, N, C]."""
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
    """Raise a ValueError unless at least one loss is given and none is negative."""
    if max_accuracy_loss is None and max_nll_increase is None:
        raise InvalidValueError(
            "a cascade needs a largest loss; pass max_accuracy_loss, max_nll_increase or both"
        )
    for name, most in (("max_accuracy_loss", max_accuracy_loss), ("max_nll_increase", max_nll_increase)):
        if most is not None and not most >= 0:
            raise InvalidValueError(f"{name} must be at least 0, got {most}")


def _orders(answers: Tensor, targets: Tensor) -> list[list[int]]:
    forwards = list(range(len(answers)))
    best_first = lowest_first(forwards, key=lambda member: negative_log_likelihood(answers[member], targets))
    return [forwards, forwards[::-1], best_first]


def even_places(length: int, count: int) -> Tensor:
    """Return evenly spaced indices of a tensor, from the first to the last."""
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
        """Return evenly spaced confidences that occur, the lowest first.

        They are lower by the size of rounding errors. An example whose confidence is a threshold therefore
        stops on any machine.
        """
        found = self._confidence.flatten().sort().values
        return sorted(set((found[even_places(len(found), count)] - ROUNDING).tolist()))

    def stop(self, rule: str, thresholds: list[float]) -> Tensor:
        """Return the number of the stage, from 0, at which each example stops, [1, N]."""
        sure = self._confidence >= torch.tensor([*thresholds, 0.0], dtype=torch.float64)[:, None]
        if rule == "agreement":
            sure[:-1] &= self._agreed[:-1]
        return sure.to(torch.uint8).argmax(dim=0, keepdim=True)  # the first that is sure


def temperatures_digest(temperatures: Temperatures, members: int) -> str:
    """Return SHA-256 of the temperatures and weights of a number of members."""
    calibrations = [temperatures.pooled, *map(temperatures.of_member, range(members))]
    # As floats, because 2 and 2.0 are one temperature.
    numbers = [one if isinstance(one, tuple) else float(one) for one in calibrations]
    weights = [float(temperatures.weight_of(number)) for number in range(members)]
    return hashlib.sha256(json.dumps([numbers, weights]).encode()).hexdigest()


def require_fitted_to(ensemble: Ensemble, members: str | None, temperatures: str | None) -> None:
    """Raise a ValueError unless an ensemble has the digests of a cascade; None is not compared."""
    if members is not None and members != ensemble.digest:
        raise InvalidValueError(
            f"this cascade was fitted to members with the digest {members[:16]}, got an ensemble "
            f"with {ensemble.digest[:16]}; fit a cascade to this ensemble"
        )
    if temperatures is None:
        return
    found = temperatures_digest(ensemble.temperatures, len(ensemble))
    if temperatures != found:
        raise InvalidValueError(
            f"this cascade was fitted at temperatures with the digest {temperatures[:16]}, got an ensemble "
            f"with {found[:16]}, {ensemble.temperatures}; fit a cascade to this ensemble"
        )

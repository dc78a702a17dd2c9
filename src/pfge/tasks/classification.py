"""Classes: one for each example or position, or the next token of a text."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log
from operator import methodcaller
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfge.calibration import Calibration, fit_temperature, log_probabilities, scale_probabilities
from pfge.errors import InvalidValueError
from pfge.forward import TargetsAt, has_entries, inputs_of
from pfge.metrics.position_scores import PositionScores, mark_valid, require_positions, score_positions
from pfge.metrics.scores import ExampleScores, Scores, score_examples
from pfge.metrics.uncertainty import ClassDiversity, kl_divergence, kl_loss
from pfge.tasks.base import MeanPool, Metric, Task, sum_type

SAMPLED = 256
"""Positions of an example that a temperature is fitted on."""
BY_CHANCE = 1e-6
"""Outputs are taken for probabilities where logits would look so with a probability of at most this."""


@dataclass(frozen=True)
class Classification(Task):
    """Logits with classes along one dimension, and the true class of each example or of each position.

    | outputs | targets | |
    |---|---|---|
    | [N, C] | [N] | one class for each example |
    | [N, C, H, W] | [N, H, W] | a mask: one class for each pixel |
    | [N, T, C] | [N, T] | with `dim=-1`: one class for each token, such as its part of speech |

    The loss is the cross-entropy, the mean over positions. A member's prediction is p_k = softmax(logits),
    the pooled one the mean of these, and the calibration a temperature T: p becomes softmax(log p / T).
    Scores of positions are sums for each example (`pfge.metrics.PositionScores`); their accuracy is the
    pixel accuracy. A temperature is fitted on at most 256 positions of each example.

    A language model that predicts the next token needs `CausalLM`. Targets that equal the `input_ids` of the
    same positions are refused. So are outputs that already are probabilities, except for batches whose rows
    are all exactly one-hot, as those of small examples are, or too few in a narrow type to tell: an ensemble
    looks at its first batch that is neither.

    Args:
        dim: The dimension of the classes, not the first, which is that of the examples.
        ignore_index: The target of positions that count neither in the loss nor in scores.

    Example:
        >>> import torch
        >>> from pfge.tasks import Classification
        >>> task = Classification()
        >>> predictions = task.predictions(torch.tensor([[0.0, 0.0], [0.0, 2.0]]))
        >>> predictions
        tensor([[0.5000, 0.5000],
                [0.1192, 0.8808]])
        >>> round(task.summarize(task.score(predictions, torch.tensor([0, 1])))["nll"], 4)
        0.41

        Two images of 4 x 4 pixels, and the upper half of their masks:

        >>> masks = Classification(ignore_index=255)
        >>> logits = torch.zeros(2, 3, 4, 4)
        >>> logits[:, 1] = 1.0
        >>> targets = torch.full((2, 4, 4), 255)
        >>> targets[:, :2] = 1
        >>> found = masks.summarize(masks.score(masks.predictions(logits), targets))
        >>> found["accuracy"], found["mean_iou"]
        (1.0, 1.0)
    """

    dim: int = 1
    ignore_index: int | None = None
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "accuracy",
            "accuracy",
            "higher",
            methodcaller("accuracy"),
            "%",
            2,
            "correct",
            is_main=True,
            uses_confidence=False,
            weight="positions",
        ),
        Metric(
            "nll",
            "NLL",
            "lower",
            methodcaller("negative_log_likelihood"),
            score="log_loss",
            is_main=True,
            weight="positions",
        ),
        Metric(
            "brier", "Brier score", "lower", methodcaller("brier_score"), score="brier", weight="positions"
        ),
        Metric("ece", "ECE", "lower", methodcaller("expected_calibration_error"), "%", 2, is_main=True),
        Metric(
            "ece_equal_mass",
            "ECE, equal mass",
            "lower",
            methodcaller("expected_calibration_error", equal_mass=True),
            "%",
            2,
            of=Scores,
        ),
        Metric("mce", "MCE", "lower", methodcaller("maximum_calibration_error"), "%", 2),
        Metric("aurc", "AURC", "lower", methodcaller("area_under_risk_coverage"), of=Scores),
        Metric(
            "entropy", "entropy", "lower", methodcaller("mean_entropy"), score="entropy", weight="positions"
        ),
        Metric(
            "mean_iou",
            "mean IoU",
            "higher",
            methodcaller("mean_iou"),
            "%",
            2,
            is_main=True,
            uses_confidence=False,
            of=PositionScores,
        ),
    )

    def __post_init__(self) -> None:
        if type(self.dim) is not int or self.dim == 0:
            raise InvalidValueError(
                f"dim must be the dimension of the classes, such as 1 or -1, and not 0, got {self.dim!r}"
            )
        ignored = self.ignore_index
        if ignored is not None and (type(ignored) is not int or abs(ignored) >= 2**63):
            raise InvalidValueError(
                f"ignore_index must be a whole number of 64 bits or None, got {ignored!r}"
            )

    def loss(self, outputs: Tensor, targets: Tensor, *, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
        """Return the cross-entropy, in the outputs' own type; 0 if every position is ignored."""
        if outputs.ndim == 2 and self.ignore_index is None:
            return cross_entropy(outputs, targets, reduction=reduction)
        by_class = outputs.movedim(self.dim, 1)
        if self.ignore_index is None:
            mean = cross_entropy(by_class, targets)
        else:
            total = cross_entropy(by_class, targets, ignore_index=self.ignore_index, reduction="sum")
            mean = total / (targets != self.ignore_index).sum().clamp(min=1)
        return mean if reduction == "mean" else mean * len(targets)

    def targets_of(self, batch: Any, at: TargetsAt = None) -> Tensor:
        """Return the targets of a batch; labels that equal the tokens of the same places are refused.

        A function as `at` may return them nevertheless.
        """
        targets = super().targets_of(batch, at)
        tokens = None if callable(at) else tokens_of(batch, at)
        if tokens is not None and self._repeats(tokens, targets):
            raise InvalidValueError(
                f"the targets of {self} equal input_ids, the tokens that the model has seen at the same "
                "positions; pass task=CausalLM(), which compares each position with the next token, or "
                "targets=, a function of the batch, if the model is meant to repeat its input"
            )
        return targets

    def _repeats(self, tokens: Tensor, targets: Tensor) -> bool:
        """Return whether targets are the tokens, wherever they count and somewhere side by side.

        A masked language model has a few single targets, some of which may be left as they were.
        """
        if tokens.shape != targets.shape or tokens.ndim != 2:
            return False
        targets = targets.to(tokens.device)
        counted = self._counted(targets)
        return bool(((targets == tokens) | ~counted).all() & (counted[:, 1:] & counted[:, :-1]).any())

    def _counted(self, targets: Tensor) -> Tensor:
        return targets != (-100 if self.ignore_index is None else self.ignore_index)

    def check_outputs(self, outputs: Any) -> bool:
        """Refuse outputs that already are probabilities: not negative, and every row has the sum 1.

        Rows that are exactly one-hot may be either, and so may a few rows of few classes in a narrow type,
        whose sums are 1 by chance too. Such batches decide nothing.
        """
        if (
            not isinstance(outputs, Tensor)
            or not outputs.is_floating_point()
            or outputs.device.type == "meta"
            or not -outputs.ndim < self.dim < outputs.ndim
            or outputs.shape[self.dim] < 2
        ):
            return True
        if not outputs.numel():
            return False
        if not bool((outputs >= 0).all()):  # as most logits: nothing else is computed
            return True
        classes = outputs.shape[self.dim]
        sums = outputs.sum(dim=self.dim, dtype=sum_type(outputs.device))
        away = (sums - 1).abs().max()
        # Entries are rounded to a type, and all by one factor of a sum in float32 or wider.
        rounding = torch.finfo(_type_that_holds(outputs)).eps + classes * torch.finfo(torch.float32).eps
        if not bool(away <= rounding):  # true of NaN, too
            return True
        by_chance = log(min(1.0, rounding)) - classes * log(2)  # of one row, if signs of logits are random
        if sums.numel() * by_chance > log(BY_CHANCE) or bool(((outputs == 0) | (outputs == 1)).all()):
            return False
        raise InvalidValueError(
            f"{self} takes logits, got outputs that are probabilities already (not negative, sums of 1), "
            "to which softmax would be applied again; return logits, or pass forward=, a function of the "
            "model and the batch that returns the logarithm of the probabilities, as softmax(log p) = p"
        )

    def predictions(self, outputs: Any) -> Tensor:
        """Return softmax(outputs) along the classes, in float32."""
        if not isinstance(outputs, Tensor):
            raise InvalidValueError(
                f"the model must return logits, got {type(outputs).__name__}; pass forward= to pick them"
            )
        shape = list(outputs.shape)
        if not -outputs.ndim < self.dim < outputs.ndim or outputs.ndim < 2:
            raise InvalidValueError(
                f"{self} takes logits with examples first and classes along dimension {self.dim}, got {shape}"
            )
        if shape[self.dim] < 2:
            raise InvalidValueError(
                f"{self} takes logits of at least two classes along dimension {self.dim}, got {shape}; for a "
                "single binary logit use task=MultiLabel()"
            )
        return outputs.float().softmax(dim=self.dim)

    def pool(self) -> MeanPool:
        """Return an empty pool: the mean of members' probabilities."""
        return MeanPool()

    def diversity(self) -> ClassDiversity:
        """Return an accumulator of mutual information and disagreement, means over positions."""
        return ClassDiversity(self._rows)

    def diversity_at(self, targets: Tensor) -> ClassDiversity:
        """Return the accumulator of positions whose targets are not ignored."""
        if self.ignore_index is None:
            return self.diversity()
        counted = (targets.long() != self.ignore_index).reshape(-1)
        return ClassDiversity(lambda predictions: self._rows(predictions)[counted.to(predictions.device)])

    def score(self, predictions: Tensor, targets: Tensor) -> ExampleScores:
        """Return the scores of each example; sums over its positions if it has positions."""
        if predictions.ndim == 2 and self.ignore_index is None:
            return score_examples(predictions, targets)
        return score_positions(predictions, targets, self.dim, self.ignore_index)

    def divergence(self, expected: Tensor, predictions: Tensor) -> float:
        """Return the mean over examples, and positions, of KL(expected || predictions), in nats."""
        if expected.shape != predictions.shape:
            raise InvalidValueError(
                f"the divergence takes two predictions of one shape, got {list(expected.shape)} and "
                f"{list(predictions.shape)}"
            )
        return kl_divergence(self._rows(expected), self._rows(predictions))

    def divergence_loss(self, expected: Tensor, predictions: Tensor) -> Tensor:
        """Return the divergence with its gradient."""
        return kl_loss(self._rows(expected), self._rows(predictions))

    def fit_calibration(self, predictions: Tensor, targets: Tensor) -> float:
        """Return the temperature that minimizes the negative log-likelihood; see `fit_temperature`."""
        rows, of_rows = self.calibration_sample(predictions, targets)
        if not len(rows):
            raise InvalidValueError(
                f"fitting a temperature needs a target, but all of {list(targets.shape)} are the ignored "
                f"{self.ignore_index}; check ignore_index and the targets"
            )
        return fit_temperature(log_probabilities(rows), of_rows).value

    def calibration_sample(self, predictions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows [M, C] and targets [M]: at most 256 positions of each example, drawn with a fixed seed.

        Of rows [N, C], those whose targets are not ignored are returned.
        """
        if predictions.ndim == 2:
            if self.ignore_index is None:
                return predictions, targets
            valid = mark_valid(targets, predictions.shape[1], self.ignore_index)
            return predictions[valid.to(predictions.device)], targets[valid]
        by_position = require_positions(predictions, targets, self.dim)
        classes = by_position.shape[-1]
        valid = mark_valid(targets, classes, self.ignore_index)
        rows, of_rows = [predictions.new_zeros(0, classes)], [targets.new_zeros(0)]
        for example, where in enumerate(valid):
            places = where.reshape(-1).nonzero()[:, 0]
            if len(places) > SAMPLED:
                # Not evenly spaced: a regular grid over flattened images would be a few of their columns.
                drawn = torch.randperm(len(places), generator=torch.Generator().manual_seed(0))[:SAMPLED]
                places = places[drawn.to(places.device)]
            rows.append(by_position[example].reshape(-1, classes)[places.to(predictions.device)])
            of_rows.append(targets[example].reshape(-1)[places])
        return torch.cat(rows), torch.cat(of_rows)

    def calibrate(self, predictions: Tensor, calibration: Calibration | Tensor) -> Tensor:
        """Return softmax(log p / T); the predictions themselves if T is 1."""
        return scale_probabilities(predictions, calibration, dim=self.dim)

    def _rows(self, predictions: Tensor) -> Tensor:
        by_position = predictions.movedim(self.dim, -1)
        return by_position if by_position.ndim == 2 else by_position.flatten(0, -2)


@dataclass(frozen=True)
class AssumedClassification(Classification):
    """The task of an ensemble without `task=`: logits [N, C] and nothing else.

    Outputs of another shape could mean several things, so they are refused until a task is given.
    """

    def __repr__(self) -> str:
        return "Classification()"  # in messages: the user has not met this class

    @property
    def metrics(self) -> tuple[Metric, ...]:  # type: ignore[override]
        """The metrics of examples without positions."""
        return tuple(metric for metric in Classification.metrics if metric.of is not PositionScores)

    def predictions(self, outputs: Any) -> Tensor:
        """Return softmax(outputs), [N, C], in float32."""
        if isinstance(outputs, Tensor) and outputs.ndim != 2:
            raise InvalidValueError(
                f"without a task the model must return logits [N, C], got {list(outputs.shape)}; pass "
                f"{_tasks_for(outputs.ndim)} from pfge.tasks"
            )
        return super().predictions(outputs)


def _tasks_for(dimensions: int) -> str:
    if dimensions < 2:
        return "task=Regression()"
    masks = "task=Classification() for classes along dimension 1, as in [N, C, H, W]"
    tokens = (
        "task=Classification(dim=-1) for classes along the last, as in [N, T, C], task=CausalLM() for next "
        "tokens"
    )
    numbers = 'task=Regression(noise="predicted") for [N, D, 2]'
    raw = "or task=Raw() for outputs of any other meaning,"
    return f"{masks}, {tokens}, " + (f"{numbers}, " if dimensions == 3 else "") + raw


def _type_that_holds(outputs: Tensor) -> torch.dtype:
    """Return the narrowest type that outputs can have been rounded to before they were widened."""
    if outputs.dtype.itemsize > 2 and bool((outputs.bfloat16().to(outputs.dtype) == outputs).all()):
        return torch.bfloat16
    if outputs.dtype.itemsize > 2 and bool((outputs.half().to(outputs.dtype) == outputs).all()):
        return torch.float16
    return outputs.dtype


def tokens_of(batch: Any, at: TargetsAt) -> Tensor | None:
    """Return the tokens that a model sees: `input_ids` or a first argument of whole numbers, else None.

    Args:
        batch: Inputs and targets.
        at: The index or the key of the targets, or None for the usual place.
    """
    inputs = inputs_of(batch, at)
    while has_entries(inputs) and len(inputs):
        inputs = inputs[0]
    tokens = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
    if not isinstance(tokens, Tensor) or tokens.is_floating_point() or tokens.is_complex():
        return None
    return tokens


def require_classification(task: Task, what: str) -> None:
    """Raise a ValueError unless a task may have one class for each example, as `what` needs."""
    if not isinstance(task, Classification) or task.ignore_index is not None or task.dim not in (1, -1):
        raise InvalidValueError(
            f"{what} needs a task with one class for each example, Classification(), got {task}"
        )


def require_one_class(predictions: Tensor, what: str) -> None:
    """Raise a ValueError unless predictions are [N, C], one class for each example, as `what` needs."""
    if predictions.ndim != 2:
        raise InvalidValueError(
            f"{what} needs one class for each example, predictions [N, C], got {list(predictions.shape)}"
        )


_PERPLEXITY = Metric("perplexity", "perplexity", "lower", methodcaller("perplexity"), digits=3, is_main=True)
_LEFT_OUT = ("ece_equal_mass", "aurc", "mean_iou")


def _metrics_of_texts() -> tuple[Metric, ...]:
    of_positions = [metric for metric in Classification.metrics if metric.name not in _LEFT_OUT]
    after = 1 + [metric.name for metric in of_positions].index("nll")
    return (*of_positions[:after], _PERPLEXITY, *of_positions[after:])


@dataclass(frozen=True)
class CausalLM(Classification):
    """Logits [N, T, C] of the next token, and the tokens themselves as targets, [N, T].

    Targets are the `labels` of Hugging Face's causal language models: the `input_ids`, with `ignore_index`
    where a token does not count. The prediction at position t is compared with target t + 1, as in the
    loss of these models, so the first target and the last prediction are not used:

        NLL = -(1 / M) * sum over the M targets y_{t+1} that count of log p_t(y_{t+1})
        perplexity = exp(NLL)

    Otherwise it is `Classification(dim=-1)`: members' probabilities are pooled by their mean, and the
    calibration is a temperature, fitted on at most 256 positions of each text. Predictions keep all
    positions, [N, T, C].

    Args:
        ignore_index: The target of tokens that do not count, such as padding or a prompt.

    Example:
        Two tokens. The model gives every next token the probability 1/2, so its perplexity is 2:

        >>> import torch
        >>> from pfge.tasks import CausalLM
        >>> task = CausalLM()
        >>> predictions = task.predictions(torch.zeros(1, 5, 2))
        >>> found = task.summarize(task.score(predictions, torch.tensor([[0, 1, 1, 0, -100]])))
        >>> round(found["nll"], 4), round(found["perplexity"], 4)
        (0.6931, 2.0)
    """

    dim: ClassVar[int] = -1  # type: ignore[misc]
    ignore_index: int = -100
    metrics: ClassVar[tuple[Metric, ...]] = _metrics_of_texts()

    def __post_init__(self) -> None:
        if self.ignore_index is None:
            raise InvalidValueError("ignore_index must be a whole number, got None; -100 is the usual one")
        super().__post_init__()

    def targets_of(self, batch: Any, at: TargetsAt = None) -> Tensor:
        """Return the targets of a batch, which are the tokens; those that are shifted already are refused.

        A function as `at` may return them nevertheless.
        """
        targets = Task.targets_of(self, batch, at)
        tokens = None if callable(at) else tokens_of(batch, at)
        if tokens is not None and self._are_shifted(tokens, targets):
            raise InvalidValueError(
                f"the targets of {self} are the next tokens already, and they would be shifted once more; "
                "pass the tokens themselves as targets, or "
                f"task=Classification(dim=-1, ignore_index={self.ignore_index}), which shifts nothing"
            )
        return targets

    def _are_shifted(self, tokens: Tensor, targets: Tensor) -> bool:
        """Return whether targets are the tokens one position later, wherever they count, and not the tokens.

        A single target that counts may be both by chance.
        """
        if tokens.shape != targets.shape or tokens.ndim != 2:
            return False
        targets = targets.to(tokens.device)
        counted = self._counted(targets)
        before_last = counted[:, :-1]
        are_next = ((targets[:, :-1] == tokens[:, 1:]) | ~before_last).all() & (before_last.sum() > 1)
        return bool(are_next & ((targets != tokens) & counted).any())

    def loss(self, outputs: Tensor, targets: Tensor, *, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
        """Return the cross-entropy of next tokens, in the outputs' own type; 0 if all are ignored."""
        return super().loss(outputs, self._next(targets), reduction=reduction)

    def predictions(self, outputs: Any) -> Tensor:
        """Return softmax(outputs), [N, T, C], in float32."""
        if isinstance(outputs, Tensor) and outputs.ndim != 3:
            raise InvalidValueError(f"{self} takes logits [N, T, C], got {list(outputs.shape)}")
        return super().predictions(outputs)

    def diversity_at(self, targets: Tensor) -> ClassDiversity:
        """Return the accumulator of positions whose next token is not ignored."""
        return super().diversity_at(self._next(targets))

    def score(self, predictions: Tensor, targets: Tensor) -> PositionScores:
        """Return the scores of each text; sums over its next tokens."""
        scores = score_positions(predictions, self._next(targets), dim=-1, ignore_index=self.ignore_index)
        # Counts for each token of a vocabulary are large, and no metric of this task needs them.
        none = scores.hits.new_zeros(len(scores), 0)
        return replace(scores, hits=none, predicted=none, actual=none)

    def calibration_sample(self, predictions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows [M, C] and next tokens [M]: at most 256 of each text; rows [M, C] as they are."""
        return super().calibration_sample(predictions, targets if targets.ndim == 1 else self._next(targets))

    def _next(self, targets: Tensor) -> Tensor:
        """Return the target of each position: the token after it; that of the last one is ignored."""
        if targets.ndim != 2:
            raise InvalidValueError(
                f"{self} takes the tokens of each text as targets, [N, T], got {list(targets.shape)}"
            )
        if not targets.is_floating_point():
            targets = targets.long()
        return torch.cat([targets[:, 1:], torch.full_like(targets[:, :1], self.ignore_index)], dim=1)

"""The next token at each position of a text."""

from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pfge.errors import InvalidValueError
from pfge.forward import TargetsAt
from pfge.metrics.position_scores import PositionScores, score_positions
from pfge.metrics.uncertainty import ClassDiversity
from pfge.tasks.base import Metric, Task
from pfge.tasks.classification import Classification, tokens_of

_PERPLEXITY = Metric("perplexity", "perplexity", "lower", methodcaller("perplexity"), digits=3, is_main=True)
_LEFT_OUT = ("ece_equal_mass", "aurc", "mean_iou")


def _metrics() -> tuple[Metric, ...]:
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
    metrics: ClassVar[tuple[Metric, ...]] = _metrics()

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

"""What members predict over many batches, one member in memory at a time."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pfge.forward import require_rereadable, require_same_order

Predictor: TypeAlias = Callable[[Any], Tensor]
"""Predicts a batch with one member, until another member is put into the same module."""


def predict_in_turn(
    load: Callable[[int], Predictor],
    numbers: range,
    batches: Iterable[Any],
    keep: Callable[[Tensor, int], Tensor] = lambda predictions, _start: predictions,
) -> Iterator[Tensor]:
    """Yield what is kept of each member's predictions, reading all batches once for each member.

    Args:
        load: Puts the member of a number into the module.
        numbers: Of the members.
        batches: Batches that can be read again in the same order.
        keep: Returns it of the predictions of a batch and the number of their first example.
    """
    require_rereadable(batches, len(numbers))
    require_same_order(batches, len(numbers))
    examples = None
    for number in numbers:
        predict = load(number)
        parts: list[Tensor] = []
        done = 0
        for batch in batches:
            predictions = predict(batch)
            parts.append(keep(predictions, done))
            done += len(predictions)
        if not parts:
            raise ValueError("predicting needs at least one batch, got none")
        if done != (examples := examples or done):
            raise ValueError(
                f"batches must give the same examples each time they are read, got {examples} and then "
                f"{done} of them"
            )
        yield _put_together(parts)


def predict_in_chunks(
    load: Callable[[int], Predictor], numbers: range, batches: Iterable[Any], chunk_bytes: int
) -> Iterator[tuple[list[Any], Iterator[list[Tensor]]]]:
    """Yield a few batches at a time, and for these each member's predictions, a tensor for each batch.

    Args:
        load: Puts the member of a number into the module.
        numbers: Of the members.
        batches: What the model takes, read once.
        chunk_bytes: A chunk ends with the batch at which its batches and one member's predictions for
            them take so many bytes.
    """
    waiting = iter(batches)
    any_yet = False
    while True:
        predict = load(numbers[0])
        chunk: list[Any] = []
        first: list[Tensor] = []
        taken = 0
        for batch in waiting:
            chunk.append(batch)
            first.append(predict(batch))
            taken += _bytes_of(batch) + first[-1].nbytes
            if taken >= chunk_bytes:
                break
        if not chunk:
            break
        any_yet = True
        members = _members_for(load, numbers[1:], chunk, first)
        del first, predict  # which the chunk's reader would otherwise keep alive
        yield chunk, members
    if not any_yet:
        raise ValueError("predicting needs at least one batch, got none")


def _members_for(
    load: Callable[[int], Predictor], others: range, chunk: list[Any], first: list[Tensor]
) -> Iterator[list[Tensor]]:
    yield first
    del first
    for number in others:
        predict = load(number)
        yield [predict(batch) for batch in chunk]


def _put_together(parts: Sequence[Tensor]) -> Tensor:
    for part in parts[1:]:
        if part.shape[1:] != parts[0].shape[1:]:
            raise ValueError(
                f"batches must have predictions of one shape to be put together, got {list(parts[0].shape)} "
                f"and {list(part.shape)}; predict batches one by one, or score them with evaluate()"
            )
    return torch.cat(list(parts))


def _bytes_of(batch: Any) -> int:
    """Return the bytes of the tensors in a batch."""
    match batch:
        case Tensor():
            return batch.nbytes
        case Mapping():
            return sum(map(_bytes_of, batch.values()))
        case tuple() | list():
            return sum(map(_bytes_of, batch))
    return 0

"""Scores of any task: a few numbers for each example, from which its metrics follow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ExampleScores:
    """Tensors by name, with examples along the first dimension of each.

    The scores of a task are a subclass whose fields are these tensors. Scores of parts of a data set can be
    put together, drawn from, and saved by name.

    Example:
        >>> from dataclasses import dataclass
        >>> import torch
        >>> from pfge.metrics import ExampleScores
        >>> @dataclass(frozen=True, eq=False)
        ... class Errors(ExampleScores):
        ...     error: torch.Tensor
        >>> both = Errors.cat([Errors(torch.tensor([1.0, 2.0])), Errors(torch.tensor([3.0]))])
        >>> both.tensors
        {'error': tensor([1., 2., 3.])}
        >>> len(both), both.take(torch.tensor([2, 2])).error
        (3, tensor([3., 3.]))
        >>> Errors.from_tensors(both.tensors).error
        tensor([1., 2., 3.])
    """

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by the names of the fields, in their order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Return the scores of tensors by name; those of other names are left out."""
        names = [field.name for field in fields(cls)]
        if missing := [name for name in names if name not in tensors]:
            raise ValueError(f"{cls.__name__} needs {', '.join(names)}, but {', '.join(missing)} is missing")
        return cls(**{name: tensors[name] for name in names})

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Return the scores of all examples of several parts, in order."""
        if not parts:
            raise ValueError("scores can be put together from at least one part, got none")
        names = parts[0].tensors
        return cls(**{name: torch.cat([part.tensors[name] for part in parts]) for name in names})

    def take(self, index: Tensor) -> Self:
        """Return the scores of the examples of these numbers, which may repeat."""
        return type(self)(**{name: tensor[index] for name, tensor in self.tensors.items()})

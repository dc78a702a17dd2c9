"""An example batch as the inputs of an exported file: their names, and which of their sizes may vary."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import Parameter, Signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from pfge.ensemble import Ensemble
from pfge.forward import arguments_of, call_model

INPUTS = "inputs"
BATCH = "batch"
Axes = Mapping[str, Mapping[int, str]]
"""Names of the dimensions that may vary beside the first, for each input by its name."""


@dataclass(frozen=True)
class ExampleInputs:
    """What a model is called with for an example batch.

    Args:
        by_place: Tensors by place; none if there are any by name.
        by_name: Tensors by name.
        axes: Dimensions that may vary, beside the first.
        calls_model: Whether the model is called with them as they are, not by a function of the user's own.
    """

    by_place: tuple[Tensor, ...]
    by_name: dict[str, Tensor]
    axes: Axes
    calls_model: bool

    @classmethod
    def of(cls, ensemble: Ensemble, example: Any, axes: Axes | None) -> "ExampleInputs":
        """Return the inputs of a batch.

        Raises:
            ValueError: It has other parts than tensors [N, ...], or axes name no input or dimension of it.
        """
        calls_model = ensemble.forward_in_views is call_model
        if calls_model:
            places, names = arguments_of(example)
        else:
            names = dict(example) if isinstance(example, Mapping) else {}
            places = () if names else tuple(example) if isinstance(example, tuple | list) else (example,)
        found = cls(tuple(places), names, axes or {}, calls_model)
        for name, tensor in found.named().items():
            if not isinstance(tensor, Tensor):
                raise ValueError(f"{name} of the example must be a tensor, got {type(tensor).__name__}")
            if tensor.ndim < 1 or not len(tensor) or (len(found.named()) == 1 and tensor.ndim < 2):
                raise ValueError(f"example must be a batch of inputs [N, ...], got {list(tensor.shape)}")
        sizes = {len(tensor) for tensor in found.named().values()}
        if len(sizes) != 1:
            raise ValueError(f"all inputs must have the same number of examples, got {sorted(sizes)}")
        for name, dimensions in found.axes.items():
            if name not in found.named():
                raise ValueError(f"axes must name inputs, {', '.join(found.named())}, got {name!r}")
            last = found.named()[name].ndim - 1
            if wrong := [d for d in dimensions if not 0 < d <= last]:
                raise ValueError(f"axes of {name} must be dimensions from 1 to {last}, got {wrong[0]}")
        return found.map(lambda tensor: tensor.detach().cpu())

    def __len__(self) -> int:
        return len(next(iter(self.named().values())))

    def named(self) -> dict[str, Tensor]:
        """Return every input by the name that it has in the file."""
        if len(self.by_place) == 1:
            return {INPUTS: self.by_place[0], **self.by_name}
        return {f"{INPUTS}_{place}": tensor for place, tensor in enumerate(self.by_place)} | self.by_name

    def map(self, change: Callable[[Tensor], Tensor]) -> "ExampleInputs":
        """Return the inputs with each tensor changed."""
        return replace(
            self,
            by_place=tuple(map(change, self.by_place)),
            by_name={name: change(tensor) for name, tensor in self.by_name.items()},
        )

    def batch(self) -> Any:
        """Return them as a batch of the ensemble."""
        if self.by_name:
            return self.by_name
        if len(self.by_place) == 1:
            return self.by_place[0]
        return [self.by_place] if self.calls_model else self.by_place

    def dynamic_shapes(self) -> dict[str, Any]:
        """Return what may vary, for `torch.export` of a module that `name_arguments` was called on."""
        dims = {name: Dim(name) for name in {BATCH}.union(*(axes.values() for axes in self.axes.values()))}
        each = {
            name: {0: dims[BATCH]} | {d: dims[axis] for d, axis in self.axes.get(name, {}).items()}
            for name in self.named()
        }
        return each if self.by_name else {INPUTS: tuple(each.values())}

    def name_arguments(self, module: nn.Module) -> None:
        """Let a module's forward, which takes any names, say that it takes these.

        torch.export knows no dynamic shapes of `**named`.
        """
        if not self.by_name:
            return
        forward = module.forward

        def call(**named: Tensor) -> Any:
            return forward(**named)

        kind = Parameter.POSITIONAL_OR_KEYWORD
        call.__signature__ = Signature([Parameter(n, kind) for n in self.by_name])  # type: ignore[attr-defined]
        module.forward = call


def double(tensor: Tensor) -> Tensor:
    """Return a batch twice; of one example, torch.export would take the size for one that never changes."""
    return torch.cat([tensor, tensor.flip(0)])

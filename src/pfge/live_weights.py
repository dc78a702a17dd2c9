"""The live tensors of one model, looked at many times while it trains."""

from collections.abc import Collection
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from pfge.finite import FiniteCheck
from pfge.frozen import FrozenParameters, is_finite, without
from pfge.sharding import is_split, split_modules
from pfge.weights import Weights, buffer_names, is_averaged, named_tensors, unwrap


class LiveWeights:
    """The live tensors of one model, as `view_weights` returns them, many times.

    The modules are walked once, and again when a module, a parameter or a buffer was added, removed or
    replaced. A view is always of the tensors that the model has now; while they stay where they are in
    memory, all views have the same tensor objects. Modules of FSDP2 first drop the whole parameters that a
    forward pass may have left: the optimizer does not write to these, and their memory is freed later.

    Args:
        model: DDP, DataParallel and torch.compile wrappers are looked through.

    Attributes:
        unchecked: Names of buffers that may hold NaN or infinity, as the mask of an attention does.
    """

    def __init__(self, model: nn.Module):
        self._model = model
        self.unchecked: frozenset[str] = frozenset()
        self._frozen: FrozenParameters | None = None
        self._copies: Weights = {}
        self._finite: FiniteCheck | None = None
        self._walk()

    def freeze(self, unchecked: Collection[str] | None = None) -> None:
        """Let `view` give one shared copy of each parameter that is frozen now, until it changes.

        Args:
            unchecked: Names of buffers that may hold NaN or infinity; those that do so now if None.
        """
        self.live()  # the model may have been changed since it was walked
        buffers = buffer_names(self._module)
        self._frozen = FrozenParameters((name, p) for name, p in self._named if name not in buffers)
        if unchecked is None:
            unchecked = [name for name, t in self._named if name in buffers and _is_infinite(t)]
        self.unchecked = frozenset(unchecked)
        self._finite = None

    def live(self) -> Weights:
        """Return the live tensors: writing to them changes the model."""
        for part in self._split:
            part.reshard()
        if not self._is_current():
            self._walk()
        elif not self._is_in_place():
            self._detach()
        return dict(self._detached)

    def view(self) -> Weights:
        """Return the live tensors, and shared copies of those that are frozen."""
        weights = self.live()
        if self._frozen is None:
            return weights
        if (copies := self._frozen.copies(self._named)).keys() != self._copies.keys():
            self._copies, self._finite = copies, None
        return weights | copies

    def find_non_finite(self) -> str | None:
        """Return the name of the first tensor of the latest view that holds NaN or infinity, or None.

        Buffers that did so at the start, which are never averaged, are left out.
        """
        if self._finite is None:
            self._finite = FiniteCheck(without(self._detached, self._copies.keys() | self.unchecked))
        return self._finite.find()

    def _walk(self) -> None:
        self._module = unwrap(self._model)
        self._split = split_modules(self._module)  # once: most models have none, and pay for none
        for part in self._split:
            part.reshard()
        self._named = [(name, tensor) for name, tensor, _ in named_tensors(self._module)]
        _require_dense(self._named)
        tables: list[dict[str, Any]] = [
            table
            for module in self._module.modules()
            for table in (module._modules, module._parameters, module._buffers)
        ]
        self._filled = [table for table in tables if table]
        self._empty = [table for table in tables if not table]
        self._entries = self._list_entries()
        self._detach()

    def _detach(self) -> None:
        self._detached = {name: tensor.detach() for name, tensor in self._named}
        self._finite = None
        # The tensors of other classes, as those of FSDP2, may change what they hold by themselves.
        plain = all(type(tensor) in (Tensor, nn.Parameter) for _, tensor in self._named)
        self._addresses = self._list_addresses() if plain else None

    def _is_current(self) -> bool:
        # Kept entries are alive, so that no other object can have their identity.
        if any(self._empty):
            return False
        entries = self._list_entries()
        same = len(entries) == len(self._entries) and all(map(is_, entries, self._entries))
        return same and unwrap(self._model) is self._module

    def _is_in_place(self) -> bool:
        """Return whether no tensor was given other memory, as by assigning to its `.data`."""
        return self._addresses is not None and self._list_addresses() == self._addresses

    def _list_entries(self) -> list[Any]:
        return list(chain.from_iterable(table.values() for table in self._filled))

    def _list_addresses(self) -> list[int]:
        return [tensor.data_ptr() for _, tensor in self._named]


def _is_infinite(tensor: Tensor) -> bool:
    # What is split would have to be looked at by all processes.
    return is_averaged(tensor) and not is_split(tensor) and not is_finite(tensor)


def _require_dense(named: list[tuple[str, Tensor]]) -> None:
    """Refuse sparse tensors, which have no memory that could be copied or averaged in place."""
    for name, tensor in named:
        if type(tensor) in (Tensor, nn.Parameter) and tensor.layout != torch.strided:
            raise ValueError(
                f"a trajectory takes dense tensors only, got {name}, which is {tensor.layout}; register it "
                "as a buffer with persistent=False"
            )

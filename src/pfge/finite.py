"""Whether weights are finite: NaN and infinity must not enter an average."""

from collections import defaultdict

import torch
from torch import Tensor

from pfge.frozen import is_narrow, shared_part, without
from pfge.sharding import any_split, in_any_process, own_parts
from pfge.weights import Weights, is_averaged

_SHORT = 8192  # the most entries of a tensor that is copied to be summed with others


def find_non_finite(weights: Weights) -> str | None:
    """Return the name of the first tensor that holds NaN or infinity, or None."""
    return FiniteCheck(weights).find()


def require_wide(weights: Weights) -> None:
    """Refuse floating-point tensors of 8 bits, which cannot be added up, unless they are shared."""
    for name, tensor in without(weights, shared_part(weights)).items():
        if is_narrow(tensor):
            raise ValueError(
                f"floating-point tensors of 8 bits cannot be averaged, got {name}, which is {tensor.dtype}; "
                "make it a parameter that is frozen and finite, or a buffer with persistent=False"
            )


class FiniteCheck:
    """A check of the same tensors, as often as their values change.

    Args:
        weights: The tensors. Those that are split among processes are put into their parts at each check, so
            that all processes must make it.
    """

    def __init__(self, weights: Weights):
        self._weights = without(weights, shared) if (shared := shared_part(weights)) else weights
        self._split = any_split(weights)
        self._long: list[Tensor] = []
        self._short: defaultdict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
        if self._split:
            return
        for tensor in self._weights.values():
            if not is_averaged(tensor):
                continue
            if tensor.numel() <= _SHORT and type(tensor) is Tensor and tensor.is_contiguous():
                self._short[tensor.dtype, tensor.device].append(tensor.detach().view(-1))
            else:
                self._long.append(tensor)

    @torch.no_grad()
    def find(self) -> str | None:
        """Return the name of the first tensor that holds NaN or infinity now, or None."""
        if self._split:  # all processes must come to the same answer, or some would wait for the others
            name = find_non_finite(own_parts(self._weights))
            found = in_any_process(name is not None, self._weights)
            return name or ("another process's part of the weights" if found else None)
        # One NaN or infinity makes a sum NaN or infinite, so finite sums settle it, without a temporary copy
        # of large tensors and with one wait for the device. A sum may also overflow: then each entry is
        # looked at.
        sums = [tensor.sum() for tensor in self._long]
        for (dtype, _), tensors in self._short.items():  # many, as those of BatchNorm: one sum is faster
            sums.append(torch.cat(tensors).sum(dtype=torch.promote_types(dtype, torch.float32)))
        if not sums:
            return None
        device = sums[0].device
        if torch.stack([s if s.device == device else s.to(device) for s in sums]).isfinite().all():
            return None
        averaged = ((name, tensor) for name, tensor in self._weights.items() if is_averaged(tensor))
        return next((name for name, tensor in averaged if not tensor.isfinite().all()), None)

"""Compress an ensemble: to given widths, into a number of bytes, or down to a loss of quality."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import log2
from typing import Any

import torch

from pfge.compression.bit_allocation import Ladder
from pfge.compression.quality import Judge, Quality
from pfge.ensemble import Ensemble
from pfge.packed.encode import PackSettings, Shared, find_shared, pack_members

Widths = int | Mapping[str, int]
USUAL_BITS = 3


def compress(
    ensemble: Ensemble,
    *,
    base_bits: int | None = 8,
    delta_bits: Widths | None = None,
    group: int | None = 64,
    small_bits: int = 32,
    budget: int | None = None,
    max_kl: float | None = None,
    max_nll_increase: float | None = None,
    validation: Iterable[Any] | None = None,
    refresh: Iterable[Any] | None = None,
    on_attempt: Callable[[Ensemble, Quality], None] | None = None,
) -> Ensemble:
    """Return an ensemble in fewer bytes: one base that all members share, and a small delta for each.

    Matrices and filters are compressed. All else, such as BatchNorm's parameters and statistics and
    biases, is kept, and what is the same in all members is stored once. The original is left alone.

    Args:
        ensemble: What to compress; its members are read several times.
        base_bits: For each number of the base, the mean of the members: 8, 16 (float16) or 32; None
            for no base, so that each member is compressed by itself, as for comparison.
        delta_bits: For each number that a member adds to the base, from 1 to 8; without a base, also
            16 (float16). A mapping gives the width of each tensor by its name. If None, 3, or
            what `budget`, `max_kl` or `max_nll_increase` leads to, tensor by tensor.
        group: How many neighbours in a delta share a step; None for one step an output channel.
        small_bits: For what is kept: 32 for its own type, 16 for float16 where that holds it.
        budget: The most bytes for the tensors. Saved files add some 70 bytes a tensor.
        max_kl: The most that predictions may differ from the original's: KL(original || compressed)
            in nats, the mean over validation examples. The fewest bytes found to keep it are taken.
        max_nll_increase: The same for the negative log-likelihood of validation targets.
        validation: Batches on which quality is measured; the second entry of each is its targets if
            `max_nll_increase` is given.
        refresh: Training batches over which BatchNorm statistics are recomputed after compression;
            that is kept if it lowers the KL on the validation batches.
        on_attempt: Called with each ensemble whose quality was measured on the way, for progress.
    """
    settings = PackSettings(base_bits, group, small_bits)
    floor = _Floor(max_kl, max_nll_increase)
    if delta_bits is not None and (budget is not None or floor.is_set):
        raise ValueError(
            f"widths are either given or chosen, got delta_bits={delta_bits} beside a budget or a quality; "
            "leave one of them out"
        )
    if validation is None and (floor.is_set or refresh is not None):
        raise ValueError("max_kl, max_nll_increase and refresh need validation data; pass validation=batches")
    attempts = _Attempts(ensemble, settings, find_shared(ensemble.members, settings), refresh, on_attempt)
    judge = None
    if validation is not None and (floor.is_set or refresh is not None or budget is not None):
        judge = Judge(ensemble, validation, with_targets=max_nll_increase is not None)
    if budget is None and not floor.is_set:
        widths = USUAL_BITS if delta_bits is None else delta_bits
        packed = attempts.pack(widths) if judge is None else attempts.judged(widths, judge)[0]
    else:
        packed = attempts.search(budget, floor, judge)
    if base_bits is not None:
        _warn_if_far_apart(attempts, packed, base_bits)
    return packed


@dataclass(frozen=True)
class _Floor:
    max_kl: float | None
    max_nll_increase: float | None

    def __post_init__(self) -> None:
        for name, most in (("max_kl", self.max_kl), ("max_nll_increase", self.max_nll_increase)):
            if most is not None and not most > 0:
                raise ValueError(f"{name} must be above 0, got {most}")

    @property
    def is_set(self) -> bool:
        return self.max_kl is not None or self.max_nll_increase is not None

    def allows(self, quality: Quality) -> bool:
        kl_is_fine = self.max_kl is None or quality.kl <= self.max_kl
        nll = quality.nll_increase
        return kl_is_fine and (self.max_nll_increase is None or nll is None or nll <= self.max_nll_increase)


@dataclass(frozen=True)
class _Attempts:
    """Compressed ensembles at various widths, each with fresh BatchNorm statistics if those help."""

    original: Ensemble
    settings: PackSettings
    shared: Shared
    refresh: Iterable[Any] | None
    on_attempt: Callable[[Ensemble, Quality], None] | None

    def pack(self, widths: Widths) -> Ensemble:
        members = pack_members(self.original.members, widths, self.settings, self.shared)
        return self.original.with_members(members, temperatures=self.original.temperatures)

    def judged(self, widths: Widths, judge: Judge) -> tuple[Ensemble, Quality]:
        found = self._better(self.pack(widths), judge)
        if self.on_attempt is not None:
            self.on_attempt(*found)
        return found

    def _better(self, packed: Ensemble, judge: Judge) -> tuple[Ensemble, Quality]:
        quality = judge.measure(packed)
        if self.refresh is not None:
            fresh = packed.with_fresh_batch_norm(self.refresh)
            if (refreshed := judge.measure(fresh)).kl < quality.kl:
                return fresh, refreshed
        return packed, quality

    def search(self, budget: int | None, floor: _Floor, judge: Judge | None) -> Ensemble:
        settings = self.settings
        ladder = Ladder(self.original.members, self.shared, settings)
        if budget is not None and budget < ladder.smallest:
            raise ValueError(
                f"budget must be at least {ladder.smallest} bytes, which base_bits={settings.base_bits}, "
                f"delta_bits=1, group={settings.group} and small_bits={settings.small_bits} take, got "
                f"{budget}; raise it, or lower one of those or the number of members"
            )
        if judge is not None and floor.is_set:
            return self.smallest_above(floor, ladder, judge, budget)
        return self.best_within(budget or ladder.smallest, ladder, judge)

    def best_within(self, budget: int, ladder: Ladder, judge: Judge | None) -> Ensemble:
        mixed, even = ladder.within(budget), ladder.widest_within(budget)
        if judge is None:
            return self.pack(mixed)
        # Which tensors matter is an estimate: data decides whether it pays.
        choices = [mixed] if mixed == even else [mixed, even]
        return min((self.judged(widths, judge) for widths in choices), key=lambda found: found[1].kl)[0]

    def smallest_above(self, floor: _Floor, ladder: Ladder, judge: Judge, budget: int | None) -> Ensemble:
        seen: list[tuple[Ensemble, Quality]] = []

        def serves(widths: dict[str, int]) -> bool:
            seen.append(self.judged(widths, judge))
            return floor.allows(seen[-1][1])

        if ladder.lowest_that(serves) is None:
            raise ValueError(
                f"max_kl={floor.max_kl} and max_nll_increase={floor.max_nll_increase} cannot be met: 8 bits "
                f"everywhere have {seen[0][1]}; allow more, or raise base_bits or small_bits"
            )
        found = min((made for made, quality in seen if floor.allows(quality)), key=lambda made: made.nbytes)
        if budget is not None and found.nbytes > budget:
            raise ValueError(
                f"budget must be at least {found.nbytes} bytes, the fewest that keep the quality asked for, "
                f"got {budget}; raise it, or allow a larger max_kl or max_nll_increase"
            )
        return found


@torch.no_grad()
def _warn_if_far_apart(attempts: _Attempts, packed: Ensemble, base_bits: int) -> None:
    """Warn where a delta saves less than the base costs.

    At equal error, numbers that are smaller by a factor r need log2(1 / r) bits less, for each of K
    members; the base costs its bits once.
    """
    members, shared = attempts.original.members, attempts.shared
    size = sum(float(mean.square().sum()) for mean in shared.means.values())
    squares = 0.0
    for member in members:
        for name, mean in shared.means.items():
            squares += float((member[name].to("cpu", torch.float32) - mean).square().sum())
    if not squares:
        return
    relative = (squares / len(members) / size) ** 0.5 if size else torch.inf
    saved = max(0.0, -log2(relative)) if relative < 1 else 0.0
    cost = base_bits / len(members)
    if saved <= cost:
        warnings.warn(
            f"deltas pay for members that are close, but these lie {relative:.0%} of the base's length from "
            f"it: at equal error a delta saves {saved:.1f} bits a number, and the base costs {cost:.1f} for "
            f"each of {len(members)} members; this form takes {packed.nbytes:,} bytes, and each member by "
            f"itself, as base_bits=None and delta_bits=8 store it, {_size_without_base(attempts):,}",
            stacklevel=3,
        )


def _size_without_base(attempts: _Attempts) -> int:
    """Return the bytes that base_bits=None and delta_bits=8 take."""
    members, shared, settings = attempts.original.members, attempts.shared, attempts.settings
    widths = dict.fromkeys(shared.means.keys() - shared.identical, 8)
    return pack_members(members, widths, replace(settings, base_bits=None), shared).nbytes

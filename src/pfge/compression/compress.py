"""Compress an ensemble: to given widths, into a number of bytes, or down to a loss of quality."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite, log2
from typing import Any

import torch

from pfge.compression.distillation import USUAL_DISTILLATION, Distillation, DistillationError, distil
from pfge.compression.file_budget import plan_within_files
from pfge.compression.quality import Judge, Quality
from pfge.compression.rate_distortion import Choices, Ladder, Plan
from pfge.compression.sensitivity import measure_sensitivity
from pfge.compression.targets import Bits, Budget, MaxLoss, Target
from pfge.ensemble import Ensemble
from pfge.packed.encode import PackSettings, Shared, find_shared, pack_members

USUAL_TARGET = Bits()
USUAL_SETTINGS = PackSettings()


def compress(
    ensemble: Ensemble,
    target: Target = USUAL_TARGET,
    *,
    settings: PackSettings | None = None,
    validation: Iterable[Any] | None = None,
    refresh: Iterable[Any] | None = None,
    distil: Iterable[Any] | None = None,
    distillation: Distillation = USUAL_DISTILLATION,
    on_attempt: Callable[[Ensemble, Quality], None] | None = None,
    on_iteration: Callable[[int, int, float], None] | None = None,
) -> Ensemble:
    """Return an ensemble in fewer bytes: one base that all members share, and a small delta for each.

    Member k is stored as base + delta_k. The base is the mean of the members, in 8 bits by default; a delta
    is small where members lie close together, as those of one training run do, so few bits are enough. Of
    b bits, the code c of a number, from 0 to 2^b - 1, stands for (c - (2^b - 1) / 2) * step.

    Matrices and filters are compressed. All else, such as BatchNorm's parameters and statistics and
    biases, is kept, and what is the same in all members is stored once. The original is left alone.

    Args:
        ensemble: What to compress; its members are read several times.
        target: `Bits(3)` for given widths, `Budget(bytes)` for the best widths that fit, or
            `MaxLoss(kl=0.001)` for the fewest bytes that keep a quality.
        settings: How members are packed, apart from the widths: the bits of the base, how many numbers share
            a step, and how small tensors are kept. If None, `Bits` takes `PackSettings()`, and the other
            targets choose all of these tensor by tensor.
        validation: Batches on which quality is measured, for `MaxLoss`, `refresh` and `distil`; the second
            entry of each is its targets if `MaxLoss` has an `nll_increase`. A `Budget` without them relies on
            an estimate of which tensors matter.
        refresh: Training batches over which BatchNorm statistics are recomputed after compression;
            that is kept if it lowers the KL on the validation batches and fits the `Budget`.
        distil: Training batches, without need of targets, on which the steps of each packed member are
            trained until it predicts what the original did; that is kept if it lowers the KL on the
            validation batches and fits the `Budget`, and otherwise there is a warning. With `MaxLoss`, an
            attempt that loses too much is distilled before it is given up.
        distillation: How long and how fast, and where an interrupted one continues.
        on_attempt: Called with each ensemble whose quality was measured on the way, for progress.
        on_iteration: Called with the iterations of a distillation that are done, those to do, and the
            latest divergence.

    Raises:
        ValueError: The target cannot be met; the message says what can. Or no attempt predicts finite
            numbers on the validation batches.

    References:
        Liu et al., "BitDelta: Your Fine-Tune May Only Be Worth One Bit", NeurIPS 2024, for the idea of
        quantizing differences from shared weights.

    Example:
        Four members of 256 numbers. The base takes 256 bytes and 4 steps of 2; each member takes
        256 * 3 / 8 bytes and 4 steps.

        >>> import torch, pfge
        >>> members = [{"weight": torch.full((4, 64), 1 + k / 100)} for k in range(4)]
        >>> ensemble = pfge.Ensemble(members, lambda: torch.nn.Linear(64, 4, bias=False))
        >>> small = pfge.compress(ensemble, pfge.Bits(3))
        >>> ensemble.nbytes, small.nbytes
        (4096, 680)
        >>> small.members[3]["weight"][0, 0]
        tensor(1.0300)
        >>> validation = [torch.eye(64)]
        >>> pfge.compress(ensemble, pfge.MaxLoss(kl=1e-4), validation=validation).nbytes  # one component
        184
    """
    trains = refresh is not None or distil is not None
    if validation is None and (isinstance(target, MaxLoss) or trains):
        raise ValueError("MaxLoss, refresh and distil need validation data; pass validation=batches")
    if isinstance(target, Bits) and settings is None:
        settings = USUAL_SETTINGS
    shared = find_shared(ensemble.members, settings or USUAL_SETTINGS)
    attempts = _Attempts(
        ensemble, target, settings, shared, refresh, distil, distillation, on_attempt, on_iteration
    )
    judge = None
    if validation is not None and (trains or not isinstance(target, Bits)):
        with_targets = isinstance(target, MaxLoss) and target.nll_increase is not None
        judge = Judge(ensemble, validation, with_targets=with_targets)
    packed = attempts.meet(judge)
    if attempts.usual.base_bits is not None:
        _warn_if_far_apart(attempts, packed, attempts.usual.base_bits)
    return packed


@dataclass(frozen=True)
class _Attempts:
    """Compressed ensembles in various forms, each with fresh BatchNorm statistics if those help."""

    original: Ensemble
    target: Target
    settings: PackSettings | None
    shared: Shared
    refresh: Iterable[Any] | None
    training: Iterable[Any] | None
    distillation: Distillation
    on_attempt: Callable[[Ensemble, Quality], None] | None
    on_iteration: Callable[[int, int, float], None] | None

    @property
    def usual(self) -> PackSettings:
        return self.settings or USUAL_SETTINGS

    def pack(self, plan: Plan | int | Mapping[str, int]) -> Ensemble:
        if isinstance(plan, Plan):
            members = pack_members(self.original.members, plan.forms, plan.settings, self.shared)
        else:
            members = pack_members(self.original.members, plan, self.usual, self.shared)
        return self.original.with_members(members, temperatures=self.original.temperatures)

    def judged(self, plan: Plan | int | Mapping[str, int], judge: Judge) -> tuple[Ensemble, Quality]:
        return self._told(self._fresher(self.pack(plan), judge))

    def distilled(self, found: tuple[Ensemble, Quality], judge: Judge) -> tuple[Ensemble, Quality]:
        """Return a packed ensemble with trained steps if it has become better, and itself otherwise."""
        packed, quality = found
        if self.training is None:
            return found
        try:
            made = distil(self.original, packed, self.training, self.distillation, self.on_iteration)
        except DistillationError as error:
            warnings.warn(f"the ensemble is kept as it was before distillation: {error}", stacklevel=2)
            return found
        if isinstance(self.target, Budget) and not self.target.allows(made):
            warnings.warn(
                f"the ensemble is kept as it was before distillation, after which it takes "
                f"{self.target.size_of(made):,} bytes, more than the budget of {self.target.bytes:,}; "
                "raise the budget to keep it",
                stacklevel=2,
            )
            return found
        trained = self._told((made, judge.measure(made)))
        if _loss(trained) < _loss(found):
            return trained
        warnings.warn(
            f"the ensemble is kept as it was before distillation, which changed the validation KL from "
            f"{quality.kl:.3g} to {trained[1].kl:.3g}; more iterations or batches, or a lower rate, may help",
            stacklevel=2,
        )
        return found

    def _told(self, found: tuple[Ensemble, Quality]) -> tuple[Ensemble, Quality]:
        if self.on_attempt is not None:
            self.on_attempt(*found)
        return found

    def _fresher(self, packed: Ensemble, judge: Judge) -> tuple[Ensemble, Quality]:
        found = packed, judge.measure(packed)
        if self.refresh is None:
            return found
        members = packed.with_fresh_batch_norm(self.refresh).members
        fresh = packed.with_members(members, temperatures=packed.temperatures)
        # Statistics that were the same in all members are stored for each of them once they differ.
        if isinstance(self.target, Budget) and not self.target.allows(fresh):
            return found
        return min(found, (fresh, judge.measure(fresh)), key=_loss)

    def meet(self, judge: Judge | None) -> Ensemble:
        match target := self.target:
            case Bits(delta):
                if judge is None:
                    return self.pack(delta)
                return _finite(self.distilled(self.judged(delta, judge), judge))
            case Budget():
                return self.best_within(target, judge)
            case MaxLoss() if judge is not None:
                return self.smallest_with(target, judge)
        raise TypeError(f"target must be Bits, Budget or MaxLoss, got {target!r}; for example Bits(3)")

    def best_within(self, budget: Budget, judge: Judge | None) -> Ensemble:
        ladder = self.ladder()
        plan = self.plan_within(ladder, budget)
        if judge is None:
            return self.pack(plan)
        # Which tensors matter is an estimate, also if it is measured: data decides whether it pays.
        plans = [plan, self.plan_within(ladder.weighted(self.sensitivity(judge)), budget)]
        plans = plans[:1] if plans[0] == plans[1] else plans
        best = min((self.judged(plan, judge) for plan in plans), key=_loss)
        return _finite(self.distilled(best, judge))

    def plan_within(self, ladder: Ladder, budget: Budget) -> Plan:
        plan, least = None, ladder.smallest
        if budget.files:
            plan, least = plan_within_files(ladder, budget.bytes, lambda plan: self.pack(plan).file_bytes())
        elif budget.bytes >= least:
            plan = ladder.within(budget.bytes)
        if plan is None:
            raise ValueError(
                f"budget must be at least {least} bytes, which {self._describe(ladder.at(0))} take, got "
                f"{budget.bytes}; raise it, or lower one of those or the number of members"
            )
        return plan

    def smallest_with(self, target: MaxLoss, judge: Judge) -> Ensemble:
        seen: list[tuple[Ensemble, Quality]] = []

        def serves(plan: Plan) -> bool:
            found = self.judged(plan, judge)
            if not target.allows(found[1]):
                found = self.distilled(found, judge)
            seen.append(found)
            return target.allows(found[1])

        if self.ladder().weighted(self.sensitivity(judge)).lowest_that(serves) is None:
            raise ValueError(
                f"{target} cannot be met: 8 bits everywhere have {seen[0][1]}; allow more, or raise "
                "base_bits or small_bits"
            )
        return min((made for made, quality in seen if target.allows(quality)), key=lambda made: made.nbytes)

    def sensitivity(self, judge: Judge) -> Mapping[str, float]:
        return measure_sensitivity(self.original, self.shared, judge.batches)

    def ladder(self) -> Ladder:
        return Ladder(self.original.members, self.shared, Choices.of(self.settings))

    def _describe(self, plan: Plan) -> str:
        if self.settings is None:
            return "the fewest bits of everything"
        return (
            f"base_bits={self.settings.base_bits}, delta_bits=1, group={self.settings.group} and "
            f"small_bits={plan.settings.small_bits}"
        )


def _loss(found: tuple[Ensemble, Quality]) -> float:
    """Return the KL to choose by; infinity for NaN, with which every comparison is false."""
    return found[1].kl if isfinite(found[1].kl) else inf


def _finite(found: tuple[Ensemble, Quality]) -> Ensemble:
    """Return the best ensemble that was found, refusing one that does not predict numbers."""
    if not isfinite(found[1].kl):
        raise ValueError(
            f"the KL on the validation batches must be finite, got {found[1].kl} for every plan that was "
            "tried; give more bits or bytes, or check that the original ensemble predicts finite numbers on "
            "these batches"
        )
    return found[0]


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
            f"each of {len(members)} members; this format takes {packed.nbytes:,} bytes, and each member by "
            f"itself in 8 bits, without a base, {_size_without_base(attempts):,}",
            stacklevel=3,
        )


def _size_without_base(attempts: _Attempts) -> int:
    """Return the bytes that 8 bits for each number of each member take."""
    members, shared, settings = attempts.original.members, attempts.shared, attempts.usual
    widths = dict.fromkeys(shared.means.keys() - shared.identical, 8)
    return pack_members(members, widths, replace(settings, base_bits=None), shared).nbytes

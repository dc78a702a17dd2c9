"""Compress an ensemble: to given widths, to a number of bytes, or to a maximum loss of quality."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import inf, isfinite, log2
from typing import Any

import torch
from torch import Tensor

from pfge.compression.distillation import USUAL_DISTILLATION, Distillation, DistillationError, distil
from pfge.compression.rate_distortion import SMALL, Choices, Ladder, Plan, relative_error
from pfge.ensemble import Ensemble
from pfge.errors import InvalidTypeError, InvalidValueError
from pfge.forward import TargetsAt, require_same_order, without_targets
from pfge.packed import PackedMembers, require_packed
from pfge.packed.encode import (
    CommonTensors,
    PackSettings,
    TensorForm,
    base_numbers,
    base_size,
    find_common,
    is_packed,
    pack_delta,
    pack_members,
    pack_small,
)
from pfge.rounding import first_lowest, is_lower
from pfge.storage.ensemble_folder import LazyMembers
from pfge.weights import Weights, count_bytes, is_narrow


@dataclass(frozen=True)
class Quality:
    """How compressed predictions differ from the original's.

    Attributes:
        kl: The task's divergence of pooled predictions. For all tasks of `pfge.tasks` it is
            KL(original || compressed) in nats, the mean over examples, and over positions, labels or numbers;
            for `Raw` that of normal distributions with the variance 1.
        nll_increase: The change of the task's negative log-likelihood; None without targets.

    Example:
        >>> from pfge.compression import Quality
        >>> Quality(kl=0.0005, nll_increase=-0.0002)
        Quality(kl=0.0005, nll_increase=-0.0002)
    """

    kl: float
    nll_increase: float | None


class QualityEvaluator:
    """Compares the predictions of compressed ensembles with the original's.

    Attributes:
        batches: The validation data.
        targets: Location of targets in the batches.

    Args:
        original: The original ensemble, which predicts once, here.
        batches: Validation data that can be read again in the same order.
        with_targets: Whether the change of the NLL is measured, which needs targets in the batches.
        targets: Location of targets in the batches, as for `Ensemble.evaluate`.
    """

    def __init__(
        self, original: Ensemble, batches: Iterable[Any], *, with_targets: bool, targets: TargetsAt = None
    ):
        require_same_order(batches, times=2)
        self._task = original.task
        self.batches = batches
        self.targets = targets
        self._targets = None
        if with_targets and "nll" not in [metric.name for metric in self._task.metrics]:
            raise InvalidValueError(
                f"nll_increase needs a task with a negative log-likelihood, got {self._task}; pass "
                "MaxLoss(kl=...) instead"
            )
        found = [self._task.targets_of(batch, targets).cpu() for batch in batches if with_targets]
        # Before targets are put together, as it says what batches must have in common.
        self._expected = original.predict_batches(batches, targets=targets).cpu()
        if with_targets:
            self._targets = torch.cat(found)

    def measure(self, compressed: Ensemble) -> Quality:
        """Return the quality of a compressed ensemble's predictions."""
        found = compressed.predict_batches(self.batches, targets=self.targets).cpu()
        kl = self._task.divergence(self._expected, found)
        if self._targets is None:
            return Quality(kl, None)
        nll = self._task.metric("nll").compute
        before, after = (nll(self._task.score(p, self._targets)) for p in (self._expected, found))
        return Quality(kl, after - before)


BATCHES = 1
_BITS = 2
_SETTINGS = PackSettings(8, None)
_SMALL_BITS = 4
_LEAST = 1e-12


def measure_sensitivity(
    ensemble: Ensemble, common: CommonTensors, validation: Iterable[Any], targets: TargetsAt = None
) -> dict[str, float]:
    """Return the divergence of predictions for an error of 1 in each tensor alone, and in all small ones.

    One member predicts the first batch with one tensor at a time in few bits and all others as they are.
    Errors are squares relative to those of the tensor, to which the divergence is proportional where both
    are small.

    Args:
        ensemble: The original ensemble.
        common: Means and identical tensors of its members.
        validation: Validation batches, of which the first is used.
        targets: Location of targets in the batches, as for `Ensemble.predict_batches`.
    """
    batches = list(islice(validation, BATCHES))
    one = ensemble.last(1).uncalibrated()
    member, count = ensemble.members[len(ensemble) - 1], len(ensemble)
    expected = one.predict_batches(batches, targets=targets)
    differing = [name for name in common.means if name not in common.identical]
    probes: dict[str, Weights] = {}
    for name in differing:
        base = base_numbers(common.means[name], _SETTINGS.base_bits)
        tensor = member[name]
        delta = pack_delta(tensor, base, _BITS, _SETTINGS).numbers().view(base.shape)
        probes[name] = {name: (base + delta).to(tensor.dtype)}
    small = [name for name, tensor in member.items() if not is_packed(tensor)]
    if small:
        whole = list(ensemble.members)
        probes[SMALL] = {
            name: pack_small([other[name] for other in whole], _SMALL_BITS).member(count - 1)
            for name in small
        }
    found = {}
    for name, changed in probes.items():
        probe = one.with_members([{**member, **changed}])
        predictions = probe.predict_batches(batches, targets=targets)
        error = sum(relative_error(tensor, member[key]) for key, tensor in changed.items())
        divergence = ensemble.task.divergence(expected, predictions)
        # A tensor whose error leads to predictions that are not finite matters very much.
        found[name] = max(_LEAST, divergence if isfinite(divergence) else 1 / _LEAST) / max(_LEAST, error)
    return found


@dataclass(frozen=True)
class Bits:
    """Compress to given widths.

    Args:
        delta: Bits for each number of a member's delta, from 1 to 8; without a base, also 16 (float16). A
            mapping gives the width of each tensor by its name.

    Example:
        >>> from pfge import Bits
        >>> Bits(3), Bits({"0.weight": 2, "3.weight": 4})
        (Bits(delta=3), Bits(delta={'0.weight': 2, '3.weight': 4}))
    """

    delta: int | Mapping[str, int] = 3


@dataclass(frozen=True)
class Budget:
    """Compress into a number of bytes; widths are chosen tensor by tensor.

    Args:
        bytes: Maximum bytes of the tensors in memory. Saved files add some 70 bytes per tensor, unless they
            are deflated, which takes about a tenth less.
        files: Whether the limit holds for the bytes of all saved files instead.

    Example:
        >>> import torch, pfge
        >>> members = [{"weight": torch.full((4, 64), 1 + k / 100)} for k in range(4)]
        >>> ensemble = pfge.Ensemble(members, lambda: torch.nn.Linear(64, 4, bias=False))
        >>> pfge.compress(ensemble, pfge.Budget(600)).nbytes  # these lie on a line: one component is enough
        280
    """

    bytes: int
    files: bool = False

    def size_of(self, ensemble: Ensemble) -> int:
        """Return the bytes of an ensemble that the budget limits."""
        return ensemble.file_bytes() if self.files else ensemble.nbytes

    def allows(self, ensemble: Ensemble) -> bool:
        """Return whether an ensemble is within the budget."""
        return self.size_of(ensemble) <= self.bytes


@dataclass(frozen=True, kw_only=True)
class MaxLoss:
    """Compress to the fewest bytes found that lose no more than this on validation data.

    Args:
        kl: Maximum divergence of predictions from the original's:
            KL(original || compressed) in nats, the mean over validation examples.
        nll_increase: Maximum increase of the negative log-likelihood of validation targets.

    Example:
        >>> from pfge import MaxLoss
        >>> from pfge.compression import Quality
        >>> MaxLoss(kl=0.001).allows(Quality(kl=0.0005, nll_increase=None))
        True
    """

    kl: float | None = None
    nll_increase: float | None = None

    def __post_init__(self) -> None:
        if self.kl is None and self.nll_increase is None:
            raise InvalidValueError("MaxLoss needs a limit; give kl, nll_increase or both")
        for name, most in (("kl", self.kl), ("nll_increase", self.nll_increase)):
            if most is not None and not most > 0:
                raise InvalidValueError(f"{name} must be above 0, got {most}")

    def allows(self, quality: Quality) -> bool:
        """Return whether a compressed ensemble is within the limits."""
        kl_is_fine = self.kl is None or quality.kl <= self.kl
        nll = quality.nll_increase
        return kl_is_fine and (self.nll_increase is None or nll is None or nll <= self.nll_increase)


Target = Bits | Budget | MaxLoss


@dataclass(frozen=True)
class StorageFormat:
    """A way to store members.

    Args:
        name: Name of the format, for people.
        settings: Settings for `compress`; None to store members as they are.
        bits: Width of the deltas.
    """

    name: str
    settings: PackSettings | None = None
    bits: int = 32

    def store(self, ensemble: Ensemble) -> Ensemble:
        """Return an ensemble in this format, as `compress` would make it."""
        if self.settings is None:
            return ensemble
        packed = pack_members(ensemble.members, self.bits, self.settings)
        return ensemble.with_members(packed, temperatures=ensemble.temperatures)

    def size(self, layout: Weights, members: int) -> int:
        """Return the bytes of members, as `compress` would make them.

        Integer tensors, such as counters, are assumed to be the same in all members, and are stored once if
        members are packed. Small tensors are assumed to fit float16.

        Args:
            layout: Tensors with one member's shapes and types; their values do not matter.
            members: Number of members.
        """
        if self.settings is None:
            return members * count_bytes(layout)
        total = 0
        for tensor in layout.values():
            if not is_packed(tensor):
                total += _small_size(tensor, members, self.settings)
            elif members == 1 and self.settings.base_bits is not None:
                total += base_size(tensor, self.settings.base_bits)
            else:
                total += TensorForm(self.bits, self.settings).size(tensor, members)
        return total


def _small_size(tensor: Tensor, members: int, settings: PackSettings) -> int:
    own = tensor.numel() * tensor.element_size()
    if members == 1 or not tensor.is_floating_point():
        return own
    return members * min(own, tensor.numel() * settings.small_bits // 8)


FORMATS = (
    StorageFormat("float32"),
    StorageFormat("int8", PackSettings(base_bits=None, group=None, small_bits=16), 8),
    StorageFormat("int8 base + 3 bits", PackSettings(small_bits=16), 3),
    StorageFormat("int8 base + 1 bit", PackSettings(small_bits=16), 1),
)
"""Widest first; packed members have BatchNorm, biases and the like in float16, as these are much of a small
delta. "int8 base + 3 bits" is what `pfge compress --small-bits 16` makes."""
FORMATS_ALONE = FORMATS[:2]
"""Formats without a base, for members that lie far apart."""
FORMATS_OF_ONE = (FORMATS[0], StorageFormat("int8 base", PackSettings(small_bits=16)))
"""Formats for one member, which is the base itself."""


def formats_of(members: int) -> tuple[StorageFormat, ...]:
    """Return the formats for a number of members; the first stores them as they are."""
    return FORMATS if members > 1 else FORMATS_OF_ONE


ATTEMPTS = 5  # in addition to the smallest plan
_CLOSE = 0.995  # of the budget
_AIM = 0.999


def plan_within_files(
    ladder: Ladder, most: int, file_bytes: Callable[[Plan], int]
) -> tuple[Plan | None, int]:
    """Return the largest plan found whose files fit the budget, and the bytes of the smallest plan.

    Files have bytes that do not depend on the plan. The bytes that a plan adds to them are about proportional
    to its tensors, so a few attempts come close.

    Args:
        ladder: Plans by the bytes of their tensors.
        most: Maximum bytes of all files.
        file_bytes: Packs a plan and returns the size of its files.
    """
    best = ladder.at(0)
    size = least = file_bytes(best)
    if least > most:
        return None, least
    too_large: Plan | None = None
    low, high = (
        ladder.smallest,
        ladder.largest + 1,
    )  # bytes of the best plan's tensors, and of tensors that are too large
    tensors = min(low + most - least, ladder.largest)
    attempts = 0
    while attempts < ATTEMPTS and high - low > 1 and not _CLOSE * most <= size <= most:
        if not low < tensors < high:
            tensors = (low + high) // 2
        plan = ladder.within(tensors)
        if plan == best:  # the same plan again: try a little more, or a little less
            low, tensors = tensors, round(tensors / _CLOSE)
        elif plan == too_large:
            high, tensors = tensors, round(tensors * _CLOSE)
        else:
            attempts += 1
            size = file_bytes(plan)
            if size <= most:
                best, low = plan, tensors
            else:
                too_large, high = plan, tensors
            share = (_AIM * most - least) / max(1, size - least)
            tensors = min(ladder.smallest + round(share * (tensors - ladder.smallest)), ladder.largest)
    return best, least


USUAL_TARGET = Bits()
USUAL_SETTINGS = PackSettings()
KL_SCALE = 0.1
"""Smallest divergence whose rounding counts, which then is 1e-7 nats. Rounding changes log-likelihoods by
more, but cancels in the divergence of two similar predictions, because each sums to 1."""


def compress(
    ensemble: Ensemble,
    target: Target = USUAL_TARGET,
    *,
    settings: PackSettings | None = None,
    validation: Iterable[Any] | None = None,
    targets: TargetsAt = None,
    refresh: Iterable[Any] | None = None,
    distil: Iterable[Any] | None = None,
    distillation: Distillation = USUAL_DISTILLATION,
    on_attempt: Callable[[Ensemble, Quality], None] | None = None,
    on_iteration: Callable[[int, int, float], None] | None = None,
) -> Ensemble:
    """Return an ensemble in fewer bytes: one base that all members share, and a small delta for each.

    Member k is stored as base + delta_k. The base is the mean of the members, in 8 bits by default. Deltas
    are small if members lie close together, like members of one training run, so few bits are enough. With
    b bits, the code c of a number, from 0 to 2^b - 1, stands for (c - (2^b - 1) / 2) * step.

    Only matrices and filters are compressed. Other tensors, such as biases and BatchNorm's parameters and
    statistics, are kept, and tensors that are the same in all members are stored once. The original is not
    changed.

    Args:
        ensemble: The ensemble to compress; its members are read several times.
        target: `Bits(3)` for given widths, `Budget(bytes)` for the best widths that fit, or
            `MaxLoss(kl=0.001)` for the fewest bytes that keep a quality.
        settings: Bits of the base, number of neighbors that share a step, and bits of small tensors. If None,
            `Bits` uses `PackSettings()`, and the other targets choose all of these tensor by tensor.
        validation: Batches to measure quality on, for `MaxLoss`, `refresh` and `distil`. They need targets if
            `MaxLoss` has an `nll_increase`. A `Budget` without them estimates which tensors matter.
        targets: Location of targets in `validation`, `refresh` and `distil`, as for `Ensemble.evaluate`;
            None for pairs and dicts with `labels`.
        refresh: Training batches to recompute BatchNorm statistics after compression. They are kept if they
            lower the KL on the validation batches and fit the `Budget`.
        distil: Training batches, with or without targets, to train the steps of each packed member until it
            predicts what the original did. The result is kept if it lowers the KL on the validation batches
            and fits the `Budget`; if not, there is a warning. With `MaxLoss`, an attempt that loses too much
            is distilled before it is given up.
        distillation: Iterations, learning rate and checkpoint of the distillation.
        on_attempt: Called with each ensemble whose quality was measured, for progress.
        on_iteration: Called during distillation with the number of finished iterations, their total, and the
            latest divergence.

    Raises:
        ValueError: The target cannot be met; the message gives the best possible one. Or no attempt predicts
            finite numbers on the validation batches.

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
        raise InvalidValueError("MaxLoss, refresh and distil need validation data; pass validation=batches")
    if isinstance(target, Bits) and settings is None:
        settings = USUAL_SETTINGS
    narrow = {
        name: t.dtype for name, t in (ensemble.members[0] if len(ensemble) else {}).items() if is_narrow(t)
    }
    if narrow:  # torch does not compute with these types
        wide = LazyMembers(len(ensemble), partial(_widened, ensemble.members))
        ensemble = ensemble.with_members(wide, temperatures=ensemble.temperatures)
    common = find_common(ensemble.members, settings or USUAL_SETTINGS)
    attempts = _Attempts(
        ensemble, target, settings, common, targets, refresh, distil, distillation, on_attempt, on_iteration
    )
    evaluator = None
    if validation is not None and (trains or not isinstance(target, Bits)):
        with_targets = isinstance(target, MaxLoss) and target.nll_increase is not None
        evaluator = QualityEvaluator(ensemble, validation, with_targets=with_targets, targets=targets)
    packed = attempts.meet(evaluator)
    if attempts.usual.base_bits is not None:
        _warn_if_far_apart(attempts, packed, attempts.usual.base_bits)
    return _narrowed(packed, narrow)


def _widened(members: Sequence[Weights], index: int) -> Weights:
    """Return a member with floating-point tensors of 8 bits in float32."""
    return {name: t.float() if is_narrow(t) else t for name, t in members[index].items()}


def _narrowed(packed: Ensemble, types: Mapping[str, torch.dtype]) -> Ensemble:
    """Return packed members whose tensors have these types again."""
    if not types:
        return packed
    tensors = require_packed(packed.members, "a narrow type").tensors
    narrow = {name: tensors[name].in_type(dtype) for name, dtype in types.items()}
    members = PackedMembers(len(packed), tensors | narrow)
    return packed.with_members(members, temperatures=packed.temperatures)


@dataclass(frozen=True)
class _Attempts:
    """Tries plans; each ensemble has fresh BatchNorm statistics if they help."""

    original: Ensemble
    target: Target
    settings: PackSettings | None
    common: CommonTensors
    targets: TargetsAt
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
            members = pack_members(self.original.members, plan.forms, plan.settings, self.common)
        else:
            members = pack_members(self.original.members, plan, self.usual, self.common)
        return self.original.with_members(members, temperatures=self.original.temperatures)

    def evaluated(
        self, plan: Plan | int | Mapping[str, int], evaluator: QualityEvaluator
    ) -> tuple[Ensemble, Quality]:
        return self._report(self._fresher(self.pack(plan), evaluator))

    def distilled(
        self, found: tuple[Ensemble, Quality], evaluator: QualityEvaluator
    ) -> tuple[Ensemble, Quality]:
        """Return a packed ensemble with trained steps if they improve it, or the ensemble as it was."""
        packed, quality = found
        if self.training is None:
            return found
        try:
            made = distil(
                self.original,
                packed,
                self.training,
                self.distillation,
                self.on_iteration,
                targets=self.targets,
            )
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
        trained = self._report((made, evaluator.measure(made)))
        if is_lower(_loss(trained), _loss(found), scale=KL_SCALE):
            return trained
        warnings.warn(
            f"the ensemble is kept as it was before distillation, which changed the validation KL from "
            f"{quality.kl:.3g} to {trained[1].kl:.3g}; more iterations or batches, or a lower rate, may help",
            stacklevel=2,
        )
        return found

    def _report(self, found: tuple[Ensemble, Quality]) -> tuple[Ensemble, Quality]:
        if self.on_attempt is not None:
            self.on_attempt(*found)
        return found

    def _fresher(self, packed: Ensemble, evaluator: QualityEvaluator) -> tuple[Ensemble, Quality]:
        found = packed, evaluator.measure(packed)
        if self.refresh is None:
            return found
        forward = without_targets(packed.forward, self.targets)
        members = packed.with_fresh_batch_norm(self.refresh, forward=forward).members
        fresh = packed.with_members(members, temperatures=packed.temperatures)
        # Fresh statistics differ between members, and so take more bytes than common ones.
        if isinstance(self.target, Budget) and not self.target.allows(fresh):
            return found
        return first_lowest([found, (fresh, evaluator.measure(fresh))], key=_loss, scale=KL_SCALE)

    def meet(self, evaluator: QualityEvaluator | None) -> Ensemble:
        match target := self.target:
            case Bits(delta):
                if evaluator is None:
                    return self.pack(delta)
                return _finite(self.distilled(self.evaluated(delta, evaluator), evaluator))
            case Budget():
                return self.best_within(target, evaluator)
            case MaxLoss() if evaluator is not None:
                return self.smallest_with(target, evaluator)
        raise InvalidTypeError(f"target must be Bits, Budget or MaxLoss, got {target!r}; for example Bits(3)")

    def best_within(self, budget: Budget, evaluator: QualityEvaluator | None) -> Ensemble:
        ladder = self.ladder()
        plan = self.plan_within(ladder, budget)
        if evaluator is None:
            return self.pack(plan)
        # The sensitivity is only an estimate, so both plans are measured.
        plans = [plan, self.plan_within(ladder.weighted(self.sensitivity(evaluator)), budget)]
        plans = plans[:1] if plans[0] == plans[1] else plans
        best = first_lowest((self.evaluated(plan, evaluator) for plan in plans), key=_loss, scale=KL_SCALE)
        return _finite(self.distilled(best, evaluator))

    def plan_within(self, ladder: Ladder, budget: Budget) -> Plan:
        plan, least = None, ladder.smallest
        if budget.files:
            plan, least = plan_within_files(ladder, budget.bytes, lambda plan: self.pack(plan).file_bytes())
        elif budget.bytes >= least:
            plan = ladder.within(budget.bytes)
        if plan is None:
            raise InvalidValueError(
                f"budget must be at least {least} bytes, the size with {self._describe(ladder.at(0))}, got "
                f"{budget.bytes}; raise it, or lower one of these settings or the number of members"
            )
        return plan

    def smallest_with(self, target: MaxLoss, evaluator: QualityEvaluator) -> Ensemble:
        seen: list[tuple[Ensemble, Quality]] = []

        def serves(plan: Plan) -> bool:
            found = self.evaluated(plan, evaluator)
            if not target.allows(found[1]):
                found = self.distilled(found, evaluator)
            seen.append(found)
            return target.allows(found[1])

        if self.ladder().weighted(self.sensitivity(evaluator)).first_satisfying(serves) is None:
            raise InvalidValueError(
                f"{target} cannot be met: with 8 bits everywhere the loss is {seen[0][1]}; allow more, or "
                "raise base_bits or small_bits"
            )
        return min((made for made, quality in seen if target.allows(quality)), key=lambda made: made.nbytes)

    def sensitivity(self, evaluator: QualityEvaluator) -> Mapping[str, float]:
        return measure_sensitivity(self.original, self.common, evaluator.batches, evaluator.targets)

    def ladder(self) -> Ladder:
        return Ladder(self.original.members, self.common, Choices.of(self.settings))

    def _describe(self, plan: Plan) -> str:
        if self.settings is None:
            return "the fewest bits of everything"
        return (
            f"base_bits={self.settings.base_bits}, delta_bits=1, group={self.settings.group} and "
            f"small_bits={plan.settings.small_bits}"
        )


def _loss(found: tuple[Ensemble, Quality]) -> float:
    """Return the KL to choose by, with infinity in place of NaN, which compares as False."""
    return found[1].kl if isfinite(found[1].kl) else inf


def _finite(found: tuple[Ensemble, Quality]) -> Ensemble:
    """Return the best ensemble that was found, or refuse it if its predictions are not finite."""
    if not isfinite(found[1].kl):
        raise InvalidValueError(
            f"the KL on the validation batches must be finite, got {found[1].kl} for every plan that was "
            "tried; give more bits or bytes, or check that the original ensemble predicts finite numbers on "
            "these batches"
        )
    return found[0]


@torch.no_grad()
def _warn_if_far_apart(attempts: _Attempts, packed: Ensemble, base_bits: int) -> None:
    """Warn if deltas save less than the base costs.

    At equal error, numbers that are smaller by a factor r need log2(1 / r) fewer bits for each of K members;
    the base costs its bits once.
    """
    members, common = attempts.original.members, attempts.common
    size = sum(float(mean.square().sum()) for mean in common.means.values())
    squares = 0.0
    for member in members:
        for name, mean in common.means.items():
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
    """Return the bytes of the members with 8 bits for each number and without a base."""
    members, common, settings = attempts.original.members, attempts.common, attempts.usual
    widths = dict.fromkeys(common.means.keys() - common.identical, 8)
    return pack_members(members, widths, replace(settings, base_bits=None), common).nbytes

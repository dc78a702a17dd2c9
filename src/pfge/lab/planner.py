"""Find the ensembles that fit into a memory: method, members, bits, and the iteration of each member."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from pfge.compression.compress import FORMATS, FORMATS_ALONE, FORMATS_OF_ONE, StorageFormat
from pfge.errors import InvalidValueError
from pfge.lab.models import build_model
from pfge.lab.models.registry import ModelBuildError
from pfge.methods import METHODS, Method, TrainingPlan, reference_first, schedule_of
from pfge.weights import Weights, count_bytes, view_weights


@dataclass(frozen=True)
class Plan:
    """One way to use a memory.

    Attributes:
        method: Name of the method.
        format: Storage format of the members.
        setting: Cycle, period, iterations and rates.
        members: Number of members at test time; the last ones if the method makes more.
        nbytes: Bytes of the members at test time; prediction needs one more model in memory.
        training_bytes: Bytes beyond those of SGD: a mean, and the members unless a folder stores them.
    """

    method: str
    format: StorageFormat
    setting: TrainingPlan
    members: int
    nbytes: int
    training_bytes: int

    @property
    def iterations(self) -> list[int]:
        """The iteration at which each member is complete."""
        return _iterations(METHODS[self.method], self.setting)[-self.members :]

    @property
    def rates(self) -> list[float]:
        """The learning rate at each of those iterations."""
        schedule = schedule_of(self.method, self.setting)
        return [schedule(iteration) for iteration in self.iterations]


def describe_layout(name: str, *, classes: int, channels: int = 3) -> Weights:
    """Return a model's tensors on the meta device, which take no memory, if the model can be built there."""
    try:
        with torch.device("meta"):
            return view_weights(build_model(name, classes=classes, channels=channels))
    except (RuntimeError, ModelBuildError):  # the model reads values while it is built
        with torch.random.fork_rng():
            return view_weights(build_model(name, classes=classes, channels=channels))


def planned_methods() -> list[Method]:
    """Return the methods that plans consider, the reference first."""
    return reference_first([method for method in METHODS.values() if method.plan])


def find_plans(memory: int, layout: Weights, setting: TrainingPlan) -> list[Plan]:
    """Return, for each method and format, the plan with the most members that fits.

    If not all members fit, PFGE and Star get longer periods of whole cycles, which yield fewer members, and
    FGE uses its last members.

    Args:
        memory: Bytes for the members at test time.
        layout: Tensors of the model, as from `describe_layout`.
        setting: The required setting; a plan's period is at least as long.

    Raises:
        ValueError: Nothing fits.
    """
    _warn_of_remainders(setting)
    fitting = [
        plan
        for method in planned_methods()
        for stored_as in _formats(method)
        for plan in _largest(method, stored_as, layout, memory, setting)
    ]
    if not fitting:
        least = FORMATS_OF_ONE[-1].size(layout, 1)
        raise InvalidValueError(
            f"memory must be at least {least:,} bytes, which one member (SWA) takes as an int8 base, got "
            f"{memory:,}; raise it, or take a smaller model; two members take "
            f"{FORMATS[-1].size(layout, 2):,} with a bit each, and one {count_bytes(layout):,} as float32"
        )
    return fitting


def recommend(plans: list[Plan]) -> list[Plan]:
    """Return the recommended plans for one forward pass, for a few and for many.

    Each has the most members of a recommended method, in the widest format that fits. If more members of
    the reference fit, which can be packed more tightly, the reference is recommended instead. The last few
    members of a method that makes many are not recommended: one average may be better.
    """
    chosen = []
    for method in (method for method in planned_methods() if method.plan == "recommended"):
        fitting = [plan for plan in plans if plan.method == method.name]
        if method.members == "period":
            fitting += [plan for plan in plans if METHODS[plan.method].reference]
        if method.members == "cycle":
            fitting = [plan for plan in fitting if plan.members == len(_iterations(method, plan.setting))]
        chosen += sorted(fitting, key=lambda plan: -plan.members)[:1]  # formats stay in their order
    return sorted(chosen, key=lambda plan: plan.members)


def _formats(method: Method) -> tuple[StorageFormat, ...]:
    if method.members == "one":
        return FORMATS_OF_ONE
    return FORMATS_ALONE if method.far_apart else FORMATS


def _largest(
    method: Method, stored_as: StorageFormat, layout: Weights, memory: int, setting: TrainingPlan
) -> Iterator[Plan]:
    """Yield the plan with the most members that fit, if there is one."""
    for tried, members in _choices(method, setting):
        nbytes = stored_as.size(layout, members)
        if nbytes <= memory:
            made = len(_iterations(method, tried))
            kept = made if method.members != "one" else 0
            mean = _mean_bytes(layout) if method.averages else 0
            yield Plan(method.name, stored_as, tried, members, nbytes, mean + kept * count_bytes(layout))
            return


def _choices(method: Method, setting: TrainingPlan) -> Iterator[tuple[TrainingPlan, int]]:
    """Yield settings and numbers of members, most members first."""
    made = len(_iterations(method, setting))
    yield setting, made
    for members in range(made - 1, 1, -1):  # one member is left to SWA
        if method.members == "period":
            longest = setting.iterations // members // setting.cycle * setting.cycle
            # Rounded to cycles, it may be shorter than the required period, whose last members are then used.
            yield replace(setting, period=max(longest, setting.period)), members
        else:
            yield setting, members


def _iterations(method: Method, setting: TrainingPlan) -> list[int]:
    spacing = setting.period if method.members == "period" else setting.cycle
    taken = list(range(spacing, setting.iterations + 1, spacing))
    return taken[-1:] if method.members == "one" else taken


def _mean_bytes(layout: Weights) -> int:
    return sum(
        tensor.numel() * torch.promote_types(tensor.dtype, torch.float32).itemsize
        if tensor.is_floating_point()
        else tensor.numel() * tensor.element_size()
        for tensor in layout.values()
    )


def _warn_of_remainders(setting: TrainingPlan) -> None:
    if unused := setting.period % setting.cycle:
        warnings.warn(
            f"a period of {setting.period} iterations is not a multiple of the cycle of {setting.cycle}: the "
            f"last {unused} iterations of each period are not averaged; choose a multiple of it",
            stacklevel=3,
        )
    if unused := setting.iterations % setting.period:
        warnings.warn(
            f"{setting.iterations} iterations are not a multiple of the period of {setting.period}: PFGE "
            f"does not use the last {unused}; choose a multiple of {setting.period}",
            stacklevel=3,
        )

"""The table of methods. An entry is all that configs, comparisons, tables and figures need of a method."""

from functools import partial
from pathlib import Path

from pfge.collectors import EMA, FGE, PFGE, SWA, SWAG, Collector, Star
from pfge.collectors.stores import Store
from pfge.errors import InvalidValueError
from pfge.methods.method import Method, TrainingPlan
from pfge.schedules import CosineRestarts, Schedule


def _points(setting: TrainingPlan) -> int:
    """Return how many members FGE has: SWAG has as many samples, so that both take the same memory."""
    return max((setting.iterations - (setting.phase or setting.cycle)) // setting.cycle + 1, 1)


def _anneal_periods(setting: TrainingPlan) -> Schedule:
    return CosineRestarts(setting.period, setting.low, setting.high)


def _average_tails(setting: TrainingPlan, period: int, store: Store | str | Path | None) -> Star:
    return Star(period, tail=setting.tail_of(period), store=store)


# Kinds of methods, with what their entries share.
_shared = partial(Method, path="shared")  # a collector that only watches
_own = partial(Method, path="own")  # one that steers, or has other rates
_annealed = partial(_own, schedule=_anneal_periods, members="period")

# Tables and legends have this order.
_ENTRIES = (
    _shared(
        "SWA",
        description="One model: the mean of the weights at the end of every cycle.",
        source="Izmailov et al., Averaging Weights Leads to Wider Optima and Better Generalization, UAI 2018",
        collector=lambda setting, _seed, _store: SWA(
            setting.cycle, phase=setting.phase, average_start=setting.averages_start
        ),
        members="one",
        averages=True,
        default=True,
        plan="recommended",
    ),
    _shared(
        "EMA",
        description="One model: an exponential moving average of the weights.",
        source="Tarvainen and Valpola, Mean Teachers Are Better Role Models, NIPS 2017",
        collector=lambda setting, _seed, _store: EMA(setting.ema_decay),
        members="one",
        averages=True,
    ),
    _shared(
        "FGE",
        description="The weights at the end of every cycle, each as a member.",
        source="Garipov et al., Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs, NeurIPS 2018",
        collector=lambda setting, _seed, store: FGE(setting.cycle, phase=setting.phase, store=store),
        members="cycle",
        starred=True,
        default=True,
        curves=True,
        plan="recommended",
    ),
    _shared(
        "SWAG",
        description="Samples of a Gaussian that is fitted to the weights at the end of every cycle.",
        source="Maddox et al., A Simple Baseline for Bayesian Uncertainty in Deep Learning, NeurIPS 2019",
        collector=lambda setting, seed, _store: SWAG(
            setting.cycle, phase=setting.phase, samples=_points(setting), seed=seed
        ),
        starred=True,
        least_cycles=2,  # a variance needs two points
        default=True,
    ),
    _own(
        "PFGE",
        description="SWA once a period; each mean is a member, and the next period starts from it.",
        source="Guo, Jin and Liu, PFGE: Parsimonious Fast Geometric Ensembling of DNNs, ICIC 2023",
        collector=lambda setting, _seed, store: PFGE(
            setting.cycle,
            setting.period,
            phase=setting.phase,
            average_start=setting.averages_start,
            clear_momentum=setting.clear_momentum,
            cycles_restart=setting.variant == "paper",
            store=store,
        ),
        members="period",
        averages=True,
        default=True,
        reference=True,
        curves=True,
        plan="listed",
    ),
    _annealed(
        "Snapshot",
        description="The weights at the end of every period, over which the rate is annealed once.",
        source="Huang et al., Snapshot Ensembles: Train 1, Get M for Free, ICLR 2017",
        collector=lambda setting, _seed, store: FGE(setting.period, store=store),
    ),
    _annealed(
        "Star",
        description="Every period starts from w0 and is annealed once; the mean of its tail is a member.",
        source="Sadrtdinov et al., To Stay or Not to Stay in the Pre-train Basin, NeurIPS 2023",
        collector=lambda setting, _seed, store: _average_tails(setting, setting.period, store),
        periods_are_independent=True,
        averages=True,
        far_apart=True,
        plan="recommended",
    ),
    _own(
        "Cosine",
        description="One model: the rate is annealed once over all iterations, and the tail is averaged.",
        source="Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, ICLR 2017",
        collector=lambda setting, _seed, store: _average_tails(setting, setting.iterations, store),
        schedule=lambda setting: CosineRestarts(setting.iterations, setting.low, setting.high),
        members="one",
        averages=True,
    ),
    Method(
        "MCDropout",
        description="w0 with dropout left on at test time; each pass is a member.",
        source="Gal and Ghahramani, Dropout as a Bayesian Approximation, ICML 2016",
        path="start",
    ),
    Method(
        "TTA",
        description="SWA's one model on each picture as it is, shifted and mirrored; a pass is a member.",
        source="Krizhevsky et al., ImageNet Classification with Deep Convolutional Networks, NIPS 2012",
        path="augmented",
        base="SWA",
    ),
    Method(
        "DeepEnsemble",
        description="Members that are trained independently, each from its own random start.",
        source="Lakshminarayanan et al., Simple and Scalable Predictive Uncertainty Estimation, NIPS 2017",
        path="trainings",
    ),
)

METHODS: dict[str, Method] = {}
"""Every method by its name, in the order of tables; `register` adds one."""


def register(method: Method) -> None:
    """Add a method to the table.

    From then on configs take its name, a comparison runs it, and tables and figures show it after the
    others.

    >>> sparse = Method(
    ...     "Sparse",
    ...     description="FGE with a member every second cycle.",
    ...     source="",
    ...     path="shared",
    ...     collector=lambda setting, seed, store: FGE(2 * setting.cycle, store=store),
    ... )
    >>> register(sparse)
    >>> METHODS["Sparse"] is sparse
    True
    >>> del METHODS["Sparse"]

    Raises:
        ValueError: There is a method of that name, in upper or lower case, or another reference.
    """
    if method.name.lower() in map(str.lower, METHODS):  # a file system may not tell the two apart
        raise InvalidValueError(
            f"a method's name must differ from {', '.join(METHODS)}, not only in upper and lower case, got "
            f"{method.name!r}; choose another"
        )
    if method.reference and any(other.reference for other in METHODS.values()):
        raise InvalidValueError(
            f"one method is the reference, which is {find_reference().name}, got {method.name} as another; "
            "leave reference out"
        )
    METHODS[method.name] = method


def find_reference() -> Method:
    """Return the method that the others are compared with."""
    return next(method for method in METHODS.values() if method.reference)


def reference_first(methods: list[Method]) -> list[Method]:
    """Return methods with the reference before the others, which keep their order."""
    return sorted(methods, key=lambda method: not method.reference)


def make_collector(
    name: str, setting: TrainingPlan, *, seed: int = 0, store: Store | str | Path | None = None
) -> Collector:
    """Return the collector of a method.

    Args:
        name: A method of a shared or own path.
        setting: What the methods share.
        seed: For methods that sample.
        store: A folder for the members of methods that make them one by one.
    """
    method = METHODS.get(name)
    if method is None or method.collector is None:
        known = [method.name for method in METHODS.values() if method.collector]
        raise InvalidValueError(
            f"there is no method {name!r} with a collector; choose from {', '.join(known)}"
        )
    return method.collector(setting, seed, store)


for _method in _ENTRIES:
    register(_method)
DEFAULT_METHODS = tuple(method.name for method in _ENTRIES if method.default)
"""Those of the paper: what a comparison has unless its config says otherwise."""

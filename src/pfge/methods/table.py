"""The table of methods, and the names of the rows that results have of them."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from pfge.collectors import EMA, FGE, PFGE, SWA, SWAG, Collector, Star
from pfge.collectors.stores import Store
from pfge.errors import InvalidValueError
from pfge.methods.method import Method, TrainingPlan
from pfge.schedules import CosineRestarts, Schedule


def _points(plan: TrainingPlan) -> int:
    """Return the number of FGE's members; SWAG draws as many samples, for the same memory."""
    return max((plan.iterations - (plan.phase or plan.cycle)) // plan.cycle + 1, 1)


def _anneal_periods(plan: TrainingPlan) -> Schedule:
    return CosineRestarts(plan.period, plan.low, plan.high)


def _average_tails(plan: TrainingPlan, period: int, store: Store | str | Path | None) -> Star:
    return Star(period, tail=plan.tail_of(period), store=store)


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
        collector=lambda plan, _seed, _store: SWA(
            plan.cycle, phase=plan.phase, average_start=plan.averages_start
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
        collector=lambda plan, _seed, _store: EMA(plan.ema_decay),
        members="one",
        averages=True,
    ),
    _shared(
        "FGE",
        description="The weights at the end of every cycle, each as a member.",
        source="Garipov et al., Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs, NeurIPS 2018",
        collector=lambda plan, _seed, store: FGE(plan.cycle, phase=plan.phase, store=store),
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
        collector=lambda plan, seed, _store: SWAG(
            plan.cycle, phase=plan.phase, samples=_points(plan), seed=seed
        ),
        starred=True,
        least_cycles=2,  # a variance needs two points
        default=True,
    ),
    _own(
        "PFGE",
        description="SWA once a period; each mean is a member, and the next period starts from it.",
        source="Guo, Jin and Liu, PFGE: Parsimonious Fast Geometric Ensembling of DNNs, ICIC 2023",
        collector=lambda plan, _seed, store: PFGE(
            plan.cycle,
            plan.period,
            phase=plan.phase,
            average_start=plan.averages_start,
            clear_momentum=plan.clear_momentum,
            cycles_restart=plan.variant == "paper",
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
        collector=lambda plan, _seed, store: FGE(plan.period, store=store),
    ),
    _annealed(
        "Star",
        description="Every period starts from w0 and is annealed once; the mean of its tail is a member.",
        source="Sadrtdinov et al., To Stay or Not to Stay in the Pre-train Basin, NeurIPS 2023",
        collector=lambda plan, _seed, store: _average_tails(plan, plan.period, store),
        periods_are_independent=True,
        averages=True,
        far_apart=True,
        plan="recommended",
    ),
    _own(
        "Cosine",
        description="One model: the rate is annealed once over all iterations, and the tail is averaged.",
        source="Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, ICLR 2017",
        collector=lambda plan, _seed, store: _average_tails(plan, plan.iterations, store),
        schedule=lambda plan: CosineRestarts(plan.iterations, plan.low, plan.high),
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
    ...     collector=lambda plan, seed, store: FGE(2 * plan.cycle, store=store),
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
            f"a method's name must differ from {', '.join(METHODS)} in more than upper and lower case, got "
            f"{method.name!r}; choose another"
        )
    if method.reference and any(other.reference for other in METHODS.values()):
        raise InvalidValueError(
            f"only one method can be the reference, which is {find_reference().name}, got {method.name} as a "
            "second one; leave out reference=True"
        )
    METHODS[method.name] = method


def find_reference() -> Method:
    """Return the method that the others are compared with."""
    return next(method for method in METHODS.values() if method.reference)


def reference_first(methods: list[Method]) -> list[Method]:
    """Return methods with the reference before the others, which keep their order."""
    return sorted(methods, key=lambda method: not method.reference)


def make_collector(
    name: str, plan: TrainingPlan, *, seed: int = 0, store: Store | str | Path | None = None
) -> Collector:
    """Return the collector of a method.

    Args:
        name: A method of a shared or own path.
        plan: The settings that all methods share.
        seed: Seed for methods that sample.
        store: Folder for members that are made one by one.
    """
    method = METHODS.get(name)
    if method is None or method.collector is None:
        known = [method.name for method in METHODS.values() if method.collector]
        raise InvalidValueError(f"{name!r} is not a method with a collector; choose from {', '.join(known)}")
    return method.collector(plan, seed, store)


for _method in _ENTRIES:
    register(_method)
DEFAULT_METHODS = tuple(method.name for method in _ENTRIES if method.default)
"""Methods of the paper, which a comparison runs unless its config names others."""

START = "w0"
"""The row of the start weights, which is there without being asked for."""
_STAR = "*"


def starred(name: str) -> str:
    """Return the row of the last members of a method.

    >>> starred("FGE")
    'FGE*'
    """
    return name + _STAR


def is_starred(row: str) -> bool:
    """Return whether a row is of the last members of a method."""
    return row.endswith(_STAR)


def base_of(row: str) -> str:
    """Return the name of the method that a row belongs to.

    >>> base_of("FGE*"), base_of("FGE")
    ('FGE', 'FGE')
    """
    return row.removesuffix(_STAR)


def method_of(row: str) -> Method | None:
    """Return the method that a row belongs to; None for w0 and for unknown rows."""
    return METHODS.get(base_of(row))


def known_rows() -> list[str]:
    """Return the rows that a config can ask for, in the order of tables."""
    return [
        row
        for method in METHODS.values()
        for row in ((method.name, starred(method.name)) if method.starred else (method.name,))
    ]


def row_order(rows: Iterable[str]) -> list[str]:
    """Return rows in the order of tables: w0, those of the table of methods, then others in their own."""
    found = list(rows)
    known = [START, *known_rows()]
    return [row for row in known if row in found] + [row for row in found if row not in known]


def schedule_of(row: str, plan: TrainingPlan) -> Schedule:
    """Return the learning rate that a row's members were made with; the shared one for unknown rows."""
    method = method_of(row)
    return method.schedule(plan) if method else plan.schedule()

"""What a method is: all that a comparison, a table or a figure needs to know about it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pfge.collectors import Collector
from pfge.collectors.stores import Store
from pfge.methods.setting import Setting
from pfge.methods.style import Style
from pfge.schedules import Schedule

CollectorFactory = Callable[[Setting, int, Store | str | Path | None], Collector]
TAKEN_NAMES = ("w0", "shared", "pretrain")
"""Names that a run folder has for rows and files of its own."""


@dataclass(frozen=True)
class Method:
    """One way to make an ensemble.

    Args:
        name: In configs, tables and folders: ASCII letters, digits and underscores.
        description: What it does, in one line.
        source: Where it was published.
        path: Where its weights come from. "shared": its collector only watches, at the rates of
            `Setting.schedule`, so one trajectory serves all such methods. "own": its collector steers, or it
            has other rates. "trainings": each member has a training of its own, as w0 has. "start": w0 is
            used with dropout left on, and nothing is trained or saved. "augmented": nor is it where the one
            model of another method, `base`, is used on pictures that are shifted and mirrored.
        collector: Returns a new collector for a setting, a seed (for methods that sample) and a store (for
            members that are made one by one). Methods of a shared or own path have one.
        schedule: Returns the learning rate of its path.
        members: How many members its path gives: "one", a mean; one each "cycle"; or one each "period".
            None if they are not points of a path.
        periods_are_independent: Whether every period starts from w0 with a new optimizer, so that each can be
            trained by a process of its own.
        averages: Whether it keeps a running mean of weights while it trains.
        base: The method whose one model it uses.
        starred: Whether its last members, as many as the reference has, have a row of their own (`FGE*`).
        least_cycles: How many cycles an experiment must have at the least.
        default: Whether a comparison has it unless the config says otherwise.
        reference: Whether the others are compared with it. One method is.
        rival: The method that it is said to equal in far less memory.
        for_reference: Whether its row is apart from the others, as it needs many times their memory.
        shows_members: Whether its members are shown one by one: each against the iteration, and the curves
            from each to the next.
        rates_title: The title of its panel in the figure of learning rates; "" for no panel.
        far_apart: Whether its members differ too much to be stored as small differences from a base.
        plan: What `pfge plan` does with it: it is "listed", where `members` says where its members are taken;
            or also "recommended", as it had the lowest NLL at a temperature among listed methods with as many
            forward passes, each at its own rate, in docs/mnist1d.md. None if neither.
        style: How it looks in figures; None for one of those that are left.

    Raises:
        ValueError: The name cannot be one, or the path does not go with the collector.
    """

    name: str
    description: str
    source: str
    path: Literal["shared", "own", "trainings", "start", "augmented"]
    collector: CollectorFactory | None = None
    schedule: Callable[[Setting], Schedule] = Setting.schedule
    members: Literal["one", "cycle", "period"] | None = None
    periods_are_independent: bool = False
    averages: bool = False
    base: str = ""
    starred: bool = False
    least_cycles: int = 1
    default: bool = False
    reference: bool = False
    rival: str = ""
    for_reference: bool = False
    shows_members: bool = False
    rates_title: str = ""
    far_apart: bool = False
    plan: Literal["listed", "recommended"] | None = None
    style: Style | None = None

    def __post_init__(self) -> None:
        if not (self.name.isidentifier() and self.name.isascii()) or self.name.lower() in TAKEN_NAMES:
            raise ValueError(
                f"a method's name must have ASCII letters, digits and underscores only, and must not be one "
                f"of {', '.join(TAKEN_NAMES)}, got {self.name!r}"
            )
        if (self.collector is not None) != (self.path in ("shared", "own")):
            raise ValueError(
                f"a method has a collector if its path is 'shared' or 'own', and none otherwise, got path = "
                f"{self.path!r} and collector = {self.collector!r} for {self.name}"
            )

    @property
    def saved(self) -> bool:
        """Whether its ensemble is saved: not if the one model of another row is used otherwise."""
        return self.path not in ("start", "augmented")

    def forks(self, setting: Setting) -> bool:
        """Return whether its path is the shared one up to its first restart: it steers, at the same rates."""
        return self.path == "own" and self.schedule(setting) == setting.schedule()

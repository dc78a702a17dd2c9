"""What `pfge diagnose` finds: the geometry of members, and what they and their pooling change."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pfge.lab.run.results.base import Count, Finite, Name, Result
from pfge.lab.run.typed_json import at_least


@dataclass(frozen=True)
class AdjacentMembers:
    """The geometry of two adjacent members.

    Attributes:
        members: Their numbers, from 1.
        distance: Between them, relative to the norm of the first's parameters.
        angle: In degrees, between the ways from w0 to each of them.
        loss: The mean of their training losses.
        barrier: How far the training loss half-way on the straight line is above that; below 0 if lower.
        disagreement: The share of validation examples that they classify differently.
    """

    members: tuple[Count, Count]
    distance: Finite
    angle: Finite
    loss: Finite
    barrier: Finite
    disagreement: Finite


@dataclass(frozen=True)
class Change:
    """A mean difference over examples, and its standard error."""

    mean: Finite
    error: Annotated[Finite, at_least(0)]


@dataclass(frozen=True, kw_only=True)
class Gains:
    """What the members and their pooling change, on the examples of a diagnosis; below 0 is better.

    Attributes:
        pooled_error: The share of errors of all members together, minus the mean of theirs alone.
        pooled_loss: The same of the NLL.
        member_error: The mean share of errors of the members alone, minus that of w0.
        member_loss: The same of the NLL.
        w0_error: The share of errors of w0.
        w0_training_loss: The training loss of w0.
        tempered_loss: The mean NLL of the members alone, each at its temperature, minus that of all together
            as predicted; None without validation data.
    """

    pooled_error: Change
    pooled_loss: Change
    member_error: Change
    member_loss: Change
    w0_error: Finite
    w0_training_loss: Finite
    tempered_loss: Change | None = None


@dataclass(frozen=True)
class Diagnosis:
    """What the geometry of one ensemble's members shows.

    Attributes:
        seed: Of the run.
        method: The ensemble's.
        pairs: Its adjacent members.
        errors: Each member's error on validation data.
        pooled_error: That of all together.
        judged_on: What stood for validation data: "validation", or "training" where there is none.
        stale_loss: The training loss of the members with w0's BatchNorm statistics; None without BatchNorm.
        rates: The learning rate at which each member was taken; None where it belongs to no iteration.
        low: The lowest rate of the run.
        gains: What the members and their pooling change; None in files of older versions.
    """

    seed: int
    method: Name
    pairs: Sequence[AdjacentMembers]
    errors: Sequence[Finite]
    pooled_error: Finite
    judged_on: Literal["validation", "training"]
    stale_loss: Finite | None
    rates: Sequence[Finite | None]
    low: Finite
    gains: Gains | None = None


@dataclass(frozen=True)
class Diagnoses(Result):
    """The diagnosis of every ensemble that was examined."""

    ensembles: Sequence[Diagnosis]

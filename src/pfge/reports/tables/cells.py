"""What the cells of a table are: values, which each renderer shows in its own way; `str` is their text."""

from dataclasses import dataclass

from pfge.reports.statistics import Estimate
from pfge.tasks import Metric


@dataclass(frozen=True)
class Text:
    """Words."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Number:
    """A number, or a mean with its standard error.

    Args:
        value: The number.
        error: Its standard error, if it has one.
        digits: Decimals of both.
        signed: Whether a number above 0 has a sign.
        best: Whether it is the best of its column.
    """

    value: float
    error: float | None = None
    digits: int = 4
    signed: bool = False
    best: bool = False

    @classmethod
    def of(cls, estimate: Estimate, digits: int) -> "Number":
        """Return an estimate as a cell."""
        return cls(estimate.mean, estimate.error, digits)

    @classmethod
    def of_metric(cls, metric: Metric, estimate: Estimate, *, best: bool = False) -> "Number":
        """Return an estimate of a metric as a cell, in the unit of the metric."""
        scaled = estimate.scaled(metric.factor)
        return cls(scaled.mean, scaled.error, metric.digits, best=best)

    def __str__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.{self.digits}f}"
        return f"{self.value:{'+' if self.signed else ''}.{self.digits}f}{error}"


@dataclass(frozen=True)
class Interval:
    """Two ends, each with its sign."""

    low: float
    high: float
    digits: int = 4

    def __str__(self) -> str:
        return f"{self.low:+.{self.digits}f} to {self.high:+.{self.digits}f}"


@dataclass(frozen=True)
class Count:
    """A whole number, as of members or bytes, and a note if there is more to say."""

    value: int
    note: str = ""
    signed: bool = False

    def __str__(self) -> str:
        return f"{self.value:{'+' if self.signed else ''},}{f' ({self.note})' if self.note else ''}"


@dataclass(frozen=True)
class Ratio:
    """How many times as much, in so many significant digits."""

    value: float
    digits: int = 3

    def __str__(self) -> str:
        return f"{self.value:.{self.digits}g}x"


@dataclass(frozen=True)
class Missing:
    """Nothing, and why if that is worth saying."""

    why: str = ""

    def __str__(self) -> str:
        return self.why


Cell = Text | Number | Interval | Count | Ratio | Missing

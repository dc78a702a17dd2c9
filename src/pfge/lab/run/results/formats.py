"""What `pfge formats` finds: a row for each ensemble in each storage format."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from pfge.lab.run.results.base import Count, Finite, MeasuredRow, Name, OfParts, StoredTask
from pfge.lab.run.typed_json import at_least
from pfge.tasks.manifest import DEFAULT_TASK


@dataclass(frozen=True, kw_only=True)
class FormatRow(MeasuredRow):
    """One ensemble in one storage format, whole or as a cascade.

    Attributes:
        seed: Of the run.
        method: Whose ensemble.
        task: What the metrics are of.
        format: The name of the storage format.
        cascade: Whether members are evaluated only until one is sure.
        members: How many there are.
        bytes: Of the stored members.
        file_bytes: Of all files on disk.
        bytes_of_one: Of the weights of one model in float32.
        mean_members: Mean number of members evaluated per example.
        most_members: The largest number.
        kl: Divergence from the predictions of the same members in float32, all evaluated, in nats.
        metrics: On the test set.
    """

    remedy = "remove that line and run pfge formats again, which measures what is missing"

    seed: int
    method: Name
    task: StoredTask = DEFAULT_TASK
    format: Name
    cascade: bool
    members: Count
    bytes: Count
    file_bytes: Count
    bytes_of_one: Count
    mean_members: Annotated[Finite, at_least(1)]
    most_members: Count
    kl: Finite
    metrics: OfParts

    @property
    def key(self) -> Hashable:
        """The seed, the method, the format, and whether it is a cascade."""
        return self.seed, self.method, self.format, self.cascade

    def measured(self) -> Iterator[tuple[str, Mapping[str, float]]]:
        """Yield the metrics on each part."""
        yield from self.metrics.items()

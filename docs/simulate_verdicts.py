"""Simulate runs of a known truth, and write how often the verdicts of reports are right into verdicts.md.

    python docs/simulate_verdicts.py

The verdicts of all runs are written beside it, into simulated-verdicts.txt: a line for each of the table,
with the verdicts of each run as letters. All runs of a line come from one generator, so that its first runs
are the same however many are drawn.

A run has a reference and some methods, all with the same seeds and test examples. Of a method:

- accuracy: it is right where the reference is, except on a share of the examples that it wins and a share
  that it loses. Their difference is the truth, plus a normal deviation for each seed. On half of the
  examples the same ones are won and lost with every seed.
- NLL: the reference's log loss is exponential with a mean of 0.3. The method adds the truth, a normal
  deviation for each seed, and skewed ones for each example and for each example with each seed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pfge.reports.verdicts import compare
from pfge.tasks import Classification
from pfge.tasks.base import Metric

DRAWS = 500
ACCURACY, NLL = Classification().metric("accuracy"), Classification().metric("nll")
MARGINS = {ACCURACY: 0.002, NLL: 0.01}  # the defaults
SEED_DEVIATION = {ACCURACY: 0.0004, NLL: 0.002}
PAGE = Path(__file__).with_name("verdicts.md")
RECORD = Path(__file__).with_name("simulated-verdicts.txt")
BEGIN, END = "<!-- begin simulated -->\n", "<!-- end simulated -->\n"


@dataclass(frozen=True)
class Scenario:
    """Runs with a known truth.

    Attributes:
        about: For people.
        truth: The difference in margins, above 0 where the method is better.
        seeds: How many.
        examples: How many.
        methods: How many are compared with the reference, all of the same truth.
        spread: What the standard deviation over seeds is multiplied by.
        differing: The share of examples on which only one of a method and the reference is right.
    """

    about: str
    truth: float
    seeds: int
    examples: int
    methods: int = 1
    spread: float = 1.0
    differing: float = 0.01

    @property
    def wrong(self) -> set[str]:
        """The verdicts that are false: a difference of one margin or more is not equal."""
        if self.truth == 0:
            return {"better", "worse"}
        return {"equal", "worse"} if self.truth > 0 else {"equal", "better"}


SCENARIOS = (
    Scenario("equal", 0, 5, 30_000),
    Scenario("equal", 0, 3, 10_000),
    Scenario("equal, six methods", 0, 5, 10_000, methods=6),
    Scenario("equal, seeds differ ten times as much", 0, 5, 10_000, spread=10),
    Scenario("equal, six methods, seeds differ ten times as much", 0, 5, 10_000, methods=6, spread=10),
    Scenario("better by the margin", 1, 5, 30_000),
    Scenario("better by the margin", 1, 3, 10_000),
    Scenario("better by the margin, few examples differ", 1, 3, 1_500, differing=0.002),
    Scenario("better by three margins", 3, 5, 30_000),
    Scenario("worse by the margin", -1, 5, 30_000),
    Scenario("worse by three margins", -3, 5, 30_000),
    Scenario("too little data, equal", 0, 2, 100),
    Scenario("too little data, better by the margin", 1, 2, 100),
    Scenario("one seed, better by three margins", 3, 1, 30_000),
)


LINES = [(scenario, metric) for scenario in SCENARIOS for metric in (ACCURACY, NLL)]
"""What the lines of the table and of the record are about."""


def simulate(scenario: Scenario, metric: Metric, draws: int = DRAWS) -> str:
    """Return the verdicts of each drawn run, as the first letters of those on its methods."""
    generator = torch.Generator().manual_seed(0)
    sign = 1 if metric.better == "higher" else -1
    truth = sign * scenario.truth * MARGINS[metric]
    found = []
    for _ in range(draws):
        shape = (scenario.seeds, scenario.examples)
        reference = _reference(metric, shape, generator)
        verdicts = []
        for _ in range(scenario.methods):
            method = _method(scenario, metric, reference, truth, generator)
            gap = compare(
                metric, dict(enumerate(method)), dict(enumerate(reference)), compared=scenario.methods
            )
            verdicts.append(gap.verdict if gap else "undecided")
        found.append("".join(verdict[0] for verdict in verdicts))
    return " ".join(found)


def _reference(metric: Metric, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    if metric is ACCURACY:
        return (torch.rand(shape, generator=generator) < 0.9).float()
    return torch.empty(shape).exponential_(1 / 0.3, generator=generator)


def _method(
    scenario: Scenario, metric: Metric, reference: Tensor, truth: float, generator: torch.Generator
) -> Tensor:
    seeds, examples = reference.shape
    deviations = scenario.spread * SEED_DEVIATION[metric] * torch.randn(seeds, 1, generator=generator)
    if metric is not ACCURACY:
        of_examples = torch.empty(1, examples).exponential_(1, generator=generator) - 1
        of_both = torch.empty(seeds, examples).exponential_(1, generator=generator) - 1
        return reference + truth + deviations + 0.05 * of_examples + 0.05 * of_both
    place = torch.rand(seeds, examples, generator=generator)
    place[:, : examples // 2] = torch.rand(1, examples // 2, generator=generator)
    difference = truth + deviations
    # Where the reference is wrong, 1 in 10, a share is won; where it is right, a share is lost.
    won = (scenario.differing + difference) / 2 / 0.1
    lost = (scenario.differing - difference) / 2 / 0.9
    return torch.where(reference > 0, (place >= lost).float(), (place < won).float())


def shares(scenario: Scenario, verdicts: str) -> dict[str, float]:
    """Return the share of each verdict, and of runs with one or more that are wrong."""
    runs = verdicts.split()
    letters = Counter("".join(runs))
    found = {name: letters[name[0]] / letters.total() for name in ("better", "equal", "worse", "undecided")}
    wrong = {name[0] for name in scenario.wrong}
    return found | {"wrong": sum(bool(wrong & {*run}) for run in runs) / len(runs)}


def table(record: Sequence[str]) -> str:
    """Return the shares of all scenarios as Markdown, from the verdicts of each line."""
    lines = [
        "| truth | seeds | test examples | metric | better | equal | worse | undecided | wrong |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        _line(scenario, metric, verdicts) for (scenario, metric), verdicts in zip(LINES, record, strict=True)
    ]
    return "\n".join(lines) + "\n"


def _line(scenario: Scenario, metric: Metric, verdicts: str) -> str:
    data = f"{scenario.seeds} | {scenario.examples:,} | {metric.label}"
    found = [f"{100 * share:.1f} %" for share in shares(scenario, verdicts).values()]
    return f"| {scenario.about} | {data} | {' | '.join(found)} |"


def main() -> None:
    """Write the verdicts, and the table into the page."""
    record = [simulate(*line) for line in LINES]
    RECORD.write_text("\n".join(record) + "\n", encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{table(record)}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Scores of parts, put together, drawn from and saved by name."""

import pytest
import torch

from pfge.metrics import ExampleScores, GaussianScores, LabelScores, PositionScores, Scores
from pfge.metrics.significance import paired_bootstrap_of
from pfge.tasks import Classification, MultiLabel, Regression, Task

GENERATOR = torch.Generator().manual_seed(0)
CASES: dict[type[ExampleScores], tuple[Task, torch.Tensor, torch.Tensor]] = {
    Scores: (Classification(), torch.randn(9, 3, generator=GENERATOR), torch.arange(9) % 3),
    PositionScores: (
        Classification(dim=-1),
        torch.randn(9, 4, 3, generator=GENERATOR),
        torch.randint(3, (9, 4), generator=GENERATOR),
    ),
    LabelScores: (
        MultiLabel(),
        torch.randn(9, 3, generator=GENERATOR),
        torch.randint(2, (9, 3), generator=GENERATOR),
    ),
    GaussianScores: (Regression(), torch.randn(9, 2, generator=GENERATOR), torch.zeros(9, 2)),
}


@pytest.mark.parametrize("kind", CASES)
def test_scores_of_parts_are_those_of_the_whole(kind: type[ExampleScores]) -> None:
    task, outputs, targets = CASES[kind]
    whole = task.score(task.predictions(outputs), targets)
    assert type(whole) is kind
    assert len(whole) == 9
    parts = [
        task.score(task.predictions(o), t) for o, t in zip(outputs.split(4), targets.split(4), strict=True)
    ]
    assert task.summarize(kind.cat(parts)) == pytest.approx(task.summarize(whole), abs=1e-12)
    saved = {f"test.{name}": tensor for name, tensor in whole.tensors.items()}
    read = kind.from_tensors({name.removeprefix("test."): tensor for name, tensor in saved.items()})
    assert task.summarize(read) == task.summarize(whole)
    assert len(whole.take(torch.tensor([3, 3]))) == 2


@pytest.mark.parametrize("kind", CASES)
def test_differences_of_any_metric_can_be_drawn(kind: type[ExampleScores]) -> None:
    task, outputs, targets = CASES[kind]
    one, other = (task.score(task.predictions(o), targets) for o in (outputs, outputs.flip(0)))
    for metric in task.metrics:
        if isinstance(one, metric.of):
            found = paired_bootstrap_of(metric.compute, one, other, samples=10)
            assert found.mean == pytest.approx(metric.compute(one) - metric.compute(other))


def test_missing_tensors_and_missing_parts_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"GaussianScores needs squared_error, .* but crps, covered is missing"
    ):
        GaussianScores.from_tensors({"squared_error": torch.zeros(1), "log_loss": torch.zeros(1)})
    with pytest.raises(ValueError, match="at least one part, got none"):
        Scores.cat([])

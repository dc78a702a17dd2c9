import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from scipy.stats import entropy
from torch import Tensor

from pfge.metrics import (
    Scores,
    accuracy,
    area_under_risk_coverage,
    brier_score,
    expected_calibration_error,
    maximum_calibration_error,
    negative_log_likelihood,
    predictive_entropy,
    score_examples,
)
from pfge.metrics.scores import StreamingScores

SOURCE = Path(__file__).parents[2] / "src"
SAME: list[tuple[Callable[[Scores], float], Callable[[Tensor, Tensor], float]]] = [
    (Scores.accuracy, accuracy),
    (Scores.negative_log_likelihood, negative_log_likelihood),
    (Scores.brier_score, brier_score),
    (Scores.expected_calibration_error, expected_calibration_error),
    (
        lambda scores: scores.expected_calibration_error(7, equal_mass=True),
        lambda p, y: expected_calibration_error(p, y, 7, equal_mass=True),
    ),
    (Scores.maximum_calibration_error, maximum_calibration_error),
    (Scores.area_under_risk_coverage, area_under_risk_coverage),
    (Scores.mean_entropy, lambda p, y: predictive_entropy(p).mean().item()),  # noqa: ARG005
]
TWO_PROCESSES = """
import sys
import torch
from safetensors.torch import load_file, save_file
from torch import distributed
from pfge.metrics.scores import StreamingScores
rank, folder = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
given = load_file(f"{folder}/given.safetensors")
p, y = given["p"], given["y"]
parts = {0: [slice(0, 3), slice(3, 20)], 1: [slice(20, 50)]}[rank]
one, alone = StreamingScores(), StreamingScores()
for part in parts:
    one.update(p[part], y[part])
if rank == 1:
    alone.update(p, y)
found = {"shared": torch.stack(one.gather().columns), "alone": torch.stack(alone.gather().columns)}
save_file(found, f"{folder}/found-{rank}.safetensors")
"""


def predictions(examples: int = 50, classes: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    # Few distinct rows, so that confidences tie.
    rows = (2 * torch.randn(20, classes, generator=generator)).softmax(1)
    probabilities = rows[torch.randint(20, (examples,), generator=generator)]
    return probabilities, torch.randint(classes, (examples,), generator=generator)


def test_the_scores_of_one_example_worked_out_by_hand() -> None:
    scores = score_examples(torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([1]))
    assert scores.confidence.tolist() == [0.5]
    assert scores.correct.tolist() == [0]
    assert scores.log_loss.tolist() == pytest.approx([torch.tensor(4.0).log().item()])
    # 0.5^2 + 0.75^2 + 0.25^2
    assert scores.brier.tolist() == pytest.approx([0.875])
    assert scores.entropy.tolist() == pytest.approx([entropy([0.5, 0.25, 0.25])])


@given(st.lists(st.integers(1, 49), max_size=6), st.integers(0, 6))
@settings(max_examples=25, deadline=None)
def test_any_division_into_batches_and_processes_gives_the_metrics_of_the_whole(
    cuts: list[int], first_share: int
) -> None:
    p, y = predictions()
    bounds = [0, *sorted(set(cuts)), len(y)]
    first, second = StreamingScores(), StreamingScores()
    for number, (start, end) in enumerate(pairwise(bounds)):
        (first if number < first_share else second).update(p[start:end], y[start:end])
    first.join([second])
    for of_scores, of_predictions in SAME:
        assert of_scores(first.scores()) == pytest.approx(of_predictions(p, y), abs=1e-12)


def test_joining_leaves_the_other_as_it_was() -> None:
    p, y = predictions()
    one, other = StreamingScores(), StreamingScores()
    one.update(p[:10], y[:10])
    other.update(p[10:], y[10:])
    one.join([other])
    one.update(p, y)
    assert (len(one), len(other)) == (100, 40)
    assert torch.equal(other.scores().brier, score_examples(p[10:], y[10:]).brier)


def test_what_is_kept_does_not_grow_with_the_classes() -> None:
    p, y = predictions(classes=100)
    stream = StreamingScores()
    stream.update(p, y)
    kept = [column for part in stream._parts for column in part.columns]
    assert sum(column.untyped_storage().nbytes() for column in kept) == 50 * 5 * 8


def test_one_process_gathers_its_own() -> None:
    p, y = predictions()
    stream = StreamingScores()
    stream.update(p, y)
    assert torch.equal(stream.gather().log_loss, score_examples(p, y).log_loss)


@pytest.mark.slow
def test_processes_with_unequal_numbers_of_examples_gather_those_of_all(tmp_path: Path) -> None:
    p, y = predictions()
    save_file({"p": p, "y": y}, tmp_path / "given.safetensors")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    processes = [
        subprocess.Popen([sys.executable, "-c", TWO_PROCESSES, str(rank), str(tmp_path)], env=environment)
        for rank in (0, 1)
    ]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    expected = torch.stack(score_examples(p, y).columns)
    for rank in (0, 1):
        found = load_file(tmp_path / f"found-{rank}.safetensors")
        torch.testing.assert_close(found["shared"], expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(found["alone"], expected, rtol=0, atol=1e-12)


def test_scores_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at least one example, got none; call update\(\)"):
        StreamingScores().scores()


def test_a_batch_that_is_no_prediction_is_refused_and_not_counted() -> None:
    p, y = predictions()
    stream = StreamingScores()
    with pytest.raises(ValueError, match="sums to 2"):
        stream.update(2 * p, y)
    assert len(stream) == 0


def test_taken_examples_may_repeat() -> None:
    scores = score_examples(*predictions())
    taken = scores.take(torch.tensor([4, 4, 0]))
    assert len(taken) == 3
    for column, whole in zip(taken.columns, scores.columns, strict=True):
        assert column.tolist() == [whole[4].item(), whole[4].item(), whole[0].item()]

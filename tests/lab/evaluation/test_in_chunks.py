"""Measured in chunks: the numbers of whole predictions, in memory that does not grow with the data."""

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pfge import Ensemble
from pfge.errors import PfgeError
from pfge.lab.evaluation.evaluate import (
    Evaluation,
    PooledScores,
    compare_in_chunks,
    evaluate,
    evaluate_in_chunks,
    fit_in_chunks,
)
from pfge.tasks import Classification, MeanPool
from pfge.weights import view_weights

CLASSES, SIDE, BATCH = 3, 5, 4
TASK = Classification(ignore_index=255)


def pixel_net(classes: int = CLASSES) -> nn.Module:
    return nn.Conv2d(1, classes, 1)


def make_ensemble(count: int = 4, classes: int = CLASSES, task: Classification = TASK) -> Ensemble:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        members = [view_weights(pixel_net(classes)) for _ in range(count)]
    return Ensemble(members, lambda: pixel_net(classes), task=task)


def make_batches(examples: int = 10) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(examples, 1, SIDE, SIDE, generator=generator)
    # Mostly what the members say together, so that a temperature can be fitted.
    likely = make_ensemble().predict([inputs]).argmax(1)
    targets = torch.where(torch.rand(likely.shape, generator=generator) < 0.3, 0, likely)
    targets[:, 0] = 255
    return list(zip(inputs.split(BATCH), targets.split(BATCH), strict=True))


def targets_of(batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    return torch.cat([targets for _, targets in batches])


def whole(ensemble: Ensemble, batches: list[tuple[Tensor, Tensor]], **options: Any) -> Evaluation:
    return evaluate(ensemble, ensemble.predict_each(batches), targets_of(batches), **options)


def metrics(found: PooledScores) -> list[dict[str, float]]:
    calibrated = found.require_calibrated()
    return [found.metrics, TASK.summarize(calibrated.scores), TASK.summarize(calibrated.of_members)]


def test_chunks_give_the_numbers_of_whole_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble, batches = make_ensemble(), make_batches()
    chunks = Ensemble.predict_chunks
    monkeypatch.setattr(
        Ensemble, "predict_chunks", lambda self, batches, **_: chunks(self, batches, chunk_bytes=3000)
    )
    assert len(list(ensemble.predict_chunks(batches))) > 1
    expected = whole(ensemble, batches, last=2, fit=True)
    fitted = fit_in_chunks(ensemble, batches, last=2)
    done: list[int] = []
    found = evaluate_in_chunks(ensemble, batches, last=2, fitted=fitted, on_examples=done.append)
    assert done[-1] == 10
    assert found.member_temperatures == pytest.approx(expected.member_temperatures, rel=1e-6)
    assert found.members == [pytest.approx(member) for member in expected.members]
    assert found.growing == [pytest.approx(member) for member in expected.growing]
    assert expected.last is not None
    assert found.last is not None
    for ours, theirs in ((found.pooled, expected.pooled), (found.last, expected.last)):
        temperatures = [found.require_calibrated().temperature for found in (ours, theirs)]
        assert temperatures[0] == pytest.approx(temperatures[1], rel=1e-6)
        pairs = zip(metrics(ours), metrics(theirs), strict=True)
        assert all(one == pytest.approx(other, rel=1e-5) for one, other in pairs)
        torch.testing.assert_close(ours.scores.tensors, theirs.scores.tensors)


def test_without_temperatures_no_scores_are_calibrated() -> None:
    found = evaluate_in_chunks(make_ensemble(), make_batches()).pooled
    assert found.calibrated is None
    with pytest.raises(PfgeError, match="calibrated scores need temperatures; pass fit_temperatures=True"):
        found.require_calibrated()


def test_the_divergence_of_two_ensembles_is_that_of_whole_predictions() -> None:
    ensemble, batches = make_ensemble(), make_batches()
    other = ensemble.last(2)
    scores, of_other, divergence = compare_in_chunks(other, ensemble, batches)
    expected, predicted = (e.predict_batches(batches) for e in (ensemble, other))
    assert divergence == pytest.approx(TASK.divergence(expected, predicted), rel=1e-5)
    for found, predictions in ((scores, predicted), (of_other, expected)):
        wanted = TASK.summarize(TASK.score(predictions, targets_of(batches)))
        assert TASK.summarize(found) == pytest.approx(wanted, rel=1e-5)


class MadeWhenRead:
    """Batches of four pictures that exist only while they are used."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(self._count):
            generator = torch.Generator().manual_seed(number)
            inputs = torch.randn(4, 1, 64, 64, generator=generator)
            yield inputs, torch.randint(CLASSES, (4, 64, 64), generator=generator)


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, 40])
def test_no_more_predictions_are_alive_with_more_data(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = peak = 0

    def note(made: Tensor) -> Tensor:
        nonlocal alive, peak
        alive += made.nbytes
        peak = max(peak, alive)
        weakref.finalize(made, forget, made.nbytes)
        return made

    def forget(size: int) -> None:
        nonlocal alive
        alive -= size

    predictions, result = Classification.predictions, MeanPool.result
    monkeypatch.setattr(Classification, "predictions", lambda self, outputs: note(predictions(self, outputs)))
    monkeypatch.setattr(MeanPool, "result", lambda self: note(result(self)))
    chunks = Ensemble.predict_chunks
    one_batch = 4 * CLASSES * 64 * 64 * 4  # bytes of a member's predictions
    monkeypatch.setattr(
        Ensemble,
        "predict_chunks",
        lambda self, batches, **_: chunks(self, batches, chunk_bytes=3 * one_batch),
    )
    evaluate_in_chunks(make_ensemble(), MadeWhenRead(count), last=2)
    assert peak < 12 * one_batch
    assert alive == 0


def ignoring(inputs: Tensor, fill: float) -> Tensor:
    """Return inputs with other numbers in the upper row, which targets of `make_batches` ignore."""
    changed = inputs.clone()
    changed[:, :, 0] = fill
    return changed


@pytest.mark.parametrize("fill", [0.0, float("nan")])
def test_ignored_positions_do_not_count_in_what_members_differ_by(fill: float) -> None:
    ensemble, batches = make_ensemble(), make_batches()
    cropped = [(inputs[:, :, 1:], targets[:, 1:]) for inputs, targets in batches]
    expected = evaluate_in_chunks(ensemble, cropped, last=2)
    filled = [(ignoring(inputs, fill), targets) for inputs, targets in batches]
    for found in (evaluate_in_chunks(ensemble, filled, last=2), whole(ensemble, filled, last=2)):
        assert found.pooled.metrics == pytest.approx(expected.pooled.metrics)
        assert found.last.metrics == pytest.approx(expected.last.metrics)


def test_batches_count_by_their_positions_that_are_not_ignored() -> None:
    ensemble, batches = make_ensemble(), make_batches()
    batches[1][1][:, 1:4] = 255
    expected, found = whole(ensemble, batches), evaluate_in_chunks(ensemble, batches)
    assert found.pooled.metrics == pytest.approx(expected.pooled.metrics)


def test_a_batch_of_ignored_positions_changes_nothing() -> None:
    ensemble, batches = make_ensemble(), make_batches()
    batches[1][1].fill_(255)
    found = evaluate_in_chunks(ensemble, batches).pooled.metrics
    assert found == pytest.approx(evaluate_in_chunks(ensemble, [batches[0], batches[2]]).pooled.metrics)

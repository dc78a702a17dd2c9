"""An ensemble's metrics on a data set, against predictions made by hand."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pfge import Ensemble, Weights
from pfge.lab.config.settings import EngineSettings
from pfge.lab.data import ImageSet, Normalization, evaluation_batches
from pfge.lab.engine import Engine
from pfge.lab.evaluation.evaluate import Evaluation, Fitted, evaluate, predict
from pfge.lab.run.progress import Reporter
from pfge.metrics import ExampleScores, Scores, disagreement, mutual_information, score_examples
from pfge.tasks import Classification
from pfge.weights import view_weights
from tests.lab.data.made import random_images

DATA = random_images(23)  # 3 x 6 x 5 pixels in 3 classes
NORMALIZATION = Normalization((0.4, 0.5, 0.6), (0.2, 0.3, 0.1))
PIXELS = 3 * 6 * 5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(PIXELS, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.reshape(len(x), -1))


def member(seed: int) -> Weights:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return view_weights(Net())


MEMBERS = [member(seed) for seed in range(4)]


def by_hand(weights: Weights, data: ImageSet = DATA) -> Tensor:
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (NORMALIZATION.mean, NORMALIZATION.std))
    inputs = ((data.images.float() / 255 - mean) / std).reshape(len(data), -1)
    return (inputs @ weights["layer.weight"].T + weights["layer.bias"]).softmax(dim=1)


def some(measured: dict[str, float]) -> dict[str, float]:
    return {name: measured[name] for name in ("accuracy", "nll", "brier", "ece")}


def metrics_by_hand(probabilities: Tensor, labels: Tensor = DATA.labels) -> dict[str, Any]:
    target = probabilities[torch.arange(len(labels)), labels].double()
    one_hot = nn.functional.one_hot(labels, 3)
    return {
        "accuracy": pytest.approx((probabilities.argmax(1) == labels).double().mean().item()),
        "nll": pytest.approx(-target.log().mean().item(), rel=1e-5),
        "brier": pytest.approx((probabilities - one_hot).square().sum(1).mean().item(), rel=1e-5),
        "ece": pytest.approx(ece_by_hand(probabilities, labels), rel=1e-4),
    }


def assert_scores(found: ExampleScores, probabilities: Tensor) -> None:
    expected = score_examples(probabilities, DATA.labels).tensors
    torch.testing.assert_close(found.tensors, expected, rtol=1e-5, atol=1e-6)


def ece_by_hand(probabilities: Tensor, labels: Tensor) -> float:
    confidence, predicted = probabilities.max(1)
    error = 0.0
    for lower in range(15):
        inside = (confidence > lower / 15) & (confidence <= (lower + 1) / 15)
        if inside.any():
            right = (predicted[inside] == labels[inside]).float().mean()
            error += float(inside.float().mean() * (right - confidence[inside].mean()).abs())
    return error


def session_on(engine: Any, in_batches: Any) -> Any:
    """Return what predicting needs of a session."""
    return SimpleNamespace(engine=engine, in_batches=in_batches, reporter=Reporter(quiet=True))


def evaluated(
    members: list[Weights] = MEMBERS, batch_size: int = 10, channels_last: bool = False, **options: Any
) -> Evaluation:
    engine = Engine(EngineSettings(accelerator="cpu"))
    ensemble = Ensemble(members, Net, forward=engine.forward)
    in_batches = partial(
        evaluation_batches, normalization=NORMALIZATION, batch_size=batch_size, channels_last=channels_last
    )
    predictions = predict(session_on(engine, in_batches), ensemble, DATA, "")
    return evaluate(ensemble, predictions, options.pop("targets", DATA.labels), **options)


def test_the_members_are_pooled_by_their_probabilities() -> None:
    pooled = torch.stack([by_hand(weights) for weights in MEMBERS]).mean(0)
    assert_scores(evaluated().pooled.scores, pooled)
    assert some(evaluated().growing[-1]) == metrics_by_hand(pooled)


def test_each_member_is_measured_alone() -> None:
    assert [some(m) for m in evaluated().members] == [metrics_by_hand(by_hand(w)) for w in MEMBERS]


def test_the_ensemble_is_measured_as_it_grows() -> None:
    each = torch.stack([by_hand(weights) for weights in MEMBERS])
    assert [some(m) for m in evaluated().growing] == [
        metrics_by_hand(each[: k + 1].mean(0)) for k in range(4)
    ]


@pytest.mark.parametrize("last", [1, 2, 4])
def test_the_last_members_are_pooled_by_themselves(last: int) -> None:
    pooled = torch.stack([by_hand(weights) for weights in MEMBERS[-last:]]).mean(0)
    found = evaluated(last=last).last
    assert found is not None
    assert_scores(found.scores, pooled)


def test_without_being_asked_the_last_members_are_not_pooled() -> None:
    assert evaluated().last is None


def test_members_are_also_pooled_each_at_its_own_temperature() -> None:
    temperatures = [0.5, 1.0, 2.0, 4.0]
    scaled = [(by_hand(w).log() / t).softmax(dim=1) for w, t in zip(MEMBERS, temperatures, strict=True)]
    found = evaluated(fitted=Fitted(temperatures), last=2)
    assert_scores(found.pooled.require_calibrated().of_members, torch.stack(scaled).mean(0))
    assert found.last is not None
    assert_scores(found.last.require_calibrated().of_members, torch.stack(scaled[2:]).mean(0))
    pooled = torch.stack([by_hand(weights) for weights in MEMBERS]).mean(0)
    assert_scores(found.pooled.scores, pooled)


def test_calibrated_scores_are_those_at_the_temperature_of_the_pooled_prediction() -> None:
    found = evaluated(fitted=Fitted([1.0] * 4, pooled=2.0, last=0.5), last=2)
    each = torch.stack([by_hand(weights) for weights in MEMBERS]).double()
    assert found.last is not None
    for pool, mean, temperature in ((found.pooled, each.mean(0), 2.0), (found.last, each[2:].mean(0), 0.5)):
        assert_scores(pool.require_calibrated().scores, (mean.log() / temperature).softmax(dim=1))


def test_fitted_temperatures_are_those_that_minimize_each_members_own_nll() -> None:
    chosen = (torch.arange(len(DATA)) % 4 == 0).long()  # mostly what it predicts, and not always
    for weights in MEMBERS:
        targets = by_hand(weights).topk(2).indices[torch.arange(len(DATA)), chosen]
        (fitted,) = evaluated([weights], fit=True, targets=targets).member_temperatures
        logits = by_hand(weights).double().log()

        def nll(temperature: float, logits: Tensor = logits, targets: Tensor = targets) -> float:
            return nn.functional.cross_entropy(logits / temperature, targets).item()

        assert nll(fitted) < min(nll(fitted * 1.01), nll(fitted / 1.01))


def test_without_temperatures_all_are_1() -> None:
    found = evaluated()
    assert found.member_temperatures == [1.0] * 4
    assert found.pooled.calibrated is None


@pytest.mark.parametrize("batch_size", [1, 23, 100])
def test_the_size_of_the_batches_does_not_matter(batch_size: int) -> None:
    found = evaluated(MEMBERS[:1], batch_size=batch_size).growing[-1]
    assert some(found) == metrics_by_hand(by_hand(MEMBERS[0]))


def test_the_memory_format_does_not_matter() -> None:
    found = evaluated(MEMBERS[:1], channels_last=True).growing[-1]
    assert some(found) == metrics_by_hand(by_hand(MEMBERS[0]))


def test_each_prediction_is_scored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scored = []
    score = Classification.score

    def count(task: Classification, predictions: Tensor, targets: Tensor) -> Scores:
        scored.append(predictions)
        return score(task, predictions, targets)

    monkeypatch.setattr(Classification, "score", count)
    evaluated(last=2)
    assert (
        len(scored) == 4 + 4 + 1
    )  # each member, the growing ensemble, which ends as all pooled, and the last


def test_the_pooled_numbers_are_the_last_of_the_growing_ensemble_and_how_members_differ() -> None:
    found = evaluated()
    names = {"mutual_information", "disagreement"}
    assert found.pooled.metrics.keys() == found.growing[-1].keys() | names
    assert {n: v for n, v in found.pooled.metrics.items() if n not in names} == found.growing[-1]
    each = [by_hand(weights) for weights in MEMBERS]
    assert found.pooled.metrics["disagreement"] == pytest.approx(disagreement(each))
    assert found.pooled.metrics["mutual_information"] == pytest.approx(mutual_information(each).mean().item())
    assert evaluated(MEMBERS[:1]).pooled.metrics.keys() == found.growing[-1].keys()


class OneOf:
    """An engine's place among several processes, whose predictions are already known."""

    device = torch.device("cpu")

    def __init__(self, number: int, count: int, whole: list[Tensor]):
        self.rank_and_world_size = (number, count)
        self.parts: list[Tensor] = []
        self._whole = iter(whole)

    def sum_over_processes(self, part: Tensor) -> Tensor:
        self.parts.append(part)
        return next(self._whole)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_parts_of_all_processes_make_up_the_predictions_of_one(count: int) -> None:
    each = [by_hand(weights) for weights in MEMBERS]
    engines = [OneOf(number, count, each) for number in range(count)]
    in_batches = partial(evaluation_batches, normalization=NORMALIZATION, batch_size=10)
    found = [
        list(predict(session_on(engine, in_batches), Ensemble(MEMBERS, Net), DATA, "")) for engine in engines
    ]
    for index, expected in enumerate(each):
        parts = torch.stack([engine.parts[index] for engine in engines])
        assert (parts != 0).any(dim=2).sum(dim=0).tolist() == [1] * len(DATA)  # each example by one of them
        torch.testing.assert_close(parts.sum(0), expected)
        assert all(torch.equal(members[index], expected) for members in found)

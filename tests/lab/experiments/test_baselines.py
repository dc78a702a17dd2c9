"""What users would pick instead, in the same comparison: each equals the same done by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pfge import EMA, FGE, CosineRestarts, Ensemble, Trajectory, Weights, follow, load_weights
from pfge.collectors import Star
from pfge.lab.config.settings import ConfigError
from pfge.lab.data import Augmentation, Splits, load_data, training_batches
from pfge.lab.data.base import derive_seed
from pfge.lab.evaluation.passes import mc_dropout
from pfge.schedules import pretraining_schedule
from pfge.storage.files import read_tensors
from pfge.weights import view_weights
from tests.lab.experiments.by_hand import HIGH, LOW, batches, loss, make_sgd, run_alone, saved, small_conv
from tests.lab.tiny import LENGTH, PERIOD, PRETRAINING, Stopped, counted_steps, outcome, run, tiny
from tests.toys import assert_same_weights

METHODS = "ensemble.methods=['EMA','Snapshot','DeepEnsemble']"


@pytest.fixture(scope="module")
def digits() -> Splits:
    return load_data("digits")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "baselines"
    run(tiny(METHODS, "ensemble.ema_decay=0.9"), folder)
    return folder


def w0_of(folder: Path) -> Weights:
    return read_tensors(folder / "seed-1" / "w0.safetensors")[0]


def parameters(weights: Weights) -> Weights:
    return {name: weights[name] for name, _ in small_conv().named_parameters()}


def test_ema_is_ema_run_alone(finished: Path, digits: Splits) -> None:
    ((found,), (alone,)) = saved(finished, "EMA"), run_alone(digits, w0_of(finished), EMA(0.9))
    assert_same_weights(parameters(found), parameters(alone))


def test_snapshots_are_those_of_a_cosine_path_of_its_own(finished: Path, digits: Splits) -> None:
    alone = run_alone(digits, w0_of(finished), FGE(PERIOD), CosineRestarts(PERIOD, LOW, HIGH))  # type: ignore[arg-type]
    for found, expected in zip(saved(finished, "Snapshot"), alone, strict=True):
        assert_same_weights(parameters(found), parameters(expected))


def test_a_deep_ensemble_is_w0_and_trainings_from_other_starts(finished: Path, digits: Splits) -> None:
    members = saved(finished, "DeepEnsemble")
    assert len(members) == 4
    assert_same_weights(members[0], w0_of(finished))
    seed = derive_seed(1, "deep ensemble", 2)
    torch.manual_seed(derive_seed(seed, "initial weights"))
    model = small_conv()
    source = training_batches(
        digits.train,
        digits.normalization,
        batch_size=50,
        seed=derive_seed(seed, "pretraining"),
        augmentation=Augmentation(0, False),
        channels_last=True,
    )
    trajectory = Trajectory(model, make_sgd(model), pretraining_schedule(PRETRAINING, 0.05), [])
    follow(trajectory, source.starting_after(0), loss, iterations=PRETRAINING)
    assert_same_weights(members[1], view_weights(model))


def test_rows_say_what_they_cost(tmp_path: Path) -> None:
    with counted_steps() as steps:
        results = run(tiny(METHODS), tmp_path)
    costs = {row["method"]: (row["members"], row["iterations"], row["trainings"]) for row in results}
    assert costs == {
        "w0": (1, 0, 1),
        "EMA": (1, LENGTH, 1),
        "Snapshot": (4, LENGTH, 1),
        "DeepEnsemble": (4, 3 * PRETRAINING, 4),
    }
    assert steps[0] == PRETRAINING + sum(iterations for _, iterations, _ in costs.values())


@pytest.mark.parametrize("step", [5, 20, 33, 50, 65])
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(finished: Path, tmp_path: Path, step: int) -> None:
    """Ten steps find w0, sixteen are EMA's, sixteen Snapshot's, and thirty train the other members."""
    experiment = tiny(METHODS, "ensemble.ema_decay=0.9", "engine.checkpoint_seconds=0")
    with pytest.raises(Stopped), counted_steps(stop_after=step):
        run(experiment, tmp_path)
    with counted_steps() as steps:
        run(experiment, tmp_path)
    assert outcome(tmp_path) == outcome(finished)
    assert steps == [72 - step + 1]
    assert {file.name for file in (tmp_path / "seed-1").iterdir()} == {
        "ensembles",
        "scores",
        "w0.safetensors",
        "w0.safetensors.sha256",
    }


def test_a_run_that_was_killed_before_the_first_checkpoint_of_snapshot_goes_on(
    finished: Path, tmp_path: Path
) -> None:
    experiment = tiny(METHODS, "ensemble.ema_decay=0.9", "engine.checkpoint_seconds=1e9")
    with pytest.raises(Stopped), counted_steps(stop_after=33):  # after the first snapshot, the 30th step
        run(experiment, tmp_path)
    run(experiment, tmp_path)
    assert outcome(tmp_path) == outcome(finished)


@pytest.mark.parametrize("setting", ["pretrain.weights='w0.safetensors'", "pretrain.epochs=0"])
def test_a_deep_ensemble_of_one_given_start_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"DeepEnsemble trains every member from its own start, so"):
        tiny(METHODS, setting)


@pytest.mark.parametrize("decay", ["-0.1", "1", "nan"])
def test_a_decay_that_cannot_be_is_refused(decay: str) -> None:
    with pytest.raises(ConfigError, match=r"ensemble\.ema_decay must be at least 0 and below 1"):
        tiny(f"ensemble.ema_decay={decay}")


# Dropout that stays on


def dropping_net(classes: int, rate: float = 0.5) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(rate), nn.Linear(64, classes), nn.BatchNorm1d(classes))


X = torch.randn(30, 64, generator=torch.Generator().manual_seed(0))


def make_mc_dropout(samples: int = 3, seed: int = 0, **options: Any) -> tuple[Ensemble, nn.Module]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = dropping_net(5, **options)
    weights = view_weights(model)
    ensemble = mc_dropout(weights, lambda: dropping_net(5, **options), samples=samples, seed=seed)
    return ensemble, model.eval()


def test_without_anything_dropped_every_pass_is_the_model() -> None:
    ensemble, model = make_mc_dropout(rate=0.0)
    with torch.no_grad():
        expected = model(X).softmax(dim=1)
    for member in ensemble.predict_members(X):
        torch.testing.assert_close(member, expected)


def test_passes_differ_and_can_be_repeated() -> None:
    ensemble, _ = make_mc_dropout()
    first = ensemble.predict_members(X)  # builds the module
    state = torch.get_rng_state()
    again = ensemble.predict_members(X)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, make_mc_dropout(seed=1)[0].predict_members(X))


def test_what_a_pass_drops_follows_from_the_seed_the_member_and_the_batch() -> None:
    ensemble, model = make_mc_dropout(samples=2, seed=7)
    model[1].train()  # type: ignore[index]
    expected = []
    for member in range(2):
        for number, batch in enumerate(X.split(12)):
            torch.manual_seed(derive_seed(7, "dropped", member, number))
            with torch.no_grad():
                expected.append(model(batch).softmax(dim=1))
    assert torch.equal(torch.cat(list(ensemble.predict_each(X.split(12)))), torch.cat(expected))


def test_the_last_passes_are_those_of_the_whole() -> None:
    ensemble, _ = make_mc_dropout(samples=3)
    assert torch.equal(ensemble.last(2).predict_members(X), ensemble.predict_members(X)[1:])


def test_batches_of_one_pass_drop_different_units() -> None:
    ensemble, _ = make_mc_dropout(samples=1)
    same = torch.cat([X[:4], X[:4]])
    predicted = ensemble.predict_batches(list(same.split(4)))
    assert not torch.equal(predicted[:4], predicted[4:])


def test_only_dropout_stays_on() -> None:
    """BatchNorm in training mode would make a prediction depend on the rest of its batch."""
    ensemble, _ = make_mc_dropout(samples=1, rate=0.0)
    torch.testing.assert_close(ensemble.predict(X)[:5], ensemble.predict(X[:5]))


def test_the_mean_over_many_passes_of_a_linear_layer_is_near_the_model() -> None:
    """Dropout keeps the expectation of a linear map, so that mean logits are the model's within noise."""
    ensemble, model = make_mc_dropout(samples=400, rate=0.2)
    with torch.no_grad():
        logits = model(X)
    centered = logits - logits.mean(dim=1, keepdim=True)
    mean = ensemble.predict_members(X).log().mean(0)
    error = mean - mean.mean(dim=1, keepdim=True) - centered
    assert error.abs().mean() < 0.05


def test_it_takes_the_memory_of_one_model() -> None:
    ensemble, _ = make_mc_dropout(samples=7)
    assert ensemble.nbytes == make_mc_dropout(samples=1)[0].nbytes
    assert len(ensemble) == 7


def test_a_comparison_measures_w0_with_dropout_on(tmp_path: Path) -> None:
    net = "model.name=tests.lab.experiments.test_baselines:dropping_net"
    results = run(tiny(net, "ensemble.methods=['MCDropout']"), tmp_path)
    assert [row["method"] for row in results] == ["w0", "MCDropout"]
    w0, dropout = results
    assert (dropout["members"], dropout["bytes"], dropout["iterations"]) == (4, w0["bytes"], 0)
    assert dropout["test"]["disagreement"] > 0
    assert len(dropout["each"]["test"]) == 4


def test_a_model_without_dropout_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"MCDropout needs a model with dropout, and model\.name = 'small_conv'"
    ):
        run(tiny("ensemble.methods=['MCDropout']"), tmp_path)
    assert not (tmp_path / "seed-1").exists()


def test_a_loaded_deep_ensemble_predicts(finished: Path, digits: Splits) -> None:
    folder = finished / "seed-1" / "ensembles" / "DeepEnsemble"
    inputs = batches(digits, "ensembling").at(1)[0]
    model = small_conv()
    load_weights(model, w0_of(finished))
    with torch.no_grad():
        expected = model.eval()(inputs).softmax(dim=1)
    torch.testing.assert_close(Ensemble.load(folder, small_conv).predict_members(inputs)[0], expected)


@pytest.mark.parametrize(("method", "period"), [("Star", PERIOD), ("Cosine", LENGTH)])
def test_a_star_and_one_annealing_are_those_run_alone(
    digits: Splits, tmp_path: Path, method: str, period: int
) -> None:
    run(tiny(f'ensemble.methods=["{method}"]', "ensemble.tail=0.5"), tmp_path)
    collector = Star(period, tail=period // 2)
    alone = run_alone(digits, w0_of(tmp_path), collector, CosineRestarts(period, LOW, HIGH))  # type: ignore[arg-type]
    assert len(alone) == LENGTH // period
    for found, expected in zip(saved(tmp_path, method), alone, strict=True):
        assert_same_weights(parameters(found), parameters(expected))


@pytest.mark.parametrize("step", [12, 18, 25])
def test_a_star_that_was_stopped_ends_as_if_it_had_not_been(tmp_path: Path, step: int) -> None:
    """Ten steps find w0, and sixteen are the star's."""
    experiment = tiny('ensemble.methods=["Star"]', "engine.checkpoint_seconds=0")
    run(experiment, tmp_path / "whole")
    with pytest.raises(Stopped), counted_steps(stop_after=step):
        run(experiment, tmp_path / "stopped")
    run(experiment, tmp_path / "stopped")
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")

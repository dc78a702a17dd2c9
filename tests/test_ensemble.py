import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from pfge import (
    EMA,
    FGE,
    PFGE,
    SWA,
    SWAG,
    Bits,
    Collector,
    Constant,
    Ensemble,
    StorageError,
    Trajectory,
    Weights,
    compress,
)
from pfge.calibration import CalibrateBy, Temperatures
from pfge.collectors import Star
from pfge.compression import PackSettings
from pfge.forward import call_model
from pfge.packed import pack_members
from pfge.storage.ensemble_folder import LazyMembers
from pfge.tasks import Classification, MultiLabel, Raw
from pfge.weights import copy_weights, view_weights
from tests.resealed import edit_json
from tests.tasks.cases import CASES, ROWS, Case
from tests.tasks.fractions import Fractions
from tests.toy_members import X, expected, make_members
from tests.toys import assert_same_weights, make_batch, make_mlp, make_sgd, train


def test_it_predicts_the_mean_of_the_softmax_not_of_the_logits() -> None:
    # One feature, two classes: logits (0, 2) and (0, -4).
    weights = [{"weight": torch.tensor([[0.0], [slope]])} for slope in (2.0, -4.0)]
    ensemble = Ensemble(weights, lambda: nn.Linear(1, 2, bias=False))
    first, second = torch.tensor(2.0).sigmoid(), torch.tensor(-4.0).sigmoid()
    assert ensemble.predict(torch.ones(1, 1))[0, 1].item() == pytest.approx(((first + second) / 2).item())


def test_members_are_predicted_in_order() -> None:
    torch.testing.assert_close(Ensemble(make_members(), make_mlp).predict_members(X), expected())


def test_batches_give_what_one_batch_gives() -> None:
    ensemble = Ensemble(make_members(), make_mlp)
    torch.testing.assert_close(ensemble.predict_batches(list(X.split(7))), ensemble.predict(X))
    loader = DataLoader(TensorDataset(X, torch.zeros(20)), batch_size=6)
    torch.testing.assert_close(ensemble.predict_batches(loader), expected().mean(0))


def test_predicting_leaves_the_members_and_the_random_state_alone() -> None:
    members = make_members()
    before, state = make_members(), torch.get_rng_state()
    Ensemble(members, make_mlp).predict(X)
    for one, two in zip(members, before, strict=True):
        assert_same_weights(one, two)
    assert torch.equal(torch.get_rng_state(), state)


def test_last_keeps_the_latest_members() -> None:
    ensemble = Ensemble(make_members(), make_mlp, iterations=[5, 10, 15]).last(2)
    torch.testing.assert_close(ensemble.predict(X), expected()[1:].mean(0))
    assert ensemble.iterations == [10, 15]


@pytest.mark.parametrize("count", [0, 4])
def test_last_takes_what_there_is(count: int) -> None:
    with pytest.raises(ValueError, match=f"from 1 to all 3 members, got {count}"):
        Ensemble(make_members(), make_mlp).last(count)


def test_one_member_at_a_time_is_read() -> None:
    members, read = make_members(), []

    def read_member(index: int) -> Weights:
        read.append(index)
        return members[index]

    ensemble = Ensemble(LazyMembers(3, read_member), make_mlp)
    torch.testing.assert_close(ensemble.predict_batches([X[:10], X[10:]]), expected().mean(0))
    assert read == [0, 1, 2]


def test_memory_is_counted_in_bytes() -> None:
    # 4*8+8 and 8*3+3 linear, 4*8 BatchNorm floats, one int64 counter.
    assert Ensemble(make_members(), make_mlp).nbytes == 3 * (4 * (40 + 27 + 32) + 8)
    assert Ensemble([], make_mlp).nbytes == 0


def test_a_part_of_members_that_are_read_takes_the_bytes_of_so_many() -> None:
    members = make_members()
    adapters = Ensemble(LazyMembers(3, members.__getitem__, nbytes=lambda count: 7 * count), make_mlp)
    assert [adapters.nbytes, adapters.last(2).nbytes, adapters.last(2).last(1).nbytes] == [21, 14, 7]
    passes = Ensemble(LazyMembers(3, members.__getitem__, nbytes=7), make_mlp)  # of one model
    assert [passes.nbytes, passes.last(1).nbytes] == [7, 7]


def test_fresh_batch_norm_is_each_members_own() -> None:
    data = [make_batch(i)[0] for i in range(4)]
    ensemble = Ensemble(make_members(), make_mlp).with_fresh_batch_norm(data)
    for seed in range(3):
        seen = make_mlp(seed)[0](torch.cat(data))
        torch.testing.assert_close(ensemble.members[seed]["1.running_mean"], seen.mean(0))
        torch.testing.assert_close(ensemble.members[seed]["1.running_var"], seen.var(0))


def test_fresh_batch_norm_follows_a_prediction_in_inference_mode() -> None:
    ensemble = Ensemble(make_members(), make_mlp)
    with torch.inference_mode():
        ensemble.predict(X)
    fresh = ensemble.with_fresh_batch_norm([X])
    torch.testing.assert_close(fresh.members[2]["1.running_mean"], make_mlp(2)[0](X).mean(0))


def test_fresh_batch_norm_shares_the_other_tensors() -> None:
    members = make_members()
    fresh = Ensemble(members, make_mlp).with_fresh_batch_norm([X])
    assert fresh.members[0]["0.weight"] is members[0]["0.weight"]
    assert not torch.equal(fresh.members[0]["1.running_mean"], members[0]["1.running_mean"])


def same(ensemble: Ensemble, folder: Path) -> Ensemble:  # noqa: ARG001
    return ensemble


def loaded(ensemble: Ensemble, folder: Path) -> Ensemble:
    ensemble.save(folder)
    return Ensemble.load(folder, make_mlp)


@pytest.mark.parametrize("made", [same, loaded])
def test_an_ensemble_can_be_pickled_after_its_batch_norm_was_refreshed(
    made: Callable[[Ensemble, Path], Ensemble], tmp_path: Path
) -> None:
    fresh = made(Ensemble(make_members(), make_mlp), tmp_path).with_fresh_batch_norm([X])
    copied = pickle.loads(pickle.dumps(made(fresh, tmp_path / "fresh")))
    assert torch.equal(copied.predict(X), fresh.predict(X))


@pytest.mark.parametrize("kind", [SWA, SWAG, FGE])
def test_an_ensemble_of_any_collector_can_be_pickled(kind: type[Collector]) -> None:
    fresh = collected(kind(1)).with_fresh_batch_norm([X])
    assert torch.equal(pickle.loads(pickle.dumps(fresh)).predict(X), fresh.predict(X))


def test_bf16_members_give_float32_probabilities() -> None:
    ensemble = Ensemble([copy_weights(view_weights(make_mlp().bfloat16()))], lambda: make_mlp().bfloat16())
    assert ensemble.predict(X.bfloat16()).dtype == torch.float32


def test_a_forward_function_picks_the_logits() -> None:
    ensemble = Ensemble(make_members(), make_mlp, forward=lambda model, batch: model(batch["x"]))
    torch.testing.assert_close(ensemble.last(2).predict({"x": X, "label": None}), expected()[1:].mean(0))


def test_an_empty_ensemble_does_not_predict() -> None:
    with pytest.raises(ValueError, match="needs a member to predict, this one is empty"):
        Ensemble([], make_mlp).predict(X)


def test_members_of_different_shapes_are_refused() -> None:
    members = [*make_members(2), copy_weights(view_weights(make_mlp(classes=5)))]
    with pytest.raises(ValueError, match=r"4.bias is \[3\] in member 1 and \[5\] in member 3"):
        Ensemble(members, make_mlp)


def test_a_model_that_does_not_fit_the_members_is_refused() -> None:
    with pytest.raises(ValueError, match=r"4.bias is \[5\] in the model and \[3\] in the weights"):
        Ensemble(make_members(), lambda: make_mlp(classes=5)).predict(X)


def test_data_that_can_be_read_only_once_is_refused() -> None:
    with pytest.raises(ValueError, match="once for each of 3 members, got an iterator"):
        Ensemble(make_members(), make_mlp).predict_batches(iter([X]))


def test_data_in_random_order_is_refused() -> None:
    loader = DataLoader(TensorDataset(X), batch_size=5, shuffle=True)
    with pytest.raises(ValueError, match="DataLoader that shuffles; construct it with shuffle=False"):
        Ensemble(make_members(), make_mlp).predict_batches(loader)


def test_one_member_is_calibrated_in_any_order_and_several_are_not() -> None:
    loader = DataLoader(TensorDataset(X, TARGETS), batch_size=5, sampler=SubsetRandomSampler(range(20)))
    one = Ensemble(make_members(1), make_mlp)
    found = one.calibrated(loader).temperatures.pooled
    assert found == pytest.approx(one.calibrated([(X, TARGETS)]).temperatures.pooled, rel=1e-6)
    with pytest.raises(ValueError, match="same order for each member, got a DataLoader that shuffles"):
        Ensemble(make_members(3), make_mlp).calibrated(loader)


def test_output_that_is_no_logits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must return logits \[N, C\], got \[20\]; pass task=Regression"):
        Ensemble(make_members(), make_mlp, forward=lambda model, x: model(x)[:, 0]).predict(X)


# Targets


@pytest.mark.parametrize("wrap", [tuple, list])
def test_inputs_and_targets_in_place_of_batches_are_refused_before_targets_are_predicted(wrap: Any) -> None:
    inputs, targets = make_batch(1)
    ensemble = Ensemble([view_weights(make_mlp())], make_mlp)
    for use in (ensemble.evaluate, ensemble.calibrated):
        with pytest.raises(ValueError, match="a batch must be a pair of inputs and a tensor of targets"):
            use(wrap((inputs, targets)))


class Masked(nn.Module):
    """Logits [N, 3] of the features that a mask leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.head(x * mask)


def masked() -> tuple[Ensemble, list[tuple[Tensor, Tensor, Tensor]], Tensor]:
    """An ensemble, batches (x, mask, y), and the pooled predictions by hand."""
    generator = torch.Generator().manual_seed(0)
    x, mask = torch.randn(20, 4, generator=generator), (torch.rand(20, 4, generator=generator) > 0.5).float()
    members = [{"head.weight": torch.randn(3, 4, generator=generator), "head.bias": torch.zeros(3)}] * 2
    members[1] = {name: tensor + 0.1 for name, tensor in members[1].items()}
    each = [((x * mask) @ m["head.weight"].T + m["head.bias"]).softmax(dim=1) for m in members]
    y = torch.stack(each).mean(0).argmax(dim=1)
    y[:5] = (y[:5] + 1) % 3
    batches = [(x[part], mask[part], y[part]) for part in (slice(12), slice(12, None))]
    return Ensemble(members, Masked), batches, torch.stack(each).mean(0)


def test_the_targets_of_three_entries_are_named_and_the_others_are_the_models_arguments() -> None:
    ensemble, batches, pooled = masked()
    y = torch.cat([batch[2] for batch in batches])
    scores = ensemble.evaluate(batches, targets=2)
    log_loss = -pooled[torch.arange(20), y].log()
    torch.testing.assert_close(scores.log_loss, log_loss.double(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ensemble.predict_batches(batches, targets=2), pooled)
    fitted = ensemble.calibrated(batches, targets=-1).temperatures.pooled
    assert fitted == pytest.approx(Classification().fit_calibration(pooled, y), rel=1e-4)


def test_three_entries_are_refused_unless_the_targets_are_named() -> None:
    ensemble, batches, _ = masked()
    for use in (ensemble.evaluate, ensemble.calibrated, ensemble.predict_batches):
        with pytest.raises(ValueError, match=r"got 3 entries; pass forward=.* or, .*targets="):
            use(batches)
    own = Ensemble(ensemble.members, Masked, forward=lambda model, batch: model(*batch[:2]))
    for use in (own.evaluate, own.calibrated):
        with pytest.raises(ValueError, match="a batch of 3 entries does not say which one is the targets"):
            use(batches)
    scores, expected = own.evaluate(batches, targets=2), ensemble.evaluate(batches, targets=2)
    assert torch.equal(scores.log_loss, expected.log_loss)


def test_of_two_heads_the_one_that_is_named_is_scored() -> None:
    ensemble = Ensemble(make_members(), make_mlp, forward=lambda model, batch: model(batch[0]))
    classes = expected().mean(0).argmax(dim=1)
    other = (classes + 1) % 3
    right, wrong = (ensemble.evaluate([(X, other, classes)], targets=at) for at in (2, 1))
    assert [right.correct.mean().item(), wrong.correct.mean().item()] == [1.0, 0.0]


def test_texts_of_any_length_are_calibrated_as_their_tokens_are_alone_and_padded() -> None:
    task = Classification(dim=-1, ignore_index=-100)
    weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    members = [{"weight": weight}, {"weight": 0.8 * weight}]
    ensemble = Ensemble(members, lambda: nn.Linear(4, 3, bias=False), task=task)
    generator = torch.Generator().manual_seed(2)
    texts = [torch.randn(2, length, 4, generator=generator) for length in (3, 7, 5)]
    tokens = [ensemble.predict(text).argmax(dim=2) for text in texts]
    for of_text in tokens:  # not always right, so that there is a temperature
        of_text[:, 0] = (of_text[:, 0] + 1) % 3
    flat = [(text.flatten(0, 1), of_text.flatten()) for text, of_text in zip(texts, tokens, strict=True)]
    padded = [
        (
            nn.functional.pad(text, (0, 0, 0, 7 - text.shape[1])),
            nn.functional.pad(t, (0, 7 - t.shape[1]), value=-100),
        )
        for text, t in zip(texts, tokens, strict=True)
    ]
    for by in ("pooled", "members"):
        alone, *others = (
            ensemble.calibrated(batches, by=by).temperatures
            for batches in (flat, padded, list(zip(texts, tokens, strict=True)))
        )
        for found in others:
            assert found.pooled == pytest.approx(alone.pooled, rel=1e-5)
            assert found.members == (alone.members and pytest.approx(alone.members, rel=1e-5))


# Probabilities


def softmaxed(dtype: torch.dtype = torch.float32, **options: Any) -> Ensemble:
    def make_model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1)).to(dtype)

    return Ensemble([make_model().state_dict() for _ in range(2)], make_model, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("task", [Classification(), None])
def test_outputs_that_already_are_probabilities_are_refused(dtype: torch.dtype, task: Any) -> None:
    ensemble = softmaxed(dtype, **({"task": task} if task else {}))
    with pytest.raises(
        ValueError,
        match=r"takes logits, got outputs that are probabilities already .*; return logits, or pass",
    ):
        ensemble.predict(X.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_probabilities_of_a_narrow_type_are_refused_after_they_were_widened(dtype: torch.dtype) -> None:
    ensemble = softmaxed(forward=lambda model, x: model(x).to(dtype).float())
    with pytest.raises(ValueError, match="probabilities already"):
        ensemble.predict(X)


def test_a_row_of_a_narrow_type_that_has_the_sum_1_by_chance_is_a_row_of_logits() -> None:
    task = Classification()
    logits = torch.tensor([[0.4, 0.6]])
    for dtype in (torch.bfloat16, torch.float16):
        assert not task.check_outputs(logits.to(dtype))  # the next batch decides
        assert not task.check_outputs(logits[:0].to(dtype))
        with pytest.raises(ValueError, match="probabilities already"):
            task.check_outputs(logits.expand(4, 2).to(dtype))
    with pytest.raises(ValueError, match="probabilities already"):
        task.check_outputs(logits)


def test_the_logarithm_of_probabilities_gives_their_mean() -> None:
    ensemble = softmaxed(forward=lambda model, x: model(x).log())
    model = ensemble.build_model()
    each = []
    for member in ensemble.members:
        model.load_state_dict(member)
        each.append(model(X).detach())
    torch.testing.assert_close(ensemble.predict(X), torch.stack(each).mean(0))


def test_rows_that_are_one_hot_may_be_logits_and_the_next_batch_decides() -> None:
    ensemble = Ensemble([{"weight": torch.eye(3)}], lambda: nn.Linear(3, 3, bias=False))
    torch.testing.assert_close(ensemble.predict(torch.eye(3)), torch.eye(3).softmax(dim=1))
    with pytest.raises(ValueError, match="probabilities already"):
        ensemble.predict(torch.tensor([[0.2, 0.5, 0.3]]))
    ensemble = Ensemble(ensemble.members, ensemble.build_model)
    ensemble.predict(torch.tensor([[0.2, 0.5, 0.31]]))
    ensemble.predict(torch.tensor([[0.2, 0.5, 0.3]]))  # among logits that were decided before


# Temperatures

# Mostly what the mean predicts: better than chance, and not always right.
TARGETS = expected().mean(0).topk(2).indices[torch.arange(20), (torch.arange(20) % 5 == 0).long()]


def test_a_temperature_of_the_pool_is_applied_to_the_mean() -> None:
    roots = expected().mean(0).sqrt()
    torch.testing.assert_close(
        Ensemble(make_members(), make_mlp, temperatures=Temperatures(2.0)).predict(X),
        roots / roots.sum(1, keepdim=True),
    )


def test_a_members_temperature_divides_its_logits() -> None:
    with torch.no_grad():
        logits = torch.stack([make_mlp(seed).eval()(X) for seed in range(3)])
    scaled = (logits / torch.tensor([0.5, 1.0, 4.0])[:, None, None]).softmax(dim=2)
    ensemble = Ensemble(make_members(), make_mlp, temperatures=Temperatures(members=(0.5, 1.0, 4.0)))
    torch.testing.assert_close(ensemble.predict_members(X), scaled)
    torch.testing.assert_close(ensemble.predict(X), scaled.mean(0))


@pytest.mark.parametrize("each", [False, True])
def test_calibrating_minimizes_nll_on_the_given_examples(each: bool) -> None:
    raw = Ensemble(make_members(), make_mlp)
    fitted = raw.calibrated([(X, TARGETS)], by="members" if each else "pooled")

    def nll(ensemble: Ensemble) -> float:
        return -ensemble.predict(X)[torch.arange(20), TARGETS].log().mean().item()

    if each:
        assert fitted.temperatures.pooled == 1
        assert fitted.temperatures.members is not None
        others = [
            Ensemble([member], make_mlp, temperatures=Temperatures(temperature * factor))
            for member, temperature in zip(raw.members, fitted.temperatures.members, strict=True)
            for factor in (1, 0.99, 1.01)
        ]
    else:
        assert fitted.temperatures.members is None
        others = [
            Ensemble(raw.members, make_mlp, temperatures=Temperatures(fitted.temperatures.pooled * factor))
            for factor in (1, 0.99, 1.01)
        ]
    values = [nll(ensemble) for ensemble in others]
    for best, lower, higher in zip(*[iter(values)] * 3, strict=True):
        assert best < min(lower, higher)


def test_calibrating_again_starts_from_the_members_as_they_are() -> None:
    once = Ensemble(make_members(), make_mlp).calibrated([(X, TARGETS)])
    assert once.calibrated([(X, TARGETS)]).temperatures == once.temperatures


def test_the_last_members_keep_their_own_temperatures_and_not_that_of_the_pool() -> None:
    own = Ensemble(make_members(), make_mlp, temperatures=Temperatures(members=(1.0, 2.0, 3.0)))
    assert own.last(2).temperatures == Temperatures(members=(2.0, 3.0))
    both = own.with_members(own.members, temperatures=Temperatures(2.0, (1.0, 2.0, 3.0)))
    assert both.last(2).temperatures == Temperatures()


def test_moving_keeps_temperatures_and_fresh_statistics_end_them() -> None:
    ensemble = Ensemble(make_members(), make_mlp, temperatures=Temperatures(2.0, (1.0, 2.0, 3.0)))
    moved = ensemble.to("cpu")
    assert moved.temperatures == ensemble.temperatures
    fresh = ensemble.with_fresh_batch_norm([X])
    assert fresh.temperatures == Temperatures()


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan")])
def test_a_temperature_that_cannot_be_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="a temperature must be positive and finite"):
        Temperatures(temperature)
    with pytest.raises(ValueError, match="a temperature must be positive and finite"):
        Temperatures(members=(1.0, temperature, 1.0))


def test_temperatures_are_as_many_as_members() -> None:
    with pytest.raises(ValueError, match="temperatures must have 3 entries, one per member, got 2"):
        Ensemble(make_members(), make_mlp, temperatures=Temperatures(members=(1.0, 1.0)))


def test_an_ensemble_of_a_collector_has_its_members_and_knows_how_they_were_made(tmp_path: Path) -> None:
    pfge = PFGE(2, 4)
    train(make_mlp(), [pfge], 8)
    ensemble = Ensemble.from_collector(pfge, make_mlp, temperatures=Temperatures(2.0))
    for one, two in zip(ensemble.members, pfge.members(), strict=True):
        assert_same_weights(one, two)
    with pytest.warns(UserWarning, match="1 BatchNorm layer has statistics of other weights"):
        ensemble.save(tmp_path)
    loaded = Ensemble.load(tmp_path, make_mlp)
    assert loaded.method == "PFGE(cycle=2, period=4, phase=0, average_start=True, clear_momentum=True)"
    assert loaded.iterations == [4, 8]
    assert loaded.temperatures == Temperatures(2.0)


def test_an_ensemble_of_samples_has_no_iterations() -> None:
    swag = SWAG(2, samples=3)
    train(make_mlp(), [swag], 8)
    ensemble = Ensemble.from_collector(swag, make_mlp)
    assert len(ensemble) == 3
    assert ensemble.iterations == [None] * 3


def test_an_ensemble_of_a_collector_that_averaged_nothing_is_refused() -> None:
    swa = SWA(10)
    train(make_mlp(), [swa], 8)
    with pytest.raises(ValueError, match=r"SWA\(cycle=10.*has averaged nothing yet; train on"):
        Ensemble.from_collector(swa, make_mlp)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FGE(10), "has collected nothing yet; train up to iteration 10 at least, with before_update"),
        (
            lambda: PFGE(4, 20),
            "has only 2 of the 5 points of its next member yet; train up to iteration 20 at",
        ),
        (
            lambda: Star(30),
            "has collected nothing yet; train up to iteration 30 at least, with before_update",
        ),
    ],
)
def test_an_ensemble_of_a_collector_without_members_is_refused(
    make: Callable[[], Collector], message: str
) -> None:
    collector = make()
    train(make_mlp(), [collector], 8)
    with pytest.raises(
        ValueError, match=f"an ensemble needs a member, and {type(collector).__name__}.* {message}"
    ):
        Ensemble.from_collector(collector, make_mlp)


def test_a_model_in_place_of_its_constructor_is_refused(tmp_path: Path) -> None:
    message = "build_model must be a function that returns a new module, got a Linear; pass the function or"
    members = [{"weight": torch.ones(1, 1)}]
    with pytest.raises(TypeError, match=message):
        Ensemble(members, nn.Linear(1, 1, bias=False))
    Ensemble(members, lambda: nn.Linear(1, 1, bias=False)).save(tmp_path)
    with pytest.raises(TypeError, match=message):
        Ensemble.load(tmp_path, nn.Linear(1, 1, bias=False))


@pytest.mark.parametrize("batches", [[(X, TARGETS)] * 2, [[X, TARGETS]]])
def test_a_list_of_batches_in_place_of_one_is_refused(batches: list[object]) -> None:
    ensemble = Ensemble(make_members(), make_mlp)
    with pytest.raises(TypeError, match=r"got 2 that its forward does not take .* to predict_batches"):
        ensemble.predict(batches)


@pytest.mark.parametrize("batches", [[X, X], (X, X.double())])
def test_two_batches_of_inputs_are_not_taken_for_inputs_and_classes(batches: object) -> None:
    ensemble = Ensemble(make_members(), make_mlp)
    for predict in (ensemble.predict, ensemble.predict_members):
        with pytest.raises(TypeError, match=r"got two tensors \[\d+, 4\] .* to predict_batches\(\)"):
            predict(batches)


def test_inputs_beside_targets_of_the_same_shape_are_predicted_for_other_tasks() -> None:
    members = [copy_weights(view_weights(nn.Linear(4, 4))) for _ in range(2)]
    for task in (MultiLabel(), Raw()):
        ensemble = Ensemble(members, lambda: nn.Linear(4, 4), task=task)
        assert torch.equal(ensemble.predict([X, X]), ensemble.predict(X))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ("folder", r"a list with the weights of each member, got one str; .* use Ensemble.load\(folder\)"),
        (make_mlp(), r"got one Sequential; pass \[model.state_dict\(\)\]"),
        (make_mlp().state_dict(), "got one OrderedDict"),
        ([make_mlp()], r"weights by name, got a Sequential; pass what model.state_dict\(\) returns"),
    ],
)
def test_what_is_not_a_list_of_weights_is_refused(members: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Ensemble(members, make_mlp)  # type: ignore[arg-type]


def test_a_factory_that_returns_nothing_is_named() -> None:
    ensemble = Ensemble(make_members(), lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="build_model must return a module, got NoneType; let it return"):
        ensemble.predict(X)


def test_what_has_no_batches_is_refused() -> None:
    with pytest.raises(TypeError, match="a list of batches or a DataLoader, got int; pass an iterable"):
        Ensemble(make_members(), make_mlp).predict_batches(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [X, {"x": X}, pack_sequence([X, X[:2]])])
def test_one_batch_in_place_of_a_list_is_refused(batch: object) -> None:
    ensemble = Ensemble(make_members(), make_mlp)
    for read in (ensemble.predict_batches, ensemble.evaluate):
        with pytest.raises(TypeError, match=r"list of batches or a DataLoader, got one .* \[batch\], or"):
            read(batch)


def test_the_pooled_temperature_is_fitted_to_the_mean_before_it_is_rounded() -> None:
    fitted = Ensemble(make_members(), make_mlp).calibrated([(X, TARGETS)]).temperatures.pooled
    members = Ensemble(make_members(), make_mlp).predict_members(X)
    assert fitted == Classification().fit_calibration(members.double().sum(0) / 3, TARGETS)


# Tasks


def fractions(places: int = 2) -> Ensemble:
    return Ensemble(
        make_members(),
        make_mlp,
        task=Fractions(places),
        forward=lambda model, batch: call_model(model, batch).softmax(dim=1)[:, 0],
    )


def test_predictions_are_those_of_the_task() -> None:
    rounded = expected()[:, :, 0].round(decimals=2)
    torch.testing.assert_close(fractions().predict_members(X), rounded)
    torch.testing.assert_close(fractions().predict(X), rounded.mean(0))
    torch.testing.assert_close(fractions().predict_batches(X.split(7)), rounded.mean(0))


def test_calibration_is_the_tasks() -> None:
    targets = torch.linspace(0.5, 1, 20)
    rounded = expected()[:, :, 0].round(decimals=2)
    pooled = fractions().calibrated([(X, targets)])
    torch.testing.assert_close(pooled.predict(X), rounded.mean(0) * targets.mean() / rounded.mean())
    each = fractions().calibrated([(X, targets)], by="members")
    factors = targets.mean() / rounded.mean(dim=1, keepdim=True)
    torch.testing.assert_close(each.predict_members(X), rounded * factors)
    torch.testing.assert_close(each.predict(X), (rounded * factors).mean(0))


def test_members_count_by_their_weights_in_every_prediction() -> None:
    given = Temperatures(weights=(0.5, 0.2, 0.3))
    ensemble = Ensemble(make_members(), make_mlp, temperatures=given)
    weighted = torch.einsum("k,knc->nc", torch.tensor([0.5, 0.2, 0.3]), expected())
    torch.testing.assert_close(ensemble.predict(X), weighted)
    torch.testing.assert_close(ensemble.predict_members(X), expected())
    targets = torch.arange(20) % 3
    log_loss = -weighted[torch.arange(20), targets].log()
    scores = ensemble.evaluate([(X[:7], targets[:7]), (X[7:], targets[7:])])
    assert ensemble.task.summarize(scores)["nll"] == pytest.approx(log_loss.mean().item(), rel=1e-5)
    # They were fitted for all members, and are no start for another fit.
    assert ensemble.last(2).temperatures == Temperatures()
    again, plain = (e.calibrated([(X, targets)]) for e in (ensemble, ensemble.uncalibrated()))
    assert again.temperatures == plain.temperatures


def test_weights_that_help_are_fitted_and_others_are_not_kept() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=generator)
    ensemble = Ensemble(make_members(), make_mlp)
    of_first = (ensemble.predict_members(x)[0] ** 4).multinomial(1, generator=generator)[:, 0]
    fitted = ensemble.calibrated([(x, of_first)], by="weights")
    assert fitted.temperatures.weights is not None
    assert fitted.temperatures.weights[0] > 0.5
    alike = Ensemble([ensemble.members[0]] * 2, make_mlp)
    with pytest.warns(UserWarning, match="all members count the same, as weights do not help"):
        assert alike.calibrated([(x, of_first)], by="weights").temperatures.weights is None


def test_a_temperature_that_members_share_is_fitted_and_applied_if_it_helps() -> None:
    generator = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(1000, 4, generator=generator)
    ensemble = Ensemble(make_members(), make_mlp)
    logits = ensemble.predict_members(x).log().mean(dim=0)
    targets = (8 * logits).softmax(dim=1).multinomial(1, generator=generator)[:, 0]
    fitted = ensemble.calibrated([(x[:300], targets[:300]), (x[300:], targets[300:])], by="shared")
    assert fitted.temperatures.members is not None
    (shared,), pooled = {*fitted.temperatures.members}, fitted.temperatures.pooled
    assert shared > 1
    powered = ensemble.predict_members(x).double() ** (1 / shared)
    mean = (powered / powered.sum(dim=2, keepdim=True)).mean(dim=0) ** (1 / pooled)
    torch.testing.assert_close(
        fitted.predict(x).double(), mean / mean.sum(dim=1, keepdim=True), rtol=1e-4, atol=1e-6
    )
    # Both were fitted for all members.
    assert fitted.last(2).temperatures == Temperatures()
    alike = Ensemble([ensemble.members[0]] * 2, make_mlp)
    with pytest.warns(UserWarning, match="only the mean has a temperature, as one of the members does not"):
        assert alike.calibrated([(x, targets)], by="shared").temperatures.members is None


def test_a_single_member_does_not_predict_in_a_random_order() -> None:
    shuffled = DataLoader(TensorDataset(X, TARGETS), batch_size=4, shuffle=True)
    one = Ensemble(make_members()[:1], make_mlp)
    with pytest.raises(
        ValueError, match="must come in a fixed order, as predictions do, got a DataLoader that"
    ):
        one.predict_batches(shuffled)
    one.evaluate(shuffled)  # each example comes with its target


@pytest.mark.parametrize("by", ["shared", "weights"])
def test_some_calibrations_need_one_class_for_each_example(by: CalibrateBy) -> None:
    with pytest.raises(
        ValueError, match=f"calibrating by '{by}' needs a task with one class for each example"
    ):
        fractions().calibrated([(X, torch.ones(20))], by=by)


@pytest.mark.parametrize("by", ["shared", "weights"])
def test_how_to_pool_is_not_fitted_to_positions_of_one_example(by: CalibrateBy) -> None:
    """Positions of one picture are alike: parts of them are not held out from the rest."""
    images, masks = torch.randn(12, 1, 2, 2), torch.zeros(12, 2, 2, dtype=torch.int64)
    members = [{"weight": torch.randn(3, 1, 1, 1), "bias": torch.zeros(3)} for _ in range(2)]
    ensemble = Ensemble(members, lambda: nn.Conv2d(1, 3, 1), task=Classification())
    with pytest.raises(
        ValueError,
        match=rf"calibrating by '{by}' needs one class for each example, .* got \[12, 3, 2, 2\]",
    ):
        ensemble.calibrated([(images, masks)], by=by)


@pytest.mark.parametrize("by", ["shared", "weights"])
def test_how_to_pool_is_not_fitted_where_no_temperature_is(by: CalibrateBy) -> None:
    """All members are right about all examples: more confidence is always better."""
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    members = [{"weight": scale * torch.eye(4)} for scale in (1.0, 2.0)]
    ensemble = Ensemble(members, lambda: nn.Linear(4, 4, bias=False))
    with (
        pytest.warns(UserWarning, match="the temperature stays 1, as its fit did not converge"),
        pytest.warns(UserWarning, match=r"as .* not help"),
    ):
        fitted = ensemble.calibrated([(x, x.argmax(dim=1))], by=by)
    assert fitted.temperatures == Temperatures()


def test_each_member_has_a_weight_or_none_has() -> None:
    with pytest.raises(ValueError, match="weights must have 3 entries, one per member, got 2"):
        Ensemble(make_members(), make_mlp, temperatures=Temperatures(weights=(0.5, 0.5)))


def test_ensembles_made_of_one_another_have_its_task() -> None:
    ensemble = fractions(3)
    calibrated = ensemble.calibrated([(X, torch.ones(20))])
    others = [ensemble.last(2), ensemble.to("cpu"), ensemble.with_fresh_batch_norm([X]), calibrated]
    assert [other.task for other in others] == [Fractions(3)] * 4


def test_a_task_other_than_the_default_is_printed() -> None:
    assert "task=Fractions(places=3)" in repr(fractions(3))
    assert "task" not in repr(Ensemble(make_members(), make_mlp))


def test_outputs_that_do_not_fit_the_task_are_refused_with_their_shape() -> None:
    with pytest.raises(ValueError, match=r"must return numbers \[N\], got \[20, 3\]"):
        Ensemble(make_members(), make_mlp, task=Fractions()).predict(X)
    dense = Ensemble(make_members(), make_mlp, forward=lambda model, x: model(x)[:, :, None])
    with pytest.raises(ValueError, match=r"logits \[N, C\], got \[20, 3, 1\]; pass task=Classification\(\)"):
        dense.predict(X)


def test_the_manifest_names_a_task_that_was_given_and_no_other(tmp_path: Path) -> None:
    given = Ensemble(make_members(), make_mlp, task=Classification())
    for name, ensemble in (("none", Ensemble(make_members(), make_mlp)), ("given", given)):
        ensemble.save(tmp_path / name)
        # An ensemble of masks must come back as one, and one without a task must go on refusing masks.
        assert Ensemble.load(tmp_path / name, make_mlp).task == ensemble.task
    none, entry = (
        json.loads((tmp_path / name / "manifest.json").read_text()).get("task") for name in ("none", "given")
    )
    assert none is None
    assert entry == {"name": "Classification", "options": {"dim": 1, "ignore_index": None}}


@pytest.mark.parametrize("packed", [False, True])
def test_another_task_is_named_in_the_manifest(tmp_path: Path, packed: bool) -> None:
    ensemble = (
        compress(fractions(4), Bits(8), settings=PackSettings(base_bits=None)) if packed else fractions(4)
    )
    ensemble.save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["task"] == {"name": "Fractions", "options": {"places": 4}}
    with pytest.raises(
        StorageError, match=r"manifest\.json: task must be one that .* Regression, Raw, got 'Fr"
    ):
        Ensemble.load(tmp_path, make_mlp)
    loaded = Ensemble.load(tmp_path, make_mlp, task=Fractions(4), forward=ensemble.forward)
    assert torch.equal(loaded.predict(X), ensemble.predict(X))


def test_a_task_that_is_known_comes_back_from_the_manifest(tmp_path: Path) -> None:
    Ensemble(make_members(), make_mlp).save(tmp_path)
    edit_json(tmp_path / "manifest.json", task={"name": "Classification", "options": {}})
    assert Ensemble.load(tmp_path, make_mlp).task == Classification()


# Every task


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def test_the_pooled_prediction_of_each_task_is_that_of_a_loop_over_members(case: Case) -> None:
    expected = case.by_hand(case.outputs(case.members()))
    found = case.ensemble().predict(case.inputs)
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("each", [False, True])
def test_each_task_predicts_the_same_after_it_was_calibrated_saved_and_loaded(
    case: Case, each: bool, tmp_path: Path
) -> None:
    by: CalibrateBy = "members" if each else "pooled"
    parts = [(case.inputs[part], case.targets[part]) for part in (slice(3), slice(3, None))]
    ensemble = case.ensemble().calibrated(parts, by=by)
    assert ensemble.temperatures != Temperatures()
    ensemble.save(tmp_path)
    loaded = Ensemble.load(tmp_path, case.build)
    assert loaded.task == case.task
    assert loaded.temperatures == ensemble.temperatures
    assert torch.equal(loaded.predict(case.inputs), ensemble.predict(case.inputs))
    assert not torch.equal(loaded.predict(case.inputs), loaded.uncalibrated().predict(case.inputs))


def test_the_calibration_of_each_task_is_fitted_on_the_pooled_prediction(case: Case) -> None:
    pool = case.task.pool()
    for outputs in case.outputs(case.members()):
        pool.add(case.task.predictions(outputs))
    expected = case.task.fit_calibration(pool.result(), case.targets)
    found = case.ensemble().calibrated([(case.inputs, case.targets)]).temperatures.pooled
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 25])
def test_evaluating_in_chunks_gives_the_scores_of_all_predictions(case: Case, chunk_bytes: int) -> None:
    ensemble = case.ensemble().calibrated([(case.inputs, case.targets)])
    batches = list(zip(case.inputs.split(2), case.targets.split(2), strict=True))
    found = ensemble.evaluate(iter(batches), chunk_bytes=chunk_bytes)
    expected = case.task.score(ensemble.predict(case.inputs), case.targets)
    assert len(found) == len(case.inputs)
    assert case.task.summarize(found) == pytest.approx(case.task.summarize(expected), abs=1e-5)


def test_texts_of_different_lengths_are_evaluated_together() -> None:
    case = CASES["tokens"]
    long, short = (case.inputs[:2], case.targets[:2]), (case.inputs[2:, :4], case.targets[2:, :4])
    ensemble = case.ensemble()
    found = ensemble.evaluate([long, short])
    parts = [case.task.score(ensemble.predict(x), y) for x, y in (long, short)]
    expected = case.task.summarize(type(parts[0]).cat(parts))
    assert case.task.summarize(found) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match=r"one shape .* got \[2, 6, 3\] and \[3, 4, 3\]; .* evaluate\(\)"):
        ensemble.predict_batches([long, short])


def test_batches_with_labels_by_name_are_evaluated() -> None:
    case = CASES["rows"]
    ensemble = Ensemble(
        case.members(), case.build, task=case.task, forward=lambda model, batch: model(batch["x"])
    )
    found = ensemble.evaluate([{"x": case.inputs, "labels": case.targets}])
    assert case.task.summarize(found) == pytest.approx(
        case.task.summarize(case.ensemble().evaluate([(case.inputs, case.targets)]))
    )


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "at least one batch, got none"),
        (
            [ROWS],
            "a pair of inputs and a tensor of targets, or a dict with labels, got a Tensor; pass targets=",
        ),
    ],
)
def test_evaluating_needs_batches_with_targets(batches: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CASES["rows"].ensemble().evaluate(batches)


@pytest.mark.parametrize("count", [11, 13])
def test_calibrating_needs_a_target_for_each_example(count: int) -> None:
    targets = torch.zeros(count, dtype=torch.long)
    with pytest.raises(ValueError, match=rf"one entry for each of 12 examples, got shape \[{count}\]"):
        CASES["rows"].ensemble().calibrated([(ROWS, targets)])


@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (2, 5, 3)])
def test_without_a_task_masks_and_tokens_are_refused(shape: tuple[int, ...]) -> None:
    members = [{"weight": torch.ones(1, 1)}]
    ensemble = Ensemble(members, lambda: nn.Linear(1, 1, bias=False), forward=lambda model, x: x)  # noqa: ARG005
    message = (
        rf"got {re.escape(str(list(shape)))}; pass task=Classification\(\) .* task=Classification\(dim=-1\)"
    )
    with pytest.raises(ValueError, match=message):
        ensemble.predict(torch.zeros(shape))


DENSE_EVALUATION = """
import resource, sys
import torch
from torch import nn
from pfge import Ensemble
from pfge.tasks import Classification, MultiLabel, Raw

images = int(sys.argv[1])
torch.set_num_threads(1)

def build():
    return nn.Conv2d(3, 20, 1)

members = [build().state_dict() for _ in range(10)]
ensemble = Ensemble(members, build, task=Classification(ignore_index=255))

class Batches:
    def __iter__(self):
        for number in range(images // 5):
            generator = torch.Generator().manual_seed(number)
            inputs = torch.randn(5, 3, 128, 128, generator=generator)
            yield inputs, torch.randint(20, (5, 128, 128), generator=generator)

scores = ensemble.evaluate(Batches())
bytes_of_scores = sum(tensor.nbytes for tensor in scores.tensors.values())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, bytes_of_scores)
"""


@pytest.mark.slow
def test_the_memory_of_evaluating_masks_does_not_grow_with_the_number_of_images() -> None:
    def peak(images: int) -> tuple[int, int]:
        # Freed tensors go back to the system, or else the peak would be what malloc keeps of them.
        found = subprocess.run(
            [sys.executable, "-c", DENSE_EVALUATION, str(images)],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "100000"},
        )
        of_process, of_scores = map(int, found.stdout.split())
        return of_process, of_scores

    # 128 x 128 pixels, 20 classes, 10 members: one member's predictions for 75 more images take 98 MB.
    (few, _), (many, of_scores) = peak(25), peak(100)
    assert of_scores < 100_000
    assert many - few < 25e6


@pytest.mark.parametrize("packed", [False, True])
def test_an_ensemble_in_memory_does_not_need_its_files(tmp_path: Path, packed: bool) -> None:
    members = pack_members(make_members(), 3, PackSettings()) if packed else make_members()
    Ensemble(members, make_mlp).save(tmp_path)
    expected = Ensemble.load(tmp_path, make_mlp).predict(X)
    loaded = Ensemble.load(tmp_path, make_mlp, in_memory=True)
    for file in tmp_path.glob("*.safetensors"):
        with file.open("r+b") as opened:  # in place, as a mapped file would notice
            opened.write(bytes(file.stat().st_size))
            opened.truncate(8)
    assert torch.equal(loaded.predict(X), expected)


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_changes_between_the_check_and_the_copy_is_refused(
    tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = pack_members(make_members(), 3, PackSettings()) if packed else make_members()
    Ensemble(members, make_mlp).save(tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    # as if it had been whole when it was checked
    monkeypatch.setattr("pfge.storage.ensemble_folder.verify_file", lambda path, entry, _: path / entry.file)
    with pytest.raises(StorageError, match="was changed while it was read"):
        Ensemble.load(tmp_path, make_mlp, in_memory=True)


def collected(collector: Collector, make_model: Callable[[], nn.Module] = make_mlp) -> Ensemble:
    train(make_model(), [collector], 4)
    return Ensemble.from_collector(collector, make_model)


USES: list[Callable[[Ensemble, Path], object]] = [
    lambda ensemble, _: ensemble.predict(X),
    lambda ensemble, _: ensemble.evaluate([(X, torch.zeros(20, dtype=torch.int64))]),
    lambda ensemble, _: ensemble.as_module(),
    lambda ensemble, folder: ensemble.save(folder),
    lambda ensemble, _: compress(ensemble, Bits(8)).predict(X),
]
STALE = "1 BatchNorm layer has statistics of other weights; call ensemble.with_fresh_batch_norm"


@pytest.mark.parametrize("use", USES)
def test_averages_with_batch_norm_statistics_of_other_weights_are_warned_of_once(
    use: Callable[[Ensemble, Path], object], tmp_path: Path
) -> None:
    ensemble = collected(PFGE(cycle=1, period=2))
    with pytest.warns(UserWarning, match=re.escape(STALE)) as found:
        use(ensemble, tmp_path)
    assert len(found) == 1
    ensemble.predict(X)
    ensemble.save(tmp_path / "again")


@pytest.mark.parametrize("collector", [SWA(1), EMA(0.5), SWAG(1, samples=2), Star(4, tail=2)], ids=str)
def test_each_kind_of_average_is_warned_of_until_its_statistics_are_computed(collector: Collector) -> None:
    ensemble = collected(collector)
    fresh = ensemble.with_fresh_batch_norm([X])
    fresh.predict(X)
    fresh.last(1).predict(X)
    with pytest.warns(UserWarning, match=re.escape(STALE)):
        ensemble.predict(X)


def without_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.LayerNorm(8), nn.Linear(8, 3))


@pytest.mark.parametrize("collector", [FGE(1), Star(2)], ids=str)
def test_points_of_the_path_have_statistics_of_their_own(collector: Collector) -> None:
    collected(collector).predict(X)


def test_a_model_without_batch_norm_needs_no_statistics() -> None:
    collected(SWA(1), without_batch_norm).predict(X)


def test_statistics_of_layers_that_were_frozen_are_those_of_all_weights() -> None:
    model, collector = make_mlp(), SWA(1)
    trajectory = Trajectory(model, make_sgd(model), Constant(0.05), [collector])
    model.train()
    model[1].eval()
    for iteration in range(3):
        inputs, targets = make_batch(iteration)
        trajectory.before_update()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        trajectory.optimizer.step()
        trajectory.after_update()
    Ensemble.from_collector(collector, make_mlp).predict(X)


def test_fixed_noise_has_one_variance_for_the_members_or_for_their_mean() -> None:
    # v - 1 + T would be negative where each member's own variance is small already.
    case = CASES["fixed noise"]
    members = case.members(2)
    with pytest.raises(ValueError, match=r"either for each member or for their mean, got both"):
        Ensemble(members, case.build, task=case.task, temperatures=Temperatures(0.05, (0.06, 0.08)))

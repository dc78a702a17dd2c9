from collections import UserDict
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, TensorDataset

from pfge import Cascade, Ensemble, StorageError, fit_cascade
from pfge.calibration import Temperatures
from pfge.cascade import CascadePrediction, bind_to, even_places, fit_to_answers, temperatures_digest
from pfge.compression import Bits, PackSettings, compress
from pfge.metrics.scores import accuracy, negative_log_likelihood
from tests.tasks.cases import CASES
from tests.tasks.fractions import Fractions
from tests.toy_members import make_members
from tests.toys import make_batch, make_mlp

BATCHES = [make_batch(i, size=30)[0] for i in range(3)]
X = torch.cat(BATCHES)
Y = torch.cat([make_batch(i, size=30)[1] for i in range(3)])
PAIRS = [make_batch(i, size=30) for i in range(3)]


@pytest.fixture
def ensemble() -> Ensemble:
    return Ensemble(make_members(), make_mlp)


def transcription(ensemble: Ensemble, cascade: Cascade) -> tuple[Tensor, list[int]]:
    """One example at a time, in plain Python."""
    answers = ensemble.predict_members(X)[list(cascade.order)]
    weights = torch.tensor([ensemble.temperatures.weight_of(member) for member in cascade.order])
    probabilities, asked = [], []
    for example in range(len(X)):
        for count in range(1, len(answers) + 1):
            shares = weights[:count] / weights[:count].sum()
            mean = (shares @ answers[:count, example]) ** (1 / ensemble.temperatures.pooled)
            mean /= mean.sum()
            votes = {int(vote) for vote in answers[:count, example].argmax(dim=1)}
            if count == len(answers):
                break
            if mean.max() >= cascade.thresholds[count - 1] and (
                cascade.rule == "confidence" or len(votes) == 1
            ):
                break
        probabilities.append(mean)
        asked.append(count)
    return torch.stack(probabilities), asked


@pytest.mark.parametrize("rule", ["confidence", "agreement"])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("threshold", [0.3, 0.45, 0.6, (0.6, 0.42), (0.42, 0.6)])
def test_examples_stop_when_they_are_sure(
    ensemble: Ensemble, order: tuple[int, ...], threshold: float | tuple[float, float], rule: str
) -> None:
    cascade = Cascade(order, threshold, rule)
    found = cascade.predict_batches(ensemble, BATCHES)
    probabilities, asked = transcription(ensemble, cascade)
    assert found.evaluated.tolist() == asked
    torch.testing.assert_close(found.probabilities, probabilities)


def test_some_of_those_examples_stop_after_one_some_after_two_and_three_members(
    ensemble: Ensemble,
) -> None:
    assert set(transcription(ensemble, Cascade((0, 1, 2), 0.45))[1]) == {1, 2, 3}


def test_a_threshold_that_nobody_reaches_is_the_whole_ensemble(ensemble: Ensemble) -> None:
    found = Cascade((1, 0, 2), 2.0).predict(ensemble, X)
    torch.testing.assert_close(found.probabilities, ensemble.predict(X))
    assert found.evaluated.tolist() == [3] * len(X)


def test_an_example_that_no_member_has_a_number_for_is_still_answered(ensemble: Ensemble) -> None:
    broken = X.clone()
    broken[7] = torch.nan
    found = Cascade((0, 1, 2), 0.45).predict(ensemble, broken)
    assert len(found.probabilities) == len(X)
    assert found.probabilities.isnan().any(dim=1).nonzero().flatten().tolist() == [7]
    assert found.evaluated[7] == 3


CALIBRATED = Temperatures(1.7, (0.9, 1.2, 1.5), weights=(0.2, 0.5, 0.3))


def test_a_cascade_that_asks_everybody_is_the_calibrated_ensemble_to_the_last_bit() -> None:
    ensemble = Ensemble(make_members(), make_mlp, temperatures=CALIBRATED)
    found = Cascade((0, 1, 2), 2.0).predict_batches(ensemble, BATCHES)
    assert torch.equal(found.probabilities, ensemble.predict_batches(BATCHES))
    plain = Ensemble(make_members(), make_mlp, temperatures=Temperatures(members=CALIBRATED.members))
    assert not torch.allclose(found.probabilities, plain.predict(X), atol=0.01)


def test_examples_stop_by_the_confidence_at_the_ensembles_temperature() -> None:
    ensemble = Ensemble(make_members(), make_mlp, temperatures=CALIBRATED)
    cascade = Cascade((2, 0, 1), 0.36)
    found = cascade.predict_batches(ensemble, BATCHES)
    probabilities, asked = transcription(ensemble, cascade)
    assert set(asked) == {1, 2, 3}
    assert found.evaluated.tolist() == asked
    torch.testing.assert_close(found.probabilities, probabilities)


def test_only_unsure_examples_reach_later_members() -> None:
    seen: list[int] = []

    def forward(model: nn.Module, x: Tensor) -> Any:
        seen.append(len(x))
        return model(x)

    ensemble = Ensemble(make_members(), make_mlp, forward=forward)
    found = Cascade((0, 1, 2), 0.45).predict(ensemble, X)
    assert seen == [int((found.evaluated >= count).sum()) for count in (1, 2, 3)]


def test_batches_may_be_pairs_and_dicts_and_an_iterator(ensemble: Ensemble) -> None:
    cascade = Cascade((0, 1, 2), 0.45)
    expected = cascade.predict(ensemble, X).probabilities
    pairs = cascade.predict_batches(ensemble, iter([(x, torch.zeros(len(x))) for x in BATCHES]))
    torch.testing.assert_close(pairs.probabilities, expected)
    named = cascade.predict_batches(ensemble, [{"input": x} for x in BATCHES])
    torch.testing.assert_close(named.probabilities, expected)
    other = cascade.predict_batches(ensemble, [UserDict(input=x) for x in BATCHES])  # as of transformers
    torch.testing.assert_close(other.probabilities, expected)


class Pair(NamedTuple):
    inputs: Tensor
    weights: Tensor


@pytest.mark.parametrize("kind", [Pair, lambda *entries: tuple(entries), lambda *entries: list(entries)])
def test_later_members_get_batches_of_the_same_type(ensemble: Ensemble, kind: Any) -> None:
    types = set()

    def forward(model: nn.Module, batch: Any) -> Any:
        types.add(type(batch))
        return model(batch[0])

    own = Ensemble(ensemble.members, make_mlp, forward=forward)
    found = Cascade((0, 1, 2), 0.5).predict(own, kind(X, torch.ones(90)))
    assert torch.equal(found.evaluated, Cascade((0, 1, 2), 0.5).predict(ensemble, X).evaluated)
    assert types == {type(kind(X, X))}


def test_a_compressed_ensemble_cascades_too(ensemble: Ensemble) -> None:
    packed = compress(ensemble, Bits(8), settings=PackSettings(base_bits=None))
    cascade = Cascade((2, 1, 0), 0.45)
    assert cascade.predict(packed, X).evaluated.tolist() == transcription(packed, cascade)[1]


def mean_members(prediction: CascadePrediction) -> float:
    return prediction.evaluated.double().mean().item()


def fixed(answers: Tensor, temperature: float = 1.0) -> Ensemble:
    """Members whose probabilities are given, [K, N, C]: the batch holds the numbers of the examples."""
    members = [{"weight": member.log()} for member in answers]
    return Ensemble(members, lambda: nn.Embedding(*answers.shape[1:]), temperatures=Temperatures(temperature))


# Member 0 errs on example 3, unsure; member 1 is right everywhere; together they are right.
ANSWERS = torch.tensor(
    [
        [[0.9, 0.1], [0.1, 0.9], [0.8, 0.2], [0.45, 0.55]],
        [[0.9, 0.1], [0.1, 0.9], [0.6, 0.4], [0.85, 0.15]],
    ]
)
EXAMPLES, CLASSES = torch.arange(4), torch.tensor([0, 1, 0, 0])


def test_the_fit_asks_as_few_as_the_loss_allows() -> None:
    # The second member alone is right everywhere: one member is enough.
    found = fit_cascade(fixed(ANSWERS), [(EXAMPLES, CLASSES)], max_accuracy_loss=0.0)
    assert found.order[0] == 1
    prediction = found.predict(fixed(ANSWERS), EXAMPLES)
    assert (mean_members(prediction), accuracy(prediction.probabilities, CLASSES)) == (1, 1)


def test_an_example_lost_is_not_made_good_by_one_gained() -> None:
    # Both together are wrong on example 2 and right on 3; so is the first alone. The second is right on 2
    # and wrong on 3: as accurate, and likelier, but it loses one.
    answers = torch.tensor(
        [
            [[0.9, 0.1], [0.1, 0.9], [0.1, 0.9], [0.9, 0.1]],
            [[0.9, 0.1], [0.1, 0.9], [0.6, 0.4], [0.4, 0.6]],
        ]
    )
    found = fit_cascade(fixed(answers), [(EXAMPLES, CLASSES)], max_accuracy_loss=0.0)
    assert found.order[0] == 0
    assert found.predict(fixed(answers), EXAMPLES).evaluated.tolist() == [1, 1, 1, 1]


def test_the_fit_lets_the_threshold_fall_where_that_asks_fewer() -> None:
    # Each member is wrong on an example of its own, at 0.8, which the next puts right, at 0.595; on the last
    # example all are unsure, at 0.6. One threshold has to be above 0.8 and asks 3 + 1 + 1 + 3 members;
    # one that falls to 0.595 asks 2 + 1 + 1 + 2.
    answers = torch.tensor([0.99, 0.01]).repeat(3, 4, 1)
    answers[range(3), range(3)] = torch.tensor([0.2, 0.8])
    answers[:, 3] = torch.tensor([0.6, 0.4])
    ensemble, zeros = fixed(answers), torch.zeros(4, dtype=torch.int64)
    even = [Cascade((0, 1, 2), t).predict(ensemble, EXAMPLES) for t in (0.59, 0.79, 0.81, 0.98, 1)]
    right = [prediction for prediction in even if accuracy(prediction.probabilities, zeros) == 1]
    assert [round(4 * mean_members(prediction)) for prediction in right] == [8, 8, 12]
    found = fit_cascade(ensemble, [(EXAMPLES, zeros)], max_accuracy_loss=0.0)
    prediction = found.predict(ensemble, EXAMPLES)
    assert (4 * mean_members(prediction), accuracy(prediction.probabilities, zeros)) == (6, 1)


@pytest.mark.parametrize("last", [0.0, 1e-7, -1e-7])
def test_members_that_differ_by_rounding_are_asked_in_their_order_and_one_is_enough(last: float) -> None:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(40, 3, generator=generator, dtype=torch.float64).softmax(dim=1)
    targets = torch.arange(40) % 3
    second = first.clone()
    second[range(40), targets] *= 1 + last
    answers = torch.stack([first, second])
    found = fit_to_answers(answers, targets, max_nll_increase=0.0)
    assert found.order == (0, 1)
    assert found.replay(answers).evaluated.tolist() == [1] * 40


@pytest.mark.parametrize("last", [0.0, 1e-7, -1e-7])
def test_an_example_at_the_threshold_stops_on_every_machine(last: float) -> None:
    generator = torch.Generator().manual_seed(1)
    answers = (2 * torch.randn(2, 60, 2, generator=generator, dtype=torch.float64)).softmax(dim=2)
    found = fit_to_answers(answers, answers.mean(dim=0).argmax(dim=1), max_accuracy_loss=0.0)
    evaluated = found.replay(answers).evaluated.tolist()
    assert set(evaluated) == {1, 2}
    assert found.replay(answers * (1 + last)).evaluated.tolist() == evaluated


def test_places_of_many_numbers_do_not_exceed_the_end() -> None:
    places = even_places(20_000_004, 100)
    assert places[[0, -1]].tolist() == [0, 20_000_003]
    assert even_places(5, 3).tolist() == [0, 2, 4]


def test_a_smaller_loss_asks_more_members(ensemble: Ensemble) -> None:
    whole = negative_log_likelihood(ensemble.predict(X), Y)
    costs = []
    for loss in (1e-9, 0.003, 1.0):
        cascade = fit_cascade(ensemble, PAIRS, max_nll_increase=loss)
        prediction = cascade.predict_batches(ensemble, BATCHES)
        assert negative_log_likelihood(prediction.probabilities, Y) <= whole + loss
        costs.append(mean_members(prediction))
    assert costs[0] > costs[1] > costs[2] == 1


def test_the_fit_is_at_the_ensembles_temperature() -> None:
    # Of two classes the surer stays the surer at any temperature, so the same examples stop after the first
    # of two members; the confidence from which they do is another.
    generator = torch.Generator().manual_seed(1)
    answers = (2 * torch.randn(2, 60, 2, generator=generator)).softmax(dim=2)
    examples, classes = torch.arange(60), answers.mean(dim=0).argmax(dim=1)
    plain, hot = fixed(answers), fixed(answers, temperature=3.0)
    one, two = (fit_cascade(e, [(examples, classes)], max_accuracy_loss=0.0) for e in (plain, hot))
    asked = one.predict(plain, examples).evaluated
    assert set(asked.tolist()) == {1, 2}
    assert two.predict(hot, examples).evaluated.tolist() == asked.tolist()
    assert two.thresholds < one.thresholds
    increase = fit_cascade(hot, [(examples, classes)], max_nll_increase=0.01)
    whole = negative_log_likelihood(hot.predict(examples), classes)
    found = increase.predict(hot, examples).probabilities
    assert negative_log_likelihood(found, classes) <= whole + 0.01


def test_a_fit_to_data_in_random_order_is_refused() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=30, shuffle=True)
    with pytest.raises(ValueError, match="same order for each member, got a DataLoader that shuffles"):
        fit_cascade(Ensemble(make_members(3), make_mlp), loader, max_accuracy_loss=0.0)


def test_a_fit_needs_a_loss(ensemble: Ensemble) -> None:
    with pytest.raises(ValueError, match="needs a largest loss; pass max_accuracy_loss, max_nll_increase or"):
        fit_cascade(ensemble, PAIRS)


@pytest.mark.parametrize("name", ["max_accuracy_loss", "max_nll_increase"])
@pytest.mark.parametrize("loss", [-0.1, float("nan")])
def test_a_loss_that_cannot_be_is_refused(ensemble: Ensemble, name: str, loss: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 0, got {loss}"):
        fit_cascade(ensemble, PAIRS, **{name: loss})


def test_a_cascade_is_saved_and_loaded(tmp_path: Path) -> None:
    cascade = Cascade((2, 0, 1), 0.8125, "agreement")
    cascade.save(tmp_path / "cascade.json")
    assert Cascade.load(tmp_path / "cascade.json") == cascade
    assert cascade.file_bytes() == (tmp_path / "cascade.json").stat().st_size


def test_a_cascade_with_a_threshold_after_each_member_is_saved_and_loaded(tmp_path: Path) -> None:
    cascade = Cascade((2, 0, 1), (0.9, 0.7))
    cascade.save(tmp_path / "cascade.json")
    assert Cascade.load(tmp_path / "cascade.json") == cascade


def test_a_file_of_the_first_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "cascade.json").write_text(
        '{"format": "pfge-cascade", "version": 1, "order": [1, 0], "threshold": 0.75, "rule": "confidence"}'
    )
    assert Cascade.load(tmp_path / "cascade.json") == Cascade((1, 0), 0.75)


def test_another_file_is_no_cascade(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"format": "other"}')
    with pytest.raises(
        StorageError, match=r"x\.json must be a cascade of format 'pfge-cascade', version 2 or older"
    ):
        Cascade.load(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((0, 2), 0.5), r"order must have each number from 0 on once, got \[0, 2\]"),
        (((), 0.5), r"order must have each number from 0 on once, got \[\]"),
        (((0,), 0.0), "threshold must be above 0, got 0.0"),
        (((0, 1, 2), (0.5, 0.0)), r"threshold must be above 0, got \(0.5, 0.0\)"),
        (((0, 1, 2), (0.5,)), "threshold must be one number, or 2 for 3 members, got 1"),
        (((0,), 0.5, "luck"), "rule must be one of confidence, agreement, got 'luck'"),
    ],
)
def test_what_is_no_cascade_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cascade(*arguments)


def test_an_ensemble_whose_task_is_not_classes_is_refused() -> None:
    ensemble = Ensemble(make_members(), make_mlp, task=Fractions())
    message = r"a cascade needs a task with one class for each example, Classification\(\), got Fractions"
    with pytest.raises(ValueError, match=message):
        Cascade((0, 1, 2), 0.5).predict(ensemble, X)
    with pytest.raises(ValueError, match=message):
        fit_cascade(ensemble, PAIRS, max_accuracy_loss=0.0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "masks",
            r"a cascade needs a task with one class for each example, .* got Classification\(dim=1, ig",
        ),
        ("tokens", r"a cascade needs one class for each example, predictions \[N, C\], got \[5, 6, 3\]"),
        ("labels", r"a cascade needs a task with one class for each example, .* got MultiLabel\(\)"),
        ("fixed noise", r"a cascade needs a task with one class for each example, .* got Regression\("),
    ],
)
def test_masks_tokens_labels_and_numbers_are_refused(name: str, message: str) -> None:
    case = CASES[name]
    with pytest.raises(ValueError, match=message):
        Cascade((0, 1, 2), 0.5).predict(case.ensemble(), case.inputs)
    with pytest.raises(ValueError, match=message):
        fit_cascade(case.ensemble(), [(case.inputs, case.targets)], max_accuracy_loss=0.0)


def test_a_cascade_of_other_members_is_refused(ensemble: Ensemble) -> None:
    with pytest.raises(ValueError, match="fitted to 2 members, got an ensemble of 3; fit a cascade"):
        Cascade((0, 1), 0.5).predict(ensemble, X)


def test_a_fitted_cascade_is_of_the_members_that_it_was_fitted_to(ensemble: Ensemble, tmp_path: Path) -> None:
    cascade = fit_cascade(ensemble, PAIRS, max_accuracy_loss=0.05)
    cascade.save(tmp_path / "cascade.json")
    loaded = Cascade.load(tmp_path / "cascade.json")
    ensemble.save(tmp_path / "same")
    loaded.predict(Ensemble.load(tmp_path / "same", make_mlp), X)
    members = [dict(member) for member in ensemble.members]
    members[1]["0.bias"] = members[1]["0.bias"] + 1e-6
    with pytest.raises(ValueError, match=r"this cascade was fitted to members with the digest \w{16}, got"):
        loaded.predict(Ensemble(members, make_mlp), X)


@pytest.mark.parametrize("fitted_at", [Temperatures(), Temperatures(2.0), CALIBRATED])
def test_a_fitted_cascade_is_of_the_temperatures_that_it_was_fitted_at(
    ensemble: Ensemble, fitted_at: Temperatures, tmp_path: Path
) -> None:
    fitted = ensemble.with_members(ensemble.members, temperatures=fitted_at)
    fit_cascade(fitted, PAIRS, max_accuracy_loss=0.05).save(tmp_path / "cascade.json")
    loaded = Cascade.load(tmp_path / "cascade.json")
    fitted.save(tmp_path / "same")
    loaded.predict(Ensemble.load(tmp_path / "same", make_mlp), X)
    for other in (
        Temperatures(0.5),
        replace(CALIBRATED, weights=None),
        replace(CALIBRATED, members=(0.9, 1.2, 1.6)),
    ):
        with pytest.raises(
            ValueError, match=r"fitted at temperatures with the digest \w{16}, got .* fit a casc"
        ):
            loaded.predict(ensemble.with_members(ensemble.members, temperatures=other), X)


def test_equal_temperatures_have_one_digest() -> None:
    plain = temperatures_digest(Temperatures(), 2)
    assert plain == temperatures_digest(Temperatures(1, members=(1, 1.0)), 2)
    assert plain != temperatures_digest(Temperatures(weights=(0.5, 0.5)), 2)


def test_a_cascade_without_a_digest_of_temperatures_takes_any(ensemble: Ensemble) -> None:
    fitted = fit_cascade(ensemble, PAIRS, max_accuracy_loss=0.05)
    older = replace(fitted, temperatures=None)
    hot = ensemble.with_members(ensemble.members, temperatures=Temperatures(2.0))
    assert older.predict(hot, X).evaluated.tolist() == transcription(hot, older)[1]


@pytest.mark.parametrize("name", ["members", "temperatures"])
@pytest.mark.parametrize("digest", ["1", "[]"])
def test_a_digest_is_a_text(name: str, digest: str, tmp_path: Path) -> None:
    (tmp_path / "cascade.json").write_text(
        '{"format": "pfge-cascade", "version": 2, "order": [0], "threshold": 0.75, "rule": "confidence", '
        f'"{name}": {digest}}}'
    )
    with pytest.raises(StorageError, match="must be a cascade"):
        Cascade.load(tmp_path / "cascade.json")


# From answers that are there already


@pytest.mark.parametrize("rule", ["confidence", "agreement"])
@pytest.mark.parametrize("threshold", [0.37, (0.39, 0.36)])
def test_a_replay_is_what_asking_the_members_gives(
    ensemble: Ensemble, threshold: float | tuple[float, float], rule: str
) -> None:
    ensemble = ensemble.with_members(ensemble.members, temperatures=CALIBRATED)
    cascade = Cascade((2, 0, 1), threshold, rule)
    asked = cascade.predict(ensemble, X)
    replayed = cascade.replay(ensemble.predict_members(X), CALIBRATED)
    assert replayed.evaluated.tolist() == asked.evaluated.tolist()
    assert len(set(asked.evaluated.tolist())) > 1
    torch.testing.assert_close(replayed.probabilities, asked.probabilities)


@pytest.mark.parametrize("loss", [{"max_accuracy_loss": 0.05}, {"max_nll_increase": 0.01}])
def test_a_cascade_fitted_to_answers_is_the_one_fitted_to_batches(
    ensemble: Ensemble, loss: dict[str, float]
) -> None:
    ensemble = ensemble.with_members(ensemble.members, temperatures=CALIBRATED)
    fitted = fit_to_answers(ensemble.predict_members(X), Y, CALIBRATED, **loss)
    assert bind_to(fitted, ensemble) == fit_cascade(ensemble, [(X, Y)], **loss)
    assert min(fitted.thresholds) < 1


def test_answers_alone_are_no_loss_to_fit_to(ensemble: Ensemble) -> None:
    with pytest.raises(ValueError, match="a cascade needs a largest loss; pass max_accuracy_loss"):
        fit_to_answers(ensemble.predict_members(X), Y)


def test_the_classes_of_three_entries_are_named(ensemble: Ensemble) -> None:
    model = ensemble.forward
    with_weights = [(x, torch.ones(len(x)), y) for x, y in PAIRS]
    own = Ensemble(ensemble.members, make_mlp, forward=lambda module, batch: model(module, batch[0]))
    expected = fit_cascade(ensemble, PAIRS, max_accuracy_loss=0.05)
    assert fit_cascade(own, with_weights, targets=2, max_accuracy_loss=0.05) == expected
    with pytest.raises(ValueError, match="a batch of 3 entries does not say which one is the targets"):
        fit_cascade(own, with_weights, max_accuracy_loss=0.05)
    swapped = [(y, x) for x, y in PAIRS]
    assert fit_cascade(ensemble, swapped, targets=0, max_accuracy_loss=0.05) == expected
    found = expected.predict_batches(ensemble, swapped, targets=0)
    assert torch.equal(found.probabilities, expected.predict_batches(ensemble, PAIRS).probabilities)


@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_packed_sequences_that_are_not_sure_yet_go_on(enforce_sorted: bool) -> None:
    class Read(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read, self.head = nn.GRU(3, 4), nn.Linear(4, 2)

        def forward(self, sequences: PackedSequence) -> torch.Tensor:
            return self.head(self.read(sequences)[1][0])

    torch.manual_seed(0)
    members = [{name: 3 * tensor for name, tensor in Read().state_dict().items()} for _ in range(2)]
    lengths = (6, 4, 4, 2, 1) if enforce_sorted else (2, 6, 1, 4, 4)
    sequences = pack_sequence([torch.randn(n, 3) for n in lengths], enforce_sorted=enforce_sorted)
    ensemble = Ensemble(members, Read)
    answers = ensemble.predict_members(sequences)
    threshold = answers[0].max(dim=1).values.median().item()
    found, expected = (
        Cascade((0, 1), threshold).predict(ensemble, sequences),
        Cascade((0, 1), threshold).replay(answers),
    )
    assert 1 < found.evaluated.double().mean() < 2
    assert torch.equal(found.evaluated, expected.evaluated)
    torch.testing.assert_close(found.probabilities, expected.probabilities)

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tests.integrations  # noqa: F401 - lets transformers be imported
from pfge import Ensemble
from pfge.tasks import CausalLM, Classification
from pfge.weights import copy_weights, view_weights

TASK = CausalLM()
LOGITS = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(0))
TOKENS = LOGITS.argmax(dim=2).roll(1, dims=1)  # what the model predicts, but for a few
TOKENS[:, 3] = torch.tensor([0, 2, 1])
TOKENS[1, 4:] = -100


def shifted() -> tuple[Tensor, Tensor]:
    """What is compared: the prediction at each position with the token after it, [M, C] and [M]."""
    rows, following = LOGITS.double()[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()
    return rows[following >= 0], following[following >= 0]


def make_model() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 11, "n_positions": 12, "n_embd": 16, "n_layer": 2, "n_head": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return GPT2LMHeadModel(GPT2Config(**sizes, **ends)).eval()


def make_batch() -> dict[str, Tensor]:
    tokens = torch.randint(11, (5, 9), generator=torch.Generator().manual_seed(1))
    labels = tokens.clone()
    labels[1, 6:] = -100
    return {"input_ids": tokens, "labels": labels}


def test_the_nll_is_the_loss_of_the_model_of_transformers_itself() -> None:
    model, batch = make_model(), make_batch()
    ensemble = Ensemble([copy_weights(view_weights(model))], make_model, task=TASK)
    with torch.no_grad():
        outputs = model(**batch)
    found = TASK.summarize(ensemble.evaluate([batch]))
    assert found["nll"] == pytest.approx(outputs.loss.item(), rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(outputs.loss.item()), rel=1e-5)
    assert TASK.loss(outputs.logits, batch["labels"]).item() == pytest.approx(outputs.loss.item(), rel=1e-5)
    assert ensemble.predict(batch).shape == (5, 9, 11)


def test_labels_that_equal_the_tokens_of_the_same_positions_are_refused() -> None:
    members = [copy_weights(view_weights(make_model()))]
    tagger = Ensemble(members, make_model, task=Classification(dim=-1, ignore_index=-100))
    message = r"equal input_ids.* at the same positions; pass task=CausalLM\(\)"
    for use in (tagger.evaluate, tagger.calibrated):
        with pytest.raises(ValueError, match=message):
            use([make_batch()])
    with pytest.raises(ValueError, match=message):
        tagger.evaluate([make_batch()], targets="labels")
    batch = make_batch() | {"labels": make_batch()["input_ids"].flip(1)}
    assert len(tagger.evaluate([batch])) == 5


def test_single_masked_tokens_that_were_left_as_they_are_are_not_taken_for_a_causal_model() -> None:
    tokens = torch.tensor([[1, 2, 3, 4]])
    labels = torch.tensor([[-100, 2, -100, 4]])
    task = Classification(dim=-1, ignore_index=-100)
    assert task.targets_of({"input_ids": tokens, "labels": labels}) is labels
    assert task.targets_of(({"input_ids": tokens}, labels)) is labels
    with pytest.raises(ValueError, match="equal input_ids"):
        task.targets_of(({"input_ids": tokens}, tokens.clone()))


MASK = torch.ones(2, 4)
TEXTS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


@pytest.mark.parametrize(
    ("batch", "at"),
    [
        ((TEXTS, TEXTS), None),
        ((TEXTS, MASK, TEXTS), 2),
        ([[TEXTS, MASK], TEXTS], None),
        ((TEXTS, {"input_ids": TEXTS}), 0),
    ],
)
def test_tokens_by_place_are_refused_as_targets_too(batch: Any, at: int | None) -> None:
    task = Classification(dim=-1, ignore_index=-100)
    with pytest.raises(ValueError, match="equal input_ids"):
        task.targets_of(batch, at)
    assert TASK.targets_of(batch, at) is TEXTS
    assert task.targets_of(batch, lambda _: TEXTS) is TEXTS  # a model that repeats its input


@pytest.mark.parametrize("inputs", [TEXTS.float(), TEXTS.flip(1), (MASK, TEXTS), TEXTS[:, :2]])
def test_targets_that_are_not_the_tokens_of_the_first_argument_are_taken(inputs: Any) -> None:
    for task in (Classification(dim=-1), TASK):
        assert task.targets_of((inputs, TEXTS)) is TEXTS


@pytest.mark.parametrize("wrap", [lambda tokens: tokens, lambda tokens: {"input_ids": tokens}])
def test_targets_that_are_shifted_already_are_not_shifted_again(wrap: Callable[[Tensor], Any]) -> None:
    batch = (wrap(TEXTS[:, :-1]), TEXTS[:, 1:])
    message = r"next tokens already.*; pass the tokens .*task=Classification\(dim=-1, ignore_index=-100\)"
    with pytest.raises(ValueError, match=message):
        TASK.targets_of(batch)
    assert Classification(dim=-1).targets_of(batch) is batch[1]
    same = torch.full((2, 4), 3)  # such texts are their own next tokens
    assert TASK.targets_of((wrap(same), same)) is same
    one = torch.tensor([[-100, 3, -100, -100], [-100] * 4])
    assert TASK.targets_of((wrap(TEXTS), one)) is one


def test_scores_and_loss_compare_each_position_with_the_next_token() -> None:
    rows, following = shifted()
    log_loss = torch.nn.functional.cross_entropy(rows, following).item()
    found = TASK.summarize(TASK.score(TASK.predictions(LOGITS), TOKENS))
    assert found["nll"] == pytest.approx(log_loss, rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(log_loss), rel=1e-6)
    assert found["accuracy"] == (rows.argmax(dim=1) == following).double().mean().item()
    assert TASK.loss(LOGITS, TOKENS).item() == pytest.approx(log_loss, rel=1e-6)
    assert TASK.loss(LOGITS, TOKENS, reduction="sum").item() == pytest.approx(3 * log_loss, rel=1e-6)
    assert set(found) == {metric.name for metric in TASK.metrics}


def test_a_model_that_gives_all_tokens_the_same_probability_has_their_number_as_perplexity() -> None:
    found = TASK.summarize(TASK.score(TASK.predictions(torch.zeros(3, 6, 5)), TOKENS))
    assert found["perplexity"] == pytest.approx(5, rel=1e-6)


def test_members_differ_only_where_a_next_token_counts() -> None:
    members = LOGITS.softmax(dim=2), LOGITS.flip(2).softmax(dim=2)
    diversity, rows = TASK.diversity_at(TOKENS), Classification().diversity()
    for member in members:
        diversity.add(member)
        rows.add(member[:, :-1].flatten(0, 1)[TOKENS[:, 1:].flatten() >= 0])
    pooled = sum(members) / 2
    of_rows = pooled[:, :-1].flatten(0, 1)[TOKENS[:, 1:].flatten() >= 0]
    assert diversity.metrics(pooled) == pytest.approx(rows.metrics(of_rows))


def test_a_temperature_is_that_of_the_rows_and_their_next_tokens() -> None:
    rows, following = shifted()
    expected = Classification().fit_calibration(rows.float().softmax(dim=1), following)
    assert TASK.fit_calibration(TASK.predictions(LOGITS), TOKENS) == pytest.approx(expected, rel=1e-5)


def test_scores_hold_no_numbers_for_each_token_of_the_vocabulary() -> None:
    scores = TASK.score(TASK.predictions(LOGITS), TOKENS)
    assert [tensor.shape[1] for tensor in (scores.hits, scores.predicted, scores.actual)] == [0, 0, 0]


def test_a_text_of_one_token_has_no_next_token() -> None:
    one = TASK.score(TASK.predictions(LOGITS[:, :1]), TOKENS[:, :1])
    assert one.positions.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: TASK.predictions(LOGITS[0]), r"takes logits \[N, T, C\], got \[6, 5\]"),
        (lambda: TASK.score(LOGITS.softmax(2), TOKENS.flatten()), r"as targets, \[N, T\], got \[18\]"),
        (lambda: TASK.score(LOGITS.softmax(2), TOKENS[:, :4]), r"\[3, 6\] for .*, got \[3, 4\]"),
        (lambda: TASK.score(LOGITS.softmax(2), TOKENS.float()), "must be whole numbers from 0 to 4"),
        (lambda: CausalLM(ignore_index=None), "ignore_index must be a whole number, got None"),
    ],
)
def test_what_is_no_text_is_refused(use: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        use()

"""What classes mean, against torch and closed forms."""

import math
import re
from typing import Any

import pytest
import torch
from sklearn.metrics import jaccard_score
from torch import Tensor, nn

from pfge.calibration import fit_temperature
from pfge.tasks import DEFAULT_TASK, Classification, Task
from pfge.tasks.classification import require_classification
from tests.tasks.fractions import Fractions

TASK = Classification()
GENERATOR = torch.Generator().manual_seed(0)
LOGITS = 3 * torch.randn(40, 4, generator=GENERATOR)
TARGETS = torch.randint(4, (40,), generator=GENERATOR)


def test_its_repr_is_the_constructor_call_and_equal_tasks_are_one_value() -> None:
    assert repr(TASK) == "Classification(dim=1, ignore_index=None)"
    assert eval(repr(TASK)) == TASK
    assert len({TASK, Classification()}) == 1


def test_the_loss_is_the_mean_or_the_sum_of_the_cross_entropy() -> None:
    by_hand = LOGITS.double().exp().sum(dim=1).log() - LOGITS.double()[torch.arange(40), TARGETS]
    assert TASK.loss(LOGITS, TARGETS).item() == pytest.approx(by_hand.mean().item(), rel=1e-5)
    assert TASK.loss(LOGITS, TARGETS, reduction="sum").item() == pytest.approx(by_hand.sum().item(), rel=1e-5)


def test_the_loss_can_be_followed_down_in_the_type_of_the_model() -> None:
    logits = LOGITS.bfloat16().requires_grad_()
    loss = TASK.loss(logits, TARGETS)
    assert loss.dtype == torch.bfloat16
    (gradient,) = torch.autograd.grad(loss, logits)
    expected = (logits.float().softmax(dim=1) - nn.functional.one_hot(TARGETS, 4)) / 40
    torch.testing.assert_close(gradient.float(), expected, rtol=0.05, atol=1e-3)


def test_predictions_are_softmax_in_float32() -> None:
    odds = LOGITS.double().exp()
    torch.testing.assert_close(TASK.predictions(LOGITS), (odds / odds.sum(dim=1, keepdim=True)).float())
    assert TASK.predictions(LOGITS.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize(
    ("outputs", "found"),
    [
        (torch.zeros(5), r"classes along dimension 1, got \[5\]"),
        (torch.zeros(5, 1), r"at least two classes along dimension 1, got \[5, 1\]; .* task=MultiLabel\(\)"),
        ({"logits": LOGITS}, "must return logits, got dict; pass forward= to pick them"),
        ((LOGITS,), "must return logits, got tuple; pass forward= to pick them"),
    ],
)
def test_outputs_that_are_no_logits_of_classes_are_refused(outputs: Any, found: str) -> None:
    for task in (TASK, DEFAULT_TASK):
        if isinstance(outputs, Tensor) and outputs.ndim == 1 and task == DEFAULT_TASK:
            continue
        with pytest.raises(ValueError, match=found):
            task.predictions(outputs)


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [
        ([5], r"task=Regression\(\)"),
        ([2, 3, 8, 8], r"task=Classification\(\) for classes along dimension 1.*\(dim=-1\) for"),
        ([2, 7, 3], r"task=Classification\(\) .*task=Classification\(dim=-1\) .*task=Regression\(noise="),
    ],
)
def test_without_a_task_only_rows_of_logits_are_taken(shape: list[int], remedy: str) -> None:
    with pytest.raises(ValueError, match=rf"logits \[N, C\], got {re.escape(str(shape))}; pass {remedy}"):
        DEFAULT_TASK.predictions(torch.zeros(shape))
    assert torch.equal(DEFAULT_TASK.predictions(LOGITS), TASK.predictions(LOGITS))


# Masks and tokens

MASKS = 3 * torch.randn(6, 4, 5, 7, generator=GENERATOR)
MASK_TARGETS = torch.randint(4, (6, 5, 7), generator=GENERATOR)
MASK_TARGETS[torch.rand(6, 5, 7, generator=GENERATOR) < 0.3] = 255
MASK_TARGETS[2] = 255  # an image of only ignored pixels
KEPT = MASK_TARGETS != 255
ROWS, ROW_TARGETS = MASKS.movedim(1, -1)[KEPT], MASK_TARGETS[KEPT]
MASK, TOKEN = Classification(ignore_index=255), Classification(dim=-1, ignore_index=255)


def test_masks_and_tokens_have_the_metrics_of_their_positions_that_count() -> None:
    of_rows = TASK.summarize(TASK.score(TASK.predictions(ROWS), ROW_TARGETS))
    masks = MASK.summarize(MASK.score(MASK.predictions(MASKS), MASK_TARGETS))
    tokens = TOKEN.summarize(
        TOKEN.score(TOKEN.predictions(MASKS.movedim(1, -1).flatten(1, 2)), MASK_TARGETS.flatten(1))
    )
    assert masks.keys() == {"accuracy", "nll", "brier", "ece", "mce", "entropy", "mean_iou"}
    assert tokens == pytest.approx(masks, abs=1e-7)
    for name in masks.keys() - {"mean_iou"}:
        assert masks[name] == pytest.approx(of_rows[name], abs=1e-7), name
    predicted = ROWS.argmax(dim=1)
    assert masks["mean_iou"] == pytest.approx(jaccard_score(ROW_TARGETS, predicted, average="macro"))


def test_masks_without_ignored_pixels_need_no_option() -> None:
    targets = MASK_TARGETS.where(KEPT, 0)
    dense = TASK.summarize(TASK.score(TASK.predictions(MASKS), targets))
    rows = TASK.summarize(TASK.score(TASK.predictions(MASKS.movedim(1, -1).flatten(0, 2)), targets.flatten()))
    assert dense["nll"] == pytest.approx(rows["nll"])
    assert "mean_iou" in dense
    assert "mean_iou" not in rows


def test_the_loss_of_masks_is_the_mean_over_positions_that_count() -> None:
    expected = nn.functional.cross_entropy(ROWS, ROW_TARGETS)
    torch.testing.assert_close(MASK.loss(MASKS, MASK_TARGETS), expected)
    torch.testing.assert_close(TOKEN.loss(MASKS.movedim(1, -1), MASK_TARGETS), expected)
    torch.testing.assert_close(MASK.loss(MASKS, MASK_TARGETS, reduction="sum"), expected * 6)
    targets = MASK_TARGETS.where(KEPT, 0)
    torch.testing.assert_close(TASK.loss(MASKS, targets), nn.functional.cross_entropy(MASKS, targets))


def test_a_batch_of_only_ignored_positions_has_a_loss_of_0_and_no_gradient() -> None:
    logits = MASKS.clone().requires_grad_()
    loss = MASK.loss(logits, torch.full_like(MASK_TARGETS, 255))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.item() == 0
    assert not gradient.any()


def test_a_data_set_of_only_ignored_positions_has_no_metrics() -> None:
    nothing = torch.full_like(MASK_TARGETS, 255)
    scores = MASK.score(MASK.predictions(MASKS), nothing)
    with pytest.raises(ValueError, match="every position of all 6 examples is ignored; check ignore_index"):
        MASK.summarize(scores)
    with pytest.raises(ValueError, match=r"needs a target, but all of \[6, 5, 7\] are the ignored 255"):
        MASK.fit_calibration(MASK.predictions(MASKS), nothing)


def test_predictions_of_positions_that_are_ignored_may_be_anything() -> None:
    broken = MASK.predictions(MASKS)
    broken[2] = torch.nan
    expected = MASK.summarize(MASK.score(MASK.predictions(MASKS), MASK_TARGETS))
    assert MASK.summarize(MASK.score(broken, MASK_TARGETS)) == expected


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (MASK_TARGETS[:, 0], r"\[6, 5, 7\] for \[6, 4, 5, 7\], got \[6, 7\]"),
        (
            MASK_TARGETS.where(KEPT, 4),
            r"targets \[6, 5, 7\] must be .* from 0 to 3, or 255, .* got 4; ignore",
        ),
        (MASK_TARGETS.where(KEPT, -100), "from 0 to 3, or 255, which is ignored, got -100"),
        (MASK_TARGETS.float(), "must be whole numbers .* got torch.float32"),
    ],
)
def test_targets_that_do_not_fit_are_refused_with_their_shape(targets: Tensor, message: str) -> None:
    predictions = MASK.predictions(MASKS)
    for use in (MASK.score, MASK.fit_calibration):
        with pytest.raises(ValueError, match=message):
            use(predictions, targets)


def test_an_empty_text_is_refused_with_its_shape() -> None:
    predictions = TOKEN.predictions(torch.zeros(2, 0, 4))
    with pytest.raises(ValueError, match=r"at least one example and position, got \[2, 0\]"):
        TOKEN.score(predictions, torch.zeros(2, 0, dtype=torch.long))


def test_logits_without_the_dimension_of_the_classes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"dim=3, .* classes along dimension 3, got \[6, 4\]"):
        Classification(dim=3).predictions(torch.zeros(6, 4))
    with pytest.raises(ValueError, match=r"dim=-2, .* examples first .* got \[6, 4\]"):
        Classification(dim=-2).predictions(torch.zeros(6, 4))


def test_a_temperature_of_masks_is_that_of_their_pixels() -> None:
    # 35 pixels are fewer than are sampled, so that all are used.
    fitted = MASK.fit_calibration(MASK.predictions(MASKS), MASK_TARGETS)
    assert fitted == pytest.approx(TASK.fit_calibration(TASK.predictions(ROWS), ROW_TARGETS), rel=1e-5)
    scaled = (MASKS / fitted).softmax(dim=1)
    torch.testing.assert_close(MASK.calibrate(MASK.predictions(MASKS), fitted), scaled)


def test_a_temperature_is_fitted_on_few_positions_and_the_same_ones_each_time() -> None:
    targets = torch.randint(3, (2, 40, 50), generator=GENERATOR)
    logits = torch.randn(2, 3, 40, 50, generator=GENERATOR) + nn.functional.one_hot(targets).movedim(-1, 1)
    before = torch.random.get_rng_state()
    rows, of_rows = TASK.calibration_sample(logits.softmax(dim=1), targets)
    again, _ = TASK.calibration_sample(logits.flip(1).softmax(dim=1), targets)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert rows.shape == (512, 3)
    assert of_rows.shape == (512,)
    torch.testing.assert_close(rows.flip(1), again)  # the same positions of another member
    whole = TASK.fit_calibration(logits.movedim(1, -1).flatten(0, 2).softmax(dim=1), targets.flatten())
    assert TASK.fit_calibration(logits.softmax(dim=1), targets) == pytest.approx(whole, rel=0.15)


def test_divergence_and_spread_of_masks_are_means_over_pixels() -> None:
    one, two = TASK.predictions(MASKS), TASK.predictions(MASKS.flip(0))
    rows = [p.movedim(1, -1).flatten(0, 2) for p in (one, two)]
    assert TASK.divergence(one, two) == pytest.approx(TASK.divergence(*rows))
    dense, flat = TASK.diversity(), TASK.diversity()
    for mask, row in zip((one, two), rows, strict=True):
        dense.add(mask)
        flat.add(row)
    pooled = (one.double() + two.double()) / 2
    expected = flat.metrics(pooled.movedim(1, -1).flatten(0, 2))
    assert dense.metrics(pooled) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"of one shape, got \[6, 4, 5, 7\] and \[3, 4, 5, 7\]"):
        TASK.divergence(one, two[:3])


def test_numbers_of_examples_have_the_metrics_of_masks_as_their_mean() -> None:
    scores = MASK.score(MASK.predictions(MASKS), MASK_TARGETS)
    for metric in MASK.metrics:
        found = metric.per_example(scores.tensors)
        if metric.score:
            assert found is not None
            assert found.shape == (6,)
            assert found.mean().item() == pytest.approx(metric.compute(scores))


def test_the_pool_is_the_mean_of_the_probabilities() -> None:
    pool = TASK.pool()
    pool.add(torch.tensor([[0.9, 0.1]]))
    pool.add(torch.tensor([[0.2, 0.8]]))
    torch.testing.assert_close(pool.result(), torch.tensor([[0.55, 0.45]]).double())


def test_every_metric_has_its_value_by_hand() -> None:
    probabilities = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    assert TASK.summarize(TASK.score(probabilities, torch.tensor([0, 1, 1]))) == {
        "accuracy": pytest.approx(2 / 3),
        # -(log 0.9 + log 0.8 + log 0.4) / 3
        "nll": pytest.approx((0.1053605 + 0.2231436 + 0.9162907) / 3),
        # (2 * 0.01 + 2 * 0.04 + 2 * 0.36) / 3
        "brier": pytest.approx(0.82 / 3),
        # each alone in its bin: gaps 0.1, 0.2 and 0.6
        "ece": pytest.approx(0.9 / 3),
        "ece_equal_mass": pytest.approx(0.9 / 3),
        "mce": pytest.approx(0.6),
        # by confidence right, right, wrong: errors 0, 0 and 1/3
        "aurc": pytest.approx(1 / 9),
        # -sum p log p: 0.325083, 0.500402 and 0.673012
        "entropy": pytest.approx((0.325083 + 0.500402 + 0.673012) / 3, rel=1e-5),
    }


def test_a_metric_is_found_by_its_name() -> None:
    assert TASK.metric("nll").compute(TASK.score(torch.tensor([[0.25, 0.75]]), torch.tensor([0]))) == (
        pytest.approx(math.log(4))
    )
    with pytest.raises(
        ValueError, match=r"metrics of Classification\(.*\) are accuracy, nll, .*, got 'rmse'"
    ):
        TASK.metric("rmse")


def test_metrics_that_are_means_over_examples_name_the_score_they_are_the_mean_of() -> None:
    scores = TASK.score(TASK.predictions(LOGITS), TARGETS)
    means = {metric.name: getattr(scores, metric.score) for metric in TASK.metrics if metric.score}
    assert means.keys() == {"accuracy", "nll", "brier", "entropy"}
    for name, values in means.items():
        assert TASK.metric(name).compute(scores) == pytest.approx(values.mean().item())


def test_the_divergence_is_that_of_kullback_and_leibler() -> None:
    expected, found = TASK.predictions(LOGITS), TASK.predictions(LOGITS.flip(0))
    torch_says = nn.functional.kl_div(found.double().log(), expected.double(), reduction="batchmean")
    assert TASK.divergence(expected, found) == pytest.approx(torch_says.item())
    assert TASK.divergence(expected, expected) == 0


def test_the_calibration_is_the_temperature_of_least_loss() -> None:
    predictions = TASK.predictions(LOGITS)
    fitted = TASK.fit_calibration(predictions, TARGETS)

    def nll(temperature: float) -> float:
        scaled: Tensor = LOGITS.double() / temperature
        return nn.functional.cross_entropy(scaled, TARGETS).item()

    assert nll(fitted) < min(nll(fitted * 1.01), nll(fitted / 1.01))
    torch.testing.assert_close(TASK.calibrate(predictions, fitted), (LOGITS / fitted).softmax(dim=1))
    assert TASK.calibrate(predictions, 1.0) is predictions


def test_what_needs_classes_says_what_it_got() -> None:
    require_classification(TASK, "a cascade")
    require_classification(DEFAULT_TASK, "a cascade")
    with pytest.raises(ValueError, match=r"one class .* got Classification\(dim=1, ignore_index=255\)"):
        require_classification(MASK, "a cascade")
    task: Task = Fractions(places=2)
    with pytest.raises(
        ValueError, match=r"a cascade needs a task with one class .* got Fractions\(places=2\)"
    ):
        require_classification(task, "a cascade")


def test_classes_along_a_counted_dimension_are_calibrated_as_the_last_one() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(8, 5, 4, generator=generator)
    targets = logits.reshape(-1, 4).softmax(dim=1).multinomial(1, generator=generator).reshape(8, 5)
    targets[:, -1] = -100
    probabilities = (2 * logits).softmax(dim=-1)
    counted, last = (Classification(dim=dim, ignore_index=-100) for dim in (2, -1))
    samples = counted.calibration_sample(probabilities, targets)
    expected = fit_temperature(2 * logits[:, :-1].reshape(-1, 4), targets[:, :-1].reshape(-1)).value
    # As an ensemble fits it: the sample of each batch, and then all of them together.
    assert counted.fit_calibration(*samples) == pytest.approx(expected, rel=1e-5)
    assert last.fit_calibration(*samples) == pytest.approx(expected, rel=1e-5)


def test_targets_that_are_bytes_are_compared_as_numbers() -> None:
    task = Classification(ignore_index=-100)
    probabilities = torch.full((2, 256, 3), 1 / 256)
    targets = torch.tensor([[0, 119, 255], [156, 156, 1]], dtype=torch.uint8)  # 156 is -100 as a byte
    scores = task.score(probabilities, targets)
    assert task.summarize(scores)["nll"] == pytest.approx(math.log(256))
    valid = task.calibration_sample(probabilities, targets)[1]
    assert sorted(valid.tolist()) == [0, 1, 119, 156, 156, 255]
    diversity = task.diversity_at(targets)
    diversity.add(probabilities)
    diversity.add(probabilities)
    assert diversity.metrics(probabilities)["disagreement"] == 0

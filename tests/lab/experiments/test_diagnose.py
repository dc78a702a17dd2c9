"""What the geometry of members shows, against the same worked out by hand."""

import json
from math import acos, degrees, log
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfge import Ensemble, Weights, load_weights, refresh_batch_norm
from pfge.cli.main import main
from pfge.lab.data import Splits, load_data, take
from pfge.lab.experiments.diagnose import diagnose, log_loss_at_temperature, share_of_errors
from pfge.lab.run.progress import Reporter
from pfge.lab.run.results import Diagnoses, Diagnosis
from pfge.storage.files import StorageError, read_tensors
from pfge.tasks import Classification
from tests.lab.experiments.by_hand import batches, small_conv
from tests.lab.tiny import run, tiny


@pytest.fixture(scope="module")
def digits() -> Splits:
    return load_data("digits")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(tiny("ensemble.methods=['SWA','PFGE']", "ensemble.length=8"), folder)
    return folder


@pytest.fixture(scope="module")
def found(finished: Path) -> Diagnosis:
    (found,) = diagnose(finished, Reporter(quiet=True))
    return found


def members_of(folder: Path) -> list[Weights]:
    return list(Ensemble.load(folder / "seed-1" / "ensembles" / "PFGE", small_conv).members)


def flat(weights: Weights) -> Tensor:
    return torch.cat([weights[name].double().flatten() for name, _ in small_conv().named_parameters()])


def training_loss(weights: Weights, digits: Splits) -> float:
    model = small_conv().eval()
    load_weights(model, weights)
    train = take(digits.train, 1000, 1, part="")
    with torch.no_grad():
        logits = model(digits.normalization(train.images))  # type: ignore[union-attr]
    return cross_entropy(logits, train.labels).item()


def test_the_pair_is_as_far_and_as_wide_as_by_hand(finished: Path, found: Diagnosis) -> None:
    one, other = map(flat, members_of(finished))
    w0 = flat(read_tensors(finished / "seed-1" / "w0.safetensors")[0])
    (pair,) = found.pairs
    assert pair.members == (1, 2)
    assert pair.distance == pytest.approx(((one - other).norm() / one.norm()).item())
    cosine = ((one - w0) @ (other - w0) / (one - w0).norm() / (other - w0).norm()).item()
    assert pair.angle == pytest.approx(degrees(acos(cosine)))


def test_errors_and_disagreement_are_shares_of_the_images(
    finished: Path, found: Diagnosis, digits: Splits
) -> None:
    train = take(digits.train, 1000, 1, part="")  # without validation data
    ensemble = Ensemble.load(finished / "seed-1" / "ensembles" / "PFGE", small_conv)
    inputs = [digits.normalization(train.images)]  # type: ignore[union-attr]
    classes = [probabilities.argmax(dim=1) for probabilities in ensemble.predict_each(inputs)]
    wrong = [int((predicted != train.labels).sum()) for predicted in classes]
    pooled = int((ensemble.predict_batches(inputs).argmax(dim=1) != train.labels).sum())
    assert found.judged_on == "training"
    assert found.errors == [count / 1000 for count in wrong]
    assert found.pooled_error == pooled / 1000
    assert found.pairs[0].disagreement == int((classes[0] != classes[1]).sum()) / 1000
    assert min(wrong) > 0 < pooled


@pytest.mark.parametrize("wrong", range(0, 200, 7))
def test_an_error_is_the_exact_share_so_that_it_is_rounded_as_such(wrong: int) -> None:
    predictions = torch.tensor([[0.25, 0.75]] * wrong + [[0.75, 0.25]] * (200 - wrong))
    zeros = torch.zeros(200, dtype=torch.int64)
    assert share_of_errors(Classification(), predictions, zeros) == wrong / 200


def test_the_barrier_is_the_loss_half_way_with_its_own_statistics(
    finished: Path, found: Diagnosis, digits: Splits
) -> None:
    one, other = members_of(finished)
    ends = (training_loss(one, digits) + training_loss(other, digits)) / 2
    middle = small_conv()
    load_weights(middle, {n: (t + other[n]) / 2 if t.is_floating_point() else t for n, t in one.items()})
    source = batches(digits, "batch norm")
    refresh_batch_norm(middle, [source.at(1)[0], source.at(2)[0]])  # 100 images
    (pair,) = found.pairs
    assert pair.loss == pytest.approx(ends, rel=1e-4)
    assert pair.barrier == pytest.approx(training_loss(middle.state_dict(), digits) - ends, abs=1e-5)


def test_statistics_of_w0_would_have_been_stale(finished: Path, found: Diagnosis, digits: Splits) -> None:
    w0 = read_tensors(finished / "seed-1" / "w0.safetensors")[0]
    buffers = {name: w0[name] for name, _ in small_conv().named_buffers()}
    losses = [training_loss(member | buffers, digits) for member in members_of(finished)]
    assert found.stale_loss == pytest.approx(sum(losses) / 2, rel=1e-4)


def test_without_validation_data_training_images_stand_for_it(found: Diagnosis) -> None:
    assert found.judged_on == "training"
    assert len(found.errors) == 2
    assert found.pairs[0].disagreement <= sum(found.errors) + 1e-9  # where both are right they agree


def test_gains_are_differences_of_the_scores_that_the_comparison_kept(tmp_path: Path) -> None:
    run(tiny("ensemble.methods=['PFGE']", "ensemble.length=8", "data.validation=100"), tmp_path)
    (found,) = diagnose(tmp_path, Reporter(quiet=True))
    assert found.gains is not None
    w0, pfge = (json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines())
    pooled, members, start = pfge["validation"], pfge["each"]["validation"], w0["validation"]

    def mean(name: str) -> float:
        return sum(member[name] for member in members) / len(members)

    gains = found.gains
    assert gains.pooled_loss.mean == pytest.approx(pooled["nll"] - mean("nll"))
    assert gains.pooled_error.mean == pytest.approx(mean("accuracy") - pooled["accuracy"])
    assert gains.member_loss.mean == pytest.approx(mean("nll") - start["nll"])
    assert gains.member_error.mean == pytest.approx(start["accuracy"] - mean("accuracy"))
    assert gains.w0_error == pytest.approx(1 - start["accuracy"])
    assert gains.tempered_loss is not None
    assert Diagnoses.from_json(Diagnoses([found]).to_json()).ensembles == [found]


def test_the_gain_of_w0_is_a_loss_on_training_images(
    finished: Path, found: Diagnosis, digits: Splits
) -> None:
    w0 = read_tensors(finished / "seed-1" / "w0.safetensors")[0]
    assert found.gains is not None
    assert found.gains.w0_training_loss == pytest.approx(training_loss(w0, digits), rel=1e-4)
    assert found.gains.tempered_loss is None  # no validation data to fit a temperature on


def test_a_temperature_is_fitted_on_the_other_half() -> None:
    # Even examples are all of class 0, so that sharper is always better and the temperature stays 1; of odd
    # ones a quarter is of class 1.
    predictions = torch.tensor([[0.9, 0.1]]).repeat(400, 1)
    labels = torch.tensor([0, 0, 0, 0, 0, 0, 0, 1]).repeat(50)
    found = log_loss_at_temperature(Classification(), predictions, labels)
    assert found[::2].mean().item() == pytest.approx(-log(0.75), rel=1e-4)
    assert found[1::2].mean().item() == pytest.approx(-(3 * log(0.9) + log(0.1)) / 4, rel=1e-4)


def test_validation_data_is_used_where_there_is_some(tmp_path: Path) -> None:
    run(tiny("ensemble.methods=['PFGE']", "ensemble.length=8", "data.validation=100"), tmp_path)
    (found,) = diagnose(tmp_path, Reporter(quiet=True))
    assert found.judged_on == "validation"
    assert all(round(100 * error, 9) == round(100 * error) for error in found.errors)  # of 100 images


def test_members_were_taken_at_the_lowest_rate(found: Diagnosis) -> None:
    assert found.rates == [5e-4, 5e-4]
    assert found.low == 5e-4


def test_the_command_says_it_and_writes_it(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(finished)]) == 0
    assert "Change" in capsys.readouterr().out
    written = json.loads((finished / "diagnosis.json").read_text())
    assert written["ensembles"][0]["method"] == "PFGE"


def test_a_run_without_such_ensembles_is_refused(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="has no finished ensemble of FGE yet"):
        diagnose(finished, Reporter(quiet=True), methods=["FGE"])
    with pytest.raises(StorageError, match="is not a run folder; make one by pfge compare"):
        diagnose(tmp_path, Reporter(quiet=True))


def test_one_member_is_refused(finished: Path) -> None:
    with pytest.raises(ValueError, match="two members or more, but SWA of seed 1 has 1"):
        diagnose(finished, Reporter(quiet=True), methods=["SWA"])

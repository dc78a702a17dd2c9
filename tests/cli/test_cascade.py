"""`pfge cascade`: a file for `pfge predict`, and what it is worth on the test set."""

from pathlib import Path

import pytest
import torch

from pfge import Cascade, Ensemble
from pfge.calibration import CalibrateBy
from pfge.cli.main import main
from pfge.lab.data import ImageSet, load_data, validation_from_test
from pfge.metrics import accuracy, expected_calibration_error, negative_log_likelihood
from tests.cli.captured import Captured, refused
from tests.lab.tiny import small_conv


def inputs_and_labels(part: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Validation data for 0, test data for 1."""
    splits = load_data("digits")
    images = validation_from_test(splits.test, 0)[part]
    assert isinstance(images, ImageSet)
    return splits.normalization(images.images), images.labels


def printed_rows(printed: str) -> dict[str, list[float]]:
    """Return the numbers of each row of the printed table, by the name of the row."""
    return {
        cells[0]: [float(cell) for cell in cells[1:]]
        for line in printed.splitlines()
        if len(cells := [cell.strip() for cell in line.split("│")[1:-1]]) == 8
    }


@pytest.fixture
def noisy(pfge: Path, tmp_path: Path) -> Path:
    """An ensemble outside of the run, whose members need each other."""
    generator = torch.Generator().manual_seed(0)
    members = [
        {
            name: tensor + 0.4 * tensor.std() * torch.randn(tensor.shape, generator=generator)
            if tensor.ndim > 1
            else tensor
            for name, tensor in member.items()
        }
        for member in Ensemble.load(pfge, small_conv).members
    ]
    Ensemble(members, small_conv).save(tmp_path / "noisy")
    return tmp_path / "noisy"


def test_the_cascade_is_written_and_its_worth_on_the_test_set_is_printed(
    noisy: Path,
    finished: Path,
    capsys: Captured,
) -> None:
    config = str(finished / "config.toml")
    assert main(["cascade", str(noisy), "--config", config, "--max-accuracy-loss", "0.01"]) == 0
    cascade = Cascade.load(noisy / "cascade.json")
    ensemble = Ensemble.load(noisy, small_conv)
    inputs, labels = inputs_and_labels(0)
    right = ensemble.predict(inputs).argmax(dim=1) == labels
    lost = right & (cascade.predict(ensemble, inputs).probabilities.argmax(dim=1) != labels)
    assert lost.double().mean() <= 0.01

    printed = capsys.readouterr().out
    assert "all rows are without temperatures" in " ".join(printed.split())
    rows = printed_rows(printed)
    inputs, labels = inputs_and_labels(1)
    found = cascade.predict(ensemble, inputs)
    members = {
        "one member": ([1.0] * len(labels), ensemble.predict_members(inputs)[cascade.order[0]]),
        "cascade": (found.evaluated.tolist(), found.probabilities),
        "all members": ([4.0] * len(labels), ensemble.predict(inputs)),
    }
    for name, (asked, probabilities) in members.items():
        mean, most, percent, nll, ece, times_one, times_all = rows[name]
        assert mean == pytest.approx(sum(asked) / len(labels), abs=6e-4)
        assert most == max(asked)
        assert percent == pytest.approx(100 * accuracy(probabilities, labels), abs=6e-3)
        assert nll == pytest.approx(negative_log_likelihood(probabilities, labels), abs=6e-5)
        assert ece == pytest.approx(100 * expected_calibration_error(probabilities, labels), abs=6e-3)
        assert times_one > 0
        assert times_all > 0
    assert rows["one member"][5] == rows["all members"][6] == 1
    assert rows["one member"][6] < rows["cascade"][6] < 1
    assert 1 < rows["cascade"][0] < 4
    assert f"until the confidence is at least {cascade.thresholds[0]:.4f}" in printed
    assert str(noisy / "cascade.json") in printed


@pytest.mark.parametrize("by", ["pooled", "members"])
def test_beside_calibrated_rows_the_one_member_has_its_own_temperature(
    noisy: Path,
    finished: Path,
    tmp_path: Path,
    capsys: Captured,
    by: CalibrateBy,
) -> None:
    inputs, labels = inputs_and_labels(0)
    calibrated = Ensemble.load(noisy, small_conv).calibrated([(inputs, labels)], by=by)
    calibrated.save(tmp_path / "calibrated")
    arguments = ["--config", str(finished / "config.toml"), "--max-accuracy-loss", "0.01"]
    assert main(["cascade", str(tmp_path / "calibrated"), *arguments]) == 0
    first = Cascade.load(tmp_path / "calibrated" / "cascade.json").order[0]
    alone = Ensemble([calibrated.members[first]], small_conv).calibrated([(inputs, labels)])
    inputs, labels = inputs_and_labels(1)
    printed = capsys.readouterr().out
    rows = printed_rows(printed)
    assert rows["one member"][3] == pytest.approx(
        negative_log_likelihood(alone.predict(inputs), labels), abs=6e-5
    )
    assert rows["all members"][3] == pytest.approx(
        negative_log_likelihood(calibrated.predict(inputs), labels), abs=6e-5
    )
    assert "all rows are calibrated" in " ".join(printed.split())


def test_an_ensemble_with_a_cascade_beside_it_is_loaded_and_saved_as_before(
    pfge: Path,
    tmp_path: Path,
) -> None:
    ensemble = Ensemble.load(pfge, small_conv)
    ensemble.save(tmp_path / "mine")
    Cascade((3, 2, 1, 0), 0.9).save(tmp_path / "mine" / "cascade.json")
    again = Ensemble.load(tmp_path / "mine", small_conv)
    again.last(4).save(tmp_path / "mine")
    assert Cascade.load(tmp_path / "mine" / "cascade.json") == Cascade((3, 2, 1, 0), 0.9)
    inputs, _ = inputs_and_labels(1)
    assert torch.equal(Ensemble.load(tmp_path / "mine", small_conv).predict(inputs), ensemble.predict(inputs))


def test_a_loss_of_likelihood_is_kept_and_the_file_goes_where_it_is_asked_for(
    pfge: Path,
    tmp_path: Path,
) -> None:
    out = tmp_path / "mine.json"
    arguments = ["--max-accuracy-loss", "1", "--max-nll-increase", "0.001", "--out", str(out)]
    assert main(["cascade", str(pfge), *arguments]) == 0
    ensemble, (inputs, labels) = Ensemble.load(pfge, small_conv), inputs_and_labels(0)
    found = Cascade.load(out).predict(ensemble, inputs).probabilities
    whole = ensemble.predict(inputs)
    assert negative_log_likelihood(found, labels) <= negative_log_likelihood(whole, labels) + 0.001


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--set", "data.validation_from_test=false"],
            "fitting a cascade needs validation data that the ensemble was not",
        ),
        (["--max-accuracy-loss", "-1"], "--max-accuracy-loss must be at least 0, got -1.0"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    pfge: Path,
    tmp_path: Path,
    capsys: Captured,
    arguments: list[str],
    expected: str,
) -> None:
    out = tmp_path / "cascade.json"
    assert expected in refused(capsys, ["cascade", str(pfge), "--out", str(out), *arguments])
    assert not out.exists()


def test_a_file_that_cannot_be_written_is_refused_before_any_prediction(
    pfge: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pfge.cli.compress.open_session_of", None)  # cannot be called
    message = refused(capsys, ["cascade", str(pfge), "--out", "missing/x.json"])
    assert message.startswith("--out must be a file in a folder that exists, got missing/x.json; make the")

"""The formats of a run's ensembles: numbers against compress(), Cascade and the comparison, and repeats."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pfge import Cascade, Ensemble, fit_cascade
from pfge.calibration import Temperatures
from pfge.compression import Bits, PackSettings, compress
from pfge.compression.compress import FORMATS
from pfge.lab.data import Splits, evaluation_batches, load_data, take
from pfge.lab.experiments import formats as measuring
from pfge.lab.experiments.formats import measure_formats
from pfge.lab.run.progress import Reporter
from pfge.metrics.scores import accuracy, negative_log_likelihood
from pfge.metrics.uncertainty import kl_divergence
from pfge.storage.files import StorageError
from tests.lab.experiments.by_hand import small_conv
from tests.lab.tiny import Stopped, read_lines, run, tiny

VALIDATION = 100
SETTINGS = (
    f"data.validation={VALIDATION}",
    "data.test_images=200",
    "ensemble.methods=['SWA','FGE','PFGE']",
    "ensemble.length=8",
)
NAMES = [stored_as.name for stored_as in FORMATS]
COMPRESSED = {
    "int8": (Bits(8), PackSettings(base_bits=None, group=None, small_bits=16)),
    "int8 base + 3 bits": (Bits(3), PackSettings(small_bits=16)),
    "int8 base + 1 bit": (Bits(1), PackSettings(small_bits=16)),
}

Rows = list[dict[str, Any]]


def measured(folder: Path) -> Rows:
    return [row.to_json() for row in measure_formats(folder, Reporter(quiet=True))]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison: 2 members of PFGE, 4 of FGE."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(tiny(*SETTINGS), folder)
    return folder


@pytest.fixture
def folder(run_folder: Path, tmp_path: Path) -> Path:
    """A comparison that nobody else uses."""
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


@pytest.fixture(scope="module")
def finished(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison whose formats are all measured."""
    folder = Path(shutil.copytree(run_folder, tmp_path_factory.mktemp("runs") / "measured"))
    measured(folder)
    return folder


@pytest.fixture(scope="module")
def digits() -> Splits:
    splits = load_data("digits", validation=VALIDATION)
    return replace(splits, test=take(splits.test, 200, 0, part="test data"))


def lines(folder: Path, file: str = "formats.jsonl") -> Rows:
    return read_lines(folder / file)


def row_of(folder: Path, method: str, stored_as: str, cascade: bool = False) -> dict[str, Any]:
    wanted = (method, stored_as, cascade)
    (found,) = [r for r in lines(folder) if (r["method"], r["format"], r["cascade"]) == wanted]
    return found


def loaded(folder: Path, method: str = "PFGE") -> Ensemble:
    return Ensemble.load(folder / "seed-1" / "ensembles" / method, small_conv)


def batches(digits: Splits, part: str) -> Any:
    return evaluation_batches(getattr(digits, part), digits.normalization, batch_size=500, channels_last=True)


# Which there are


@pytest.mark.slow
def test_every_method_is_measured_in_every_form_and_those_of_several_members_as_cascades(
    finished: Path,
) -> None:
    one = [("float32", False), ("int8 base", False)]
    several = [(name, cascade) for name in NAMES for cascade in (False, True)]
    expected = {"w0": one, "SWA": one, "FGE*": several, "FGE": several, "PFGE": several}
    found: dict[str, list[tuple[str, bool]]] = {}
    for row in lines(finished):
        found.setdefault(row["method"], []).append((row["format"], row["cascade"]))
    assert found == expected
    assert list(found) == ["w0", "SWA", "FGE*", "PFGE", "FGE"]  # the largest last


def test_dropout_at_test_time_has_no_ensemble_and_so_no_forms(tmp_path: Path) -> None:
    net = "model.name=tests.lab.experiments.test_baselines:dropping_net"
    run(tiny(net, "ensemble.methods=['MCDropout']"), tmp_path / "run")
    rows = measure_formats(tmp_path / "run", Reporter(quiet=True), trust_code=True)
    assert {row.method for row in rows} == {"w0"}


# The numbers


def test_members_as_they_are_have_the_numbers_of_the_comparison(finished: Path) -> None:
    for result in lines(finished, "results.jsonl"):
        row = row_of(finished, result["method"], "float32")
        assert row["test"] == {name: result["test"][name] for name in row["test"]}
        for name in ("seed", "members", "bytes", "bytes_of_one"):
            assert row[name] == result[name]
        assert row["kl"] == 0
        assert (row["mean_members"], row["most_members"]) == (result["members"], result["members"])


@pytest.mark.parametrize("stored_as", COMPRESSED)
def test_a_compressed_form_is_what_compress_makes(
    finished: Path, digits: Splits, stored_as: str, tmp_path: Path
) -> None:
    original = loaded(finished)
    target, settings = COMPRESSED[stored_as]
    made = compress(original, target, settings=settings)
    row = row_of(finished, "PFGE", stored_as)
    assert row["bytes"] == made.nbytes
    made.save(tmp_path / "made")
    assert row["file_bytes"] == pytest.approx(_files(tmp_path / "made"), abs=200)  # the manifest names models
    predicted = made.predict_batches(batches(digits, "test"))
    targets = digits.test.labels
    assert row["test"]["accuracy"] == accuracy(predicted, targets)
    assert row["test"]["nll"] == pytest.approx(negative_log_likelihood(predicted, targets), rel=1e-5)
    kl = kl_divergence(original.predict_batches(batches(digits, "test")), predicted)
    assert row["kl"] == pytest.approx(kl, rel=0.02)  # of float32 means here
    assert kl > 0


def _files(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_one_member_is_compressed_to_its_base(finished: Path) -> None:
    made = compress(loaded(finished, "SWA"), settings=PackSettings(small_bits=16))
    row = row_of(finished, "SWA", "int8 base")
    assert row["bytes"] == made.nbytes < row["bytes_of_one"] / 2
    assert row["mean_members"] == 1


def test_starred_methods_are_the_last_members(finished: Path) -> None:
    made = compress(loaded(finished, "FGE").last(2), Bits(1), settings=PackSettings(small_bits=16))
    assert row_of(finished, "FGE*", "int8 base + 1 bit")["bytes"] == made.nbytes
    assert row_of(finished, "FGE*", "int8 base + 1 bit")["members"] == 2


@pytest.mark.parametrize("stored_as", ["float32", "int8 base + 3 bits"])
@pytest.mark.parametrize("method", ["PFGE", "FGE"])
def test_a_cascade_is_fitted_on_validation_data_and_measured_on_test_data(
    finished: Path, digits: Splits, method: str, stored_as: str
) -> None:
    ensemble = loaded(finished, method)
    if stored_as in COMPRESSED:
        target, settings = COMPRESSED[stored_as]
        ensemble = compress(ensemble, target, settings=settings)
    cascade = fit_cascade(ensemble, batches(digits, "validation"), max_accuracy_loss=0.001)
    found = cascade.predict_batches(ensemble, batches(digits, "test"))
    row = row_of(finished, method, stored_as, cascade=True)
    assert row["mean_members"] == pytest.approx(found.evaluated.double().mean().item())
    assert row["most_members"] == int(found.evaluated.max())
    assert row["test"]["accuracy"] == accuracy(found.probabilities, digits.test.labels)
    nll = negative_log_likelihood(found.probabilities, digits.test.labels)
    assert row["test"]["nll"] == pytest.approx(nll, rel=1e-4)
    plain = row_of(finished, method, stored_as)
    assert 1 <= row["mean_members"] < plain["mean_members"]
    assert row["bytes"] == plain["bytes"]
    assert row["file_bytes"] > plain["file_bytes"]  # by cascade.json


def test_temperatures_that_were_saved_later_change_nothing(folder: Path, finished: Path) -> None:
    ensemble = loaded(folder)
    at_temperatures = Temperatures(members=(2.0, 3.0))
    ensemble.with_members(list(ensemble.members), temperatures=at_temperatures).save(
        folder / "seed-1" / "ensembles" / "PFGE"
    )
    (folder / "formats.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in lines(finished) if row["method"] != "PFGE")
    )
    measured(folder)
    assert sorted(map(str, lines(folder))) == sorted(map(str, lines(finished)))


# Again, and after a kill


def test_a_second_time_nothing_is_predicted(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (finished / "formats.jsonl").read_bytes()
    monkeypatch.setattr(Ensemble, "predict_each", None)
    assert measured(finished) == lines(finished)
    assert (finished / "formats.jsonl").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("after", [9, 25])
def test_after_a_kill_the_bytes_are_those_of_a_run_that_was_not_killed(
    folder: Path, finished: Path, after: int
) -> None:
    whole = (finished / "formats.jsonl").read_bytes().splitlines(keepends=True)
    torn = b"".join(whole[:after]) + whole[after][:40]
    (folder / "formats.jsonl").write_bytes(torn)
    measured(folder)
    assert (folder / "formats.jsonl").read_bytes() == b"".join(whole)


def test_what_was_measured_before_a_stop_is_kept(
    folder: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> Cascade:
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(measuring, "fit_to_answers", stop)
        with pytest.raises(Stopped):
            measured(folder)
    # w0 and SWA have no cascade; the first of FGE's last members does.
    assert lines(folder) == lines(finished)[:5]


# What cannot be


def test_without_validation_data_there_are_no_cascades_and_it_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(tiny("ensemble.methods=['PFGE']", "ensemble.length=8"), tmp_path / "run")
    rows = measure_formats(tmp_path / "run", Reporter())
    assert [(row.method, row.format) for row in rows] == [
        ("w0", "float32"),
        ("w0", "int8 base"),
        *(("PFGE", name) for name in NAMES),
    ]
    assert not any(row.cascade for row in rows)
    assert "no cascades: their thresholds are fitted on validation data" in capfd.readouterr().err


def refused(folder: Path) -> str:
    with pytest.raises(StorageError) as caught:
        measured(folder)
    return str(caught.value)


def test_a_folder_without_a_run_is_named_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    assert refused(folder) == f"{folder} is not a run folder; make one by pfge compare --out {folder}"
    assert not folder.exists()


def test_a_run_that_is_not_finished_is_named(folder: Path) -> None:
    whole = (folder / "results.jsonl").read_text().splitlines(keepends=True)
    (folder / "results.jsonl").write_text("".join(whole[:-1]))
    (folder / "results.lines.json").unlink()  # its last line was never written
    assert refused(folder) == (
        f"{folder} has no finished PFGE for seed 1 yet; run pfge compare --out {folder} to its end"
    )
    assert not (folder / "formats.jsonl").exists()


def test_an_ensemble_that_was_removed_is_named(folder: Path) -> None:
    shutil.rmtree(folder / "seed-1" / "ensembles" / "FGE")
    assert str(folder / "seed-1" / "ensembles" / "FGE") in refused(folder)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "line 1 of {file} cannot be used: it must be JSON"),
        ("[1]", "line 1 of {file} cannot be used: it must be a JSON object, got a list; remove that line"),
        (
            '{"seed": 1}',
            "line 1 of {file} cannot be used: method is missing; it may come from an older version of pfge; "
            "remove that line and run pfge formats again, which measures what is missing",
        ),
    ],
)
def test_a_broken_line_is_named(folder: Path, line: str, expected: str) -> None:
    file = folder / "formats.jsonl"
    file.write_text(line + "\n")
    assert refused(folder).startswith(expected.format(file=file))
    assert file.read_text() == line + "\n"


def test_a_run_in_use_is_left_alone(folder: Path) -> None:
    import fcntl

    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "is in use by another process" in refused(folder)

"""w0: trained, as built, or from a file; found once, and the same however often it was stopped."""

import json
from math import log
from pathlib import Path

import pytest
import torch
from torch import nn

from pfge import Ensemble
from pfge.lab.config.settings import ConfigError, Experiment
from pfge.lab.run.progress import Reporter
from pfge.lab.run.results import StartWeights
from pfge.lab.session import open_session
from pfge.lab.training.pretrain import find_w0, pretrain, read_w0
from pfge.storage.checkpoint import load_checkpoint
from pfge.storage.files import StorageError, checksum, read_json_object, read_tensors, write_tensors
from pfge.weights import view_weights
from tests.lab.tiny import LENGTH, PERIOD, PRETRAINING, Stopped, counted_steps, outcome, run, tiny
from tests.toys import assert_same_weights

QUIET = Reporter(quiet=True)
FLAT = "model.name=tests.lab.training.test_pretrain:make_flat"


def make_flat(classes: int, *, value: float = 0.0, bias: bool = True, fails: bool = False) -> nn.Module:
    """A model for images of 8x8 whose weights are all one value."""
    if fails:
        raise ZeroDivisionError
    linear = nn.Linear(64, classes, bias=bias)
    for parameter in linear.parameters():
        nn.init.constant_(parameter, value)
    return nn.Sequential(nn.Flatten(), linear)


def find(experiment: Experiment, folder: Path) -> list[StartWeights]:
    return pretrain(experiment, folder, QUIET)


def w0_of(folder: Path, seed: int = 1) -> dict[str, torch.Tensor]:
    return read_tensors(folder / f"seed-{seed}" / "w0.safetensors")[0]


def names_in(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


# Where it comes from


def test_training_takes_the_epochs_of_the_recipe(tmp_path: Path) -> None:
    with counted_steps() as steps:
        find(tiny(), tmp_path)
    assert steps == [PRETRAINING]


def test_no_epochs_leave_the_model_as_it_is_built(tmp_path: Path) -> None:
    with (
        counted_steps() as steps,
        open_session(tiny("pretrain.epochs=0"), tmp_path, QUIET) as session,
    ):
        w0 = find_w0(session, 1)
        built = view_weights(session.build_seeded_model(1))
    assert steps == [0]
    assert_same_weights(w0, built)
    assert names_in(tmp_path / "seed-1") == {"w0.safetensors", "w0.safetensors.sha256"}


def test_w0_is_read_where_it_is_and_not_made_where_it_is_not(tmp_path: Path) -> None:
    with counted_steps() as steps, open_session(tiny("pretrain.epochs=0"), tmp_path, QUIET) as session:
        message = f"{tmp_path} has no w0 for seed 1 yet; run pfge compare --out {tmp_path} to its end"
        with pytest.raises(StorageError, match=message):
            read_w0(session, 1)
        assert not (tmp_path / "seed-1").exists()
        assert_same_weights(find_w0(session, 1), read_w0(session, 1))
    assert steps == [0]


def test_seeds_begin_at_different_weights(tmp_path: Path) -> None:
    find(tiny("pretrain.epochs=0", "seeds=[1,2]"), tmp_path)
    assert not torch.equal(w0_of(tmp_path, 1)["0.weight"], w0_of(tmp_path, 2)["0.weight"])


def test_options_of_pretraining_are_for_w0_alone(tmp_path: Path) -> None:
    experiment = tiny(FLAT, "pretrain.epochs=0", "pretrain.options.value=0.5")
    with open_session(experiment, tmp_path, QUIET) as session:
        assert find_w0(session, 1)["1.weight"].unique().tolist() == [0.5]
        assert view_weights(session.build_model())["1.weight"].unique().tolist() == [0.0]


def test_options_of_pretraining_replace_those_of_the_model(tmp_path: Path) -> None:
    find(tiny(FLAT, "pretrain.epochs=0", "model.options.value=0.1", "pretrain.options.value=0.5"), tmp_path)
    assert w0_of(tmp_path)["1.weight"].unique().tolist() == [0.5]


def test_members_start_at_a_w0_that_has_options_of_its_own(tmp_path: Path) -> None:
    # At rate 0 nothing moves, so every member is w0.
    still = ("ensemble.low=0", "ensemble.high=0", "ensemble.methods=['PFGE']")
    run(tiny(FLAT, "pretrain.epochs=0", "pretrain.options.value=0.5", *still), tmp_path)
    ensemble = Ensemble.load(tmp_path / "seed-1" / "ensembles" / "PFGE", lambda: make_flat(10))
    assert [member["1.weight"].unique().tolist() for member in ensemble.members] == [[0.5]] * 4


def test_options_that_change_the_shape_are_refused_before_any_training(tmp_path: Path) -> None:
    with (
        counted_steps() as steps,
        pytest.raises(
            ConfigError,
            match=r"pretrain\.options must not .* only the model has 1\.bias.*model\.options",
        ),
    ):
        find(tiny(FLAT, "pretrain.options.bias=false"), tmp_path)
    assert steps == [0]


def test_a_file_needs_neither_training_nor_options(tmp_path: Path) -> None:
    file = tmp_path / "mine.safetensors"
    write_tensors(file, view_weights(make_flat(10, value=0.25)))
    with counted_steps() as steps:
        find(tiny(FLAT, f"pretrain.weights={file}", "pretrain.options.fails=true"), tmp_path / "run")
    assert steps == [0]
    assert_same_weights(w0_of(tmp_path / "run"), view_weights(make_flat(10, value=0.25)))


def test_every_seed_begins_with_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.safetensors"
    out = tmp_path / "run"
    experiment = tiny(FLAT, f"pretrain.weights={file}", "seeds=[1,2]")
    write_tensors(file, view_weights(make_flat(10, value=0.25)))
    with open_session(experiment, out, QUIET) as session:
        find_w0(session, 1)
        kept = read_json_object(out / "weights.json")
        assert kept == {"file": "mine.safetensors", "sha256": checksum(file)}
        write_tensors(file, view_weights(make_flat(10, value=0.5)))
        find_w0(session, 1)  # in the run by now
        with pytest.raises(
            StorageError, match=r"began with weights of SHA-256 .* restore the file, or give another"
        ):
            find_w0(session, 2)
    assert not (out / "seed-2" / "w0.safetensors").exists()


def test_a_run_with_every_w0_is_not_continued_with_another_file(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.safetensors", tmp_path / "run"
    experiment = tiny(FLAT, f"pretrain.weights={file}")
    write_tensors(file, view_weights(make_flat(10, value=0.25)))
    find(experiment, out)
    write_tensors(file, view_weights(make_flat(10, value=0.5)))
    with pytest.raises(
        StorageError, match=rf"began with weights of SHA-256 .* and {file} has .* restore the"
    ):
        find(experiment, out)
    file.unlink()
    find(experiment, out)


def test_a_file_with_nan_becomes_no_w0_and_another_may_take_its_place(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.safetensors", tmp_path / "run"
    experiment = tiny(FLAT, f"pretrain.weights={file}")
    write_tensors(file, view_weights(make_flat(10, value=torch.nan)))
    with pytest.raises(StorageError, match=rf"{file} must hold finite weights, but 1\.weight has NaN"):
        find(experiment, out)
    assert names_in(out) == {".lock"}
    write_tensors(file, view_weights(make_flat(10, value=0.5)))
    find(experiment, out)
    assert w0_of(out)["1.weight"].unique().tolist() == [0.5]


def test_a_damaged_w0_is_refused(tmp_path: Path) -> None:
    find(tiny(FLAT, "pretrain.epochs=0"), tmp_path)
    file = tmp_path / "seed-1" / "w0.safetensors"
    whole = bytearray(file.read_bytes())
    whole[-1] ^= 1
    file.write_bytes(whole)
    with open_session(tiny(FLAT, "pretrain.epochs=0"), tmp_path, QUIET) as session:
        for read in (find_w0, read_w0):
            with pytest.raises(StorageError, match=r"w0\.safetensors must have SHA-256"):
                read(session, 1)


def make_two_layers(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, classes))


TWO_LAYERS = "model.name=tests.lab.training.test_pretrain:make_two_layers"


def test_a_file_of_another_number_of_classes_is_trained_with_a_new_head(tmp_path: Path) -> None:
    file = tmp_path / "mine.safetensors"
    trained = view_weights(make_two_layers(1000))
    write_tensors(file, trained)
    message = "mine.safetensors has 1000 classes and the model 10: 3.weight, 3.bias are left out"
    experiment = tiny(TWO_LAYERS, f"pretrain.weights={file}", "pretrain.rate=0", "pretrain.weight_decay=0")
    with counted_steps() as steps, pytest.warns(UserWarning, match=message):
        find(experiment, tmp_path / "run")
    assert steps == [PRETRAINING]
    w0 = w0_of(tmp_path / "run")
    assert torch.equal(w0["1.weight"], trained["1.weight"])  # at rate 0 nothing moves
    assert w0["3.weight"].shape == (10, 5)


def test_a_new_head_without_training_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.safetensors"
    write_tensors(file, view_weights(make_two_layers(1000)))
    with (
        pytest.warns(UserWarning, match="1000 classes"),
        pytest.raises(ConfigError, match=r"set pretrain.epochs above 0 to train it"),
    ):
        find(tiny(TWO_LAYERS, f"pretrain.weights={file}", "pretrain.epochs=0"), tmp_path / "run")


# What it is worth


def test_the_metrics_are_those_that_a_comparison_records(tmp_path: Path) -> None:
    experiment = tiny("data.validation=100", "ensemble.methods=['PFGE']")
    (found,) = find(experiment, tmp_path)
    row = next(row for row in run(experiment, tmp_path) if row["method"] == "w0")
    metrics = {part: row[part] for part in ("test", "validation")}
    assert found == StartWeights(1, tmp_path / "seed-1" / "w0.safetensors", metrics)


def test_without_validation_data_there_are_no_metrics_on_it(tmp_path: Path) -> None:
    (found,) = find(tiny("pretrain.epochs=0"), tmp_path)
    assert found.metrics.keys() == {"test"}


def test_equal_logits_are_worth_what_chance_is(tmp_path: Path) -> None:
    (found,) = find(tiny(FLAT, "pretrain.epochs=0"), tmp_path)
    assert found.metrics["test"]["nll"] == pytest.approx(log(10))


# The run folder


def test_w0_and_nothing_that_a_comparison_would_add_again_stays_in_the_folder(tmp_path: Path) -> None:
    find(tiny(), tmp_path)
    assert names_in(tmp_path) == {".lock", "config.toml", "data.json", "environment.json", "seed-1"}
    assert names_in(tmp_path / "seed-1") == {"w0.safetensors", "w0.safetensors.sha256"}


def test_a_comparison_takes_the_w0_it_finds(tmp_path: Path) -> None:
    find(tiny(), tmp_path)
    before = (tmp_path / "seed-1" / "w0.safetensors").read_bytes()
    with counted_steps() as steps:
        run(tiny(), tmp_path)
    assert steps == [LENGTH + LENGTH - PERIOD]
    assert (tmp_path / "seed-1" / "w0.safetensors").read_bytes() == before


@pytest.mark.slow
def test_pretraining_first_gives_what_a_comparison_alone_gives(tmp_path: Path) -> None:
    find(tiny(), tmp_path / "twice")
    run(tiny(), tmp_path / "twice")
    run(tiny(), tmp_path / "once")
    assert outcome(tmp_path / "twice") == outcome(tmp_path / "once")


def test_w0_that_was_found_is_not_sought_again(tmp_path: Path) -> None:
    first = find(tiny(), tmp_path)
    with counted_steps() as steps:
        assert find(tiny(), tmp_path) == first
    assert steps == [0]


@pytest.mark.parametrize("stop_after", [1, 6, PRETRAINING])
def test_a_pretraining_that_was_stopped_comes_to_the_same_w0(tmp_path: Path, stop_after: int) -> None:
    experiment = tiny("engine.checkpoint_seconds=0")
    find(experiment, tmp_path / "whole")
    with counted_steps(stop_after), pytest.raises(Stopped):
        find(experiment, tmp_path / "stopped")
    with counted_steps() as steps:
        find(experiment, tmp_path / "stopped")
    # The checkpoint is of the step before the one that was not finished.
    assert steps == [PRETRAINING - (stop_after - 1)]
    whole, stopped = (tmp_path / name / "seed-1" / "w0.safetensors" for name in ("whole", "stopped"))
    assert stopped.read_bytes() == whole.read_bytes()


def test_the_environment_of_results_is_that_of_the_command_that_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = []
    for name, action in (("pretrain", find), ("compare", run), ("pretrain", find)):
        monkeypatch.setattr("sys.argv", ["pfge", name])
        action(tiny("ensemble.methods=['PFGE']"), tmp_path)
        commands.append(json.loads((tmp_path / "environment.json").read_text())["command"])
    assert commands == ["pfge pretrain", "pfge compare", "pfge compare"]


def test_weights_that_are_not_finite_leave_the_checkpoint_before_and_no_w0(tmp_path: Path) -> None:
    experiment = tiny("pretrain.rate=1e30", "engine.checkpoint_seconds=0")
    message = (
        r"find w0: .* holds NaN or infinity at iteration \d+, so no check.* look for NaN in the inputs and"
    )
    with pytest.raises(ValueError, match=message):
        find(experiment, tmp_path)
    assert not (tmp_path / "seed-1" / "w0.safetensors").exists()
    kept = load_checkpoint(tmp_path / "seed-1" / "pretrain.checkpoint")
    assert kept["iteration"] >= 1
    assert all(tensor.isfinite().all() for tensor in kept["weights"].values())


def make_masked(classes: int) -> nn.Module:
    """Return a model with a constant mask, as those of attention have."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    model.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
    return model


def test_a_mask_of_infinities_is_no_reason_to_stop(tmp_path: Path) -> None:
    rows = run(tiny(f"model.name={__name__}:make_masked", "ensemble.methods=['PFGE']"), tmp_path)
    assert [row["method"] for row in rows] == ["w0", "PFGE"]

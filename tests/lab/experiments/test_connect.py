"""Connecting the members of a run: the numbers are those of the core by hand, through kills and repeats."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from pfge import Ensemble, Weights, load_weights, refresh_batch_norm
from pfge.connectivity import Bezier, fit_curve
from pfge.lab.data import Augmentation, TrainingBatches, load_data, training_batches
from pfge.lab.data.base import derive_seed, generator
from pfge.lab.experiments import connect as connecting
from pfge.lab.experiments.connect import Pair, choose_pairs, connect
from pfge.lab.models import build_model
from pfge.lab.run.progress import Reporter
from pfge.schedules import pretraining_schedule
from pfge.weights import trained_names, view_weights
from tests.lab.experiments.connect_settings import LENGTH, POINTS, SETTINGS
from tests.lab.tiny import Stopped, counted_steps, read_lines, run, tiny

Results = list[dict[str, Any]]


def again(folder: Path, *overrides: str, **options: Any) -> Results:
    rows = connect(folder, Reporter(quiet=True), overrides=overrides, **options)
    return [row.to_json() for row in rows]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison: 4 members of PFGE, 8 of FGE."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(tiny(*SETTINGS), folder)
    return folder


@pytest.fixture
def folder(run_folder: Path, tmp_path: Path) -> Path:
    """A comparison that nobody else uses."""
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


@pytest.fixture(scope="module")
def connected(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison with one pair of each method connected."""
    folder = Path(shutil.copytree(run_folder, tmp_path_factory.mktemp("runs") / "connected"))
    again(folder, pairs=1)
    return folder


def lines(folder: Path) -> Results:
    return read_lines(folder / "connectivity.jsonl")


# The numbers


def small_conv() -> nn.Module:
    model = build_model("small_conv", classes=10, channels=1)
    return model.to(memory_format=torch.channels_last)


def test_a_pair_has_the_numbers_of_the_core_by_hand(connected: Path) -> None:
    pair = lines(connected)[0]
    first = pair["members"][0]
    digits, model = load_data("digits"), small_conv()
    members = Ensemble.load(connected / "seed-1" / "ensembles" / "PFGE", small_conv).members
    ends: list[Weights] = []
    for member in members[first - 1 : first + 1]:
        load_weights(model, member)
        ends.append({name: tensor.clone() for name, tensor in view_weights(model).items()})
    curve = Bezier(*ends, trained=trained_names(model))

    def batches(purpose: str) -> TrainingBatches:
        return training_batches(
            digits.train,
            digits.normalization,
            batch_size=50,
            seed=derive_seed(1, purpose),
            augmentation=Augmentation(0, False),
            channels_last=True,
        )

    fit_curve(
        curve,
        model,
        batches(f"batches of curve PFGE {first}").starting_after(0),
        lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
        optimizer=SGD(curve.parameters(), lr=0.03, momentum=0.9),
        iterations=LENGTH,
        generator=generator(1, f"t of curve PFGE {first}"),
        weight_decay=5e-4,
        schedule=pretraining_schedule(LENGTH, 0.03),
    )
    for index, t in enumerate((0, 0.25, 0.5, 0.75, 1)):
        load_weights(model, curve.at(t))
        refresh_batch_norm(model, [batches("batch norm").at(number) for number in (1, 2)])
        for part, data in (("train", digits.train), ("test", digits.test)):
            with torch.no_grad():
                logits: Tensor = model.eval()(digits.normalization(data.images))
            found = pair["trace"]["values"]
            loss = cross_entropy(logits.double(), data.labels).item()
            assert found[f"{part}_loss"][index] == pytest.approx(loss, rel=1e-4)
            mistakes = (logits.argmax(1) != data.labels).double().mean().item()
            assert found[f"{part}_error"][index] == pytest.approx(mistakes, abs=1.5 / len(data))
        norm = sum(curve.at(t)[name].double().square().sum().item() for name in curve.names)
        assert pair["trace"]["squared_norms"][index] == pytest.approx(norm)


def test_the_ends_of_a_trace_are_the_members_as_the_comparison_measured_them(connected: Path) -> None:
    measured = [json.loads(line) for line in (connected / "results.jsonl").read_text().splitlines()]
    for pair in lines(connected):
        (row,) = [row for row in measured if row["method"] == pair["method"]]
        values = pair["trace"]["values"]
        for number, end in zip(pair["members"], (0, -1), strict=True):
            member = row["each"]["test"][number - 1]
            assert values["test_error"][end] == pytest.approx(1 - member["accuracy"])
            assert values["test_loss"][end] == pytest.approx(member["nll"], rel=1e-4)
        assert pair["member_iterations"] == [row["member_iterations"][n - 1] for n in pair["members"]]


def test_a_line_says_how_it_was_made(connected: Path) -> None:
    for pair, method in zip(lines(connected), ("PFGE", "FGE"), strict=True):
        assert (pair["seed"], pair["method"]) == (1, method)
        assert pair["settings"]["length"] == LENGTH
        assert pair["settings"]["points"] == POINTS
        assert pair["trace"]["t"] == [0, 0.25, 0.5, 0.75, 1]


def test_fewer_images_measure_a_point_when_asked_for(folder: Path, connected: Path) -> None:
    few, all_images = again(folder, "connect.images=50", pairs=1)[0], lines(connected)[0]
    assert few["trace"]["values"]["train_error"] != all_images["trace"]["values"]["train_error"]
    for error in few["trace"]["values"]["train_error"]:
        assert error * 50 == pytest.approx(round(error * 50))


# Which pairs


def test_by_default_all_pairs_of_pfge_and_as_many_of_fge_are_connected() -> None:
    members = {(seed, method): count for seed in (1, 2) for method, count in (("PFGE", 4), ("FGE", 20))}
    chosen = choose_pairs(members, None, 0)
    assert Counter((pair.seed, pair.method) for pair in chosen) == dict.fromkeys(members, 3)
    assert [pair.first for pair in chosen[:3]] == [1, 2, 3]
    assert all(1 <= pair.first <= 19 for pair in chosen)
    assert len(set(chosen)) == 12


def test_all_pairs_can_be_had() -> None:
    chosen = choose_pairs({(1, "PFGE"): 2, (1, "FGE"): 4}, "all", 0)
    assert chosen == [Pair(1, "PFGE", 1), Pair(1, "FGE", 1), Pair(1, "FGE", 2), Pair(1, "FGE", 3)]


def test_fge_alone_has_all_its_pairs() -> None:
    assert [pair.first for pair in choose_pairs({(1, "FGE"): 4}, None, 0)] == [1, 2, 3]


def test_a_choice_depends_on_its_seed_and_more_pairs_include_fewer() -> None:
    chosen = [
        {p.first for p in choose_pairs({(1, "FGE"): 200}, count, seed)}
        for count, seed in ((3, 0), (3, 0), (5, 0), (3, 1))
    ]
    assert chosen[0] == chosen[1]
    assert chosen[0] < chosen[2]
    assert chosen[0] != chosen[3]


@pytest.mark.parametrize("pairs", [0, 4])
def test_pairs_that_there_are_not_are_refused(pairs: int) -> None:
    message = f"PFGE of seed 1 has 3 adjacent pairs, so 1 to 3 can be chosen, got {pairs}"
    with pytest.raises(ValueError, match=message):
        choose_pairs({(1, "PFGE"): 4}, pairs, 0)


def test_an_ensemble_of_one_member_is_named() -> None:
    with pytest.raises(ValueError, match="a curve needs two members, but FGE of seed 7 has 1"):
        choose_pairs({(7, "FGE"): 1}, None, 0)


# Again, and after a kill


def test_a_second_time_nothing_is_computed(connected: Path) -> None:
    before = (connected / "connectivity.jsonl").read_bytes()
    with counted_steps() as steps:
        results = again(connected, pairs=1)
    assert steps == [0]
    assert results == lines(connected)
    assert (connected / "connectivity.jsonl").read_bytes() == before


def test_more_pairs_are_added_to_those_that_are_there(folder: Path, connected: Path) -> None:
    shutil.copy(connected / "connectivity.jsonl", folder)
    with counted_steps() as steps:
        results = again(folder, pairs=2)
    assert steps == [2 * LENGTH]
    assert [line for line in lines(folder) if line in lines(connected)] == lines(connected)
    assert [line["method"] for line in lines(folder)] == ["PFGE", "PFGE", "FGE", "FGE"]
    assert len(lines(folder)) == len(results) == 4


@pytest.mark.parametrize(
    ("seconds", "steps"), [(0, 1), (0, LENGTH), (0, LENGTH + 2), (1e9, LENGTH - 1), (1e9, LENGTH + 2)]
)
def test_after_a_kill_the_bytes_are_those_of_a_run_that_was_not_killed(
    folder: Path, connected: Path, seconds: float, steps: int
) -> None:
    often = f"engine.checkpoint_seconds={seconds}"
    with pytest.raises(Stopped), counted_steps(stop_after=steps):
        again(folder, often, pairs=1)
    first = lines(connected)[0]["members"][0]
    (folder / "seed-1" / f".curve-PFGE-{first}.checkpoint.7.part").touch()
    with counted_steps() as made:
        again(folder, often, pairs=1)
    assert (folder / "connectivity.jsonl").read_bytes() == (connected / "connectivity.jsonl").read_bytes()
    left = sorted(file.name for file in (folder / "seed-1").iterdir())
    assert left == ["curves", "ensembles", "scores", "w0.safetensors", "w0.safetensors.sha256"]
    # A kill comes before the checkpoint of its own step; without checkpoints a pair begins anew.
    finished = steps - 1 if seconds == 0 else (steps - 1) // LENGTH * LENGTH
    assert made == [2 * LENGTH - finished]


def test_a_comparison_that_is_run_again_leaves_the_checkpoint_of_a_curve(folder: Path) -> None:
    often = "engine.checkpoint_seconds=0"
    with pytest.raises(Stopped), counted_steps(stop_after=LENGTH):
        again(folder, often, pairs=1)
    run(tiny(*SETTINGS), folder)
    with counted_steps() as steps:
        again(folder, often, pairs=1)
    assert steps == [LENGTH + 1]  # the step that it stopped in had not been saved yet


def test_a_kill_while_tracing_keeps_the_fit(
    folder: Path, connected: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(connecting, "_trace", stop)
        with pytest.raises(Stopped):
            again(folder, pairs=1)
    with counted_steps() as steps:
        again(folder, pairs=1)
    assert steps == [LENGTH]
    assert (folder / "connectivity.jsonl").read_bytes() == (connected / "connectivity.jsonl").read_bytes()


def test_a_checkpoint_of_other_settings_is_not_continued(folder: Path, connected: Path) -> None:
    with pytest.raises(Stopped), counted_steps(stop_after=3):
        again(folder, "connect.rate=0.5", "engine.checkpoint_seconds=0", pairs=1)
    again(folder, pairs=1)
    assert (folder / "connectivity.jsonl").read_bytes() == (connected / "connectivity.jsonl").read_bytes()


def test_a_run_of_before_there_were_curves_is_connected_by_the_defaults(folder: Path) -> None:
    config = folder / "config.toml"
    text = config.read_text().partition("\n")[2]  # without its digest
    old = [part for part in text.split("\n\n") if not part.startswith("[connect]")]
    config.write_text("\n\n".join(old))
    (pair, _) = again(folder, "connect.length=0.05", "connect.points=2", pairs=1)
    assert (pair["settings"]["rate"], pair["settings"]["unit"]) == (0.03, "epochs")


# What cannot be


def refused(folder: Path, *overrides: str, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the test looks at the message
        again(folder, *overrides, **options)
    return str(caught.value)


def test_a_folder_without_a_run_is_named_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    assert refused(folder) == f"{folder} is not a run folder; make one by pfge compare --out {folder}"
    assert not folder.exists()


def test_a_run_that_is_not_finished_is_named(folder: Path) -> None:
    shutil.rmtree(folder / "seed-1" / "ensembles" / "FGE")
    assert refused(folder) == (
        f"{folder} has no finished FGE for seed 1 yet; run pfge compare --out {folder} to its end"
    )


def test_other_settings_than_those_of_finished_pairs_are_refused(connected: Path) -> None:
    message = refused(connected, "connect.rate=0.5")
    assert message == (
        f"{connected / 'connectivity.jsonl'} was made with connect.rate = 0.03, got 0.5; "
        "give the same settings, or move the file away"
    )


def test_another_experiment_than_the_runs_is_refused(connected: Path) -> None:
    assert "was made with another config, where this one has ensemble.high = 0.1" in refused(
        connected, "ensemble.high=0.1"
    )


def test_a_fit_that_runs_away_is_named_with_its_pair_and_finished_pairs_stay(
    folder: Path, connected: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finished, _) = (connected / "connectivity.jsonl").read_text().splitlines()
    (folder / "connectivity.jsonl").write_text(finished + "\n")
    first = lines(connected)[1]["members"][0]

    def nothing(*_: object, **__: object) -> Tensor:
        return torch.tensor(float("nan"), requires_grad=True)

    monkeypatch.setattr("pfge.tasks.Classification.loss", nothing)
    message = refused(folder, pairs=1)
    assert message.startswith(
        f"seed 1: FGE, members {first} and {first + 1}: the loss became nan at iteration 1 and t = "
    )
    assert (folder / "connectivity.jsonl").read_text() == finished + "\n"


def test_two_processes_share_the_curves_and_leave_the_bytes_of_one(folder: Path, connected: Path) -> None:
    with counted_steps() as steps:
        again(folder, "engine.launcher=here:2", pairs=1)
    assert steps == [0]  # none of them in this process
    assert (folder / "connectivity.jsonl").read_bytes() == (connected / "connectivity.jsonl").read_bytes()
    names = [sorted(path.name for path in (run / "seed-1").iterdir()) for run in (folder, connected)]
    assert names[0] == names[1]

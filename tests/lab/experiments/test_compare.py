"""A comparison equals its methods run one by one, by hand, with nothing but the core."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from shutil import copytree
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from pfge import (
    FGE,
    PFGE,
    SWA,
    SWAG,
    Ensemble,
    Trajectory,
    Triangular,
    Weights,
    follow,
    load_weights,
    refresh_batch_norm,
)
from pfge.calibration import Temperatures
from pfge.lab.config.settings import Experiment
from pfge.lab.data import Splits, load_data
from pfge.lab.data.base import derive_seed
from pfge.lab.experiments import compare as compare_module
from pfge.lab.experiments.compare import compare, compare_all
from pfge.lab.run.progress import Reporter
from pfge.lab.run.verification import verify
from pfge.schedules import pretraining_schedule
from pfge.storage import ensemble_folder, files
from pfge.storage.files import read_tensors
from pfge.weights import view_weights
from tests.lab.experiments.by_hand import (
    CYCLE,
    HIGH,
    LOW,
    SEED,
    batches,
    loss,
    make_sgd,
    run_alone,
    saved,
    small_conv,
)
from tests.lab.tiny import LENGTH, PERIOD, PRETRAINING, Stopped, counted_steps, outcome, read_lines, run, tiny
from tests.toys import assert_same_weights

# 23,184 in the convolutions, 224 in BatchNorm's scales and shifts, 650 in the last layer
PARAMETERS = 23_184 + 224 + 650
# float32, with 224 running statistics; and three int64 counters
BYTES = 4 * (PARAMETERS + 224) + 8 * 3

Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def digits() -> Splits:
    return load_data("digits")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with all methods."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    run(tiny(), folder)
    return folder


@pytest.fixture(scope="module")
def results(finished: Path) -> Results:
    return read_lines(finished / "results.jsonl")


def row(results: Results, method: str) -> dict[str, Any]:
    (found,) = [result for result in results if result["method"] == method]
    return found


def w0_of(folder: Path) -> Weights:
    return read_tensors(folder / f"seed-{SEED}" / "w0.safetensors")[0]


def parameters(members: Sequence[Weights]) -> list[Weights]:
    names = dict(small_conv().named_parameters())
    return [{name: member[name] for name in names} for member in members]


def assert_same_parameters(members: Sequence[Weights], others: Sequence[Weights]) -> None:
    assert len(members) == len(others)
    for one, other in zip(parameters(members), parameters(others), strict=True):
        assert_same_weights(one, other)


def predict(member: Weights, digits: Splits) -> Tensor:
    model = small_conv()
    load_weights(model, member)
    with torch.no_grad():
        logits: Tensor = model.eval()(digits.normalization(digits.test.images))  # type: ignore[union-attr]
    return logits.double().softmax(dim=1)


def metrics(probabilities: Tensor, labels: Tensor) -> dict[str, Any]:
    target = probabilities[torch.arange(len(labels)), labels]
    return {
        "accuracy": pytest.approx((probabilities.argmax(1) == labels).double().mean().item()),
        "nll": pytest.approx(-target.log().mean().item(), rel=1e-4),
    }


def some(measured: dict[str, float]) -> dict[str, float]:
    return {name: measured[name] for name in ("accuracy", "nll")}


# The rows


def test_there_is_a_row_for_each_method_and_for_the_last_members_of_two(results: Results) -> None:
    assert [result["method"] for result in results] == ["w0", "SWA", "FGE*", "FGE", "SWAG*", "SWAG", "PFGE"]
    assert {result["seed"] for result in results} == {SEED}


@pytest.mark.parametrize(
    ("method", "members"),
    [("w0", 1), ("SWA", 1), ("FGE", 8), ("FGE*", 4), ("SWAG", 8), ("SWAG*", 4), ("PFGE", 4)],
)
def test_a_row_counts_members_and_their_bytes(results: Results, method: str, members: int) -> None:
    found = row(results, method)
    assert (found["members"], found["bytes"], found["bytes_of_one"]) == (members, members * BYTES, BYTES)


def test_every_method_spent_the_same_iterations_and_w0_none(results: Results) -> None:
    spent = {result["method"]: result["iterations"] for result in results}
    assert spent.pop("w0") == 0
    assert set(spent.values()) == {LENGTH}


@pytest.mark.parametrize(
    ("method", "iterations"),
    [
        ("w0", [0]),
        ("SWA", [16]),
        ("FGE", [2, 4, 6, 8, 10, 12, 14, 16]),
        ("FGE*", [10, 12, 14, 16]),
        ("SWAG", [None] * 8),
        ("PFGE", [4, 8, 12, 16]),
    ],
)
def test_a_row_says_from_which_iterations_its_members_are(
    results: Results, method: str, iterations: list[int | None]
) -> None:
    assert row(results, method)["member_iterations"] == iterations


def test_a_row_has_each_member_and_the_growing_ensemble_too(results: Results) -> None:
    pfge = row(results, "PFGE")
    assert len(pfge["each"]["test"]) == len(pfge["growing"]["test"]) == 4
    assert pfge["growing"]["test"][0] == pfge["each"]["test"][0]
    whole = pfge["test"]
    assert pfge["growing"]["test"][3] == {name: whole[name] for name in pfge["growing"]["test"][3]}


# The same, by hand


def test_w0_is_found_by_the_papers_recipe(finished: Path, digits: Splits) -> None:
    torch.manual_seed(derive_seed(SEED, "initial weights"))
    model = small_conv()
    trajectory = Trajectory(model, make_sgd(model), pretraining_schedule(PRETRAINING, 0.05), [])
    follow(trajectory, batches(digits, "pretraining").starting_after(0), loss, iterations=PRETRAINING)
    assert_same_weights(w0_of(finished), view_weights(model))


def test_swa_is_swa_run_alone(finished: Path, digits: Splits) -> None:
    assert_same_parameters(saved(finished, "SWA"), run_alone(digits, w0_of(finished), SWA(CYCLE)))


def test_fge_is_fge_run_alone(finished: Path, digits: Splits) -> None:
    assert_same_parameters(saved(finished, "FGE"), run_alone(digits, w0_of(finished), FGE(CYCLE)))


def test_swag_is_swag_run_alone(finished: Path, digits: Splits) -> None:
    alone = run_alone(digits, w0_of(finished), SWAG(CYCLE, samples=8, seed=SEED))
    assert_same_parameters(saved(finished, "SWAG"), alone)


def test_pfge_is_pfge_run_alone(finished: Path, digits: Splits) -> None:
    assert_same_parameters(saved(finished, "PFGE"), run_alone(digits, w0_of(finished), PFGE(CYCLE, PERIOD)))


def test_pfge_that_keeps_its_momentum_is_that_run_alone(digits: Splits, tmp_path: Path) -> None:
    methods = "ensemble.methods=['SWA','PFGE']"
    run(tiny(methods, "ensemble.clear_momentum=false"), tmp_path)
    alone = run_alone(digits, w0_of(tmp_path), PFGE(CYCLE, PERIOD, clear_momentum=False))
    assert_same_parameters(saved(tmp_path, "PFGE"), alone)


def test_the_reference_variant_is_the_authors_rule_run_alone(digits: Splits, tmp_path: Path) -> None:
    overrides = ["ensemble.variant=reference", "ensemble.cycle=4", "ensemble.period=8"]
    results = run(tiny(*overrides), tmp_path)
    assert row(results, "FGE")["member_iterations"] == [2, 6, 10, 14]
    schedule = Triangular(4, LOW, HIGH, start="high")
    pfge = run_alone(digits, w0_of(tmp_path), PFGE.reference(4, 8), schedule)
    assert_same_parameters(saved(tmp_path, "PFGE"), pfge)
    swa = run_alone(digits, w0_of(tmp_path), SWA(4, phase=2, average_start=False), schedule)
    assert_same_parameters(saved(tmp_path, "SWA"), swa)


@pytest.mark.parametrize("method", ["SWA", "PFGE"])
def test_members_have_fresh_batch_norm_statistics(finished: Path, digits: Splits, method: str) -> None:
    source = batches(digits, "batch norm")
    inputs = [source.at(1)[0], source.at(2)[0]]  # 100 images
    for member in saved(finished, method):
        model = small_conv()
        load_weights(model, member)
        for buffer in model.buffers():
            buffer.zero_()
        refresh_batch_norm(model, inputs)
        assert_same_weights(view_weights(model), member)


def test_w0_is_measured_with_its_own_batch_norm_statistics(
    finished: Path, results: Results, digits: Splits
) -> None:
    w0 = w0_of(finished)
    assert int(w0["1.num_batches_tracked"]) == PRETRAINING
    assert some(row(results, "w0")["test"]) == metrics(predict(w0, digits), digits.test.labels)


@pytest.mark.parametrize("method", ["SWA", "FGE", "SWAG", "PFGE"])
def test_a_row_is_the_mean_of_the_members_probabilities(
    finished: Path, results: Results, digits: Splits, method: str
) -> None:
    pooled = torch.stack([predict(member, digits) for member in saved(finished, method)]).mean(0)
    assert some(row(results, method)["test"]) == metrics(pooled, digits.test.labels)


@pytest.mark.parametrize("method", ["FGE", "SWAG"])
def test_a_starred_row_is_the_last_members_as_many_as_pfge_has(
    finished: Path, results: Results, digits: Splits, method: str
) -> None:
    last = saved(finished, method)[-4:]
    pooled = torch.stack([predict(member, digits) for member in last]).mean(0)
    assert some(row(results, f"{method}*")["test"]) == metrics(pooled, digits.test.labels)


# What it costs


def test_the_whole_table_costs_two_paths_that_share_the_first_period(tmp_path: Path) -> None:
    with counted_steps() as steps:
        run(tiny(), tmp_path)
    spent = steps[0] - PRETRAINING
    assert spent == LENGTH + (LENGTH - PERIOD)
    assert PERIOD * 4 == LENGTH
    assert spent <= 1.8 * LENGTH


def test_listeners_alone_cost_one_path(tmp_path: Path) -> None:
    with counted_steps() as steps:
        results = run(tiny("ensemble.methods=['SWAG','SWA']"), tmp_path)
    assert steps[0] == PRETRAINING + LENGTH
    assert [result["method"] for result in results] == ["w0", "SWAG*", "SWAG", "SWA"]


def test_pfge_alone_costs_one_path_and_has_the_same_members(finished: Path, tmp_path: Path) -> None:
    with counted_steps() as steps:
        results = run(tiny("ensemble.methods=['PFGE']"), tmp_path)
    assert steps[0] == PRETRAINING + LENGTH
    assert [result["method"] for result in results] == ["w0", "PFGE"]
    for one, other in zip(saved(tmp_path, "PFGE"), saved(finished, "PFGE"), strict=True):
        assert_same_weights(one, other)


def test_one_period_makes_pfge_swa(tmp_path: Path) -> None:
    with counted_steps() as steps:
        run(tiny("ensemble.methods=['SWA','PFGE']", "ensemble.period=16"), tmp_path)
    assert steps[0] == PRETRAINING + LENGTH
    assert_same_parameters(saved(tmp_path, "PFGE"), saved(tmp_path, "SWA"))


def test_a_starred_method_alone_measures_the_last_members_only(
    finished: Path, results: Results, tmp_path: Path
) -> None:
    found = run(tiny("ensemble.methods=['FGE*','SWAG*','PFGE']"), tmp_path)
    assert [result["method"] for result in found] == ["w0", "FGE*", "SWAG*", "PFGE"]
    for method in ("FGE*", "SWAG*"):
        alone, beside = row(found, method), row(results, method)
        assert len(alone.pop("each")["test"]) == len(alone.pop("growing")["test"]) == 4
        assert alone == beside
    for one, other in zip(saved(tmp_path, "FGE-last"), saved(finished, "FGE")[-4:], strict=True):
        assert_same_weights(one, other)


# The same again


def test_the_same_seed_gives_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    run(tiny(), tmp_path)
    assert outcome(tmp_path) == outcome(finished)


def test_another_seed_gives_another_w0_and_other_results(
    finished: Path, results: Results, tmp_path: Path
) -> None:
    others = run(tiny("seeds=[2]", "ensemble.methods=['SWA']"), tmp_path)
    assert row(others, "w0")["seed"] == 2
    assert row(others, "w0")["test"] != row(results, "w0")["test"]
    found = read_tensors(tmp_path / "seed-2" / "w0.safetensors")[0]
    assert not torch.equal(found["0.weight"], w0_of(finished)["0.weight"])


def test_a_seed_does_not_depend_on_those_before_it(results: Results, tmp_path: Path) -> None:
    several = run(tiny("seeds=[2,1]", "ensemble.methods=['SWA','PFGE']"), tmp_path)
    assert [result["seed"] for result in several] == [2, 2, 2, 1, 1, 1]
    for method in ("w0", "SWA", "PFGE"):
        assert row([result for result in several if result["seed"] == 1], method) == row(results, method)


def test_a_finished_run_is_not_run_again(finished: Path, results: Results) -> None:
    before = outcome(finished)
    with counted_steps() as steps:
        assert run(tiny(), finished) == results
    assert steps == [0]
    assert outcome(finished) == before


def test_without_its_results_a_finished_run_is_only_measured_again(finished: Path, tmp_path: Path) -> None:
    copytree(finished, tmp_path / "copy")
    (tmp_path / "copy" / "results.jsonl").unlink()
    with counted_steps() as steps:
        run(tiny(), tmp_path / "copy")
    assert steps == [0]
    assert outcome(tmp_path / "copy") == outcome(finished)


def test_a_finished_run_keeps_nothing_that_only_an_unfinished_one_needs(finished: Path) -> None:
    assert sorted(file.name for file in finished.iterdir()) == [
        ".lock",
        "config.toml",
        "data.json",
        "environment.json",
        "results.jsonl",
        "results.lines.json",
        "seed-1",
    ]
    assert sorted(file.name for file in (finished / "seed-1").iterdir()) == [
        "ensembles",
        "scores",
        "w0.safetensors",
        "w0.safetensors.sha256",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "step"),
    [("0", 5), ("0", 14), ("0", 19), ("0", 33), ("1e9", 13), ("1e9", 19), ("1e9", 33)],
)
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(
    finished: Path, tmp_path: Path, seconds: str, step: int
) -> None:
    """Ten steps find w0, sixteen are shared, of which PFGE leaves the fourth, and twelve are PFGE's own."""
    experiment = tiny(f"engine.checkpoint_seconds={seconds}")
    with pytest.raises(Stopped), counted_steps(stop_after=step):
        run(experiment, tmp_path)
    with counted_steps() as steps:
        run(experiment, tmp_path)
    assert outcome(tmp_path) == outcome(finished)
    if seconds == "0":
        assert steps == [38 - step + 1]  # the step that it stopped in had not been saved yet


def dropping_net(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, classes))


def test_the_random_numbers_of_a_forward_pass_do_not_depend_on_where_a_run_was_stopped(
    tmp_path: Path,
) -> None:
    model = "model.name=tests.lab.experiments.test_compare:dropping_net"
    experiment = tiny(model, "ensemble.methods=['SWA','PFGE']", "engine.checkpoint_seconds=0")
    run(experiment, tmp_path / "whole")
    for step in (5, 14, 10):  # while finding w0, sharing, and alone
        with pytest.raises(Stopped), counted_steps(stop_after=step):
            run(experiment, tmp_path / "stopped")
    run(experiment, tmp_path / "stopped")
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "applies"),
    [
        (
            "pfge.lab.evaluation.record.append_row",
            lambda *call: call[1].method == "FGE",
        ),  # FGE* is there
        ("pfge.lab.evaluation.record.append_row", lambda *call: call[1].method == "PFGE"),
        (
            "pfge.storage.ensemble_folder.write_json",
            lambda *call: call[0].parts[-3:-1] == ("ensembles", "SWAG"),
        ),
        ("pfge.collectors.stores.Path.rename", lambda *call: call[0].parts[-2:] == ("members", "FGE")),
        ("pfge.collectors.stores.Path.rename", lambda *call: call[0].parts[-2:] == ("members", "PFGE")),
        (
            "pfge.lab.experiments.compare.save_checkpoint",
            lambda *call: call[0].name == "pfge-fork.checkpoint",
        ),
        ("pfge.lab.training.resumable.save_checkpoint", lambda *call: call[1]["iteration"] == LENGTH),
        ("pfge.storage.files.write_tensors", lambda *call: call[0].name == "w0.safetensors"),
        ("pfge.lab.experiments.compare._remove", lambda *_: True),
    ],
    ids=[
        "row of FGE",
        "row of PFGE",
        "saving SWAG",
        "saving FGE",
        "saving PFGE",
        "branch",
        "last checkpoint",
        "w0",
        "tidying",
    ],
)
def test_a_run_that_was_stopped_before_a_write_ends_as_if_it_had_not_been(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    applies: Callable[..., bool],
) -> None:
    write = resolve_name(place)

    def write_or_stop(*arguments: Any) -> None:
        if applies(*arguments):
            raise Stopped
        write(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(place, write_or_stop)
        with pytest.raises(Stopped):
            run(tiny(), tmp_path)
    run(tiny(), tmp_path)
    assert outcome(tmp_path) == outcome(finished)
    assert sorted(file.name for file in (tmp_path / "seed-1").iterdir()) == [
        "ensembles",
        "scores",
        "w0.safetensors",
        "w0.safetensors.sha256",
    ]


@pytest.mark.slow
def test_a_run_in_pure_bfloat16_resumes_as_if_it_had_not_been_stopped(tmp_path: Path) -> None:
    """In bfloat16 the rounding of an update depends on the type and the memory order of the momentum."""
    methods = ["ensemble.methods=['SWA','PFGE']", "ensemble.length=8", "ensemble.clear_momentum=false"]
    experiment = tiny("engine.precision=bf16-true", "engine.checkpoint_seconds=0", *methods)
    run(experiment, tmp_path / "whole")
    with pytest.raises(Stopped), counted_steps(stop_after=13):  # in the third shared step
        run(experiment, tmp_path / "stopped")
    with pytest.raises(Stopped), counted_steps(stop_after=8):  # in PFGE's second own one
        run(experiment, tmp_path / "stopped")
    run(experiment, tmp_path / "stopped")
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


def test_progress_tells_the_iteration_the_loss_the_rate_and_the_members_so_far(tmp_path: Path) -> None:
    said: list[tuple[str, int, str]] = []

    class Listener(Reporter):
        @contextmanager
        def task(self, name: str, total: int) -> Iterator[Callable[[int, str], None]]:  # noqa: ARG002
            yield lambda done, note: said.append((name, done, note))

    compare(tiny("ensemble.methods=['FGE','PFGE']"), tmp_path, Listener(quiet=True))
    notes = {(name, done): note for name, done, note in said}
    assert re.fullmatch(r"loss \d+\.\d{4}  rate 0\.0005  members 5", notes["seed 1: FGE", 10])
    assert notes["seed 1: FGE", 16].endswith("members 8")
    assert notes["seed 1: PFGE", 16].endswith("members 4")
    assert "members" not in notes["seed 1: find w0", 10]


# Its parts


def test_start_weights_from_a_file_are_w0_for_every_seed(
    finished: Path, results: Results, tmp_path: Path
) -> None:
    weights = finished / "seed-1" / "w0.safetensors"
    overrides = [f"pretrain.weights={weights}", "seeds=[1,2]", "ensemble.methods=['SWA']"]
    with counted_steps() as steps:
        others = run(tiny(*overrides), tmp_path)
    assert steps[0] == 2 * LENGTH
    assert [result["test"] for result in others if result["method"] == "w0"] == [
        row(results, "w0")["test"]
    ] * 2
    assert row(others[:2], "SWA") == row(results, "SWA")


def test_a_halved_test_set_is_measured_in_two_parts(results: Results, tmp_path: Path) -> None:
    halves = row(run(tiny("data.validation_from_test=true", "ensemble.methods=[]"), tmp_path), "w0")
    whole = row(results, "w0")["test"]
    for name in ("accuracy", "nll", "brier"):  # 398 and 399 of 797 images
        together = (398 * halves["validation"][name] + 399 * halves["test"][name]) / 797
        assert together == pytest.approx(whole[name])
    assert halves["validation"] != halves["test"]


def test_weights_that_are_not_finite_end_the_run_and_what_was_measured_stays(tmp_path: Path) -> None:
    experiment = tiny("ensemble.high=1e30", "ensemble.low=1e30")
    with pytest.raises(ValueError, match=r"holds NaN or infinity at iteration 2; lower the learning rate"):
        run(experiment, tmp_path)
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["method"] for line in lines] == ["w0"]


@pytest.mark.parametrize("temperatures", [Temperatures(3.0), Temperatures(members=(2.0, 3.0, 4.0, 5.0))])
def test_measuring_again_leaves_saved_temperatures_out(
    finished: Path, tmp_path: Path, temperatures: Temperatures
) -> None:
    folder = tmp_path / "calibrated"
    copytree(finished, folder)
    path = folder / f"seed-{SEED}" / "ensembles" / "PFGE"
    ensemble = Ensemble.load(path, nn.Identity)
    ensemble.with_members(ensemble.members, temperatures=temperatures).save(path)
    before = (folder / "results.jsonl").read_bytes()
    (folder / "results.jsonl").unlink()
    run(tiny(), folder)
    assert (folder / "results.jsonl").read_bytes() == before
    assert Ensemble.load(path, nn.Identity).temperatures == temperatures


def test_members_are_written_once_and_hashed_where_they_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    written: list[str] = []
    checksum, write_file = files.checksum, ensemble_folder.write_file

    def count_checksum(file: Path) -> str:
        hashed.append(file.parent.name)
        return checksum(file)

    def count_write(path: Path, *arguments: Any) -> Any:
        written.append(path.name)
        return write_file(path, *arguments)

    monkeypatch.setattr(files, "checksum", count_checksum)
    monkeypatch.setattr(ensemble_folder, "write_file", count_write)
    run(tiny(), tmp_path)
    assert {name: written.count(name) for name in ("FGE", "PFGE")} == {"FGE": 8, "PFGE": 4}
    # Measuring opens all members, and PFGE's own path the member that was made on the shared path.
    assert {name: hashed.count(name) for name in ("FGE", "PFGE")} == {"FGE": 8, "PFGE": 5}


@pytest.mark.slow
@pytest.mark.parametrize(("data", "model"), [("breast_cancer", "mlp"), ("mnist1d", "conv1d")])
def test_tables_and_signals_are_compared_like_pictures(
    tmp_path: Path, signals: Path, data: str, model: str
) -> None:
    settings = (f"data.name={data}", f"model.name={model}", f"data.root={signals}", "data.test_images=100")
    rows = run(tiny(*settings), tmp_path / "run")
    assert {row["method"] for row in rows} == {"w0", "SWA", "FGE", "FGE*", "SWAG", "SWAG*", "PFGE"}
    assert all(0 < row["test"]["nll"] < 5 for row in rows)


@pytest.mark.parametrize(("processes", "tried"), [(1, ["a", "b"]), (2, ["a"])])
def test_a_failure_ends_the_command_only_if_other_processes_may_not_have_seen_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int, tried: list[str]
) -> None:
    """They would meet this process in the next experiment while they are in this one."""
    found = []

    def fail(experiments: list[tuple[Experiment, Path]], *_: object) -> None:
        found.append(experiments[0][0].name)
        raise ValueError("lower the rate")

    monkeypatch.setattr(compare_module, "_compare_together", fail)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: processes)
    with pytest.raises(ValueError, match="lower the rate"):
        compare_all([(tiny(f"name={name}"), tmp_path / name) for name in ("a", "b")], Reporter(quiet=True))
    assert found == tried


def test_more_seeds_train_the_new_ones_alone(tmp_path: Path) -> None:
    few, more = tiny("ensemble.methods=['SWA']"), tiny("ensemble.methods=['SWA']", "seeds=[1,2]")
    with counted_steps() as steps:
        run(few, tmp_path)
    before = outcome(tmp_path)
    with counted_steps() as later:
        rows = run(more, tmp_path)
    assert later == steps == [PRETRAINING + LENGTH]
    assert [(row["seed"], row["method"]) for row in rows] == [(s, m) for s in (1, 2) for m in ("w0", "SWA")]
    after = outcome(tmp_path)
    assert {name: after[name] for name in before if name.startswith("seed-1")} == {
        name: content for name, content in before.items() if name.startswith("seed-1")
    }
    assert all(file.state == "whole" for file in verify(tmp_path))

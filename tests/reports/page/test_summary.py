"""What a report says in words."""

import json
import re
import shlex
import shutil
from math import sqrt
from pathlib import Path

import pytest
import torch
from scipy import stats

from pfge.cli.main import main
from pfge.reports.run import Run
from pfge.reports.summary import Finding, findings
from pfge.storage.files import unseal, write_tensors
from tests.lab.tiny import run, tiny
from tests.reports.made_run import (
    form_rows,
    make_run,
    metrics,
    result,
    with_validation,
    write_forms,
    write_results,
)


def said(folder: Path) -> dict[str, Finding]:
    """Return the findings by the kind of each; the best methods have none."""
    accurate, likely, *others = findings(Run(folder))
    return {"accurate": accurate, "likely": likely} | {found.kind: found for found in others}


def write_run(
    folder: Path,
    metrics: dict[str, tuple[float, float]],
    *,
    spread: float,
    seeds: int = 5,
    examples: int = 400,
) -> Path:
    """Make a run with validation data whose methods differ on every example alike, and between seeds.

    Args:
        folder: Where.
        metrics: Accuracy and NLL of each method.
        spread: Half of the range of each metric over seeds; methods are spread the more the later they are.
        seeds: How many.
        examples: How many.
    """
    make_run(folder, examples=0, seeds=range(1, seeds + 1))
    rows = []
    for number, (method, (accuracy, nll)) in enumerate(metrics.items()):
        for seed in range(1, seeds + 1):
            shift = spread * (number + 1) * (2 * (seed - 1) / max(seeds - 1, 1) - 1)
            row = result(method, seed)
            row["test"] |= {"accuracy": accuracy + shift, "nll": nll + shift}
            row["calibrated"]["test"] = row["test"]
            rows.append(with_validation(row))
            scores = {
                "correct": torch.full((examples,), accuracy + shift, dtype=torch.float64),
                "log_loss": torch.full((examples,), nll + shift, dtype=torch.float64),
            }
            file = folder / f"seed-{seed}" / "scores" / f"{method.replace('*', '-last')}.safetensors"
            file.parent.mkdir(parents=True, exist_ok=True)
            parts = ("test", "test.calibrated", "validation", "validation.calibrated")
            write_tensors(
                file, {f"{part}.{name}": values for part in parts for name, values in scores.items()}
            )
    write_results(folder, rows)
    return folder


def test_the_best_are_named_with_their_numbers_and_memory(tmp_path: Path) -> None:
    found = said(make_run(tmp_path / "run"))
    assert found["accurate"].why.startswith(
        "FGE has the best mean, 94.25 ± 0.25 % at 20× the memory of one model (20 MB)."
    )
    assert found["likely"].answer == "FGE"
    assert found["likely"].why == (
        "0.2050 ± 0.0050 at 20× the memory of one model (20 MB). All other methods are worse"
    )


METRICS = {"w0": (0.90, 0.40), "PFGE": (0.9395, 0.30), "FGE": (0.94, 0.20)}


def test_all_methods_that_may_be_the_best_are_named(tmp_path: Path) -> None:
    found = said(write_run(tmp_path / "run", METRICS, spread=0.0001))
    assert found["accurate"].answer == "FGE or PFGE"
    assert found["accurate"].why.endswith(" for all pairs of methods: PFGE (equal)")
    assert found["likely"].answer == "FGE"


@pytest.mark.parametrize(("spread", "seeds"), [(0.5, 5), (0.0001, 1)])
def test_a_best_mean_alone_is_undecided(tmp_path: Path, spread: float, seeds: int) -> None:
    found = said(write_run(tmp_path / "run", METRICS, spread=spread, seeds=seeds))
    for tile in (found["accurate"], found["likely"]):
        assert tile.answer == "Undecided"
        assert tile.why.startswith("FGE has the best mean, ")
        assert tile.why.endswith(". Not distinguishable from any other method with this data")


def test_the_gain_on_w0_has_the_verdicts_of_the_best_methods(tmp_path: Path) -> None:
    values = {"w0": (0.90, 0.25), "SWA": (0.90, 0.25), "FGE": (0.90, 0.20)}
    found = said(write_run(tmp_path / "run", values, spread=0.021))
    # FGE minus w0 is -0.05 ± 0.041 in NLL as the only comparison, and -0.05 ± 0.059 as one of three.
    assert (found["ship"].answer, found["gain"].about) == ("FGE, seed 1", "FGE against w0, on test data")
    assert found["likely"].answer == "FGE or w0"
    assert found["gain"].answer == "Undecided"
    assert "NLL -0.0500 (95 % interval -0.1088 to +0.0088 over" in found["gain"].why
    assert "better" not in found["gain"].why + found["ship"].why
    surer = said(write_run(tmp_path / "surer", values, spread=0.01))
    assert surer["likely"].answer == "FGE"
    assert surer["gain"].answer == "Better for NLL, undecided for accuracy"
    assert re.search(r"NLL -0.0500 [^;]*: better\.$", surer["gain"].why)


def test_one_method_is_said_to_be_the_only_one(tmp_path: Path) -> None:
    found = said(make_run(tmp_path / "run", methods=["w0"]))
    assert found["accurate"].why.endswith(". It is the only method with results")


def test_the_smallest_near_the_best_on_validation_data_is_to_ship(tmp_path: Path) -> None:
    metrics = {"w0": (0.90, 0.40), "SWA": (0.91, 0.35), "PFGE": (0.939, 0.201), "FGE": (0.94, 0.20)}
    found = said(write_run(tmp_path / "run", metrics, spread=0.0001))["ship"]
    assert found.answer == "PFGE, seed 1"
    assert found.why == (
        "The smallest method whose calibrated scores on validation data are within the margin, or one "
        "standard error, of the best in accuracy and NLL; 4× the memory of one model (4 MB). Seed 1 has the "
        "best NLL of 5 seeds on validation data. Its weights are not in the run folder: "
        f"{tmp_path / 'run' / 'seed-1' / 'ensembles' / 'PFGE'} is missing. On test data, at its temperature: "
        "accuracy 93.90 ± 0.01 %, NLL 0.2010 ± 0.0001; w0: accuracy 90.00 ± 0.00 %, NLL 0.4000 ± 0.0000. "
        "With less memory, the lowest NLL is that of SWA (1×)."
    )


@pytest.mark.parametrize("last", [0.0, 1e-7, -1e-7])
def test_of_methods_that_are_equal_up_to_rounding_one_is_to_ship_on_every_machine(
    tmp_path: Path, last: float
) -> None:
    metrics = {"w0": (0.90, 0.40), "PFGE": (0.94, 0.2), "FGE*": (0.94, 0.2 + last)}
    found = said(write_run(tmp_path / "run", metrics, spread=0.0))
    assert {found[tile].answer for tile in ("accurate", "likely")} == {"FGE* or PFGE"}
    assert found["ship"].answer == "FGE*, seed 1"


@pytest.mark.parametrize(("nll", "expected"), [(0.20, "TTA"), (0.3495, "SWA")])
def test_views_are_to_ship_only_if_they_pay_for_their_passes(
    tmp_path: Path, nll: float, expected: str
) -> None:
    metrics = {"w0": (0.90, 0.40), "SWA": (0.93, 0.35), "PFGE": (0.931, nll)}
    folder = write_run(tmp_path / "run", metrics, spread=0.0001)
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    for row in (row for row in rows if row["method"] == "PFGE"):  # four passes, in the memory of one model
        row |= {"method": "TTA", "bytes": row["bytes_of_one"]}
        scores = folder / f"seed-{row['seed']}" / "scores"
        (scores / "PFGE.safetensors").rename(scores / "TTA.safetensors")
    write_results(folder, rows)
    assert said(folder)["ship"].answer == f"{expected}, seed 1"


def test_one_standard_error_is_near_enough(tmp_path: Path) -> None:
    metrics = {"w0": (0.93, 0.21), "FGE": (0.94, 0.20)}  # against a margin of 0.2 points
    assert said(write_run(tmp_path / "sure", metrics, spread=0.0001))["ship"].answer == "FGE, seed 1"
    found = said(write_run(tmp_path / "noisy", metrics, spread=0.1))["ship"]
    assert found.answer == "w0, seed 1"
    assert "; w0: " not in found.why


def test_validation_data_decides_and_test_data_does_not(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {"w0": (0.90, 0.40), "FGE": (0.94, 0.20)}, spread=0.0001)
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    for row in rows:
        row["test"] = row["calibrated"]["test"] = metrics(0.5, 9.0 if row["method"] == "FGE" else 0.1)
    write_results(folder, rows)
    assert said(folder)["ship"].answer == "FGE, seed 1"


def test_the_seed_to_ship_is_that_of_the_best_validation_data(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {"w0": (0.90, 0.40), "FGE": (0.94, 0.20)}, spread=0.0001, seeds=3)
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    validation, test = {1: 0.20, 2: 0.18, 3: 0.19}, {1: 0.1, 2: 9.0, 3: 5.0}
    for row in (row for row in rows if row["method"] == "FGE"):
        row["calibrated"]["validation"] = metrics(0.94, validation[row["seed"]])
        row["test"] = row["calibrated"]["test"] = metrics(0.94, test[row["seed"]])
    write_results(folder, rows)
    found = said(folder)["ship"]
    assert found.answer == "FGE, seed 2"
    assert "Seed 2 has the best NLL of 3 seeds on validation data." in found.why


def test_passes_with_random_dropout_are_not_shipped(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {"w0": (0.90, 0.40), "PFGE": (0.94, 0.20)}, spread=0.0001)
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    for row in (row for row in rows if row["method"] == "PFGE"):
        row["method"] = "MCDropout"
        scores = folder / f"seed-{row['seed']}" / "scores"
        (scores / "PFGE.safetensors").rename(scores / "MCDropout.safetensors")
    write_results(folder, rows)
    found = said(folder)["ship"]
    assert found.answer == "w0, seed 1"
    assert "MCDropout cannot be saved as an ensemble and was not considered." in found.why


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with ensembles, in a folder whose name a shell would split."""
    folder = tmp_path_factory.mktemp("the runs") / "run"
    methods = "ensemble.methods=['SWA','FGE','TTA']"
    run(tiny(methods, "seeds=[1,2]", "data.validation_from_test=true", "data.crop_padding=1"), folder)
    return folder


@pytest.mark.parametrize("method", ["w0", "FGE", "FGE*", "TTA"])
def test_what_is_to_ship_exists_after_the_command_beside_it(
    finished: Path, tmp_path: Path, method: str
) -> None:
    folder = tmp_path / "my run"
    shutil.copytree(finished, folder)
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    rows = [unsealed for row in rows if (unsealed := unseal(row))["method"] == method]
    (folder / "results.jsonl.lines.json").unlink(missing_ok=True)
    write_results(folder, rows)
    best = min(rows, key=lambda row: row["calibrated"]["validation"]["nll"])
    found = said(folder)["ship"]
    assert found.answer == f"{method}, seed {best['seed']}"
    name = method.replace("*", "-last")
    ensemble = folder / f"seed-{best['seed']}" / "ensembles" / name
    assert str(ensemble) in found.why

    command, *arguments = shlex.split(found.command)
    assert (command, main(arguments)) == ("pfge", 0)
    saved = json.loads((ensemble / "manifest.json").read_text())
    assert len(saved["members"]) == (1 if method == "TTA" else best["members"])  # views of one model
    # What was written is what was measured: its NLL on test data is that of the results.
    out = tmp_path / "evaluation.json"
    assert main(["evaluate", str(ensemble), "--out", str(out)]) == 0
    nll = json.loads(out.read_text())["test"]["nll"]
    assert nll == pytest.approx(best["calibrated"]["test"]["nll"], abs=1e-5)
    again = said(folder)["ship"]
    assert f"The ensemble is {ensemble}; the command fits its temperature" in again.why
    assert again.command.startswith("pfge evaluate ")


def test_without_validation_data_nothing_is_chosen(tmp_path: Path) -> None:
    found = said(make_run(tmp_path / "run"))["ship"]
    assert found.answer == "Cannot be chosen"
    assert "data.validation" in found.why


def test_what_is_to_ship_is_said_in_its_smallest_form_that_predicts_nearly_the_same(tmp_path: Path) -> None:
    metrics = {"SWA": (0.91, 0.35), "PFGE": (0.939, 0.201), "FGE": (0.94, 0.20)}
    folder = write_run(tmp_path / "run", metrics, spread=0.0001)
    rows = form_rows()
    for row in rows:  # of 32 bits a number: 8 + 4 x 1 for PFGE at 1 bit, 8 + 4 x 3 at 3 bits
        row["kl"] = {"int8 base + 1 bit": 0.0011, "int8 base + 3 bits": 0.0001}.get(row["format"], 0.0)
    write_forms(folder, rows)
    assert (
        "As int8 base + 3 bits it takes 0.625× (625 kB) and predicts nearly the same, KL 0.0001 ± 0.0000."
        in (said(folder)["ship"].why)
    )


def test_two_bests_that_beat_each_other_leave_the_lowest_nll(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {"SWA": (0.94, 0.30), "PFGE": (0.92, 0.20)}, spread=0.0001)
    found = said(folder)["ship"]
    assert found.answer == "PFGE, seed 1"
    assert found.why.startswith(
        "The method of the lowest NLL on validation data, calibrated; no method is near the best in both"
    )


@pytest.mark.parametrize(("seeds", "examples"), [([1], 400), ([1], 0), ([1, 2], 0)])
def test_one_seed_or_no_scores_decide_nothing(tmp_path: Path, seeds: list[int], examples: int) -> None:
    found = said(make_run(tmp_path / "run", seeds=seeds, examples=examples))
    assert found["claim"].answer == "Undecided"


@pytest.mark.parametrize(
    ("pfge", "expected"),
    [
        ((0.94, 0.20), "Holds"),
        ((0.95, 0.19), "Holds"),
        ((0.92, 0.20), "Holds for NLL, does not hold for accuracy"),
        ((0.94, 0.30), "Holds for accuracy, does not hold for NLL"),
        ((0.92, 0.30), "Does not hold"),
    ],
)
def test_the_papers_claim_is_checked_in_both_metrics(
    tmp_path: Path, pfge: tuple[float, float], expected: str
) -> None:
    folder = write_run(tmp_path / "run", {"FGE": (0.94, 0.20), "PFGE": pfge}, spread=0.0001)
    assert said(folder)["claim"].answer == expected


def test_a_claim_that_holds_has_no_undecided_number_below_it(tmp_path: Path) -> None:
    metrics = {"FGE": (0.94, 0.20), "PFGE": (0.95, 0.19)}
    found = said(write_run(tmp_path / "run", metrics, spread=0.015))["claim"]
    # Both are better by 0.01 ± 0.0147, which excludes being worse by 0.01 in NLL but not by 0.2 points.
    assert found.answer == "Holds for NLL, undecided for accuracy"
    accuracy, nll = found.why.split("; NLL ")
    assert "): undecided; to decide: " in accuracy
    assert "): not worse by more than 0.01. Memory" in nll
    assert "undecided" not in nll


def test_what_the_noise_hides_is_undecided(tmp_path: Path) -> None:
    metrics = {"FGE": (0.94, 0.20), "PFGE": (0.94, 0.30)}
    found = said(write_run(tmp_path / "run", metrics, spread=0.01))["claim"]
    assert found.answer == "Does not hold for NLL, undecided for accuracy"
    wide = tmp_path / "wide"
    write_run(wide, metrics, spread=0.01)
    config = (wide / "config.toml").read_text()
    (wide / "config.toml").write_text(config.replace("points = 0.2", "points = 5.0"))
    assert said(wide)["claim"].answer == "Holds for accuracy, does not hold for NLL"


def test_the_claim_says_difference_interval_and_memory(tmp_path: Path) -> None:
    why = said(make_run(tmp_path / "run"))["claim"].why
    assert why.startswith("PFGE with 4 members against FGE with 20: accuracy -0.50 points (95 % interval -")
    assert "over test examples and 2 seeds): undecided; to decide: about" in why
    assert "NLL +0.0100 (95 % interval +" in why
    assert why.endswith("Memory 4 MB against 20 MB, 5 times less.")


def test_a_claim_without_one_of_the_two_is_not_checked(tmp_path: Path) -> None:
    found = said(make_run(tmp_path / "run", methods=["w0", "PFGE"]))["claim"]
    assert (found.answer, found.why) == ("Not checked", "No results of FGE yet.")


def test_without_results_nothing_is_said(tmp_path: Path) -> None:
    assert findings(Run(make_run(tmp_path / "run", methods=[]))) == []


def write_unfinished(folder: Path) -> Path:
    """Make a run whose seed 3 is far easier than the others, and alone has results of PFGE."""
    make_run(folder, seeds=(1, 2, 3), examples=0)
    rows = []
    for seed, harder in ((1, 0.2), (2, 0.1), (3, 0.0)):
        for method, nll in (("w0", 0.4), ("FGE", 0.2), ("PFGE", 0.25)):
            if method == "PFGE" and seed < 3:
                continue
            row = result(method, seed)
            row["test"] = row["calibrated"]["test"] = metrics(0.95 - nll / 10 - harder, nll + harder)
            rows.append(with_validation(row))
    write_results(folder, rows)
    return folder


def test_an_easy_seed_alone_makes_no_leader_and_nothing_to_ship(tmp_path: Path) -> None:
    found = said(write_unfinished(tmp_path / "run"))
    # Over the seeds of each, PFGE has an NLL of 0.25 and FGE one of 0.3; on seed 3, FGE has 0.2.
    assert [found[tile].answer for tile in ("accurate", "likely")] == ["Undecided"] * 2
    assert found["ship"].answer == "FGE, seed 3"
    assert found["likely"].why.startswith("FGE has the best mean, 0.2000 at 20×")
    assert found["likely"].why.endswith(". Compared over seed 3, which all methods have")
    assert " Compared over seed 3, which all methods have. " in found["ship"].why
    assert "With less memory, the lowest NLL is that of PFGE (4×) or w0 (1×)." in found["ship"].why


def test_without_a_seed_of_all_methods_there_is_no_leader(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", examples=0)
    write_results(folder, [with_validation(result("FGE", 1)), with_validation(result("PFGE", 2))])
    found = said(folder)
    assert (found["likely"].answer, found["likely"].why) == (
        "Not compared yet",
        "No seed has results of all methods yet.",
    )
    assert (found["ship"].answer, found["ship"].why) == (
        "Cannot be chosen",
        "No seed has results of all methods yet.",
    )


@pytest.mark.parametrize("spread", [0.0018, 0.0024, 0.0032])
def test_the_leaders_intervals_are_for_all_pairs(tmp_path: Path, spread: float) -> None:
    names = ["w0", "SWA", "FGE", "FGE*", "SWAG", "SWAG*", "PFGE"]
    values = {name: (0.9, 0.2 + 0.02 * (name != "w0")) for name in names}
    why = said(write_run(tmp_path / "run", values, spread=spread))["likely"].why
    # Method k minus w0 is 0.02 + k x spread x (-1, -0.5, 0, 0.5, 1) over five seeds, and there are 21 pairs.
    error = spread * sqrt(2.5 / 4) / sqrt(5)
    half = stats.t.ppf(1 - 0.025 / 21, 4) * error
    others = [name for k, name in enumerate(names) if k * half >= 0.02]
    assert 0 < len(others) < 6
    assert why.endswith(f" pairs of methods: {', '.join(f'{name} (undecided)' for name in others)}")

"""Commands on runs of labels and of numbers: right output, and one line where classes are needed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from pfge.cli.main import main
from pfge.lab.engine import Engine
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.progress import Reporter
from pfge.lab.session import Session
from tests.cli.captured import Captured, refused
from tests.lab import made_tasks
from tests.lab.tiny import run, tiny

SETTINGS = {
    kind: (
        "ensemble.methods=['PFGE']",
        "pretrain.epochs=10",
        f"pretrain.rate={rate}",
        f"data.name=tests.lab.made_tasks:{kind}",
        "model.name=mlp",
    )
    for kind, rate in (("numbers", 0.01), ("labels", 0.05))
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {kind: tmp_path_factory.mktemp(kind) / "run" for kind in SETTINGS}
    for kind, folder in found.items():
        run(tiny(*SETTINGS[kind]), folder)
    return found


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Three test inputs, which are the same features for both tasks."""
    np.save(tmp_path / "rows.npy", made_tasks.numbers().test.inputs[:3].numpy())  # type: ignore[union-attr]
    return tmp_path / "rows.npy"


def pfge(folder: Path) -> str:
    return str(folder / "seed-1" / "ensembles" / "PFGE")


def expected(kind: str, folder: Path, rows: Path) -> torch.Tensor:
    experiment = tiny(*SETTINGS[kind])
    session = Session.set_up(experiment, RunFolder(folder), Engine(experiment.engine), Reporter(quiet=True))
    return session.load_ensemble(Path(pfge(folder))).predict([torch.from_numpy(np.load(rows))])


def predicted(capsys: Captured, *arguments: str) -> list[dict[str, Any]]:
    assert main(["predict", *arguments, "--trust-code", "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_numbers_are_predicted_with_their_standard_deviation(
    runs: dict[str, Path], rows: Path, capsys: Captured
) -> None:
    found = predicted(capsys, pfge(runs["numbers"]), str(rows))
    means, variances = expected("numbers", runs["numbers"], rows).unbind(-1)
    assert [line["file"] for line in found] == [f"{rows}[{number}]" for number in range(3)]
    assert [line["mean"] for line in found] == [pytest.approx(mean) for mean in means.tolist()]
    deviations = variances.sqrt().tolist()
    assert [line["standard_deviation"] for line in found] == [pytest.approx(s) for s in deviations]


def test_labels_are_predicted_with_their_probabilities(
    runs: dict[str, Path], rows: Path, capsys: Captured
) -> None:
    found = predicted(capsys, pfge(runs["labels"]), str(rows))
    probabilities = expected("labels", runs["labels"], rows)
    for line, of_example in zip(found, probabilities.tolist(), strict=True):
        assert list(line["labels"]) == list(made_tasks.LABELS)
        assert list(line["labels"].values()) == pytest.approx(of_example)
    (best, *_) = predicted(capsys, pfge(runs["labels"]), str(rows), "--top", "1")
    assert list(best["labels"].values()) == pytest.approx([probabilities[0].max().item()])


def test_people_read_a_mean_and_a_deviation(runs: dict[str, Path], rows: Path, capsys: Captured) -> None:
    np.save(rows, np.load(rows)[0])
    mean, variance = expected("numbers", runs["numbers"], _as_batch(rows))[0, 0].tolist()
    assert main(["predict", pfge(runs["numbers"]), str(rows), "--trust-code"]) == 0
    assert capsys.readouterr().out == f"{rows}: {mean:.4g} ± {variance**0.5:.2g}\n"


def _as_batch(rows: Path) -> Path:
    np.save(rows.with_name("batch.npy"), np.load(rows)[None])
    return rows.with_name("batch.npy")


def test_an_example_without_a_finite_prediction_is_one_line(
    runs: dict[str, Path], rows: Path, tmp_path: Path, capsys: Captured
) -> None:
    examples = np.load(rows)[:3]
    examples[1, 0] = np.nan
    np.save(tmp_path / "missing.npy", examples)
    arguments = [pfge(runs["numbers"]), str(tmp_path / "missing.npy"), "--trust-code"]
    assert main(["predict", *arguments]) == 2
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 2
    assert (
        "missing.npy[1] gives a prediction that is not finite; look for NaN and infinity in the file"
        in printed.err
    )


def test_a_file_that_is_no_array_of_examples_is_one_line(
    runs: dict[str, Path], rows: Path, capsys: Captured
) -> None:
    other, text, pickled = (rows.with_name(f"{name}.npy") for name in ("other", "text", "pickled"))
    np.save(other, np.zeros((3, 5)))
    text.write_text("1, 2, 3, 4")
    np.save(pickled, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    files = [str(file) for file in (rows, other, text, pickled, rows.with_name("missing.npy"))]
    assert main(["predict", pfge(runs["numbers"]), *files, "--trust-code"]) == 2
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 3
    lines = told.err.splitlines()
    assert len(lines) == 4
    assert lines[0] == f"pfge: error: {other} must hold examples ['N', 4], or one [4], got [3, 5]"
    assert all("cannot be read as a .npy array of numbers" in line for line in lines[1:3])
    assert lines[3].endswith("missing.npy is missing; check the path")


def test_an_evaluation_has_the_metrics_of_the_row(
    runs: dict[str, Path], tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "found.json"
    for kind, folder in runs.items():
        assert main(["evaluate", pfge(folder), "--trust-code", "--out", str(out)]) == 0
        found = json.loads(out.read_text())
        lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
        (row,) = [line for line in lines if line["method"] == "PFGE"]
        assert found["test"] == pytest.approx(row["test"]), kind
        assert found["task"] == row["task"]
        assert sum(found["reliability"].get("count", [])) == {"numbers": 0, "labels": 60 * 3}[kind]
        assert "60 test examples" in " ".join(capsys.readouterr().out.split())


def test_a_calibration_is_saved_and_applied(runs: dict[str, Path], tmp_path: Path, capsys: Captured) -> None:
    for kind, folder in runs.items():
        small = tmp_path / kind
        assert main(["compress", pfge(folder), str(small), "--trust-code", "--delta-bits", "8"]) == 0
        config = ["--config", str(folder / "config.toml")]
        assert (
            main(["evaluate", str(small), *config, "--calibrate", "pooled", "--against", pfge(folder)]) == 0
        )
        found = json.loads((small / "evaluation.json").read_text())
        assert found["temperature"] != 1.0
        assert found["test"]["nll"] != found["test"]["nll_of_other"]
        assert len(np.atleast_1d(found["temperature"])) == {"numbers": 1, "labels": 3}[kind]
    capsys.readouterr()


@pytest.mark.slow
def test_compression_is_judged_by_the_divergence_of_the_task(
    runs: dict[str, Path], tmp_path: Path, capsys: Captured
) -> None:
    for kind, folder in runs.items():
        out = str(tmp_path / kind)
        assert main(["compress", pfge(folder), out, "--trust-code", "--max-kl", "0.01"]) == 0
        told = capsys.readouterr().out
        assert "On 40 validation examples: KL 0.00" in told


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*SETTINGS])
def test_an_exported_file_predicts_the_same(
    runs: dict[str, Path], rows: Path, tmp_path: Path, capsys: Captured, kind: str
) -> None:
    out = tmp_path / f"{kind}.onnx"
    assert main(["export", pfge(runs[kind]), str(out), "--trust-code"]) == 0
    words = {"numbers": "means and variances within", "labels": "probabilities within"}
    assert words[kind] in capsys.readouterr().out
    graph = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    (found,) = graph.run(None, {graph.get_inputs()[0].name: np.load(rows)})
    np.testing.assert_allclose(found, expected(kind, runs[kind], rows).numpy(), atol=1e-4)


def test_formats_are_measured_without_cascades(runs: dict[str, Path], capsys: Captured) -> None:
    for folder in runs.values():
        assert main(["formats", str(folder), "--trust-code"]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert "No cascades without classes." in told
        assert not any(
            json.loads(line)["cascade"] for line in (folder / "formats.jsonl").read_text().splitlines()
        )


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["diagnose", "RUN"], "a diagnosis"),
        (["connect", "RUN"], "the error along a curve"),
        (["landscape", "RUN"], "a landscape"),
        (["cascade", "PFGE"], "a cascade"),
        (["evaluate", "PFGE", "--ood", "digits"], "telling unknown inputs apart"),
    ],
)
@pytest.mark.parametrize("kind", [*SETTINGS])
def test_what_needs_classes_is_refused_in_one_line(
    runs: dict[str, Path], capsys: Captured, kind: str, command: list[str], what: str
) -> None:
    places = {"RUN": str(runs[kind]), "PFGE": pfge(runs[kind])}
    line = refused(capsys, [places.get(word, word) for word in [*command, "--trust-code"]])
    task = {"numbers": "Regression(noise='predicted')", "labels": "MultiLabel()"}[kind]
    assert line == (f"{what} needs a task with one class for each example, Classification(), got {task}")


def test_unknown_inputs_may_be_tensors_by_name(tmp_path: Path, capsys: Captured) -> None:
    folder, made = tmp_path / "run", "tests.lab.made_tasks"
    settings = (f"data.name={made}:named", f"model.name={made}:NamedNet", "data.batch_norm_images=0")
    trained = ("pretrain.epochs=10", "pretrain.rate=0.1", "data.batch_size=20")
    run(tiny("ensemble.methods=['PFGE']", *trained, *settings), folder)
    evaluate = ["evaluate", pfge(folder), "--trust-code", "--ood"]
    assert main([*evaluate, f"{made}:named_elsewhere"]) == 0
    found = json.loads((Path(pfge(folder)) / "evaluation.json").read_text())["ood"]
    assert found[f"{made}:named_elsewhere"]["images"] == 60
    capsys.readouterr()
    assert refused(capsys, [*evaluate, f"{made}:named_otherwise"]) == (
        f"inputs of unknown kinds must have the shape of {made}:named's, ['left', 'right'], got "
        f"['right', 'top'] of {made}:named_otherwise; resize them first, or choose another data set"
    )
    assert refused(capsys, [*evaluate, f"{made}:named_wider"]).startswith(
        f"the model of {made}:named cannot predict inputs of {made}:named_wider: RuntimeError: "
    )
    assert refused(capsys, [*evaluate, "digits"]).endswith(
        "of digits; resize them first, or choose another data set"
    )


def test_a_table_of_text_is_refused_without_advice_to_enable_pickle(
    runs: dict[str, Path], tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "rows.csv").write_text("1,2,3,4\n")
    file = tmp_path / "rows.csv"
    assert refused(capsys, ["predict", pfge(runs["numbers"]), str(file), "--trust-code"]) == (
        f"{file} cannot be read as a .npy array of numbers: it is another kind of file; save the array with "
        "numpy.save"
    )


def test_a_task_of_a_config_that_is_not_known_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    arguments = ["compare", "--out", str(tmp_path / "run"), "--set"]
    assert refused(capsys, [*arguments, "task.name=ranking"]) == (
        "task.name must be one of classification, causallm, multilabel, regression, raw, got 'ranking'"
    )
    assert refused(capsys, [*arguments, "task.name=regression", "--set", "task.options.nois=fixed"]) == (
        "task.options of regression are noise, got 'nois'"
    )
    assert refused(capsys, [*arguments, "task.name=regression", "--set", "task.options.noise=loud"]) == (
        'task.options of regression: noise must be "fixed" or "predicted", got \'loud\''
    )
    assert not (tmp_path / "run").exists()


def test_results_of_another_task_in_the_folder_are_one_line(
    runs: dict[str, Path], tmp_path: Path, capsys: Captured
) -> None:
    folder = tmp_path / "run"
    run(tiny(*SETTINGS["numbers"]), folder)
    (folder / "results.jsonl").write_bytes((runs["labels"] / "results.jsonl").read_bytes())
    settings = [f"--set={setting}" for setting in (*SETTINGS["numbers"],)]
    line = refused(capsys, ["compare", str(folder / "config.toml"), "--out", str(folder), *settings])
    assert line.startswith(
        f"line 1 of {folder / 'results.jsonl'} cannot be used: its task is MultiLabel(), and "
        "that of the file Regression(noise='predicted'); remove results.jsonl"
    )


def test_masks_are_measured_in_every_command_that_scores(tmp_path: Path, capsys: Captured) -> None:
    folder = tmp_path / "run"
    settings = ("data.name=tests.lab.made_tasks:masks", "model.name=tests.lab.made_tasks:pixel_net")
    run(tiny("ensemble.methods=['PFGE']", "pretrain.epochs=10", *settings), folder)
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    (row,) = [line for line in lines if line["method"] == "PFGE"]
    assert main(["evaluate", pfge(folder), "--trust-code", "--against", pfge(folder)]) == 0
    found = json.loads((Path(pfge(folder)) / "evaluation.json").read_text())["test"]
    assert {name: found[name] for name in row["test"]} == pytest.approx(row["test"])
    assert found["kl_from_other"] == pytest.approx(0, abs=1e-12)
    assert found["nll_of_other"] == pytest.approx(row["test"]["nll"])
    assert main(["formats", str(folder), "--trust-code"]) == 0
    formats = [json.loads(line) for line in (folder / "formats.jsonl").read_text().splitlines()]
    plain = {line["method"]: line for line in formats if line["format"] == "float32"}
    assert plain["PFGE"]["test"] == pytest.approx({n: row["test"][n] for n in plain["PFGE"]["test"]})
    assert plain["PFGE"]["kl"] == pytest.approx(0, abs=1e-12)
    capsys.readouterr()
    for command in (["diagnose", str(folder)], ["cascade", pfge(folder)], ["connect", str(folder)]):
        assert "needs a task with one class for each example" in refused(capsys, [*command, "--trust-code"])

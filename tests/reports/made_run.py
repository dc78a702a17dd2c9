"""Run folders with results that were never computed, so that every number in a report is known."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pfge.lab.config.settings import ConnectSettings
from pfge.lab.config.toml import load_experiment, to_toml
from pfge.reports.tables.table import Table
from pfge.storage.files import write_tensors

BYTES = 1_000_000
MEMBERS = {"w0": 1, "SWA": 1, "FGE": 20, "FGE*": 4, "SWAG": 20, "SWAG*": 4, "PFGE": 4}
ACCURACY = {"w0": 0.90, "SWA": 0.91, "FGE": 0.94, "FGE*": 0.92, "SWAG": 0.93, "SWAG*": 0.915, "PFGE": 0.935}
NLL = {"w0": 0.40, "SWA": 0.35, "FGE": 0.20, "FGE*": 0.28, "SWAG": 0.25, "SWAG*": 0.29, "PFGE": 0.21}
CALIBRATED = ("calibrated", "calibrated_members")
CYCLE, PERIOD, LENGTH = 20, 100, 400


def config(**settings: Any) -> str:
    """Return the config of a run of 400 iterations."""
    overrides = [
        "name=made",
        "seeds=[1, 2]",
        "ensemble.unit=iterations",
        f"ensemble.cycle={CYCLE}",
        f"ensemble.period={PERIOD}",
        f"ensemble.length={LENGTH}",
        *(f"{key.replace('__', '.')}={value}" for key, value in settings.items()),
    ]
    return to_toml(load_experiment(None, overrides))


def metrics(accuracy: float, nll: float) -> dict[str, float]:
    return {"accuracy": accuracy, "nll": nll, "ece": 0.02, "brier": 0.1}


def result(method: str, seed: int, like: str | None = None) -> dict[str, Any]:
    """Return a line of results; the second seed is half a point better than the first, and so on."""
    kind = like or method
    members = MEMBERS[kind]
    accuracy, nll = ACCURACY[kind] + 0.005 * (seed - 1), NLL[kind] + 0.01 * (seed - 1)
    step = PERIOD if kind == "PFGE" else CYCLE
    iterations = [LENGTH - step * (members - 1 - i) for i in range(members)]
    found = {
        "seed": seed,
        "method": method,
        "members": members,
        "bytes": members * BYTES,
        "bytes_of_one": BYTES,
        "iterations": 0 if kind == "w0" else LENGTH,
        "trainings": 1,
        "member_iterations": [0] if kind == "w0" else iterations,
        "test": metrics(accuracy, nll),
        "calibrated": {"temperature": 1.5, "test": metrics(accuracy, nll - 0.05)},
        "calibrated_members": {"temperatures": [1.5] * members, "test": metrics(accuracy, nll - 0.04)},
    }
    if not kind.endswith("*"):
        shares = [(i + 1) / members for i in range(members)]
        found["each"] = {"test": [metrics(accuracy - 0.02 * share, nll + 0.1) for share in shares]}
        found["growing"] = {"test": [metrics(accuracy - 0.01 * (1 - s), nll + 1 - s) for s in shares]}
    return found


def with_validation(row: dict[str, Any]) -> dict[str, Any]:
    """Return a line whose metrics on validation data are those on test data."""
    added = {name: value | {"validation": value["test"]} for name, value in row.items() if name in CALIBRATED}
    return row | added | {"validation": row["test"]}


def write_results(folder: Path, results: Sequence[Any]) -> None:
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in results))


def write_scores(folder: Path, method: str, seed: int, examples: int) -> None:
    """Write scores whose means are those of the results, with right and wrong ones at fixed places."""
    row = result(method, seed)["test"]
    generator = torch.Generator().manual_seed(seed)
    hard = torch.rand(examples, generator=generator, dtype=torch.float64)
    correct = (hard < hard.quantile(row["accuracy"])).double()
    confidence = 1 - 0.6 * hard
    log_loss = hard * 2 * row["nll"]
    log_loss *= row["nll"] / log_loss.mean()
    tensors = {"confidence": confidence, "correct": correct, "log_loss": log_loss}
    file = folder / f"seed-{seed}" / "scores" / f"{method.replace('*', '-last')}.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(
        file,
        {f"test.{name}": values for name, values in tensors.items()}
        | {f"test.calibrated.{name}": values.sqrt() for name, values in tensors.items()},
    )


def make_run(
    folder: Path, seeds: Sequence[int] = (1, 2), methods: Sequence[str] = tuple(MEMBERS), examples: int = 400
) -> Path:
    """Make a finished run."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(config(seeds=list(seeds)))
    environment = {
        "command": "pfge compare made.toml",
        "torch": "2.13.0",
        "started": "2026-01-02T03:04:05+00:00",
    }
    (folder / "environment.json").write_text(json.dumps(environment))
    write_results(folder, [result(method, seed) for seed in seeds for method in methods])
    for seed in seeds:
        for method in methods:
            if examples:
                write_scores(folder, method, seed, examples)
    return folder


def evaluation(method: str, seed: int) -> dict[str, Any]:
    """Return what pfge evaluate would find: accuracy falls by a hundredth a strength and a seed."""
    row = result(method, seed)
    return {
        "method": method,
        "model": "made",
        "members": row["members"],
        "bytes": row["bytes"],
        "temperature": 1.0,
        "member_temperatures": None,
        "data": "made",
        "images": 400,
        "test": row["test"],
        "reliability": {
            "lower": [0.0],
            "upper": [1.0],
            "confidence": [0.5],
            "accuracy": [0.5],
            "count": [400],
        },
        "ood": {
            "other": {
                "images": 100,
                "entropy": {"auroc": 0.8 + seed / 100, "aupr": 0.7, "fpr_at_95": 0.3},
                "mutual_information": {"auroc": 0.7, "aupr": 0.6, "fpr_at_95": 0.4},
            }
        },
        "corruptions": {
            "noise": [
                {"strength": k, **metrics(row["test"]["accuracy"] - 0.01 * k * seed, 0.3 * k)}
                for k in range(1, 6)
            ]
        },
    }


def write_evaluations(
    folder: Path, seeds: Sequence[int] = (1, 2), methods: Sequence[str] = ("FGE", "PFGE")
) -> None:
    """Write what pfge evaluate would have."""
    for seed in seeds:
        for method in methods:
            path = folder / f"seed-{seed}" / "ensembles" / method
            path.mkdir(parents=True, exist_ok=True)
            (path / "evaluation.json").write_text(json.dumps(evaluation(method, seed)))


def connectivity_rows() -> list[dict[str, Any]]:
    """Return three curves: two of PFGE, 1 and 3 high in the middle, and one of FGE, 5 high."""
    rows = []
    for method, pair, height in (("PFGE", 1, 1.0), ("PFGE", 2, 3.0), ("FGE", 1, 5.0)):
        values = {
            "train_loss": [0.0, height, 0.0],
            "train_error": [0.0, height / 100, 0.0],
            "test_error": [0.1, 0.1 + height / 100, 0.1],
        }
        trace = {"t": [0.0, 0.5, 1.0], "values": values, "squared_norms": [1.0, 1.0, 1.0]}
        rows.append(
            {
                "seed": 1,
                "method": method,
                "members": [pair, pair + 1],
                "settings": asdict(ConnectSettings(weight_decay=1e-4)),
                "trace": trace,
            }
        )
    return rows


def write_connectivity(folder: Path) -> None:
    """Write what pfge connect would have."""
    lines = connectivity_rows()
    (folder / "connectivity.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


FORMATS = {"float32": 0.0, "int8": 0.0, "int8 base + 3 bits": 0.001, "int8 base + 1 bit": 0.004}
"""What each stored_as loses of the accuracy; a cascade loses 0.0005 more."""


def format_bytes(stored_as: str, members: int) -> int:
    """Return made sizes: as int8 or as bits, and nothing beside them."""
    base, each = {
        "float32": (0, 32),
        "int8": (0, 8),
        "int8 base": (8, 0),
        "int8 base + 3 bits": (8, 3),
        "int8 base + 1 bit": (8, 1),
    }[stored_as]
    return BYTES * (base + members * each) // 32


def form_rows(seeds: Sequence[int] = (1, 2), methods: Sequence[str] = tuple(MEMBERS)) -> list[dict[str, Any]]:
    """Return the lines of all formats: a cascade saves every second pass but the first."""
    rows = []
    for seed in seeds:
        for method in methods:
            members, measured = MEMBERS[method], result(method, seed)["test"]
            for stored_as in FORMATS if members > 1 else ("float32", "int8 base"):
                for cascade in (False, True) if members > 1 else (False,):
                    lost = FORMATS.get(stored_as, 0.0) + 0.0005 * cascade
                    rows.append(
                        {
                            "seed": seed,
                            "method": method,
                            "format": stored_as,
                            "cascade": cascade,
                            "members": members,
                            "bytes": format_bytes(stored_as, members),
                            "file_bytes": format_bytes(stored_as, members) + 5000,
                            "bytes_of_one": BYTES,
                            "mean_members": 1 + (members - 1) / 2 if cascade else float(members),
                            "most_members": members,
                            "kl": lost,
                            "test": metrics(measured["accuracy"] - lost, measured["nll"] + lost),
                        }
                    )
    return rows


def write_forms(folder: Path, rows: Sequence[Any] | None = None) -> None:
    """Write what pfge formats would have."""
    lines = form_rows() if rows is None else rows
    (folder / "formats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))


def texts(table: Table) -> list[list[str]]:
    """Return the cells of a table as text."""
    return [[str(cell) for cell in row.cells] for row in table.rows]


def heads(table: Table) -> list[str]:
    """Return the heads of the columns of a table."""
    return [column.head for column in table.columns]


LANDSCAPE: dict[str, Any] = {
    "seed": 1,
    "members": [1, 2, 3],
    "quantity": "train_loss",
    "images": 100,
    "x": [0.0, 1.0, 2.0],
    "y": [-1.0, 0.0, 1.0],
    "values": [[1.0, 2.0, 3.0], [0.5, 0.1, 2.0], [1.0, 2.0, 4.0]],
    "w0": [0.5, 0.5],
    "pfge": [[0.0, 0.0], [1.0, 0.0], [2.0, 1.0]],
    "means": {"SWA": [1.0, 0.5]},
    "trajectory": [[0.5, 0.4], [0.6, 0.3]],
    "curves": [[[0.0, 0.0], [0.5, -0.5], [1.0, 0.0]]],
}

"""One specimen of every kind of file that pfge reads."""

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pfge import Budget, Ensemble, compress, load_checkpoint, save_checkpoint
from pfge.calibration import Temperatures
from pfge.cascade import Cascade
from pfge.connectivity import Bezier
from pfge.lab.config.toml import load_experiment, to_toml
from pfge.lab.data import Splits
from pfge.lab.data.base import Fingerprint, Normalization, digest
from pfge.lab.data.pictures import load_folders
from pfge.lab.data.published import CIFAR10, MNIST, load_cifar, load_idx
from pfge.lab.run.folder import RunFolder, describe_environment, record_weights_hash, require_same_weights
from pfge.lab.run.results import ComparisonRow, ConnectivityRow, EnsembleEvaluation, FormatRow, append_row
from pfge.lab.run.verification import verify
from pfge.lab.session import PARTS, keep_fingerprint, require_same_data
from pfge.lab.training.checkpoint_files import read_start_weights
from pfge.packed import PackSettings, pack_members
from pfge.reports.run import Run
from pfge.reports.verdicts import find_gaps
from pfge.storage.files import (
    checksum,
    read_recorded,
    record_of,
    seal_text,
    write_json,
    write_recorded,
    write_tensors,
    write_text,
)
from pfge.weights import Weights, share
from tests.faults.mutations import Read, Specimen
from tests.lab.data.made import random_images
from tests.lab.data.readers import cifar_files, idx_files
from tests.reports.made_run import connectivity_rows, evaluation, form_rows, result
from tests.toys import make_mlp

METHODS = ("w0", "SWA", "PFGE")
X = torch.linspace(-1, 1, 12).view(3, 4)


def describe(value: Any) -> Any:
    """Return a value whose repr says everything, tensors by their digest."""
    match value:
        case Tensor():
            return f"{value.dtype} {list(value.shape)} {digest(value)}"
        case dict():
            return {name: describe(item) for name, item in value.items()}
        case list() | tuple():
            return [describe(item) for item in value]
    return value


def members(count: int = 2) -> list[dict[str, Tensor]]:
    return [dict(make_mlp(seed).state_dict()) for seed in range(count)]


def save(folder: Path, made: Sequence[Weights]) -> None:
    temperatures = Temperatures(1.25, tuple(1.5 for _ in made), tuple(1 / len(made) for _ in made))
    iterations = [10 * number for number in range(1, len(made) + 1)]
    Ensemble(made, make_mlp, method="PFGE", iterations=iterations, temperatures=temperatures).save(folder)


def save_plain(folder: Path) -> None:
    save(folder, members())


def save_packed(folder: Path) -> None:
    save(folder, pack_members(members(), 3, PackSettings()))


def save_deflated(folder: Path) -> None:
    (first,) = members(1)
    close = {name: 1.01 * t if t.is_floating_point() else t for name, t in first.items()}
    save(folder, compress(Ensemble([first, close], make_mlp), Budget(700)).members)


def save_shared(folder: Path) -> None:
    first, second = members()
    frozen = {"0.weight": share(first["0.weight"])}
    save(folder, [first | frozen, second | frozen])


def read_ensemble(path: Path) -> Read:
    loaded = Ensemble.load(path.parent, make_mlp)
    about = [loaded.method, loaded.model, loaded.iterations, loaded.temperatures, loaded.task]
    return Read([*map(str, about), describe(list(loaded.members)), describe(loaded.predict(X))])


def of_ensemble(make: Callable[[Path], None], name: str) -> Specimen:
    def write(folder: Path) -> Path:
        make(folder)
        return min(folder.glob(name))

    return Specimen(write, read_ensemble)


def write_checkpoint(folder: Path) -> Path:
    state = {"iteration": 3, "rates": (0.1, 0.2), "momentum": {0: torch.arange(5.0)}, "none": None}
    save_checkpoint(folder / "run.checkpoint", state)
    return folder / "run.checkpoint"


def write_bends(folder: Path) -> Path:
    curve = Bezier(*members(), bends=1)
    save_checkpoint(folder / "PFGE-1.bends", curve.state_dict())
    return folder / "PFGE-1.bends"


def write_run(folder: Path) -> RunFolder:
    """Write a run as the commands do, of made results."""
    run = RunFolder(folder)
    write_text(run.config, seal_text(to_toml(load_experiment(None, ["name=made", "seeds=[1]"]))))
    write_json(run.environment, {**describe_environment(), "command": "pfge compare"})
    for method in METHODS:
        append_row(run.results, ComparisonRow.from_json(result(method, 1)))
        path = run.scores(1, method)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_recorded(path, {f"test.{name}": torch.rand(20).double() for name in ("log_loss", "correct")})
    for row in connectivity_rows():
        append_row(run.connectivity, ConnectivityRow.from_json(row))
    for row in form_rows((1,), METHODS):
        append_row(run.formats, FormatRow.from_json(row))
    ensemble = run.ensemble(1, "PFGE")
    save_plain(ensemble)
    found = EnsembleEvaluation.from_json(evaluation("PFGE", 1))
    write_json(ensemble / "evaluation.json", found.to_json())
    return run


def read_run(folder: Path) -> Read:
    run = Run(folder)
    gaps = find_gaps(run.folder, run.results, "PFGE") if len(run.results) == len(METHODS) else {}
    rows = [run.results, run.connectivity, run.formats]
    content = [*rows, run.evaluations, run.environment, run.experiment, gaps]
    return Read(content, (*run.left_out, *run.problems()))


def of_run(name: str) -> Specimen:
    return Specimen(
        lambda folder: write_run(folder).path / name, lambda path: read_run(folder_of(path, name))
    )


def folder_of(path: Path, name: str) -> Path:
    return path.parents[len(Path(name).parts) - 1]


def verified(name: str) -> Specimen:
    def read(path: Path) -> Read:
        found = verify(folder_of(path, name))
        return Read(None, tuple(f"{file.path} {file.reason}" for file in found if file.state != "whole"))

    return Specimen(lambda folder: write_run(folder).path / name, read)


def write_config(folder: Path) -> Path:
    return write_run(folder).config


def read_config(path: Path) -> Read:
    return Read(RunFolder(path.parent).load_experiment())


def write_data(folder: Path) -> Path:
    run = write_run(folder)
    write_json(run.data, {part: asdict(Fingerprint("images", 8, "aa", "bb")) for part in PARTS})
    return run.data


def read_data(path: Path) -> Read:
    class Part:
        def fingerprint(self) -> Fingerprint:
            return Fingerprint("images", 8, "aa", "bb")

    splits: Any = type("Splits", (), {part: Part() for part in PARTS})
    require_same_data(RunFolder(path.parent), load_experiment(path.parent / "config.toml").data, splits)
    return Read(None)


def write_w0(folder: Path) -> Path:
    write_recorded(folder / "w0.safetensors", members()[0])
    return folder / "w0.safetensors"


def write_cascade(folder: Path) -> Path:
    Cascade((1, 2, 0), (0.9, 0.8), "confidence").save(folder / "cascade.json")
    return folder / "cascade.json"


@cache
def md5_of_whole(path: Path) -> str | None:
    """Return the md5 that a file had when it was first read, which is before it is damaged."""
    return hashlib.md5(path.read_bytes()).hexdigest() if path.exists() else None


def cifar(kind: int, name: str) -> Specimen:
    """Return CIFAR-10 with right checksums of made files."""

    def write(folder: Path) -> Path:
        return cifar_files.write(cifar_files.small(CIFAR10), kind, folder) / name

    def read(path: Path) -> Read:
        small = cifar_files.small(CIFAR10)
        layout = small.layouts[kind]
        train, test = (
            tuple(replace(file, md5=md5_of_whole(path.parent / file.name)) for file in files)
            for files in (layout.train, layout.test)
        )
        names = "\n".join(f"class{number}" for number in range(10)).encode()
        layouts = (replace(layout, train=train, test=test),)
        known = replace(small, names_sha256=hashlib.sha256(names).hexdigest(), layouts=layouts)
        return Read([describe_images(part) for part in load_cifar(known, path.parent)])

    return Specimen(write, read)


def known(folder: Path, splits: Splits) -> Splits:
    """Return data as a run reads it that has read it before, when it was whole."""
    run = RunFolder(folder / "run")
    if not run.data.exists():
        run.path.mkdir()
        write_text(run.config, seal_text(to_toml(load_experiment(None, ["name=made", "seeds=[1]"]))))
        keep_fingerprint(run, splits)
    require_same_data(run, load_experiment(run.config).data, splits)
    return splits


def idx(*, gzipped: bool = False, is_known: bool = False) -> Specimen:
    """Return MNIST, gzipped with right checksums, or plain without any."""
    suffix = ".gz" if gzipped else ""

    def write(folder: Path) -> Path:
        return idx_files.write(folder / "mnist", gzipped=gzipped) / f"train-images-idx3-ubyte{suffix}"

    def read(path: Path) -> Read:
        md5 = {name: md5_of_whole(path.with_name(f"{name}{suffix}")) or "" for name in MNIST.md5}
        train, test = load_idx(replace(MNIST, md5=md5), path.parents[1])
        if is_known:
            known(
                path.parents[1],
                Splits(
                    train=train,
                    validation=train.select([]),
                    test=test,
                    normalization=Normalization.measure(train.images),
                ),
            )
        return Read([describe_images(part) for part in (train, test)])

    return Specimen(write, read, is_unknown=not gzipped and not is_known)


def describe_images(part: Any) -> Any:
    return describe([part.images, part.labels, part.class_names])


def pictures(suffix: str, *, is_known: bool = False) -> Specimen:
    def write(folder: Path) -> Path:
        for part in ("train", "test"):
            for name in ("a", "b"):
                (folder / part / name).mkdir(parents=True)
                pixels = random_images(1, height=12, width=12).images[0].permute(1, 2, 0).numpy()
                Image.fromarray(np.ascontiguousarray(pixels)).save(folder / part / name / f"0{suffix}")
        return folder / "train" / "a" / f"0{suffix}"

    def read(path: Path) -> Read:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            splits = load_folders(path.parents[2], size=8)
        if is_known:
            known(path.parents[2], splits)
        content = [describe_images(splits.train), describe_images(splits.test)]
        return Read(content, tuple(str(warning.message) for warning in said))

    return Specimen(write, read, is_unknown=not is_known)


def start_weights(suffix: str, *, is_known: bool = False) -> Specimen:
    def write(folder: Path) -> Path:
        path = folder / f"mine{suffix}"
        if suffix == ".safetensors":
            write_tensors(path, members()[0])
        else:
            torch.save(members()[0], path)
        return path

    def read(path: Path) -> Read:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            weights = read_start_weights(path)
        if is_known:
            record_weights_hash(RunFolder(path.parent), path, checksum(path))
            require_same_weights(RunFolder(path.parent), path, checksum(path))
        return Read(describe(weights))

    return Specimen(write, read, is_unknown=not is_known)


SPECIMENS = {
    "manifest": of_ensemble(save_plain, "manifest.json"),
    "manifest of packed members": of_ensemble(save_packed, "manifest.json"),
    "manifest with shared tensors": of_ensemble(save_shared, "manifest.json"),
    "member": of_ensemble(save_plain, "member-*"),
    "packed members": of_ensemble(save_packed, "packed-*"),
    "deflated members": of_ensemble(save_deflated, "packed-*"),
    "shared tensors": of_ensemble(save_shared, "shared-*"),
    "checkpoint": Specimen(write_checkpoint, lambda path: Read(describe(load_checkpoint(path)))),
    "bends": Specimen(write_bends, lambda path: Read(describe(load_checkpoint(path)))),
    "results": of_run("results.jsonl"),
    "connectivity": of_run("connectivity.jsonl"),
    "formats": of_run("formats.jsonl"),
    "record of lines": of_run("results.lines.json"),
    "evaluation": of_run("seed-1/ensembles/PFGE/evaluation.json"),
    "environment": of_run("environment.json"),
    "config": Specimen(write_config, read_config),
    "data": Specimen(write_data, read_data),
    "w0": Specimen(write_w0, lambda path: Read(describe(read_recorded(path)))),
    "record of w0": Specimen(
        lambda folder: record_of(write_w0(folder)),
        lambda path: Read(describe(read_recorded(path.with_suffix("")))),
    ),
    "scores": of_run("seed-1/scores/PFGE.safetensors"),
    "cascade": Specimen(write_cascade, lambda path: Read(Cascade.load(path))),
    "verify: results": verified("results.jsonl"),
    "verify: config": verified("config.toml"),
    "verify: scores": verified("seed-1/scores/PFGE.safetensors"),
    "verify: manifest": verified("seed-1/ensembles/PFGE/manifest.json"),
    "CIFAR, binary": cifar(cifar_files.BINARY, "data_batch_1.bin"),
    "CIFAR, pickled": cifar(cifar_files.PICKLED, "data_batch_1"),
    "CIFAR, names": cifar(cifar_files.BINARY, "batches.meta.txt"),
    "CIFAR, pickled names": cifar(cifar_files.PICKLED, "batches.meta"),
    "IDX": idx(),
    "IDX, known to a run": idx(is_known=True),
    "IDX, gzipped": idx(gzipped=True),
    "PNG": pictures(".png"),
    "PNG, known to a run": pictures(".png", is_known=True),
    "JPEG": pictures(".jpg"),
    "JPEG, known to a run": pictures(".jpg", is_known=True),
    "weights, .pth": start_weights(".pth"),
    "weights, .pth, known to a run": start_weights(".pth", is_known=True),
    "weights, .safetensors": start_weights(".safetensors"),
    "weights, .safetensors, known to a run": start_weights(".safetensors", is_known=True),
}

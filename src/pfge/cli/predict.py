"""`pfge predict`: predict files with a saved ensemble."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pfge.cli.deployed_ensemble import open_deployed
from pfge.cli.ensemble_arguments import WHERE_FROM, add_ensemble_arguments

if TYPE_CHECKING:
    from torch import Tensor

    from pfge.cli.deployed_ensemble import DeployedEnsemble


HELP = "predict image files, or rows of a .npy file"
DESCRIPTION = f"""
Print what an ensemble predicts for each image, which is cropped and resized like the ensemble's test
images, or, for data that is not pictures, for each example of .npy files: the most probable classes, the
probability of each label, or mean and standard deviation of numbers. A file that cannot be read is
reported, and the others are predicted. {WHERE_FROM}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_ensemble_arguments(parser)
    parser.add_argument("images", type=Path, nargs="+", metavar="FILE", help="an image, or a .npy file")
    parser.add_argument(
        "--top",
        type=int,
        metavar="N",
        help="number of classes or labels to print, the most probable (default: 3 classes, all labels)",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object per line")
    parser.add_argument(
        "--cascade",
        type=Path,
        metavar="FILE",
        help="evaluate members one after another, by a file of pfge cascade",
    )


def run(options: argparse.Namespace) -> int:
    """Print a line for each example; return 2 if one could not be read or predicted."""
    import json

    from pfge.cli.predictions import describe, explain
    from pfge.lab.data import DataError
    from pfge.reports.printable import printable

    if options.top is not None and options.top < 1:
        raise ValueError(f"--top must be at least 1, got {options.top}")
    deployed = open_deployed(options, 1)
    inputs, names, failed = [], [], 0
    for path in options.images:
        try:
            found = _read(deployed, path)
        except DataError as error:
            failed += 1
            _report(str(error))
            continue
        inputs += found
        names += [str(path)] if len(found) == 1 else [f"{path}[{index}]" for index in range(len(found))]
    for name, predictions in zip(names, _predict(deployed, options, inputs), strict=True):
        if not predictions.isfinite().all():
            failed += 1
            _report(f"{name} has no finite prediction; look for NaN and infinity in it")
            continue
        described = describe(deployed.ensemble.task, predictions, deployed.usage.classes or (), options.top)
        if options.json:
            print(json.dumps({"file": name, **described}, ensure_ascii=False))
        else:
            print(printable(f"{name}: {explain(described)}"))
    return 2 if failed else 0


def _report(error: str) -> None:
    from pfge.reports.printable import printable

    print(f"pfge: error: {printable(error)}", file=sys.stderr)


def _read(deployed: "DeployedEnsemble", path: Path) -> "list[Tensor]":
    """Return the inputs in a file: one of a picture, or all examples of an array."""
    from pfge.lab.data.array_inputs import read_array_inputs
    from pfge.lab.data.pictures.single_inputs import read_picture_inputs

    shape = deployed.usage.input_shape
    if shape is None:
        raise ValueError(
            f"pfge predict reads pictures and arrays, but inputs of this data are "
            f"{type(deployed.example).__name__}; predict them in Python, by Ensemble.load"
        )
    if deployed.normalization is None:
        return list(read_array_inputs(path, shape))
    return [read_picture_inputs(path, deployed.normalization, shape, deployed.usage.resize)]


def _predict(
    deployed: "DeployedEnsemble", options: argparse.Namespace, inputs: "list[Tensor]"
) -> "list[Tensor]":
    """Return what is predicted for each example."""
    import torch

    from pfge.cascade.cascade import Cascade

    ensemble = deployed.ensemble.to(deployed.engine.device)
    ensemble.forward = deployed.engine.forward
    cascade = Cascade.load(options.cascade) if options.cascade else None
    if not inputs:
        return []
    size = deployed.experiment.data.evaluation_batch_size
    # The engine's forward pass takes pairs of inputs and labels.
    batches = [
        [torch.stack(inputs[at : at + size]).to(deployed.engine.device)] for at in range(0, len(inputs), size)
    ]
    if cascade:
        return list(cascade.predict_batches(ensemble, batches).probabilities.cpu())
    return list(ensemble.predict_batches(batches).cpu())

"""`pfge predict`: classify image files with a saved ensemble."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pfge.cli.ensemble_arguments import WHERE_FROM, add_ensemble_arguments, open_session_of

if TYPE_CHECKING:
    from torch import Tensor

    from pfge.lab.session import Session


HELP = "classify image files"
DESCRIPTION = (
    "Print the most probable classes of each image, which is cropped and resized like the "
    "ensemble's test images. A file that cannot be read is reported, and the others are classified. "
    f"{WHERE_FROM}"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_ensemble_arguments(parser)
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGE", help="an image file")
    parser.add_argument(
        "--top", type=int, default=3, metavar="N", help="number of classes to print (default: 3)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object per line")
    parser.add_argument(
        "--cascade",
        type=Path,
        metavar="FILE",
        help="evaluate members one after another, by a file of pfge cascade",
    )


def run(options: argparse.Namespace) -> int:
    """Print a line for each image; return 2 if a file could not be read."""
    import json

    from pfge.lab.data import DataError
    from pfge.lab.data.pictures.single_inputs import read_picture_inputs

    if options.top < 1:
        raise ValueError(f"--top must be at least 1, got {options.top}")
    session = open_session_of(options)
    normalization = session.splits.normalization_for("pfge predict, which reads image files,")
    shape = session.first_inputs(1).shape[1:]
    inputs, paths, unread = [], [], 0
    for path in options.images:
        try:
            inputs.append(read_picture_inputs(path, session.splits.test, normalization, shape))
            paths.append(path)
        except DataError as error:
            unread += 1
            print(f"pfge: error: {error}", file=sys.stderr)
    names = session.splits.train.class_names
    for path, probabilities in zip(paths, _predict(session, options, inputs), strict=True):
        best = probabilities.topk(min(options.top, len(names)))
        found = {names[c]: p for p, c in zip(best.values.tolist(), best.indices.tolist(), strict=True)}
        if options.json:
            print(json.dumps({"file": str(path), "classes": found}, ensure_ascii=False))
        else:
            print(f"{path}: " + ", ".join(f"{name} {100 * p:.1f} %" for name, p in found.items()))
    return 2 if unread else 0


def _predict(session: "Session", options: argparse.Namespace, inputs: "list[Tensor]") -> "list[Tensor]":
    """Return the probabilities of each image."""
    import torch

    from pfge.cascade.cascade import Cascade

    ensemble = session.load_ensemble(options.ensemble)
    cascade = Cascade.load(options.cascade) if options.cascade else None
    if not inputs:
        return []
    size = session.experiment.data.evaluation_batch_size
    # The engine's forward pass takes pairs of inputs and labels.
    batches = [
        [torch.stack(inputs[at : at + size]).to(session.engine.device)] for at in range(0, len(inputs), size)
    ]
    if cascade:
        return list(cascade.predict_batches(ensemble, batches).probabilities.cpu())
    return list(ensemble.predict_batches(batches).cpu())

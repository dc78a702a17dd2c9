"""Exported files, run without this library."""

from pathlib import Path

import onnxruntime
import torch
from torch import Tensor


def answer(file: Path, inputs: Tensor) -> Tensor:
    """Return what a file says, without this library."""
    if file.suffix == ".pt2":
        found: Tensor = torch.export.load(file).module()(inputs)
        return found
    session = onnxruntime.InferenceSession(file)
    return torch.from_numpy(session.run(None, {"inputs": inputs.numpy()})[0])

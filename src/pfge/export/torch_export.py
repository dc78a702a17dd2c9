"""An ensemble as a .pt2 file, for `torch.export.load`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pfge.ensemble import Ensemble
from pfge.export.ensemble_graph import Axes, ExampleInputs, Exported, exporting, make_program, write_checked


def export_torch(ensemble: Ensemble, path: str | Path, example: Any, *, axes: Axes | None = None) -> Exported:
    """Write an ensemble as one .pt2 file: `torch.export.load(path).module()(inputs)` are predictions.

    They are in float32. Temperatures are applied, batches may have any size, and packed members stay
    packed: one at a time is unpacked when the file predicts.

    Args:
        ensemble: The ensemble to export.
        path: The file, which is replaced if it exists.
        example: A batch as for `Ensemble.predict`, of tensors [N, ...], to check the file.
        axes: Dimensions that may vary in addition to the first, by the names of inputs, such as
            `{"input_ids": {1: "length"}}`. Positional inputs are named `inputs`, or `inputs_0`, `inputs_1`.

    Raises:
        ExportError: The model cannot be expressed, torch cannot run the file, or its predictions differ from
            the ensemble's. Nothing is written.
    """
    ensemble = ensemble.to("cpu")
    inputs = ExampleInputs.of(ensemble, example, axes)
    program = make_program(ensemble, inputs)

    def write(file: Path) -> None:
        with exporting("a .pt2 file"), file.open("wb") as opened:
            torch.export.save(program, opened)

    return write_checked(ensemble, inputs, Path(path), write, _read)


def _read(file: Path) -> Callable[[ExampleInputs], Tensor]:
    with exporting("a .pt2 file that torch can read"), file.open("rb") as opened:
        module = torch.export.load(opened).module()

    def answer(inputs: ExampleInputs) -> Tensor:
        with exporting("a .pt2 file that torch can run"), torch.no_grad():
            found: Tensor = module(*inputs.by_place, **inputs.by_name)
        return found

    return answer

"""An ensemble as a .pt2 file, for `torch.export.load`."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from pfge.ensemble import Ensemble
from pfge.export.verified_file import Exported, exporting, make_program, write_checked


def export_torch(ensemble: Ensemble, path: str | Path, example: Tensor) -> Exported:
    """Write an ensemble as one .pt2 file: `torch.export.load(path).module()(inputs)` are predictions.

    They are in float32. Temperatures are applied, batches may have any size, and packed members stay
    packed: one at a time is unpacked when the file predicts.

    Args:
        ensemble: What to write.
        path: The file; one that was there is replaced.
        example: A batch of inputs [N, ...], on which the file is checked.

    Raises:
        ExportError: The model cannot be expressed, or the file answers otherwise than the ensemble;
            nothing is written.
    """
    ensemble, example = ensemble.to("cpu"), example.cpu()
    program = make_program(ensemble, example)

    def write(file: Path) -> None:
        with exporting("a .pt2 file"), file.open("wb") as opened:
            torch.export.save(program, opened)

    return write_checked(ensemble, example, Path(path), write, _read)


def _read(file: Path) -> Callable[[Tensor], Tensor]:
    with file.open("rb") as opened:
        module = torch.export.load(opened).module()

    def answer(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = module(inputs)
        return found

    return answer

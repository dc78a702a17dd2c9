"""`pfge export`: write an ensemble as one file that predicts without this library."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfge.cli.arguments import WHERE_FROM, add_ensemble_arguments, members_in_words
from pfge.cli.compress import parse_bytes
from pfge.cli.predict import open_deployed
from pfge.errors import InvalidValueError

if TYPE_CHECKING:
    from torch import Tensor

    from pfge.lab.data import Normalization

EXAMPLES = 4
SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}

HELP = "write an ensemble as one file for ONNX Runtime or torch.export"
DESCRIPTION = f"""
Write the whole ensemble as one file that maps normalized images to probabilities, with its temperatures,
for batches of any size. Packed members stay packed. The file is compared with PyTorch before it gets its
name. {WHERE_FROM}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_ensemble_arguments(parser)
    parser.add_argument("out", type=Path, metavar="OUT", help="file to write, such as ensemble.onnx")
    parser.add_argument(
        "--format",
        choices=("onnx", "torch"),
        default="onnx",
        help="onnx (default), or torch for a .pt2 file of torch.export",
    )
    parser.add_argument(
        "--layout",
        choices=("loop", "side-by-side", "fastest"),
        help="of an ONNX file: loop (default) unpacks one member at a time, side-by-side unpacks all when it "
        "is opened and takes more memory, fastest measures both",
    )
    parser.add_argument(
        "--memory",
        type=parse_bytes,
        metavar="BYTES",
        help="most bytes that the weights of an ONNX file may take in memory, such as 20MB",
    )


def run(options: argparse.Namespace) -> int:
    """Export, and print what the file contains."""
    from pfge.export import export_onnx, export_torch
    from pfge.lab.run.progress import Reporter
    from pfge.tasks import Raw, Regression
    from pfge.weights import count_bytes

    if options.format == "torch" and (options.layout or options.memory):
        raise InvalidValueError("--layout and --memory are of ONNX files, got --format torch; leave them out")
    _require_file(options.out, options.format)  # before the long work starts
    deployed = open_deployed(options, EXAMPLES)
    ensemble = deployed.ensemble.with_record(input_spec=deployed.input_spec)
    example = deployed.example
    members = members_in_words(ensemble)
    Reporter().say(f"{options.ensemble}: exports {members}, and compares the file with PyTorch")
    batch = [example] if isinstance(example, tuple) else example  # of a tuple, the model takes the entries
    if options.format == "onnx":
        layout: Any = (options.layout or "loop").replace("-", " ")
        exported = export_onnx(ensemble, options.out, batch, layout=layout, memory=options.memory)
    else:
        exported = export_torch(ensemble, options.out, batch)
    weights = "packed" if exported.packed else "as they are"
    kinds: dict[type, str] = {Regression: "means and variances", Raw: "outputs"}
    predicted = kinds.get(type(ensemble.task), "probabilities")
    print(
        f"{exported.path}: {members}, {exported.bytes:,} bytes, weights {weights}, "
        f"{predicted} within "
        f"{exported.largest_difference:.1g} of PyTorch's; "
        f"inputs {_shape(example)}, {_normalization(deployed.normalization)}"
    )
    for layout, resident in exported.resident.items():
        took = f", {1000 * seconds:.3g} ms a batch" if (seconds := exported.seconds.get(layout)) else ""
        chosen = " (chosen)" if layout == exported.layout else ""
        print(f"{layout}{chosen}: {resident:,} bytes of weights in memory{took}")
    if exported.packed and exported.bytes > (one := count_bytes(ensemble.members[0])):
        print(
            f"The file is larger than one member as it is ({one:,} bytes): for so small a model, the graph "
            "that unpacks takes more than packing saves. An ensemble that is not compressed predicts faster."
        )
    return 0


def _require_file(out: Path, written: str) -> None:
    """Refuse a file that cannot be written, or that has the name of the other format."""
    if out.is_dir() or not out.parent.is_dir():
        raise InvalidValueError(
            f"OUT must be a file in a folder that exists, got {out}; make the folder, or give another file"
        )
    for other, suffix in SUFFIXES.items():
        if other != written and out.suffix.lower() == suffix:
            raise InvalidValueError(
                f"OUT must not end in {suffix} with --format {written}, got {out}; give --format {other}, or "
                f"a name that ends in {SUFFIXES[written]}"
            )


def _shape(example: "Tensor | dict[str, Tensor] | tuple[Tensor, ...]") -> str:
    match example:
        case dict():
            return ", ".join(f"{name} {_shape(tensor)}" for name, tensor in example.items())
        case tuple():
            return ", ".join(map(_shape, example))
    return f"[{', '.join(['N', *map(str, example.shape[1:])])}]"


def _normalization(normalization: "Normalization | None") -> str:
    if normalization is None:
        return "as the data set has them"
    mean, std = (
        "[" + ", ".join(f"{value:.4g}" for value in values) + "]"
        for values in (normalization.mean, normalization.std)
    )
    return f"(pixels / 255 - {mean}) / {std}"

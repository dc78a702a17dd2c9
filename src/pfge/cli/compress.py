"""`pfge compress`: a saved ensemble in fewer bytes."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pfge.cli.compare import SubParsers

UNITS = {"kB": 1000, "MB": 1000**2, "GB": 1000**3, "": 1}


def add_parser(commands: "SubParsers") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "compress",
        help="store an ensemble's members as one base and a few bits each",
        description="Write a compressed copy of a saved ensemble; Ensemble.load opens it like any other. "
        "With --budget, the bits of each tensor are chosen by the error that a byte removes.",
    )
    parser.add_argument("ensemble", type=Path, metavar="ENSEMBLE", help="an ensemble folder")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder for the compressed copy")
    parser.add_argument(
        "--base-bits", choices=("8", "16", "32", "none"), default="8", help="of what is shared"
    )
    parser.add_argument("--delta-bits", type=int, metavar="1-8", help="of what each member adds (default: 3)")
    parser.add_argument("--group", type=int, default=64, metavar="N", help="numbers that share a step")
    parser.add_argument(
        "--small-bits", type=int, choices=(16, 32), default=32, help="of BatchNorm, biases and the like"
    )
    parser.add_argument(
        "--budget", type=parse_bytes, metavar="BYTES", help="for the tensors, as 700kB or 2MB"
    )
    parser.set_defaults(run=run)


def parse_bytes(text: str) -> int:
    """Return the bytes that a number with or without kB, MB or GB stands for."""
    unit = next(unit for unit in UNITS if text.endswith(unit))
    try:
        return round(float(text.removesuffix(unit)) * UNITS[unit])
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes such as 700kB or 2MB") from None


def run(options: argparse.Namespace) -> int:
    """Compress, write, and say what it takes."""
    from functools import partial

    from torch import nn

    from pfge.compression import compress
    from pfge.ensemble import Ensemble

    if options.ensemble.resolve() == options.out.resolve():
        raise ValueError(f"OUT must be another folder than ENSEMBLE, got {options.out} for both")
    # Widths are chosen without predictions, so no model is built; a partial leaves no name in the manifest.
    ensemble = Ensemble.load(options.ensemble, partial(nn.Identity))
    compressed = compress(
        ensemble,
        base_bits=None if options.base_bits == "none" else int(options.base_bits),
        delta_bits=options.delta_bits,
        group=options.group,
        small_bits=options.small_bits,
        budget=options.budget,
    )
    compressed.save(options.out)
    files = sum(file.stat().st_size for file in options.out.iterdir())
    one = ensemble.last(1).nbytes
    print(
        f"{len(ensemble)} members: {ensemble.nbytes:,} bytes before, {compressed.nbytes:,} after "
        f"({compressed.nbytes / one:.2f} of one member), {files:,} on disk with all files"
    )
    return 0

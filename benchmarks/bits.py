"""Where the bytes of a packed ensemble are, and how few its codes could take.

    python -m benchmarks.bits FOLDER

For each kind of numbers: the bytes in memory, at fixed widths; those that the entropy of the codes allows, if
each tensor's codes are taken to be independent; and those on disk, deflated. "layout" is what says which
tensor is where. The last line is JSON.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from pfge.packed import PackedMembers, Quantized, read_ensemble, require_packed
from pfge.packed.codes import unpack
from pfge.packed.packed_members import FileContent


@dataclass
class Bytes:
    """Of one kind of numbers."""

    stored: int = 0
    allowed: float = 0.0
    deflated: int = 0


def parts_of(members: PackedMembers) -> Iterator[tuple[str, int, float]]:
    """Yield the kind, the bytes and the least bytes of each part, under the names of a file's streams."""
    for tensor in members.tensors.values():
        kinds = {
            "base": [tensor.base],
            "each" if tensor.mix is None else "component": tensor.each,
            "mix": [tensor.mix],
        }
        for kind, parts in kinds.items():
            for part in parts:
                if isinstance(part, Quantized):
                    yield f"{kind}.codes of {part.bits} bits", part.codes.nbytes, least_bytes(part)
                    yield f"{kind}.steps", part.steps.nbytes, part.steps.nbytes
                elif part is not None:
                    yield f"{kind}.{str(part.dtype).removeprefix('torch.')}", part.nbytes, part.nbytes


def least_bytes(quantized: Quantized) -> float:
    """Return the bytes that the frequencies of the codes allow."""
    counts = torch.bincount(unpack(quantized.codes, quantized.bits, quantized.count).long()).double()
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * shares.log2()).sum()) * quantized.count / 8


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a compressed ensemble")
    folder = parser.parse_args().folder
    members = require_packed(read_ensemble(folder)[0], "this benchmark")
    kinds: dict[str, Bytes] = defaultdict(Bytes)
    for name, stored, allowed in parts_of(members):
        kinds[name].stored += stored
        kinds[name].allowed += allowed
    deflated = FileContent.of(members, deflated=True)
    start = time.process_time()
    deflated.members(folder, len(members))
    seconds = time.process_time() - start
    for name, stream in deflated.tensors.items():
        kinds[name].deflated = stream.nbytes
    plain = FileContent.of(members, deflated=False)
    kinds["layout"].stored = sum(map(len, plain.metadata.values()))
    kinds["layout"].allowed = kinds["layout"].stored
    kinds["all"] = Bytes(
        sum(kind.stored for kind in kinds.values()),
        sum(kind.allowed for kind in kinds.values()),
        sum(kind.deflated for kind in kinds.values()),
    )
    print(f"{'numbers':<30}{'at fixed widths':>16}{'share':>8}{'entropy':>12}{'deflated':>12}{'saved':>8}")
    whole = kinds["all"].stored
    for name, kind in sorted(kinds.items(), key=lambda item: item[1].stored):
        saved = (kind.stored - kind.deflated) / whole
        print(
            f"{name:<30}{kind.stored:>16,}{kind.stored / whole:>8.1%}{kind.allowed:>12,.0f}"
            f"{kind.deflated:>12,}{saved:>8.1%}"
        )
    print(f"\nInflating all members takes {1000 * seconds:.0f} ms of CPU time, once.")
    found = {name: [kind.stored, round(kind.allowed), kind.deflated] for name, kind in kinds.items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""Small made files of MNIST."""

import gzip
from pathlib import Path

FILES = {
    # Images [2, 2, 3] and [1, 2, 3] with the pixels 0, 1, 2, ...; the labels 9, 4 and 7.
    "train-images-idx3-ubyte": bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3, *range(12)]),
    "train-labels-idx1-ubyte": bytes([0, 0, 8, 1, 0, 0, 0, 2, 9, 4]),
    "t10k-images-idx3-ubyte": bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, *range(6)]),
    "t10k-labels-idx1-ubyte": bytes([0, 0, 8, 1, 0, 0, 0, 1, 7]),
}


def write(folder: Path, *, gzipped: bool = False, **changes: bytes) -> Path:
    folder.mkdir(parents=True)
    for name, content in (FILES | changes).items():
        path = folder / (f"{name}.gz" if gzipped else name)
        path.write_bytes(gzip.compress(content) if gzipped else content)
    return folder

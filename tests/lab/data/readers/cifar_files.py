"""Small made files of CIFAR, in each of its two layouts."""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np

from pfge.lab.data.published import Cifar, CifarLayout

IMAGES = 4  # in each made file
BINARY, PICKLED = 0, 1


def small(cifar: Cifar) -> Cifar:
    """The data set with a few images in each file, and no published md5."""

    def shrunk(layout: CifarLayout) -> CifarLayout:
        train, test = (
            tuple(replace(file, images=IMAGES, md5=None) for file in files)
            for files in (layout.train, layout.test)
        )
        return replace(layout, train=train, test=test)

    layouts = tuple(shrunk(layout) for layout in cifar.layouts)
    return replace(cifar, names_sha256=None, layouts=layouts)


def python2_string(text: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(text)) + text


def python2_list(items: list[bytes]) -> bytes:
    return b"](" + b"".join(items) + b"e"


def python2_pickle(values: dict[str, bytes]) -> bytes:
    """A dict as Python 2's cPickle wrote it; the values are given in that form."""
    items = [python2_string(key.encode()) + value for key, value in values.items()]
    return b"\x80\x02}(" + b"".join(items) + b"u."


def python2_array(array: np.ndarray) -> bytes:
    shape = b"".join(b"J" + struct.pack("<i", side) for side in array.shape)
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01" + shape + b"\x86"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89" + python2_string(array.tobytes()) + b"tb"
    )


def write(cifar: Cifar, kind: int, root: Path, *, seed: int = 0) -> Path:
    """Writes the same made data in one of the two layouts; returns the folder."""
    layout, random = cifar.layouts[kind], np.random.default_rng(seed)
    classes = 10 if cifar.name == "cifar10" else 100
    folder = root / layout.folder
    folder.mkdir(parents=True)
    names = [f"class{number}" for number in range(classes)]
    for file in (*layout.train, *layout.test):
        labels = random.integers(classes, size=IMAGES, dtype=np.uint8)
        pixels = random.integers(256, size=(IMAGES, 3072), dtype=np.uint8)
        superclasses = np.full((IMAGES, cifar.label_bytes - 1), 7, dtype=np.uint8)
        if layout.pickled:
            label_items = python2_list([b"K" + bytes([label]) for label in labels])
            content = python2_pickle({"data": python2_array(pixels), cifar.label_key: label_items})
        else:
            content = np.concatenate([superclasses, labels[:, None], pixels], axis=1).tobytes()
        (folder / file.name).write_bytes(content)
    if layout.pickled:
        listed = python2_list([python2_string(name.encode()) for name in names])
        (folder / layout.names).write_bytes(python2_pickle({cifar.names_key: listed}))
    else:
        (folder / layout.names).write_text("\n".join(names) + "\n\n")
    return folder

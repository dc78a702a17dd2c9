"""What the official CIFAR archives hold, with every published checksum."""

from dataclasses import dataclass

from pfge.lab.data.in_memory.image_set import Normalization

_SITE = "https://www.cs.toronto.edu/~kriz"


@dataclass(frozen=True)
class CifarFile:
    """One file of images; its md5 is None where none was published."""

    name: str
    images: int
    md5: str | None


@dataclass(frozen=True)
class CifarLayout:
    """The files of a data set in one of its official forms.

    Attributes:
        folder: The folder in the archive.
        url: The archive.
        md5: The published md5 of the archive.
        train: The files with training images, in order.
        test: The files with test images.
        names: The file with the class names.
        pickled: Whether the files are pickles.
    """

    folder: str
    url: str
    md5: str
    train: tuple[CifarFile, ...]
    test: tuple[CifarFile, ...]
    names: str
    pickled: bool

    @property
    def files(self) -> list[str]:
        """The names of all files."""
        return [*(file.name for file in (*self.train, *self.test)), self.names]


@dataclass(frozen=True)
class Cifar:
    """One of the two data sets.

    Attributes:
        name: What users call it.
        layouts: The official forms; the first is the one to download.
        has_superclasses: Whether each image has a superclass too, before its class.
        names_sha256: Of the class names, a line each without an end; None if others may be there.
        normalization: The statistics of the training images.
    """

    name: str
    layouts: tuple[CifarLayout, ...]
    has_superclasses: bool
    names_sha256: str | None
    normalization: Normalization

    @property
    def label_bytes(self) -> int:
        """Bytes before the pixels of a binary record; the last is the class."""
        return 2 if self.has_superclasses else 1

    @property
    def label_key(self) -> str:
        """Where a pickle keeps the classes."""
        return "fine_labels" if self.has_superclasses else "labels"

    @property
    def names_key(self) -> str:
        """Where a pickle keeps the class names."""
        return "fine_label_names" if self.has_superclasses else "label_names"


def _batches(suffix: str, md5s: str) -> tuple[tuple[CifarFile, ...], tuple[CifarFile, ...]]:
    *train, test = md5s.split()
    batches = [CifarFile(f"data_batch_{n}{suffix}", 10_000, md5) for n, md5 in enumerate(train, start=1)]
    return tuple(batches), (CifarFile(f"test_batch{suffix}", 10_000, test),)


_binary_train, _binary_test = _batches(
    ".bin",
    "5dd7e06a14cb22eb9f671a540d1b7c25 5ea93a67294ea407fff1d09f752e9692 942cd6a4bcdd0dd3c604fbe906cb4421 "
    "ae636b3ba5c66a11e91e8cb52e771fcb 53f37980c15c3d472c316c40844f3f0d 803d5f7f4d78ea53de84dbe85f74fb6d",
)
_pickled_train, _pickled_test = _batches(
    "",
    "c99cafc152244af753f735de768cd75f d4bba439e000b95fd0a9bffe97cbabec 54ebc095f3ab1f0389bbae665268c751 "
    "634d18415352ddfa80567beed471001a 482c414d41f54cd18b22e5b47cb7c3cb 40351d587109b95175f43aff81a1287e",
)

CIFAR10 = Cifar(
    name="cifar10",
    layouts=(
        CifarLayout(
            folder="cifar-10-batches-bin",
            url=f"{_SITE}/cifar-10-binary.tar.gz",
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            train=_binary_train,
            test=_binary_test,
            names="batches.meta.txt",
            pickled=False,
        ),
        CifarLayout(
            folder="cifar-10-batches-py",
            url=f"{_SITE}/cifar-10-python.tar.gz",
            md5="c58f30108f718f92721af3b95e74349a",
            train=_pickled_train,
            test=_pickled_test,
            names="batches.meta",
            pickled=True,
        ),
    ),
    has_superclasses=False,
    names_sha256="bb3914949cecedee6d1257f7f5fdb8f43fa3b2c8095fd1763161caf1b873fe59",
    normalization=Normalization((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
)

CIFAR100 = Cifar(
    name="cifar100",
    layouts=(
        CifarLayout(
            folder="cifar-100-binary",
            url=f"{_SITE}/cifar-100-binary.tar.gz",
            md5="03b5dce01913d631647c71ecec9e9cb8",
            train=(CifarFile("train.bin", 50_000, None),),
            test=(CifarFile("test.bin", 10_000, None),),
            names="fine_label_names.txt",
            pickled=False,
        ),
        CifarLayout(
            folder="cifar-100-python",
            url=f"{_SITE}/cifar-100-python.tar.gz",
            md5="eb9058c3a382ffc7106e4002c42a8d85",
            train=(CifarFile("train", 50_000, "16019d7e3df5f24257cddd939b257f8d"),),
            test=(CifarFile("test", 10_000, "f0ef6b0ae62326f3e7ffdfab6717acfc"),),
            names="meta",
            pickled=True,
        ),
    ),
    has_superclasses=True,
    names_sha256="fbe8ad23bbaf24969898a386833b49c3aaf6ad1119d43f7b41cdea1b3416d578",
    normalization=Normalization((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
)

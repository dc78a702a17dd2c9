"""Which images each training iteration takes, as a pure function of a seed and the iteration."""

import torch
from torch import Tensor

from pfge.lab.data.in_memory.image_set import DataError
from pfge.lab.data.seeding import generator


def count_batches(images: int, batch_size: int) -> int:
    """Return the iterations of an epoch: whole batches only, as a smaller last one is left out."""
    if images < batch_size:
        raise DataError(
            f"an epoch must have at least one batch, got {images} images for batch_size {batch_size}; "
            "make the batch smaller"
        )
    return images // batch_size


class EpochOrder:
    """Cut a fresh permutation of all images into batches, epoch after epoch.

    Args:
        images: The number of images.
        batch_size: Images in a batch, over all processes.
        seed: Decides the permutations, together with the epoch.
        share: Which part of every batch is for this process, and the number of parts.
    """

    def __init__(
        self,
        images: int,
        *,
        batch_size: int,
        seed: int,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        part, parts = share
        if batch_size < 1 or batch_size % parts:
            raise DataError(f"batch_size must be a positive multiple of {parts} processes, got {batch_size}")
        if not 0 <= part < parts:
            raise DataError(f"share must be (part, parts) with 0 <= part < parts, got {share}")
        self.per_epoch = count_batches(images, batch_size)
        self._images = images
        self.batch_size = batch_size
        self.seed = seed
        self._share = share
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.int64)

    def at(self, iteration: int) -> Tensor:
        """Return the indices of this process's images at an iteration, counted from 1."""
        epoch, start = self._locate(iteration)
        return self.share_of(self.permutation(epoch)[start : start + self.batch_size])

    def share_of(self, values: Tensor) -> Tensor:
        """Return this process's part of one value for each image of a batch."""
        part, parts = self._share
        return values[part::parts]

    def permutation(self, epoch: int) -> Tensor:
        """Return the order of all images in an epoch, counted from 0."""
        if epoch != self._epoch:
            self._permutation = torch.randperm(self._images, generator=generator(self.seed, "order", epoch))
            self._epoch = epoch
        return self._permutation

    def _locate(self, iteration: int) -> tuple[int, int]:
        if iteration < 1:
            raise DataError(f"iterations count from 1, got {iteration}")
        epoch, batch = divmod(iteration - 1, self.per_epoch)
        return epoch, batch * self.batch_size

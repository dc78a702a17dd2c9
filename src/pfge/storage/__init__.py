"""Files that are never seen half-written: tensors, checkpoints, ensembles."""

from pfge.storage.checkpoint import load_checkpoint, save_checkpoint
from pfge.storage.files import StorageError

__all__ = ["StorageError", "load_checkpoint", "save_checkpoint"]

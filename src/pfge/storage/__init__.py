"""Files that are never seen half-written: tensors, checkpoints, ensembles."""

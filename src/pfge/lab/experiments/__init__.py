"""Experiments that run in a folder: comparisons, connectivity, diagnosis, storage formats."""

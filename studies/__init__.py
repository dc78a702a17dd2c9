"""Comparisons whose plan was written down before they were run."""

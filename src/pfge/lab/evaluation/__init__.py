"""Measure ensembles on data."""

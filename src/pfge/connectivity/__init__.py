"""Curves and planes between points in weight space."""

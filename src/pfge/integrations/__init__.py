"""Collecting inside other people's trainers; each module needs the package that it is named after."""

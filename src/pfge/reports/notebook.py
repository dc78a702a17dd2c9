"""The figures of a run for a notebook, which shows what these functions return."""

from pathlib import Path

from pfge.reports.figures.figure import Figure
from pfge.reports.figures.paper import members
from pfge.reports.figures.plots import Plot, plot
from pfge.reports.figures.tradeoff import tradeoff
from pfge.reports.run import Run
from pfge.storage.files import StorageError


def plot_members(folder: Path | str) -> Plot:
    """Draw each member and the growing ensemble of PFGE and FGE against the iteration."""
    run = Run(folder)
    return _plot(run, members(run), "PFGE or FGE")


def plot_tradeoff(folder: Path | str) -> Plot:
    """Draw the metrics of every method against the memory at test time, and forward passes."""
    run = Run(folder)
    return _plot(run, tradeoff(run), "any method")


def _plot(run: Run, figure: Figure | None, whose: str) -> Plot:
    if figure is None:
        raise StorageError(f"{run.folder.path} has no results of {whose} yet; run pfge compare to its end")
    return plot(figure)

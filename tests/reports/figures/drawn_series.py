"""The series of a figure."""

from pfge.reports.figures.figure import Figure, Series


def drawn(figure: Figure | None, panel: int, label: str) -> Series:
    assert figure is not None
    (found,) = [series for series in figure.panels[panel].series if series.label == label]
    return found

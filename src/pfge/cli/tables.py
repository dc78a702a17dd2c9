"""What the commands print in a terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import distributed

from pfge.lab.config import Experiment
from pfge.reports.comparison import BEST, COLUMNS, comparison_cells, summarize


def print_comparison(results: Sequence[dict[str, Any]], experiment: Experiment, folder: Path) -> None:
    """Print the table of a comparison and where everything is."""
    if not _is_first_process():
        return
    seeds = len({result["seed"] for result in results})
    table = Table(title=f"{experiment.name}: {experiment.model.name} on {experiment.data.name}, test set")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for cells in comparison_cells(summarize(results)):
        table.add_row(*cells, style="bold" if cells[0] == "PFGE" else "")
    console = Console(width=None if Console().is_terminal else 120)
    console.print(table)
    about = f"mean ± standard error over {seeds} seeds; " if seeds > 1 else ""
    console.print(
        f"{about}{BEST} best; * the last members, as many as PFGE has; memory relative to one model.\n"
        f"Config, results and ensembles: {folder}",
        markup=False,
        highlight=False,
    )


def print_start_weights(found: Sequence[dict[str, Any]]) -> None:
    """Print where each seed's w0 is and what it is worth."""
    if not _is_first_process():
        return
    for w0 in found:
        print(f"seed {w0['seed']}: {w0['file']}")
        for part in ("test", "validation"):
            if metrics := w0.get(part):
                print(
                    f"  {part + ':':<11} accuracy {100 * metrics['accuracy']:.2f} %, "
                    f"NLL {metrics['nll']:.4f}, ECE {100 * metrics['ece']:.2f} %"
                )


def _is_first_process() -> bool:
    return not distributed.is_initialized() or distributed.get_rank() == 0

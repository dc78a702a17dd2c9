"""A run folder as its report sees it: whatever is there, and what is not."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pfge.lab.config.schema import ConfigError, Experiment
from pfge.lab.config.toml import load_experiment
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.result_lines import ReadLines, read_rows
from pfge.lab.run.results import (
    ComparisonRow,
    ConnectivityRow,
    EnsembleEvaluation,
    FormatRow,
    Landscape,
    Result,
    expected_rows,
)
from pfge.lab.run.typed_json import ResultError
from pfge.methods import METHODS, Setting, method_of, reference_first
from pfge.reports.figures.landscape import draw_landscape
from pfge.reports.tables.comparison import by_method
from pfge.storage.files import StorageError, read_json_object

if TYPE_CHECKING:
    from pfge.reports.figures.plots import Plot

Found = TypeVar("Found", bound=Result)


class Run:
    """The results of a run, finished or not, and its pictures for a notebook.

    Args:
        folder: Where `pfge compare` wrote it.
    """

    def __init__(self, folder: str | Path):
        self.folder = RunFolder(Path(folder))
        if not self.folder.results.is_file() and not (self.folder.config).is_file():
            raise StorageError(
                f"{folder} holds no run: neither config.toml nor results.jsonl; "
                f"make one by pfge compare --out {folder}"
            )
        lines = read_rows(self.folder.results, ComparisonRow)
        self.results = [row.to_json() for row in lines.rows]
        self._left_out = lines.left_out

    def __repr__(self) -> str:
        return f"Run({str(self.folder.path)!r})"

    @property
    def name(self) -> str:
        """What the run is called."""
        return self.experiment.name if self.experiment else self.folder.path.resolve().name

    @cached_property
    def config(self) -> str:
        """The text of the config, "" if there is none."""
        file = self.folder.config
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""

    @cached_property
    def experiment(self) -> Experiment | None:
        """The experiment, if this version can read its config."""
        return None if self.config_problem else load_experiment(self.folder.config)

    @cached_property
    def config_problem(self) -> str:
        """Why the config cannot be read, "" if it can."""
        try:
            load_experiment(self.folder.config)
        except ConfigError as error:
            return str(error)
        return ""

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Where and how the run was made; empty if it does not say."""
        return read_json_object(self.folder.environment) if self.folder.environment.is_file() else {}

    @cached_property
    def connectivity(self) -> list[dict[str, Any]]:
        """The curves between members, if there are any."""
        return [row.to_json() for row in self._connectivity.rows]

    @cached_property
    def formats(self) -> list[dict[str, Any]]:
        """The ensembles in the formats that they can be shipped in, if they were measured."""
        return [row.to_json() for row in self._formats.rows]

    @cached_property
    def landscape(self) -> str:
        """The picture of the loss plane as SVG, "" if there is none that this version can draw."""
        found = self._landscape
        return draw_landscape(found.to_json()) if isinstance(found, Landscape) else ""

    @cached_property
    def evaluations(self) -> list[tuple[int, str, dict[str, Any]]]:
        """What was found on unknown and corrupted inputs: the seed, the method, and the numbers."""
        return [
            (seed, method, found.to_json())
            for seed, method, found in self._evaluations
            if isinstance(found, EnsembleEvaluation)
        ]

    @cached_property
    def left_out(self) -> list[str]:
        """What cannot be shown of the files that are there, and why."""
        files = [self._landscape, *(found for _, _, found in self._evaluations)]
        return [
            *self._left_out,
            *self._connectivity.left_out,
            *self._formats.left_out,
            *(problem for problem in files if isinstance(problem, str)),
        ]

    @cached_property
    def _connectivity(self) -> ReadLines[ConnectivityRow]:
        return read_rows(self.folder.connectivity, ConnectivityRow)

    @cached_property
    def _formats(self) -> ReadLines[FormatRow]:
        return read_rows(self.folder.formats, FormatRow)

    @cached_property
    def _landscape(self) -> Landscape | str | None:
        return _read(self.folder.path / "landscape.json", Landscape, "run pfge landscape again")

    @cached_property
    def _evaluations(self) -> list[tuple[int, str, EnsembleEvaluation | str | None]]:
        return [
            (
                seed,
                method,
                _read(
                    self.folder.ensemble(seed, method) / "evaluation.json",
                    EnsembleEvaluation,
                    "run pfge evaluate again",
                ),
            )
            for method in self.methods
            for seed in self.seeds
        ]

    @property
    def seeds(self) -> list[int]:
        """The seeds that have results."""
        return sorted({row["seed"] for row in self.results})

    @property
    def methods(self) -> list[str]:
        """The methods that have results, in the paper's order."""
        return list(by_method(self.results))

    @cached_property
    def setting(self) -> Setting | None:
        """The cycle, the period and the rates in iterations, once the results say how many there were."""
        collected = (
            row["iterations"]
            for row in self.results
            if (method := method_of(row["method"])) and method.collector
        )
        iterations = next(collected, 0)
        if not iterations or not self.experiment:
            return None
        ensemble = self.experiment.ensemble
        per_epoch = round(iterations / ensemble.length) if ensemble.unit == "epochs" else 1
        setting = ensemble.setting(per_epoch)
        return setting if setting.iterations == iterations else None

    def missing(self) -> dict[int, list[str]]:
        """Return the methods that a finished run would have and this one has not, for each seed."""
        if not self.experiment:
            return {}
        expected = expected_rows(self.experiment.ensemble.methods)
        found = {
            seed: expected - {row["method"] for row in self.results if row["seed"] == seed}
            for seed in self.experiment.seeds
        }
        return {seed: sorted(methods) for seed, methods in found.items() if methods}

    def plot_members(self) -> "Plot":
        """Draw each member and the growing ensemble, as of PFGE and FGE, against the iteration."""
        from pfge.reports.figures.paper import members
        from pfge.reports.figures.plots import plot

        shown = reference_first([method for method in METHODS.values() if method.shows_members])
        return plot(_require(members(self), self, " or ".join(method.name for method in shown)))

    def plot_tradeoff(self) -> "Plot":
        """Draw accuracy and NLL of every method against the memory at test time, and forward passes."""
        from pfge.reports.figures.plots import plot
        from pfge.reports.figures.tradeoff import tradeoff

        return plot(_require(tradeoff(self), self, "any method"))


def _read(file: Path, kind: type[Found], remedy: str) -> Found | str | None:
    """Return what a file holds, why it cannot be read, or None if there is none."""
    if not file.is_file():
        return None
    try:
        return kind.from_json(read_json_object(file))
    except ResultError as error:
        return f"{file} is left out: {error}; {remedy}"
    except StorageError as error:
        return f"{error}; {remedy}"


def _require(figure: Any, run: Run, whose: str) -> Any:
    if figure is None:
        raise StorageError(f"{run.folder.path} has no results of {whose} yet; run pfge compare to its end")
    return figure

"""Everything that a run folder holds for its report, and what is missing."""

from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pfge.lab.config.settings import ConfigError, Experiment, MarginSettings
from pfge.lab.config.toml import load_experiment
from pfge.lab.config.typed import FieldError
from pfge.lab.run.folder import ENVIRONMENT_KEYS, RunFolder, problem_of_scores
from pfge.lab.run.results import (
    ComparisonRow,
    ConnectivityRow,
    EnsembleEvaluation,
    FormatRow,
    Landscape,
    Result,
    ResultRow,
    expected_rows,
    read_rows,
)
from pfge.methods import TrainingPlan, method_of
from pfge.reports.printable import printable
from pfge.reports.statistics import by_method, measured
from pfge.storage.files import StorageError, read_bounded, read_json_object
from pfge.tasks import DEFAULT_TASK, Task

Found = TypeVar("Found", bound=Result)
Line = TypeVar("Line", bound=ResultRow)


class Run:
    """The results of a run, finished or not, and its pictures for a notebook.

    Args:
        folder: Where `pfge compare` wrote it.

    Attributes:
        folder: Where everything is.
        results: A row for each method and seed.
        connectivity: The curves between members, if there are any.
        formats: The ensembles in the formats that they can be shipped in, if they were measured.
        evaluations: The seed and the method of each ensemble that `pfge evaluate` measured, and the numbers.
        landscape: The loss plane, if there is one.
        environment: Where and how the run was made, as far as it says.
        left_out: Problems with files or lines that cannot be shown, one sentence each.
    """

    def __init__(self, folder: str | Path):
        self.folder = RunFolder(Path(folder))
        if not self.folder.results.is_file() and not self.folder.config.is_file():
            raise StorageError(
                f"{folder} holds no run: neither config.toml nor results.jsonl; "
                f"make one by pfge compare --out {folder}"
            )
        self.left_out: list[str] = []
        self.results = self._read_rows(self.folder.results, ComparisonRow)
        self.connectivity = self._read_other_rows(self.folder.connectivity, ConnectivityRow)
        self.formats = self._of_task(self._read_other_rows(self.folder.formats, FormatRow))
        self.evaluations = self._read_evaluations()
        self.landscape = self._read(self.folder.path / "landscape.json", Landscape, "pfge landscape")
        self.environment = self._read_environment()
        files = [self.folder.scores(row.seed, row.method) for row in self.results]
        self.left_out += filter(None, map(problem_of_scores, files))

    def __repr__(self) -> str:
        return f"Run({str(self.folder.path)!r})"

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.experiment.name if self.experiment else self.folder.path.resolve().name

    @cached_property
    def config(self) -> str:
        """The text of the config; "" if it is missing."""
        try:
            return read_bounded(self.folder.config).decode(errors="replace")
        except OSError:
            return ""

    @cached_property
    def experiment(self) -> Experiment | None:
        """The experiment, if this version can read its config."""
        return None if self.config_problem else load_experiment(self.folder.config)

    @cached_property
    def config_problem(self) -> str:
        """The reason why the config cannot be read; "" if it can."""
        try:
            load_experiment(self.folder.config)
        except ConfigError as error:
            return str(error)
        return ""

    @property
    def margins(self) -> MarginSettings:
        """The differences that do not matter, the default ones if the config cannot be read."""
        return self.experiment.margins if self.experiment else MarginSettings()

    @cached_property
    def task(self) -> Task:
        """The task of the results; the default task before the first result."""
        return next((row.task for row in self.results), DEFAULT_TASK)

    @property
    def seeds(self) -> list[int]:
        """The seeds that have results."""
        return sorted({row.seed for row in self.results})

    @property
    def methods(self) -> list[str]:
        """The methods that have results, in the paper's order."""
        return list(by_method(self.results))

    @cached_property
    def setting(self) -> TrainingPlan | None:
        """The cycle, the period and the rates in iterations, once the results say how many there were."""
        collected = (
            row.iterations for row in self.results if (method := method_of(row.method)) and method.collector
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
            seed: expected - {row.method for row in self.results if row.seed == seed}
            for seed in self.experiment.seeds
        }
        return {seed: sorted(methods) for seed, methods in found.items() if methods}

    def problems(self) -> list[str]:
        """Return what is missing from a complete report and how to get it, one sentence each."""
        found = []
        path = self.folder.path
        if not self.results:
            found.append(
                f"No results yet. Run pfge compare --out {path}, or wait until it finishes the first method."
            )
        elif missing := self.missing():
            found += [
                f"Seed {seed} has no results yet of {', '.join(methods)}."
                for seed, methods in missing.items()
            ]
            found.append(
                f"The run is not finished. If it stopped, the same pfge compare --out {path} continues it."
            )
        found += [f"{problem[:1].upper()}{problem[1:]}." for problem in self.left_out]
        if self.config_problem:
            found.append(
                f"The config cannot be read, so learning rates are not drawn: {self.config_problem}."
            )
        if self.task.needs_calibration and not all(measured(row, "test.calibrated") for row in self.results):
            labels = [m.label for m in self.task.metrics if m.is_main and m.uses_confidence]
            found.append(
                f"Methods are not compared in {', '.join(labels)}: predictions must be calibrated first, "
                "which needs validation data. Set data.validation in a new run."
            )
        without = [
            method
            for method, rows in by_method(self.results).items()
            if not any(self.folder.scores(row.seed, method).is_file() for row in rows)
        ]
        if without:
            found.append(
                f"No scores of each example for {', '.join(without)}, so no reliability and no interval over "
                "test examples: older versions did not keep them. To get them, remove results.jsonl and run "
                "the same pfge compare again, which only measures."
            )
        return found

    def _read_rows(self, file: Path, kind: type[Line]) -> list[Line]:
        lines = read_rows(file, kind)
        self.left_out += lines.left_out
        return lines.rows

    def _read_other_rows(self, file: Path, kind: type[Line]) -> list[Line]:
        """Return the rows of a file without which there is a report; none if it cannot be read."""
        try:
            return self._read_rows(file, kind)
        except (StorageError, OSError) as error:
            self.left_out.append(f"{file.name} is left out: {error}")
            return []

    def _of_task(self, rows: list[FormatRow]) -> list[FormatRow]:
        """Return the rows of the results' task."""
        for task in dict.fromkeys(row.task for row in rows if row.task != self.task):
            self._leave_out(self.folder.formats, task, "pfge formats")
        return [row for row in rows if row.task == self.task]

    def _leave_out(self, file: Path, task: Task, command: str) -> None:
        self.left_out.append(
            f"{file} is left out: its task is {task}, and the results are of {self.task}; remove it and run "
            f"{command} again"
        )

    def _read_evaluations(self) -> list[tuple[int, str, EnsembleEvaluation]]:
        found = []
        for method, rows in by_method(self.results).items():
            for seed in sorted(row.seed for row in rows):
                file = self.folder.ensemble(seed, method) / "evaluation.json"
                evaluation = self._read(file, EnsembleEvaluation, "pfge evaluate")
                if evaluation and evaluation.task != self.task:
                    self._leave_out(file, evaluation.task, "pfge evaluate")
                elif evaluation:
                    found.append((seed, method, evaluation))
        return found

    def _read(self, file: Path, kind: type[Found], command: str) -> Found | None:
        if not file.is_file():
            return None
        try:
            return kind.from_json(read_json_object(file))
        except FieldError as error:
            self.left_out.append(f"{file} is left out: {error}; run {command} again")
        except (StorageError, OSError) as error:
            self.left_out.append(f"{error}; run {command} again")
        return None

    def _read_environment(self) -> dict[str, Any]:
        if not self.folder.environment.is_file():
            return {}
        try:
            found = read_json_object(self.folder.environment)
            return {key: _printable(found[key]) for key in ENVIRONMENT_KEYS if key in found}
        except (StorageError, OSError) as error:
            self.left_out.append(str(error))
            return {}


def _printable(value: Any) -> Any:
    """Return a text or a list of texts without characters that steer a terminal or that no file can hold."""
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return printable(value) if isinstance(value, str) else value

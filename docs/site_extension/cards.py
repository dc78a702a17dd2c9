"""Cards of methods and the tables of what was measured. Every method of the table must have a card."""

from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from pfge.methods import METHODS, Method, find_reference
from pfge.reports.contents import comparison_tables
from pfge.reports.tables.table import to_markdown
from site_extension import pictures
from site_extension.measured import gains, qualities, show
from site_extension.recorded import recorded_run

PICTURES = "generated/pictures"
TRAINING = {
    "shared": "Only watches: any number of such methods share one training run.",
    "own": "Has a training run of its own after w0.",
    "trainings": "Each member is a whole training of its own.",
    "start": "None: it uses w0 as it is.",
    "augmented": "None of its own: it uses the one model of another method.",
}


RUN = "The method itself, run on a loss of two weights; the loss is lower where it is lighter."
CAPTIONS = {
    "shared": RUN,
    "own": RUN,
    "trainings": "Trainings on a loss of two weights; the loss is lower where it is lighter.",
    "start": "A sketch: each pass drops other units, which acts as a change of the weights of w0.",
    "augmented": "A picture in each of its views. The model predicts each, and predictions are pooled.",
}


class MarkdownDirective(SphinxDirective):
    """A directive that stands for generated Markdown."""

    def markdown(self) -> str:
        """Return what the directive stands for."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """Return the parsed Markdown."""
        return self.parse_text_to_nodes(self.markdown())


class MethodCard(MarkdownDirective):
    """The head of a card: what the method does, its picture, and what the table of methods says of it."""

    required_arguments = 1

    def markdown(self) -> str:
        """Return the head of a card."""
        method = METHODS[self.arguments[0]]
        facts = [
            ("in configs", f"`{method.name}`"),
            ("training", TRAINING[method.path]),
            ("members", _count(method)),
            ("reference", method.source or "none"),
            *[("model", _link(method.base))] * bool(method.base),
        ]
        lines = [
            method.description,
            "",
            "::::{container} method-scroll",
            f"```{{image}} /{PICTURES}/{method.name}.svg",
            f":alt: A picture of what {method.name} does",
            ":class: method-picture",
            ":width: 100%",
            "```",
            "::::",
            "",
            CAPTIONS[method.path],
            "",
            "::::{container} method-facts",
            *_table(["", ""], facts, align=["---", "---"]),
            "::::",
        ]
        return "\n".join(lines)


def _count(method: Method) -> str:
    counts = {"one": "one model", "cycle": "one each cycle", "period": "one each period"}
    count = counts.get(method.members or "", "as many as you ask for")
    star = f"; `{method.name}*` in tables: only the last ones, as many as {find_reference().name} has"
    return count + star * method.starred


class Measured(MarkdownDirective):
    """What was measured of one method, with w0 beside it."""

    required_arguments = 1

    def markdown(self) -> str:
        """Return the table, or that there is none."""
        found = qualities(self.arguments[0])
        if not found:
            return "No run that is recorded here has this method."
        heads = ["data", "row", "test", "NLL", "NLL at T", "members", "memory"]
        rows = [[q.where, q.row, q.metric, q.nll, q.calibrated_nll, q.members, q.memory] for q in found]
        note = "T: the temperature of the mean, or the factor on the variance, fitted on validation data."
        return "\n".join([*_table(heads, rows), "", note])


class MethodList(MarkdownDirective):
    """Every method and when to choose it, as its card says."""

    def markdown(self) -> str:
        """Return a row for each method."""
        rows = [[_link(name), read_card(self.env.srcdir, name)["choose"]] for name in METHODS]
        return "\n".join(_table(["method", "choose it if"], rows))


class DecisionTable(MarkdownDirective):
    """What every method cost and gained in a recorded run."""

    required_arguments = 1

    def markdown(self) -> str:
        """Return a row for each row of the run, and a note of methods that it has not."""
        found = gains(recorded_run(self.arguments[0]))
        heads = ["method", "accuracy, points", "NLL", "NLL, both at T", "memory", "passes", "training"]
        rows = [
            [
                _link(gain.row) if gain.row in METHODS else gain.row.replace("*", "\\*"),
                show(gain.accuracy, 2, signed=True),
                show(gain.nll, 4, signed=True),
                show(gain.calibrated_nll, 4, signed=True),
                f"{gain.memory:.3g}x",
                str(gain.members),
                "" if gain.training is None else f"{gain.training:.2f}x",
            ]
            for gain in found
        ]
        missing = [name for name in METHODS if name not in {gain.row for gain in found}]
        note = f"Not measured in this run: {', '.join(missing)}." if missing else ""
        return "\n".join([*_table(heads, rows, align=["---", *["---:"] * 6]), "", note])


def _link(name: str) -> str:
    return f"[{name}](/methods/{name}.md)"


class RunTables(MarkdownDirective):
    """The tables of a recorded run, as `pfge table` prints them, without intervals over test examples."""

    required_arguments = 1

    def markdown(self) -> str:
        """Return the tables of methods and of calibration, and where they come from."""
        run = recorded_run(self.arguments[0])
        tables = comparison_tables(run.folder, run.results, margins=run.margins)
        texts = [to_markdown(table) for table in tables if table.key != "differences"]
        seeds = ", ".join(map(str, run.seeds))
        source = f"Test set, seeds {seeds}; torch {run.environment['torch']}, {run.environment['processor']}."
        return "\n\n".join([*texts, source])


def _table(heads: list[str], rows: Any, align: list[str] | None = None) -> list[str]:
    align = align or ["---", "---", *["---:"] * (len(heads) - 2)]
    return [f"| {' | '.join(line)} |" for line in (heads, align, *rows)]


def card_of(folder: str | Path, name: str) -> Path:
    """Return the file of a method's card."""
    return Path(folder) / "methods" / f"{name}.md"


def read_card(folder: str | Path, name: str) -> dict[str, str]:
    """Return the front matter of a card."""
    _, front, _ = card_of(folder, name).read_text().split("---\n", 2)
    found: dict[str, str] = yaml.safe_load(front)
    return found


def require_cards(app: Sphinx) -> None:
    """Refuse to build a site on which a method has no card, and draw the pictures of the cards."""
    missing = [name for name in METHODS if not card_of(app.srcdir, name).is_file()]
    if missing:
        files = ", ".join(f"docs/methods/{name}.md" for name in missing)
        raise ExtensionError(f"every method of pfge.methods needs a card; write {files}")
    for method in METHODS.values():
        pictures.draw(method, Path(app.srcdir) / PICTURES / f"{method.name}.svg")


def setup(app: Sphinx) -> None:
    """Add the directives, and check the cards before anything is built."""
    app.add_directive("method-card", MethodCard)
    app.add_directive("measured", Measured)
    app.add_directive("method-list", MethodList)
    app.add_directive("decision-table", DecisionTable)
    app.add_directive("run-tables", RunTables)
    app.connect("builder-inited", require_cards, priority=100)

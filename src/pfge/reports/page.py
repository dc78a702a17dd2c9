"""One self-contained HTML page per run; every string from a run is escaped."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import pfge
from pfge.errors import InvalidValueError
from pfge.methods import START, base_of, find_reference, is_starred
from pfge.reports.appearance import NEUTRAL, styles
from pfge.reports.contents import report_figures, report_tables
from pfge.reports.figures.figure import Figure, Panel
from pfge.reports.printable import show_bytes
from pfge.reports.run import Run
from pfge.reports.statistics import by_method
from pfge.reports.summary import findings
from pfge.reports.tables.methods import name_runs, runs_table
from pfge.reports.tables.table import Count, Number, Row, Table, Text, columns, method_row, to_html
from pfge.storage.files import checksum

MANY_PANELS = 5
"""From here on panels are smaller; four stand two by two."""


def run_section(run: Run, key: str, name: str) -> tuple[str, dict[str, Figure]]:
    """Return a run's HTML and its figures by the names that the HTML has for them.

    Args:
        run: The run to show.
        key: Makes names and addresses unique on the page.
        name: Name of the run, unique on the page.
    """
    figures = {figure.name: figure for figure in report_figures(run)}
    tables = report_tables(run)
    of_methods = [table for table in tables if not table.subject]
    of_ensembles = [table for table in tables if table.subject]
    parts = [("summary", "Summary", _summary(run) + _figures(figures, ["tradeoff"], key))]
    if of_methods:
        parts.append(("tables", "Tables", "".join(map(sheet, of_methods))))
    for part, title, wanted in (
        ("path", "Along the path", ["rates", "members", "curves", "landscape"]),
        ("trust", "Can it be trusted?", ["reliability", "corruptions", "unknown-inputs"]),
    ):
        html = _figures(figures, wanted, key)
        evaluated = {method for _, method, _ in run.evaluations}
        if part == "trust" and evaluated and START not in evaluated:
            folder = run.folder.ensemble(run.evaluations[0][0], START)
            command = f"pfge evaluate {folder} with the options that the others were evaluated with."
            html += f'<p class="note">To see {START} beside these: {escape(command)}</p>'
        if part == "trust" and of_ensembles:
            sheets = "".join(map(sheet, of_ensembles))
            html += f"<details><summary>Every ensemble that was evaluated</summary>{sheets}</details>"
        if html:
            parts.append((part, title, html))
    parts.append(("source", "Where the numbers come from", _source(run)))
    body = "".join(
        f'<section id="{key}-{part}"><h2>{title}</h2>{html}</section>' for part, title, html in parts
    )
    links = "".join(f'<li><a href="#{key}-{part}">{title}</a></li>' for part, title, _ in parts)
    html = (
        f'<div class="run" id="{key}"><h1>{escape(name)}</h1><p class="about">{escape(_about(run))}</p>'
        f'<nav aria-label="Contents"><ul>{links}</ul></nav>{body}</div>'
    )
    return html, {f"{key}-{figure}": drawn for figure, drawn in figures.items()}


def _about(run: Run) -> str:
    seeds = ", ".join(map(str, run.seeds))
    measured = f"test set, seed{'s' * (len(run.seeds) > 1)} {seeds}" if seeds else "no results yet"
    if not run.experiment:
        return measured
    return f"{run.experiment.model.name} on {run.experiment.data.name}; {measured}"


def _summary(run: Run) -> str:
    notices = "".join(f"<p>{escape(text)}</p>" for text in run.problems())
    html = f'<div class="notice">{notices}</div>' if notices else ""
    if starred := [method for method in run.methods if is_starred(method)]:
        names, bases = ", ".join(starred), " and ".join(map(base_of, starred))
        last = f"{names}: only the last members of {bases}, as many as {find_reference().name} has."
        html += f'<p class="note">{escape(last)}</p>'
    tiles = "".join(
        f'<div class="finding {found.kind}"><p class="topic">{escape(found.about)}</p>'
        f'<p class="answer">{escape(found.answer)}</p><p class="why">{escape(found.why)}</p>'
        f"{f'<pre>{escape(found.command)}</pre>' if found.command else ''}</div>"
        for found in findings(run)
    )
    return html + (f'<div class="findings">{tiles}</div>' if tiles else "")


def _figures(figures: dict[str, Figure], wanted: Sequence[str], key: str) -> str:
    return "".join(_figure(figures[name], f"{key}-{name}") for name in wanted if name in figures)


def _figure(figure: Figure, name: str) -> str:
    many = " many" if len(figure.panels) >= MANY_PANELS else ""
    panels = "".join(
        f'<div class="panel"><h4>{escape(panel.title)}</h4><div data-panel="{name}/{number}"></div></div>'
        for number, panel in enumerate(figure.panels)
    )
    numbers = "".join(f"<h4>{escape(panel.title)}</h4>{to_html(_numbers(panel))}" for panel in figure.panels)
    return (
        f'<figure id="{name}"><figcaption><h3>{escape(figure.title)}</h3>'
        f"<p>{escape(figure.caption)}</p></figcaption>"
        f'<div class="legend" data-legend="{name}"></div><div class="panels{many}">{panels}</div>'
        f"<details><summary>The numbers of this figure</summary>{numbers}</details></figure>"
    )


def sheet(table: Table) -> str:
    """Return a table with its heading and its note, on a card."""
    note = table.note("bold: best")
    shown = table.unfolded()
    html = to_html(shown) + (f'<p class="note">{escape(note)}</p>' if note else "")
    if len(shown.rows) < len(table.rows):
        html += f"<details><summary>All {len(table.rows)} rows</summary>{to_html(table)}</details>"
    return f'<div class="sheet"><h3>{escape(table.heading[:1].upper() + table.heading[1:])}</h3>{html}</div>'


def _numbers(panel: Panel) -> Table:
    rows = [Row([Text(text) for text in row]) for row in panel.rows()]
    return Table("numbers", panel.title, columns(*panel.columns), rows)


def _source(run: Run) -> str:
    facts = {name: text for name, value in run.environment.items() if (text := _text(value))}
    if duration := _duration(run):
        facts["duration"] = duration
    facts["folder"] = str(run.folder.path)
    described = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    html = f"<dl>{described}</dl>{_files(run)}"
    if run.results:
        html += f"<details><summary>Every seed of every method</summary>{_seeds(run)}</details>"
    if run.config:
        html += f"<details><summary>The whole config</summary><pre>{escape(run.config)}</pre></details>"
    return f'<div class="sheet">{html}</div>'


def _text(value: object) -> str:
    """Return a number, a text or a list of them for people; "" for anything else."""
    values = value if isinstance(value, list) else [value]
    return ", ".join(str(item) for item in values if isinstance(item, str | int | float))


def _duration(run: Run) -> str:
    """Return the time from the start to the last result, pauses included; "" if the run does not say."""
    started = run.environment.get("started")
    if not isinstance(started, str) or not run.folder.results.is_file():
        return ""
    try:
        seconds = run.folder.results.stat().st_mtime - datetime.fromisoformat(started).timestamp()
    except ValueError:
        return ""
    if seconds < 0:  # a copy may have lost the time of the file
        return ""
    return f"{timedelta(seconds=round(seconds))} from the start to the last result, pauses included"


def _files(run: Run) -> str:
    files = [run.folder.results, run.folder.config, run.folder.environment]
    rows = [
        Row([Text(file.name), Text(show_bytes(file.stat().st_size)), Text(checksum(file)[:12])])
        for file in files
        if file.is_file()
    ]
    return to_html(Table("files", "files", columns("file", "size", "SHA-256 begins"), rows))


def _seeds(run: Run) -> str:
    """Return every metric that all rows have, as it is in the file."""
    names = [m.name for m in run.task.metrics if all(m.name in r.metrics["test"] for r in run.results)]
    rows = [
        method_row(
            method,
            Text(str(row.seed)),
            Count(row.members),
            *(Number(row.metrics["test"][name], digits=6) for name in names),
        )
        for method, of_method in by_method(run.results).items()
        for row in sorted(of_method, key=lambda row: row.seed)
    ]
    return to_html(Table("seeds", "seeds", columns("method", "seed", "members", *names), rows))


SCRIPTS = ("scales.js", "charts.js", "page.js")


def make_page(runs: Sequence[Run]) -> str:
    """Return the page: several runs in one table, then a section for each."""
    if not runs:
        raise InvalidValueError("a report needs at least one run, got none")
    bodies = []
    figures: dict[str, Figure] = {}
    named = name_runs(runs)
    for number, (name, run) in enumerate(named.items(), 1):
        body, drawn = run_section(run, f"run-{number}", name)
        bodies.append(body)
        figures |= drawn
    footer = f"<footer>Made by pfge {escape(pfge.__version__)} from the results of the run alone.</footer>"
    return Template(_asset("page.html")).substitute(
        title=escape(", ".join(dict.fromkeys(run.name for run in runs))),
        style=_asset("style.css"),
        script="\n".join(map(_asset, SCRIPTS)),
        body=f"{_contents(list(named))}<main>{_compared(named)}{''.join(bodies)}</main>{footer}",
        data=_embed(figures),
    )


def _contents(names: Sequence[str]) -> str:
    if len(names) == 1:
        return ""
    links = "".join(
        f'<li><a href="#run-{number}">{escape(name)}</a></li>' for number, name in enumerate(names, 1)
    )
    return f'<nav class="runs" aria-label="Runs"><ul>{links}</ul></nav>'


def _compared(runs: Mapping[str, Run]) -> str:
    """Return one table of all runs, or why they cannot share a table; "" for one run."""
    if len(runs) == 1:
        return ""
    table = runs_table(runs)
    if table:
        return f'<section id="runs">{sheet(table)}</section>'
    several = len({run.task for run in runs.values() if run.results}) > 1
    why = "they are of different tasks" if several else "fewer than two have results"
    return f'<section id="runs"><p class="note">The runs are not in one table: {why}.</p></section>'


def _embed(figures: dict[str, Figure]) -> str:
    methods = list(dict.fromkeys(method for figure in figures.values() for method in figure.methods))
    data: dict[str, Any] = {
        "figures": {name: asdict(figure) for name, figure in figures.items()},
        "styles": {name: asdict(style) for name, style in {"": NEUTRAL, **styles(methods)}.items()},
    }
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # What ends a script, or begins a comment in one, begins with this character.
    return text.replace("<", "\\u003c")


def _asset(name: str) -> str:
    return (files("pfge.reports") / "assets" / name).read_text(encoding="utf-8")

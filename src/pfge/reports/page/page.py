"""One HTML page for runs: nothing on it comes from elsewhere, and nothing in a run can become markup."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import pfge
from pfge.methods import NEUTRAL, styles
from pfge.reports.figures.figure import Figure
from pfge.reports.page.sections import run_section, sheet
from pfge.reports.run import Run
from pfge.reports.tables.runs import name_runs, runs_table

SCRIPTS = ("scales.js", "charts.js", "page.js")


def make_page(runs: Sequence[Run]) -> str:
    """Return the page: several runs in one table, then a section for each."""
    if not runs:
        raise ValueError("a report needs at least one run, got none")
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
    """Return one table of all runs, or why there is none; "" for one run."""
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
    return (files("pfge.reports.page") / "assets" / name).read_text(encoding="utf-8")

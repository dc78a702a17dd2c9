"""Progress on long work."""

from io import StringIO

import pytest
from rich.console import Console

from pfge.lab.run import progress as module
from pfge.lab.run.progress import Reporter


def test_a_terminal_shows_lines_in_place_of_those_before() -> None:
    file = StringIO()
    reporter = Reporter(Console(file=file, force_terminal=True, width=40, color_system=None))
    with reporter.live_lines() as show:
        show(["seed 1: w0  10/20", "seed 2: [bold]w0[/bold]  5/20"])
        reporter.say("said meanwhile")
        show(["seed 2: w0  20/20, " + 30 * "x"])
    shown = file.getvalue()
    assert "seed 1: w0  10/20" in shown
    assert "seed 2: [bold]w0[/bold]  5/20" in shown  # names are no markup
    assert "said meanwhile" in shown
    assert "seed 2: w0  20/20, " + 20 * "x" + "…" in shown  # a line each, however long
    assert "\x1b[1A" in shown  # the cursor went up again


def test_elsewhere_lines_are_written_every_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    file = StringIO()
    with Reporter(Console(file=file)).live_lines() as show:
        for now[0] in (1, 4, 6, 8, 11, 12):
            show([f"at {now[0]:g}"])
    assert file.getvalue().splitlines() == ["at 6", "at 11"]

"""Write every table of docs/results.md, and of other pages, from the runs in docs/recorded.

    python docs/write_results.py                 # after a change of tables or of what is recorded
    python docs/write_results.py --record RUN    # first put a finished run into docs/recorded
    python docs/write_results.py --record RUN --without-scores    # smaller, and without tables of differences

A page has `<!-- recorded: NAME WHAT ... -->`, where WHAT is a key of what `texts_of` returns of the run NAME,
and `<!-- end -->`.
What is between them is replaced. The rest is written by hand, without measured numbers.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from site_extension.recorded import is_recorded, record, recorded_run
from site_extension.run_texts import texts_of
from site_extension.shipped import SHIPPED, shipped_text

DOCS = Path(__file__).parent
BLOCK = re.compile(r"(<!-- recorded: (\S+)(.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
PAGES = ("results.md", "compression.md")
NOT_YET = "This run has not been recorded."


def filled(page: str) -> str:
    """Return a page with every block made again.

    Raises:
        ValueError: A block names what its run has not.
    """
    return BLOCK.sub(lambda block: f"{block[1]}\n{_content(block[2], block[3].split())}\n\n{block[4]}", page)


def _content(name: str, wanted: Sequence[str]) -> str:
    if name == SHIPPED:
        return shipped_text()
    if not is_recorded(name):
        return NOT_YET
    found = texts_of(recorded_run(name))
    if missing := [key for key in wanted if key not in found]:
        raise ValueError(f"the run {name} has no {missing[0]}; it has {', '.join(found)}")
    return "\n\n".join(found[key] for key in wanted)


def main(arguments: Sequence[str] | None = None) -> None:
    """Record a run if one is given, and write the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", type=Path, metavar="RUN", help="a finished run folder")
    parser.add_argument("--without-scores", action="store_true", help="leave out scores of test examples")
    options = parser.parse_args(arguments)
    if options.record:
        print(f"recorded in {record(options.record, scores=not options.without_scores)}")
    for page in (DOCS / name for name in PAGES):
        page.write_text(filled(page.read_text()))


if __name__ == "__main__":
    main()

"""The API reference: every public name of a module, documented once, under its shortest name."""

import importlib
import inspect
import re
import sys
from itertools import groupby

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

from pfge.metrics.scores import ProbabilityMetrics

PACKAGE = "pfge"
SECTIONS = re.compile(r"(Args|Attributes|Example|Examples|Raises|References|Returns|Warns|Yields):$")


class PublicNames(SphinxDirective):
    """Document the names in `__all__` of a module, or those that are given if it has none.

    A name that the package itself has, too, is documented there, and here is a link to it.
    """

    required_arguments = 1
    optional_arguments = 100

    def run(self) -> list[nodes.Node]:
        """Return the entries of all names."""
        module_name, *names = self.arguments
        module = importlib.import_module(module_name)
        lines = [f".. py:module:: {module_name}", ""]
        for name in names or sorted(module.__all__, key=str.lower):
            lines += _entry(module_name, name, getattr(module, name))
        text = "\n".join(["````{eval-rst}", *lines, "````"])
        return self.parse_text_to_nodes(text)


def shortest_name(module_name: str, name: str, value: object) -> str:
    """Return where a name is documented: in the package if it is the same object there."""
    package = importlib.import_module(PACKAGE)
    is_there = name in package.__all__ and getattr(package, name) is value
    return f"{PACKAGE}.{name}" if is_there else f"{module_name}.{name}"


def _entry(module_name: str, name: str, value: object) -> list[str]:
    full = f"{module_name}.{name}"
    documented = shortest_name(module_name, name, value)
    if inspect.ismodule(value):
        return []  # it has a page of its own
    if documented != full:
        return [f".. py:data:: {name}", "", f"   The same as :py:obj:`{documented}`.", ""]
    if inspect.isclass(value):
        bases = ["   :show-inheritance:"] * (value.__bases__ != (object,))
        # What scores inherit is theirs, except what all scores have, which ExampleScores documents.
        inherited = ["   :inherited-members: ExampleScores"] * issubclass(value, ProbabilityMetrics)
        return [f".. autoclass:: {full}", "   :members:", *inherited, *bases, ""]
    if inspect.isfunction(value):
        return [f".. autofunction:: {full}", ""]
    return [f".. py:data:: {name}", "", *(f"   {line}" for line in _words_below(name, value)), ""]


def _words_below(name: str, value: object) -> list[str]:
    """Return the docstring below a constant or a type, in the module that defines it."""
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] == PACKAGE and getattr(module, name, None) is value:
            words = ModuleAnalyzer.for_module(module_name).find_attr_docs().get(("", name))
            if words:
                return words
    return [f"``{value!r}``"] if isinstance(value, str | tuple) else []


def adapt_docstring(
    _app: Sphinx, _what: str, _name: str, _value: object, _options: object, lines: list[str]
) -> None:
    """Turn what docstrings have of Markdown into reStructuredText."""
    lines[:] = _tables_as_lists(_formulas_as_literals(lines))


def _formulas_as_literals(lines: list[str]) -> list[str]:
    """Mark indented lines below a paragraph as literal, so that their symbols are not read as markup."""
    found: list[str] = []
    previous = ""
    for line in lines:
        indent, below = _indent(line), _indent(previous)
        begins = line.strip() and found and not found[-1].strip() and previous.strip() and indent > below
        is_example = previous.lstrip().startswith((">>>", "..."))
        if begins and not is_example and not SECTIONS.match(previous.strip()):
            found += [f"{' ' * below}::", ""]
        found.append(line)
        if line.strip():
            previous = line
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _tables_as_lists(lines: list[str]) -> list[str]:
    """Turn tables of Markdown into list tables."""
    found: list[str] = []
    for is_table, group in groupby(lines, lambda line: line.startswith("|")):
        block = list(group)
        if not is_table:
            found += block
            continue
        found += [".. list-table::", "   :header-rows: 1", ""]
        for line in block:
            cells = [cell.strip() for cell in line.strip()[1:-1].split("|")]
            if not set("".join(cells)) <= set("-:"):
                found += [f"   {'  -' if number else '* -'} {cell}" for number, cell in enumerate(cells)]
        found.append("")
    return found


def name_functions(
    _app: Sphinx,
    _what: str,
    _name: str,
    _value: object,
    _options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Name functions that are defaults, whose addresses could not be read as Python."""
    return signature and re.sub(r"<function ([\w.]+)( at \w+)?>", r"\1", signature), returns


def setup(app: Sphinx) -> None:
    """Add the directive, and read docstrings as they are written."""
    app.add_directive("public-names", PublicNames)
    app.connect("autodoc-process-signature", name_functions)
    app.connect("autodoc-process-docstring", adapt_docstring, priority=100)  # before napoleon

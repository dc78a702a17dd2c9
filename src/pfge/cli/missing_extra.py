"""Which extra of pfge installs a package that is missing."""

import re
from collections.abc import Sequence
from importlib import metadata

DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn"}
"""Packages that are installed under another name, which cannot be looked up while they are missing."""


def find_extra(module: str, requirements: Sequence[str] | None = None) -> str | None:
    """Return the extra that installs a module; None if pfge has no such extra.

    Args:
        module: Name of the module, such as `PIL.Image`.
        requirements: Requirements in the form of package metadata; those of the installed pfge if None.

    >>> find_extra("PIL.Image", ['torch>=2.6', 'pillow>=10; extra == "lab"'])
    'lab'
    """
    package = module.partition(".")[0]
    wanted = _normalized(DISTRIBUTIONS.get(package, package))
    for requirement in _installed_requirements() if requirements is None else requirements:
        found = re.match(r"""([\w.-]+).*\bextra == ["']([\w.-]+)["']""", requirement)
        if found and _normalized(found[1]) == wanted:
            return found[2]
    return None


def _installed_requirements() -> Sequence[str]:
    try:
        return metadata.requires("pfge") or ()
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        return ()


def _normalized(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()

"""How Sphinx builds the site: `make docs`, without a network."""

import os
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # tutorials run side by side
sys.path.insert(0, str(Path(__file__).parent))

import pfge
from pfge.lab.models.packages import import_torchvision
from pfge.methods import METHODS

import_torchvision()  # trainers import it, also where its compiled operators do not fit torch

project = "pfge"
author = "the authors of pfge"
release = version = pfge.__version__
html_title = "pfge"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "site_extension",
]
root_doc = "index"
exclude_patterns = ["_build", "recorded", "tutorials/README.txt", "site_extension"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
html_math_renderer = "mathml"

default_role = "py:obj"  # docstrings have names in single backticks
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_admonition_for_references = False

CARDS = [f"methods/{name}" for name in METHODS]
WIDE_PAGES = [
    *("all-methods", "choose", "cifar10", "compression", "faults", "mnist1d"),
    *("pooling", "results", "scale", "trainers", "verdicts"),
]
WITH_WIDE_TABLES = [*WIDE_PAGES, *CARDS]
html_theme = "pydata_sphinx_theme"
html_theme_options = {
    "header_links_before_dropdown": 5,
    "navbar_align": "left",
    "navbar_persistent": ["search-button"],
    "secondary_sidebar_items": {
        "**": ["page-toc"],
        **{page: [] for page in WITH_WIDE_TABLES},
    },
    "show_prev_next": False,
    "footer_start": [],
    "footer_end": [],
}
html_sidebars = {"index": [], "all-methods": [], "results": []}  # their tables need the width
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system is
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False

sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "site_extension.tutorials.in_order",
    "abort_on_example_error": True,
    "parallel": True,
    "show_signature": False,
    "write_computation_times": False,
    "reset_modules": ("matplotlib", "site_extension.tutorials.limit_time"),
    "reset_modules_order": "both",
    "download_all_examples": False,
    "reference_url": {},
    "remove_config_comments": True,
    "min_reported_time": 0,
}

"""The documentation: ``make docs``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import kernmantle
from benchmarks import pages

project = "kernmantle"
author = "The kernmantle authors"
copyright = "The kernmantle authors, MIT licence"  # noqa: A001
release = version = kernmantle.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/*.ipynb", "gallery/*.py"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_preprocess_types = False

html_theme = "furo"
html_title = "kernmantle"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "backreferences_dir": "gallery/backreferences",
    "filename_pattern": "/plot_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1,
    "write_computation_times": False,
    "remove_config_comments": True,
}


def _own_labels(_app: Any, _what: str, name: str, _thing: object, _options: object, lines: list[str]) -> None:
    """Numbers of references count within one docstring, but a page has many."""
    label = re.sub(r"\W", "", name.rpartition(".")[2])
    lines[:] = [re.sub(r"\[(\d)\](?=_)|(?<=^\.\. )\[(\d)\]", rf"[{label}\1\2]", line) for line in lines]


def _from_rows(app: Any, name: str, source: list[str]) -> None:
    """The tables and pictures of the page on performance are those of the committed rows."""
    if name == "performance":
        results = sorted((Path(__file__).parents[1] / "benchmarks" / "results").glob("*.jsonl"))
        source[0] = source[0].replace("<!-- rows -->", pages.page(results))
        for path in (*results, Path(pages.__file__)):
            app.env.note_dependency(str(path))


def setup(app: Any) -> None:
    """Sphinx calls it."""
    app.connect("source-read", _from_rows)
    app.connect("autodoc-process-docstring", _own_labels, priority=400)

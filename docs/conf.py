"""The documentation: ``make docs``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import reference_pages

import kernmantle
from benchmarks import estimates, history, pages, structured_tables
from kernmantle.pairwise import CONSTRUCTORS

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
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
# Links to the pages of Python, NumPy, SciPy, torch and scikit-learn need their inventories from the network, which no
# build may depend on: KERNMANTLE_INTERSPHINX=1 asks for them.
if os.environ.get("KERNMANTLE_INTERSPHINX"):
    extensions.append("sphinx.ext.intersphinx")
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "scipy": ("https://docs.scipy.org/doc/scipy", None),
    "torch": ("https://docs.pytorch.org/docs/stable", None),
    "sklearn": ("https://scikit-learn.org/stable", None),
}
intersphinx_timeout = 10
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
html_js_files = ["versions.js"]
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html", "versions.html", "sidebar/search.html", "sidebar/scroll-start.html",
        "sidebar/navigation.html", "sidebar/scroll-end.html",
    ]
}  # fmt: skip
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
    """Make the numbers of references unique on a page, and bars of formulas plain text."""
    label = re.sub(r"\W", "", name.rpartition(".")[2])
    if name.removeprefix("kernmantle.") in CONSTRUCTORS:
        lines[:] = [line.replace("|", "\\|") for line in lines]  # absolute values, not substitutions
    lines[:] = [re.sub(r"\[(\d)\](?=_)|(?<=^\.\. )\[(\d)\]", rf"[{label}\1\2]", line) for line in lines]


def _unsearched(app: Any, _doctree: Any) -> None:
    """Searches find pages for users first: records of decisions, parity and changes are left out of the full text."""
    name = app.env.current_document.docname
    if name.startswith("decisions/") or name in ("parity", "changelog"):
        app.env.metadata[name]["nosearch"] = ""
    if name.startswith("decisions/0"):
        app.env.metadata[name]["orphan"] = ""  # its own page lists it: in the navigation of every page it would be long


def _records() -> str:
    """Return the table of the records of decisions: which holds as it stands, and which others replace parts of it."""
    paths = sorted((Path(__file__).parent / "decisions").glob("0*.md"))
    texts = {path.name[:4]: path.read_text(encoding="utf-8") for path in paths}
    replaced: dict[str, set[str]] = {number: set() for number in texts}
    for number, text in texts.items():
        for sentence in re.findall(r"Replace[sd].*?(?=Adds to|\Z)", text.partition("## ")[0], re.DOTALL):
            for other in re.findall(r"\b0\d{3}\b", sentence):
                replaced[min(number, other)].add(max(number, other))
    lines = ["| record | parts of it are replaced by |", "|---|---|"]
    for path in paths:
        title = texts[path.name[:4]].partition("\n")[0].removeprefix("# ")
        lines.append(f"| [{title}]({path.name}) | {', '.join(sorted(replaced[path.name[:4]]))} |")
    return "\n".join(lines)


def _changes() -> str:
    """Return what towncrier gathers from the fragments in changelog.d, then the releases that it has written."""
    root = Path(__file__).parents[1]
    written = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    released = written.partition("<!-- towncrier release notes start -->")[2]
    if not any((root / "changelog.d").glob("*.md")):
        return released
    if find_spec("towncrier") is None:
        return f"New changes are in the folder `changelog.d`; towncrier, which gathers them, is missing.\n\n{released}"
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "Unreleased"]
    return f"{subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout}\n{released}"


def _from_rows(app: Any, name: str, source: list[str]) -> None:
    """Pages that are built from other files: measured times, the reference, the changes, the list of decisions."""
    if name == "decisions/README":
        source[0] = source[0].replace("<!-- records -->", _records())
    if name == "reference":
        source[0] = reference_pages.tables(source[0])
    if name == "changelog":
        source[0] = source[0].replace("<!-- changes -->", _changes())
    if name == "performance":
        results = sorted(RESULTS.glob("*.jsonl"))
        source[0] = source[0].replace("<!-- rows -->", pages.page(results))
        for path in (*results, Path(pages.__file__)):
            app.env.note_dependency(str(path))
    if name in structured_tables.TABLES:
        source[0] = structured_tables.insert(source[0], name, RESULTS)
        for path in (*sorted(RESULTS.glob("*.jsonl")), Path(structured_tables.__file__)):
            app.env.note_dependency(str(path))
    if name == "benchmarks":
        source[0] = source[0].replace("<!-- estimates -->", estimates.markdown(estimates.compared(RESULTS)))
    if name == "regressions":
        source[0] = source[0].replace("<!-- series -->", history.page(RESULTS))
        for path in (*sorted(RESULTS.glob("*.json*")), Path(history.__file__)):
            app.env.note_dependency(str(path))


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls it; pages may be read and written by several processes."""
    reference_pages.write(Path(__file__).parent)
    app.connect("source-read", _from_rows)
    app.connect("doctree-read", _unsearched)
    app.connect("autodoc-process-docstring", _own_labels, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

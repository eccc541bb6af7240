"""The documentation: ``make docs``."""

from __future__ import annotations

import kernmantle

project = "kernmantle"
author = "The kernmantle authors"
copyright = "The kernmantle authors, MIT licence"  # noqa: A001
release = version = kernmantle.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_preprocess_types = False

html_theme = "furo"
html_title = "kernmantle"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

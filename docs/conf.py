"""The site's generator: Sphinx, with pages in Markdown (MyST) and the code's own text."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import subquant

project = "subquant"
release = version = subquant.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_click",
    "extension",
]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"subquant {version}"
html_show_copyright = False

# Pages
myst_heading_anchors = 3
myst_links_external_new_tab = False
highlight_language = "text"
smartquotes = False

# Docstrings: Google's style, with "Options:" of a pass and "Planes:" of a layout.
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Options", "params_style"), ("Planes", "params_style")]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
default_role = "name"

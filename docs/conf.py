"""Configuration of Sphinx; the command that builds the site stands in CONTRIBUTING.md."""

import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import example_pages  # noqa: E402
import reference  # noqa: E402

import mpchain  # noqa: E402

project = "mpchain"
author = project_copyright = "mpchain developers"
version = release = mpchain.__version__

needs_sphinx = "8.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "decisions"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(numpy|unittest|multiprocessing)\b.*|.*\._\w+")]
suppress_warnings = ["ref.python"]  # shapes in types, (N, H, W), are names of attributes too

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_preprocess_types = True
napoleon_type_aliases = {"Parameter": ":py:class:`~mpchain.Parameter`"}
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries = False

html_theme = "furo"
html_title = f"mpchain {version}"
html_search_scorer = str(HERE / "search_scorer.js")
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "monokai"


def setup(app):
    """Writes the pages of examples and of the API reference before Sphinx reads pages."""
    example_pages.write(HERE / "examples")
    reference.write(HERE / "api")
    app.connect("autodoc-process-docstring", reference.complete)
    app.connect("autodoc-process-docstring", reference.escape)
    app.connect("missing-reference", reference.resolve)

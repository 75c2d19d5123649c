"""The guides for developers name files, names and imports as they are."""

import ast
import graphlib
import pathlib
import pkgutil
import re

import pytest

import mpchain
from tests.test_import_table import FLOORS, TABLE

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]
GUIDES = ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"]
FOLDERS = "mpchain launch tests examples .ci .github"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "mpchain").rglob("*.py")
}
# The explicit import circles, each by the imports that close it.
CIRCLES = {
    "mpchain.backprop": {"mpchain.variable"},
}


@pytest.fixture(params=GUIDES)
def guide(request):
    return (ROOT / request.param).read_text("utf-8")


def _quoted(guide):
    """What stands in backticks outside of code blocks."""
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", guide, flags=re.DOTALL)))


def test_paths_exist(guide):
    folders = FOLDERS.replace(" ", "|").replace(".", r"\.")
    paths = set(re.findall(rf"(?<![\w./-])(?:{folders})/[\w./-]*\w/?", guide))
    paths |= {text for text in _quoted(guide) if re.fullmatch(r"[\w.-]+\.(py|md|toml|cff)", text)}
    paths |= set(re.findall(r"\]\(([^)#:]+)\)", guide))
    assert not {path for path in paths if not (ROOT / path).exists()}


def test_names_of_mpchain_resolve(guide):
    for text in _quoted(guide):
        if match := re.match(r"mpchain(\.[A-Za-z_]\w*)+", text):
            pkgutil.resolve_name(match[0])  # raises what says which part does not exist


def test_other_identifiers_occur_in_the_source(guide):
    paths = [p for f in FOLDERS.split() for p in (ROOT / f).rglob("*.py")] + [ROOT / "setup.py"]
    words = {word for path in paths for word in re.findall(r"\w+", path.read_text("utf-8"))}
    named = [text for text in _quoted(guide) if re.fullmatch(r"@?[A-Za-z_][\w.]*(\(\))?", text)]
    wrong = {text for text in named if not words.issuperset(re.findall(r"\w+", text))}
    assert not {text for text in wrong if not (ROOT / text).exists()}


@pytest.mark.parametrize("table", [TABLE, FLOORS], ids=["rooms", "floors"])
def test_the_drawings_are_those_of_the_import_table(table):
    """If this fails, put the text on the left in place of the drawing in ARCHITECTURE.md."""
    first = {room: rooms.split()[0] for rooms, _ in table for room in rooms.split()}
    lines = []
    for rooms, below in table:
        node = f'    {rooms.split()[0]}["{rooms}"]'
        lines.append(node + (" --> " if below else "") + " & ".join(map(first.get, below.split())))
    assert "graph TD\n" + "\n".join(lines) in (ROOT / "ARCHITECTURE.md").read_text("utf-8")


def _imports(name, path):
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []  # for type checkers only: nothing is imported when the program runs
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (i if i in MODULES else node.module for i in inner)


@pytest.mark.slow
def test_no_imports_form_circles_but_those_that_the_guide_names():
    graph = {name: set(_imports(name, path)) - {name} for name, path in MODULES.items()}
    for name, closing in CIRCLES.items():
        graph[name] -= closing
    graphlib.TopologicalSorter(graph).prepare()  # CycleError has the modules of another circle
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    for name in CIRCLES:
        assert MODULES[name].relative_to(ROOT).as_posix() in text


def test_the_citation_has_the_version():
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.search(r'^version: "?([^"\n]+)"?$', text, re.MULTILINE)[1] == mpchain.__version__

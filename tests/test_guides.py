"""Tests that the guides for developers and the front page are right: names, drawings, figures."""

import pathlib
import pkgutil
import re

import pytest

import mpchain
from tests.test_import_table import FLOORS, TABLE
from tests.tools import code_lines, imports

pytestmark = [pytest.mark.slow, pytest.mark.whole]

ROOT = pathlib.Path(__file__).parents[1]
GUIDES = ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"]
DECISIONS = sorted((ROOT / "docs/decisions").glob("*.md"))
GUIDES += [p.relative_to(ROOT).as_posix() for p in DECISIONS if p.name != "README.md"]
FOLDERS = "mpchain launch tests examples .ci .github"
# For each circle of imports that ARCHITECTURE.md explains, one of its files. Imports for type
# checkers count.
CIRCLES = {"launch.job", "mpchain.distributed.watch.watchdog", "mpchain.training.trainer"}
CIRCLES |= {"mpchain.variable"}


@pytest.fixture(params=GUIDES)
def guide(request):
    return (ROOT / request.param).read_text("utf-8")


def _quoted(guide):
    """Returns the texts in backticks outside of code blocks."""
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
            pkgutil.resolve_name(match[0])  # the error says which part of the name does not exist


@pytest.fixture(scope="module")
def words():
    """Returns the words in the source."""
    paths = [path for folder in FOLDERS.split() for path in (ROOT / folder).rglob("*.py")]
    paths += [ROOT / "setup.py", ROOT / "pyproject.toml"]
    return {word for path in paths for word in re.findall(r"\w+", path.read_text("utf-8"))}


def test_other_identifiers_occur_in_the_source(guide, words):
    named = [text for text in _quoted(guide) if re.fullmatch(r"@?[A-Za-z_][\w.]*(\(\))?", text)]
    wrong = {text for text in named if not words.issuperset(re.findall(r"\w+", text))}
    assert not {text for text in wrong if not (ROOT / text).exists()}


@pytest.mark.parametrize("table", [TABLE, FLOORS], ids=["rooms", "floors"])
def test_the_drawings_are_those_of_the_import_table(table):
    """If this test fails, put the text on the left in place of the drawing in ARCHITECTURE.md."""
    first = {room: rooms.split()[0] for rooms, _ in table for room in rooms.split()}
    lines = []
    for rooms, below in table:
        node = f'    {rooms.split()[0]}["{rooms}"]'
        lines.append(node + (" --> " if below else "") + " & ".join(map(first.get, below.split())))
    assert "graph TD\n" + "\n".join(lines) in (ROOT / "ARCHITECTURE.md").read_text("utf-8")


def test_the_reading_tour_is_no_longer_than_it_says():
    tour = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition("## A reading tour")[2]
    counted = code_lines.spine()
    assert len(counted) == int(re.search(r"(\d+) files, in this order", tour)[1])
    limit = re.search(r"which are at\s+most ([\d,]+)", tour)[1].replace(",", "")
    assert sum(counted.values()) <= int(limit)


def test_decisions_are_short_and_listed():
    index = (ROOT / "docs/decisions/README.md").read_text("utf-8")
    for path in DECISIONS:
        if path.name != "README.md":
            assert f"({path.name})" in index
            assert path.name == "libraries.md" or len(path.read_text("utf-8").splitlines()) <= 20


@pytest.mark.long
def test_no_imports_form_circles_but_those_that_the_guide_defends():
    found = imports.circles(imports.graph())
    assert len(found) == len(CIRCLES) <= 4, found
    assert all(len(CIRCLES.intersection(circle)) == 1 for circle in found), found
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    for name in CIRCLES:
        assert name.replace(".", "/") + ".py" in text


def test_the_tool_finds_circles_of_every_form(tmp_path):
    texts = {
        "mpchain/__init__.py": "",
        "mpchain/a.py": "from mpchain import b",
        "mpchain/b.py": "def f():\n    import mpchain.c.d",
        "mpchain/c/__init__.py": "",
        "mpchain/c/d.py": "if TYPE_CHECKING:\n    from mpchain.a import x",
        "launch/e.py": "from .f import x",
        "launch/f.py": "from . import e\nimport launch.g",
        "launch/g.py": "",
    }
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    arrows = imports.graph(tmp_path)
    assert imports.circles(arrows) == [
        ["launch.e", "launch.f"],
        ["mpchain.a", "mpchain.b", "mpchain.c.d"],
    ]
    assert imports.rooms(arrows) == {"a": {"b"}, "b": {"c"}, "c": {"a"}, "launch": set()}
    assert imports.drawing({"x": {"y", "z"}, "y": {"z"}, "z": set()}) == (
        'graph TD\n    z["z"]\n    y["y"] --> z\n    x["x"] --> y'
    )


_STATE = re.compile(
    r"\(threading\.local\)|threading\.local\(\)|atexit\.register\(|sys\.meta_path\.(?:append|insert)"
    r"|sys\.meta_path\[:\]|register_at_fork\(|\bsignal\.signal\(|\.excepthook ="
)


def test_the_page_of_state_lists_what_there_is():
    state = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition("## State\n")[2]
    state = state.partition("\n## ")[0]
    for path in [*(ROOT / "mpchain").rglob("*.py"), ROOT / "launch/start_program.py"]:
        text = path.read_text("utf-8")
        if _STATE.search(text):
            assert path.relative_to(ROOT).as_posix() in state
        for variable in re.findall(r'"(MPCHAIN_[A-Z_]+)"', text):
            assert f"`{variable}`" in state


def test_the_citation_has_the_version():
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.search(r'^version: "?([^"\n]+)"?$', text, re.MULTILINE)[1] == mpchain.__version__


def test_speed_on_the_front_page_is_measured():
    """The results of the machine that the page names must contain each ratio."""
    page = (ROOT / "docs/index.md").read_text("utf-8").partition("## Speed")[2]
    results = (ROOT / "tests/benchmarks/RESULTS.md").read_text("utf-8")
    assert "an Intel Xeon with AVX-512" in page and "2026-11-27" in page
    measured = results.partition("# All workloads")[2]
    rows = re.findall(r"^\| [^|]+ \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert len(rows) == 8
    for ratio, captured in rows:
        assert re.search(rf"^\| .* \| {ratio} \| {captured} \|", measured, re.MULTILINE), ratio

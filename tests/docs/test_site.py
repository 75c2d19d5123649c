"""Tests that the site builds without warnings, and that its reference has every public name."""

import inspect
import pkgutil
import re
import subprocess
import sys

import pytest

from tests import test_names
from tests.docs import guides

sphinx = pytest.importorskip("sphinx", reason="the extra docs is not installed")
pytest.importorskip("myst_parser", reason="the extra docs is not installed")
pytest.importorskip("furo", reason="the extra docs is not installed")

pytestmark = [pytest.mark.long, pytest.mark.timeout(1000)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Builds the site by the command in CONTRIBUTING.md; returns the folder."""
    (command,) = re.findall(r"python -m (sphinx -W \S+) build/docs", _contributing())
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", *command.split(), str(folder)],
        cwd=guides.ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def described(site):
    """Returns the names with an entry in the reference."""
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    return {name for kind, names in inventory.data.items() if kind[:3] == "py:" for name in names}


def _contributing():
    return (guides.ROOT / "CONTRIBUTING.md").read_text("utf-8")


def test_every_public_name_is_described(described):
    """Each function and class has an entry, under its own name or another name."""
    documented = {id(_value(name)) for name in described if _is_reachable(name)}
    public = {name for _, name in test_names.public_names() if _is_reachable(name)}
    public = {name for name in public if _needs_a_description(_value(name), name)}
    assert len(public) > 500
    assert sorted(name for name in public if id(_value(name)) not in documented) == []


def _value(name):
    return pkgutil.resolve_name(name)


def _is_reachable(name):
    try:
        _value(name)
    except (AttributeError, ImportError):
        return False
    return True


def _needs_a_description(value, name):
    owner = name.rpartition(".")[0]
    own = (getattr(value, "__module__", None) or "").startswith("mpchain")
    # These classes are CuPy's, or stand-ins for them.
    own = own and name not in {f"mpchain.backends.cuda.{c}" for c in ("ndarray", "Event", "Stream")}
    return own and inspect.ismodule(_value(owner)) and (inspect.isclass(value) or callable(value))


def test_pages_load_nothing_from_the_network(site):
    for path in site.rglob("*.html"):
        text = path.read_text("utf-8")
        loaded = r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(?:https?:)?//[^"]*'
        assert not re.findall(loaded, text), path


def test_the_search_knows_functions_and_guides(site):
    index = (site / "searchindex.js").read_text("utf-8")
    assert "convolution_2d" in index and "guides/variables" in index


WORDS = [
    "fsdp",
    "hessian",
    "gradient accumulation",
    "halo exchange",
    "tqdm",
    "sendrecv",
    "autocast",
]


@pytest.mark.parametrize("word", WORDS)
def test_words_of_the_field_are_in_the_glossary(site, word):
    assert word in (site / "glossary.html").read_text("utf-8").lower()
    assert "glossary" in (site / "searchindex.js").read_text("utf-8")


@pytest.mark.parametrize("word", ["hessian", "seed", "vmap", "early stopping", "collate_fn"])
def test_a_word_of_the_glossary_is_found_by_itself(site, word):
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    assert word in {term.lower() for term in inventory.data["std:term"]}


def test_guides_come_first_in_searches(site):
    assert "guides/" in (site / "_static/language_data.js").read_text("utf-8")


def _entry(site, page, name):
    text = (site / page).read_text("utf-8")
    entry = text.partition(f'id="{name}"')[2].partition('<dl class="py ')[0]
    return re.sub(r"<[^>]*>", "", entry)


def test_special_functions_have_the_arguments_of_the_general_one(site):
    """The page of a family of functions describes the arguments of the general function."""
    for name, texts in {
        "connection.html#convolution_2d": [
            "step from one window to the next",
            "groups of channels",
        ],
        "pooling.html#max_pooling_2d": ["stride", "Returns"],
        "pooling.html#average_pooling_2d": ["stride", "Returns"],
    }.items():
        page, _, function = name.partition("#")
        entry = _entry(site, f"api/functions/{page}", f"mpchain.functions.{function}")
        assert all(text in entry for text in texts), entry
    entry = _entry(site, "api/functions/pooling.html", "mpchain.functions.average_pooling_2d")
    assert "Parameters" in entry and "pad_value" not in entry.partition("Parameters")[2]


def test_every_example_has_a_page_with_its_code(site):
    listed = (site / "examples/index.html").read_text("utf-8")
    for script in guides.ROOT.glob("examples/*/*.py"):
        name = script.parent.name
        assert f'href="{name}.html"' in listed and script.name in listed
        assert "argparse" in (site / f"examples/{name}.html").read_text("utf-8")

"""Tests that tools show functions that were compiled from text, and that only one place compiles
text."""

import ast
import inspect
import pathlib
import traceback

import pytest

from mpchain.formulas.text import compile_text

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]


def test_tracebacks_and_inspection_show_the_text():
    text = "def fail(x):\n    y = x + 1\n    raise ValueError(y)"
    fail = compile_text("example", text, {})
    with pytest.raises(ValueError, match="3") as caught:
        fail(2)
    assert "    raise ValueError(y)\n" in "".join(traceback.format_exception(caught.value))
    assert traceback.extract_tb(caught.value.__traceback__)[-1].filename.startswith("<mpchain: ex")
    assert inspect.getsource(fail).strip() == text


def test_texts_of_one_name_are_shown_apart():
    first, second = (compile_text("f", f"def f():\n    return {i}", {}) for i in (1, 2))
    assert (first(), second()) == (1, 2)
    assert "return 1" in inspect.getsource(first) and "return 2" in inspect.getsource(second)


def test_the_namespace_stays_as_it_is():
    namespace = {"n": 3}
    assert compile_text("f", "def f(x):\n    return n * x", namespace)(2) == 6
    assert namespace.keys() - {"__builtins__", "__name__"} == {"n"}


def _executing(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("exec", "eval", "compile"):
                yield f"{path.relative_to(ROOT).as_posix()}: {node.func.id}"


def test_one_place_executes_text():
    files = [path for folder in ("mpchain", "launch") for path in (ROOT / folder).rglob("*.py")]
    found = [call for path in files for call in _executing(path)]
    assert sorted(found) == ["mpchain/formulas/text.py: compile", "mpchain/formulas/text.py: exec"]

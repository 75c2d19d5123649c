"""Tests that tools show functions that were compiled from text."""

import inspect
import traceback

import pytest

from mpchain.formulas.text import compile_text

pytestmark = pytest.mark.slow


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

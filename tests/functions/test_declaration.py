"""Tests the declaration of functions, as modules of functions use it."""

import ast
import re
import subprocess
import sys
import traceback

import numpy as np
import pytest

from mpchain import Variable
from mpchain import functions as F
from mpchain.functions.declaring.declaration import differentiable, elementwise, registry
from mpchain.utils.type_check import InvalidType


@pytest.fixture(autouse=True)
def _registry():
    before = dict(registry)
    yield
    registry.clear()
    registry.update(before)


def _x(*shape):
    return Variable(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


@pytest.mark.parametrize(
    ("error", "raised"),
    [(ValueError("of shapes"), InvalidType), (TypeError("of types"), InvalidType)]
    + [(e, type(e)) for e in (RuntimeError("by a peer"), np.linalg.LinAlgError("singular"))],
)
def test_a_body_that_raises_is_run_once(error, raised):
    calls = []

    @differentiable(lambda g: g)
    def collective(x, group):
        calls.append(group)
        raise error

    with pytest.raises(raised, match=str(error)) as caught:
        collective(_x(2), "world")
    assert calls == ["world"]
    if raised is InvalidType:
        assert str(caught.value) == f"collective: {error}: x: float32 (2,), group: 'world'"
        assert caught.value.__cause__ is None and caught.value.__context__ is error
        assert traceback.extract_tb(caught.value.__traceback__)[-1].line == "raise error"
    else:
        assert caught.value is error


SCRIPT = """
import numpy as np
from mpchain import Variable

x = Variable(np.zeros((2, 3), np.float32))
y = Variable(np.zeros((2, 4), np.float32))
{}
z = x + y
"""


@pytest.mark.parametrize("before", ["", "x + x"], ids=["first call", "later call"])
def test_shapes_that_do_not_fit_are_told_once_in_one_traceback(tmp_path, before):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(before))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    assert lines[0].startswith("Traceback") and len(lines) <= 12
    assert "    z = x + y" in lines
    assert lines[-1] == (
        "mpchain.utils.type_check.InvalidType: add: operands could not be broadcast together: "
        "x0: float32 (2, 3), x1: float32 (2, 4)"
    )


def test_functions_named_like_the_engines_leave_it_alone():
    @differentiable(lambda g, x_shape: g)
    def sum_to(x):
        return x

    @differentiable(lambda g: g)
    def cast(x):
        return x

    x, b = _x(2, 3), _x(3)
    F.sum(x * b * F.cast(b, np.float64)).backward()
    np.testing.assert_array_equal(b.grad, 2 * b.array * x.array.sum(axis=0))
    assert b.grad.dtype == np.float32
    assert registry["sum_to"].body.__module__ == "mpchain.functions.array"
    assert registry[f"{__name__}.sum_to"] is sum_to.declaration


def test_a_function_that_is_declared_again_replaces_the_earlier_one():
    @elementwise(lambda gy: gy)
    def again(x):
        return x + 1

    first = registry[f"{__name__}.again"]

    @elementwise(lambda gy: gy)
    def again(x):  # noqa: F811 (as in a notebook whose cell is run twice)
        return x + 2

    assert registry[f"{__name__}.again"] is again.declaration is not first
    assert again(_x(1)).array == 2


@pytest.mark.parametrize(
    "declare",
    [lambda: elementwise(lambda gy, nonsense: gy), lambda: differentiable(lambda g, x_size: g)],
)
def test_a_derivative_with_an_unknown_parameter_is_refused_where_it_is_declared(declare):
    rule = r"declaration of f: a derivative has the parameter '(nonsense|x_size)', which is neither"

    with pytest.raises(TypeError, match=rule):

        @declare()
        def f(x, scale):
            return x * scale


@pytest.mark.parametrize("name", ["relu", "convolution_output", "concat"])
def test_command_prints_the_generated_text(name):
    command = [sys.executable, "-m", "mpchain.functions.declaring", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.search(rf"^# <mpchain: {name}, \d+>\ndef call\(", done.stdout, re.MULTILINE)
    has_pull = name != "concat"  # one function computes all derivatives of concat, without text
    assert done.stdout.count(f"# <mpchain: backward of {name}, ") == 2 * has_pull
    assert ("kept[" in done.stdout) == has_pull
    ast.parse(done.stdout)


@pytest.mark.parametrize("words", [[], ["no_such_function"]])
def test_command_says_what_is_declared(words):
    command = [sys.executable, "-m", "mpchain.functions.declaring", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    expected = (
        "no function 'no_such_function' is declared; declared functions are " if words else "NAME"
    )
    assert expected in done.stderr

"""Tests written formulas: C text computes the same as NumPy, and Python text computes
derivatives."""

import ctypes
import inspect
import itertools
import math
import shutil
import subprocess

import numpy as np
import pytest

from mpchain.backends import cuda
from mpchain.formulas import writer
from mpchain.formulas.operators import OPERATORS
from mpchain.formulas.symbol import UntraceableError, trace
from mpchain.functions.declaring.declaration import registry

pytestmark = pytest.mark.slow

BY_SCIPY = "computed by SciPy, which has no counterpart in C"
UNTRACEABLE = {
    "digamma": BY_SCIPY,
    "digamma by x": BY_SCIPY,
    "erfcinv": BY_SCIPY,
    "erfcx": BY_SCIPY,
    "erfinv": BY_SCIPY,
    "lgamma": BY_SCIPY,
    "lgamma by x": BY_SCIPY,
    "log_ndtr": BY_SCIPY,
    "log_ndtr by x": BY_SCIPY,
    "ndtri": BY_SCIPY,
    "normal_hazard": BY_SCIPY,
    "polygamma": BY_SCIPY,
    "polygamma by x": BY_SCIPY,
    "zeta": BY_SCIPY,
    "zeta by q": BY_SCIPY,
}
"""Formulas of elementwise declarations that cannot be written as text: label and reason."""


def _formulas():
    """Yields pairs (label, function) of all formulas in elementwise declarations."""
    for name, declaration in registry.items():
        if declaration.is_elementwise and declaration.body.__module__.startswith("mpchain."):
            yield name, declaration.body
            for argument, derivative in zip(declaration.array_names, declaration.derivatives):
                if derivative is not None:
                    yield f"{name} by {argument}", derivative


FORMULAS = dict(_formulas())
TRACEABLE = {label: formula for label, formula in FORMULAS.items() if label not in UNTRACEABLE}


def _applied(function):
    """Returns a formula with one NumPy operation; the product converts a bool to a number."""
    n = 3 if function is np.where else function.nin
    return (
        (lambda a: function(a) * 1),
        (lambda a, b: function(a, b) * 1),
        (lambda condition, a, b: function(condition, a, b) * 1),
    )[n - 1]


OPERATIONS = {f"numpy.{f.__name__}": _applied(f) for f in OPERATORS}


def _parameters(formula):
    return list(inspect.signature(formula).parameters)


def test_the_registry_is_read():
    assert {"add", "add by x0", "relu by x", "softplus", "where by y"} <= set(FORMULAS)
    assert set(UNTRACEABLE) <= set(FORMULAS)


@pytest.mark.parametrize("label", FORMULAS)
def test_every_formula_can_be_written_down(label):
    formula = FORMULAS[label]
    if label in UNTRACEABLE:
        with pytest.raises(UntraceableError):
            trace(formula, _parameters(formula))
    else:
        code = writer.render_c(trace(formula, _parameters(formula)))
        assert code.splitlines()[-1].startswith("out = ")


# Compiled C text.


def _c_function(number, formula):
    parameters = _parameters(formula)
    arguments = ", ".join(f"const double *a_{name}" for name in parameters)
    loads = " ".join(f"T in_{name} = a_{name}[i];" for name in parameters)
    code = writer.render_c(trace(formula, parameters)).replace("\n", " ")
    return (
        f"void f{number}(long n, {arguments}, double *result) {{\n"
        f"  for (long i = 0; i < n; i++) {{ T out; {loads} {code} result[i] = out; }}\n}}\n"
    )


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Compiles the formulas into one shared library; returns C functions by label."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler (cc)")
    folder = tmp_path_factory.mktemp("formulas")
    source, library = folder / "formulas.c", folder / "formulas.so"
    formulas = TRACEABLE | OPERATIONS
    functions = [_c_function(i, formula) for i, formula in enumerate(formulas.values())]
    source.write_text(
        "#include <math.h>\n#include <stdbool.h>\n#define T double\n" + "\n".join(functions)
    )
    command = [compiler, "-Wall", "-Wno-unused-variable", "-Werror", "-O1", "-shared", "-fPIC"]
    done = subprocess.run(
        [*command, "-o", library, source, "-lm"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = ctypes.CDLL(library)
    return {label: loaded[f"f{number}"] for number, label in enumerate(formulas)}


_SPECIAL = [0.0, -0.0, 1.0, -1.0, 50.0, -50.0, 1e4, -1e4, math.inf, -math.inf, math.nan]


def _arguments(formula, constant_names):
    """Returns the arguments of a formula, and the number of elements of its arrays, which have all
    pairs of special values, then random values."""
    random = np.random.RandomState(0)
    n = len(_SPECIAL) ** 2 + 100
    arguments = []
    for i, name in enumerate(_parameters(formula)):
        if name in constant_names:
            arguments.append(1.75)
        elif name == "condition":
            arguments.append(np.arange(n) % 3 == 0)
        else:
            grid = np.meshgrid(_SPECIAL, _SPECIAL, indexing="ij")[i % 2].ravel()
            arguments.append(np.concatenate([grid, random.uniform(-2, 2, 100)]))
    return arguments, n


@pytest.mark.parametrize("label", [*TRACEABLE, *OPERATIONS])
def test_c_computes_what_numpy_computes(label, compiled):
    formula = (TRACEABLE | OPERATIONS)[label]
    declaration = registry.get(label.partition(" ")[0])
    constants = () if declaration is None else declaration.constant_names
    arguments, n = _arguments(formula, constants)
    with np.errstate(all="ignore"):
        expected = np.broadcast_to(np.asarray(formula(*arguments), np.float64), (n,))
    held = [np.ascontiguousarray(np.broadcast_to(x, (n,)), np.float64) for x in arguments]
    result = np.empty(n)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*held, result)]
    compiled[label](ctypes.c_long(n), *pointers)
    np.testing.assert_allclose(result, expected, 1e-12, 1e-300)


# The other columns of the table OPERATORS.


COLUMNS = [
    pytest.param(function, column, id=f"{column} {function.__name__}")
    for column in ("python", "numba")
    for function, operator in OPERATORS.items()
    if getattr(operator, column)
]


@pytest.mark.parametrize("function, column", COLUMNS)
def test_texts_in_python_compute_what_numpy_computes(function, column):
    operator = OPERATORS[function]
    n = 3 if operator.kind == "choice" else function.nin
    code = compile(getattr(operator, column).format(*"abc"[:n]), "the table", "eval")
    numbers = [0.5, -2.0, *_SPECIAL]
    choices = [[False, True] if operator.takes_bool(i) else numbers for i in range(n)]
    for values in itertools.product(*choices):
        # Python text is for arrays, and numba's text for their elements.
        operands = [np.array([x]) if column == "python" else np.asarray(x)[()] for x in values]
        with np.errstate(all="ignore"):
            actual = eval(code, {"np": np, **dict(zip("abc", operands))})
            np.testing.assert_array_equal(actual, function(*operands), str(values))


# Formulas that cannot be written as text.


@pytest.mark.parametrize(
    "formula",
    [
        lambda x: x if x > 0 else -x,
        np.sum,
        lambda x: x.sum(),
        np.arccosh,
        lambda x: np.add(x, 1, dtype=np.float64),
        lambda x: np.add.reduce(x, axis=0),
        lambda x: np.where(x > 0),
        lambda x: x + np.zeros(3),
        lambda x: x * math.inf,
        lambda x: x + 1j,
        lambda x: np.clip(x, 0, 1),
    ],
)
def test_what_has_no_counterpart(formula):
    with pytest.raises(UntraceableError):
        trace(formula, ["x"])


def test_no_kernel_of_what_has_no_counterpart():
    assert writer.fused_kernel("nothing", lambda x: x if x > 0 else -x) is None


def test_a_kernel_is_declared_over_one_type(monkeypatch):
    seen = []
    monkeypatch.setattr(cuda, "elementwise", lambda *args: seen.append(args))
    monkeypatch.setattr(writer, "_on_gpu", None)
    writer.fused_kernel("muladd", lambda x, y: x * y + 2)
    code = "T t0 = in_x * in_y;\nT t1 = t0 + (T)2.0;\nout = t1;"
    assert seen == [("T in_x, T in_y", "T out", code, "mpchain_muladd")]


def test_only_what_is_needed_is_written():
    def formula(x):
        np.exp(x)
        return x * 2

    assert writer.render_c(trace(formula, ["x"])) == "T t1 = in_x * (T)2.0;\nout = t1;"
    assert writer.render_c(trace(lambda x: x, ["x"])) == "out = in_x;"
    assert writer.render_c(trace(lambda x: 3, ["x"])) == "out = (T)3.0;"


def test_truth_values_become_numbers_where_they_are_used_as_such():
    code = writer.render_c(trace(lambda g, y: g * np.greater(y, 0), ["g", "y"]))
    assert code == "bool t0 = in_y > (T)0.0;\nT t1 = in_g * (T)t0;\nout = t1;"
    code = writer.render_c(trace(lambda x: np.logical_and(x > 0, x < 1), ["x"]))
    assert "bool t2 = t0 && t1;\nout = (T)t2;" in code

"""Tests the text of derivatives of elementwise formulas."""

import inspect

import numpy as np
import pytest

import mpchain.functions as F
from mpchain import Variable
from mpchain.formulas.symbol import UntraceableError
from mpchain.functions.declaring.declaration import registry
from mpchain.functions.declaring.differentiation import differentiate


def _parameters(formula):
    return list(inspect.signature(formula).parameters)


def test_differentiate():
    by_x, by_y, by_z = differentiate(lambda x, y, z: x * y * y, ["x", "y", "z"], 3)
    x, y, g = (np.random.RandomState(i).randn(5) for i in range(3))
    np.testing.assert_allclose(by_x(g, y), g * y * y)
    np.testing.assert_allclose(by_y(g, x, y), g * 2 * x * y)
    assert by_z is None
    assert list(inspect.signature(by_y).parameters)[1:] == ["x", "y"]
    assert by_x.__doc__.startswith("def derivative(gx, y):\n    ")


def test_differentiate_where_an_array_is_used_three_times():
    (by_x,) = differentiate(lambda x: x * x * x + x, ["x"], 1)
    x = np.array([2.0, 3.0])
    np.testing.assert_allclose(by_x(np.ones(2), x), 3 * x * x + 1)


def test_differentiate_with_constants():
    (by_x,) = differentiate(lambda x, c: (x * c) * (c - 1) * x, ["x", "c"], 1)
    x = np.array([2.0, 3.0], np.float32)
    result = by_x(np.ones(2, np.float32), x, 3)
    np.testing.assert_allclose(result, 2 * x * 6)
    assert result.dtype == np.float32


def test_differentiate_leaves_single_operations_alone():
    assert differentiate(lambda x, y: x * y, ["x", "y"], 2) is None
    assert differentiate(lambda x: x, ["x"], 1) is None
    with pytest.raises(UntraceableError):
        differentiate(lambda x: F.sum(x, axis=0) * 2 * x, ["x"], 1)


def _second_derivatives():
    """Yields pairs for derivatives of several operations whose second derivatives have text: a
    label, and (the formula, its arrays, the text)."""
    for name, declaration in registry.items():
        for argument, formula in zip(declaration.array_names, declaration.derivatives):
            n = declaration.elementwise_arrays(formula) if formula else 0
            if n == 0:
                continue
            try:
                derivatives = differentiate(formula, _parameters(formula), n)
            except UntraceableError:
                continue  # without text, backpropagation differentiates the function's operations
            if derivatives is not None:
                yield f"{name} by {argument}", (formula, _parameters(formula)[:n], derivatives)


SECOND = dict(_second_derivatives())


def test_derivatives_that_can_be_written_down_are():
    assert {"softplus by x", "divide by x1", "power by x0", "sigmoid by x"} <= set(SECOND)


@pytest.mark.parametrize("label", SECOND)
def test_derivatives_of_derivatives_are_those_of_variables(label):
    """The text for the recorded backward computes the same as backpropagation without the text."""
    formula, arrays, derivatives = SECOND[label]
    random = np.random.RandomState(0)
    values = {name: random.uniform(0.1, 0.9, 6) for name in arrays}
    values |= {name: 1.75 for name in _parameters(formula) if name not in values}
    g = random.randn(6)
    xs = {name: Variable(values[name]) for name in arrays}
    y = formula(*(xs.get(name, values[name]) for name in _parameters(formula)))
    y.grad = g
    y.backward()
    for name, derivative in zip(arrays, derivatives, strict=True):
        if derivative is None:
            assert xs[name].grad is None
            continue
        needed = list(inspect.signature(derivative).parameters)[1:]
        result = derivative(g, *(values[n] for n in needed))
        np.testing.assert_allclose(np.broadcast_to(result, 6), xs[name].grad, 1e-12)

"""Tests that formulas written out for NumPy arrays have the same bits as the original formulas."""

import itertools

import numpy as np
import pytest

from mpchain.formulas import in_place
from mpchain.formulas.text import parameters_of
from mpchain.functions.declaring.declaration import registry

pytestmark = pytest.mark.slow

CONSTANTS = {"n": 2, "c": 0.75, "low": -0.5, "high": 0.5, "x_min": -0.5, "x_max": 0.5}


def formulas():
    """Yields the bodies and elementwise derivatives of all elementwise declarations, with the
    number of arrays and the names of those that certainly have the shape of the result."""
    for name, declaration in sorted(registry.items()):
        if not declaration.is_elementwise:
            continue
        n = len(declaration.array_names)
        full = declaration.array_names if n == 1 else ()
        yield pytest.param(declaration.body, n, full, id=name)
        for i, derivative in enumerate(declaration.derivatives):
            n_arrays = derivative and declaration.elementwise_arrays(derivative)
            if n_arrays:
                names = parameters_of(derivative)[:n_arrays]
                full = [x for x in names if n == 1 or x not in declaration.array_names]
                yield pytest.param(derivative, n_arrays, full, id=f"{name}-{i}")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("formula", "n_arrays", "full"), [*formulas()])
def test_same_bits_and_inputs_untouched(formula, n_arrays, full):
    shapes = (), (5, 3), (64, 65)
    for dtype, shape in itertools.product((np.float16, np.float32, np.float64), shapes):
        check_bits(formula, n_arrays, full, shape, dtype)


def check_bits(formula, n_arrays, full, shape, dtype):
    names = parameters_of(formula)
    rng = np.random.default_rng(0)
    arrays = [np.asarray(rng.uniform(-0.9, 0.9, shape), dtype) for _ in names[:n_arrays]]
    constants = [CONSTANTS.get(name, 0.75) for name in names[n_arrays:]]
    originals = [array.copy() for array in arrays]
    written = in_place.program(formula, names, n_arrays, full)
    expected = formula(*arrays, *constants)
    for _ in range(2):
        result = written(*arrays, *constants)
        # NumPy's functions of a Python number return float64, so the expected result is cast at the
        # end.
        np.testing.assert_array_equal(result.astype(dtype), expected.astype(dtype), strict=True)
        for array, original in zip(arrays, originals):
            np.testing.assert_array_equal(array, original)


def test_numbers_memory_and_comparisons():
    def formula(g, x):
        return g * (x > 0) * (1 - x * x)

    text_free = in_place.program(formula, ("g", "x"), 2, ("g", "x"))
    assert text_free is not formula
    g, x = np.float32([[1, 2, 3]]), np.float32([[-1, 0.5, 2]])
    np.testing.assert_array_equal(text_free(g, x), np.float32([[-0.0, 1.5, -9]]))


def test_arrays_that_broadcast_are_not_computed_into():
    def formula(x, y):
        return (x * 2 + 1) * y

    written = in_place.program(formula, ("x", "y"), 2, ())
    x, y = np.ones((100, 1)), np.arange(50.0)
    for arrays in ((x, y), (x + 0 * y, y + 0 * x)):  # the latter have one shape
        np.testing.assert_array_equal(written(*arrays), (x * 2 + 1) * y)


def test_dtypes_that_differ():
    def formula(x, y):
        return (x + 0.1) * y

    written = in_place.program(formula, ("x", "y"), 2, ("x", "y"))
    x, y = np.ones(3, np.float32), np.ones(3)
    assert written(x, y).dtype == np.float64
    np.testing.assert_array_equal(written(x, y), formula(x, y))
    integers = np.arange(3)
    np.testing.assert_array_equal(written(integers, integers), formula(integers, integers))


def test_what_cannot_be_traced_stays_as_it_is():
    def formula(x):
        return x if x.sum() > 0 else -x

    assert in_place.program(formula, ("x",), 1, ("x",)) is formula


@pytest.mark.parametrize("whole", [0, 8, 9])
def test_loops_are_called_for_large_arrays(whole):
    called = []

    def loop(x, y):
        called.append((x.shape, y.shape))

    written = in_place.program(lambda x, y: x + y, ("x", "y"), 2, (), loop, 8, whole)
    x, row = np.arange(8.0).reshape(2, 4), np.arange(4.0)
    for other in (x, row, x.T.copy().T, row[:, None][:2]):
        np.testing.assert_array_equal(written(x, other), x + other)
    alike = [] if whole > 8 else [((2, 4), (2, 4))]
    assert called == [*alike, ((2, 4), (4,)), ((2, 4), (2, 4)), ((2, 4), (2, 1))]

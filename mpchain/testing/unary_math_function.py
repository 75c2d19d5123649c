"""Generates tests of elementwise functions of one argument."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain import gradient_check
from mpchain.backends import cuda
from mpchain.gradient_check import assert_allclose
from mpchain.testing import attr
from mpchain.testing.parameterized import parameterize, product
from mpchain.variable import Variable

_HALF = {"atol": 5e-2, "rtol": 5e-2}
_FORWARD_HALF = {"atol": 1e-3, "rtol": 1e-3}
_SHAPES_AND_DTYPES = {"shape": [(3, 2), ()], "dtype": [np.float16, np.float32, np.float64]}


def _uniform(shape, dtype):
    """Returns three arrays: inputs, gradients of outputs, gradients of gradients of inputs."""
    return tuple(np.random.uniform(-1, 1, shape).astype(dtype) for _ in range(3))


def unary_math_function_unittest(
    func: Callable,
    func_expected: Callable | None = None,
    label_expected: str | None = None,
    make_data: Callable | None = None,
    is_linear: object = None,
    forward_options: dict | None = None,
    backward_options: dict | None = None,
    double_backward_options: dict | None = None,
) -> Callable[[Any], Any]:
    """Class decorator: adds tests of an elementwise function for several shapes and dtypes.

    Args:
        func: function of one Variable.
        func_expected: the same function of NumPy arrays; None means NumPy's function of the same
            name. If it has an argument ``dtype``, it gets the dtype of the input.
        label_expected: the expected label of the function's node in the graph; None skips the test.
        make_data: function of (shape, dtype) that returns inputs, gradients of outputs and
            gradients of gradients of inputs; None means uniform in (-1, 1).
        is_linear: ignored.
        forward_options, backward_options, double_backward_options: options of
            :func:`assert_allclose`, ``check_backward`` and ``check_double_backward``.

    Example:
        >>> @testing.unary_math_function_unittest(F.sin, label_expected="sin")
        ... class TestSin(unittest.TestCase):
        ...     pass
    """
    expected = func_expected or getattr(np, func.__name__, None)
    if expected is None:
        raise ValueError(
            f"unary_math_function_unittest: NumPy has no {func.__name__}; give func_expected"
        )
    tests = {
        "forward": _forward_test(func, expected, forward_options),
        "backward": _gradient_test(gradient_check.check_backward, func, 2, backward_options),
        "double_backward": _gradient_test(
            gradient_check.check_double_backward, func, 3, double_backward_options
        ),
    }

    def decorate(cls):
        cls.make_data = staticmethod(make_data or _uniform)
        for name, test in tests.items():
            setattr(cls, f"test_{name}_cpu", lambda self, test=test: test(self, lambda x: x))
            on_gpu = lambda self, test=test: test(self, cuda.to_gpu)
            setattr(cls, f"test_{name}_gpu", attr.gpu(on_gpu))
        if label_expected is not None:
            cls.test_label = _label_test(func, label_expected)
        return parameterize(*product(_SHAPES_AND_DTYPES))(cls)

    return decorate


def _takes_dtype(function):
    if isinstance(function, np.ufunc):
        return True
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a C function may have no signature
        return False
    return any(p.name == "dtype" or p.kind is p.VAR_KEYWORD for p in parameters)


def _forward_test(func, expected, options):
    takes_dtype = _takes_dtype(expected)

    def test(self, send):
        x = self.make_data(self.shape, self.dtype)[0]
        y = func(Variable(send(x)))
        if y.dtype != self.dtype:
            raise AssertionError(f"the output must be {np.dtype(self.dtype)}, but is {y.dtype}")
        default = _FORWARD_HALF if self.dtype == np.float16 else {}
        y_expected = expected(x, dtype=x.dtype) if takes_dtype else expected(x)
        assert_allclose(y, y_expected, **(default if options is None else options))

    return test


def _gradient_test(check, func, n_arrays, options):
    def test(self, send):
        arrays = map(send, self.make_data(self.shape, self.dtype)[:n_arrays])
        default = {"dtype": np.float64, **(_HALF if self.dtype == np.float16 else {})}
        check(func, *arrays, **(default if options is None else {**default, **options}))

    return test


def _label_test(func, label):
    def test(self):
        node = func(Variable(self.make_data(self.shape, self.dtype)[0])).creator_node
        if node.label != label:
            raise AssertionError(f"the label must be {label!r}, but is {node.label!r}")

    return test

"""Tests FunctionTestCase, LinkTestCase and LinkInitializersTestCase: what they accept and find."""

import unittest

import numpy as np
import pytest

import mpchain.functions as F
from mpchain import initializers, testing
from mpchain import links as L
from mpchain.testing import InitializerArgument
from mpchain.variable import Variable

CPU = testing.BackendConfig({})


def _case(base, **attributes):
    """Returns a test object of a subclass of ``base`` with other attributes, ready to run."""
    case = type("TestOther", (base,), {"runTest": lambda self: None, **attributes})()
    case.setUp()
    return case


def _doubling(**attributes):
    """Returns a test case of x -> 2 x."""
    defaults = {
        "generate_inputs": lambda self: (np.random.uniform(-1, 1, (2, 3)).astype("f"),),
        "forward": lambda self, inputs, device: (inputs[0] * 2,),
        "forward_expected": lambda self, inputs: (inputs[0] * 2,),
    }
    return _case(testing.FunctionTestCase, **{**defaults, **attributes})


def _run_all(case, backend_config=CPU):
    for name in dir(case):
        if name.startswith("test_") and callable(getattr(case, name)):
            getattr(case, name)(backend_config)


def test_a_right_function_passes():
    _run_all(_doubling())
    _run_all(_doubling(), backend_config=None)


def _overwriting(self, inputs, device):
    inputs[0].array[...] = 7
    return (inputs[0] * 2,)


def _overwriting_expected(self, inputs):
    inputs[0][...] = 7
    return (inputs[0] * 2,)


@pytest.mark.parametrize(
    "name, attributes, message",
    [
        (
            "forward",
            {"forward": lambda self, xs, device: (xs[0] * 3,)},
            "(?s)Outputs do not match the expected values.\nError details of output .0.:.*most",
        ),
        (
            "forward",
            {"forward": lambda self, xs, device: (F.sum(xs[0]),)},
            r"\nExpected shapes and dtypes: \(2, 3\):float32\nActual shapes and dtypes:   \(\)",
        ),
        (
            "forward",
            {"forward": lambda self, xs, device: (F.cast(xs[0], "d") * 2,)},
            r"Actual shapes and dtypes:   \(2, 3\):float64",
        ),
        (
            "forward",
            {"forward": lambda self, xs, device: (xs[0] * 2, xs[0])},
            r"Actual shapes and dtypes:   \(2, 3\):float32, \(2, 3\):float32",
        ),
        (
            "forward",
            {"forward": lambda self, xs, device: xs[0] * 2},
            r"`forward\(\)` must return a tuple, not <class 'mpchain.variable.Variable'>",
        ),
        (
            "forward",
            {"forward": lambda self, xs, device: (xs[0].array * 2,)},
            r"forward\(\) must return a tuple of Variables.\nActual: <class 'numpy.ndarray'>",
        ),
        ("forward", {"forward": _overwriting}, "modified during forward.\nInput\\[0\\]:\nOriginal"),
        (
            "forward",
            {"forward_expected": _overwriting_expected},
            "Input arrays have been modified during forward_expected",
        ),
        (
            "backward",
            {"forward": lambda self, xs, device: (Variable(xs[0].array * 2),)},
            r"^backward is not implemented correctly\n\n\(caused by\)\nAssertionError: check",
        ),
        (
            "double_backward",
            {"forward": lambda self, xs, device: (xs[0] * xs[0].array,)},
            r"^double backward is not implemented correctly\n\n\(caused by\)\nAssertion",
        ),
        (
            "backward",
            {
                "dodge_nondifferentiable": True,
                "generate_inputs": lambda self: (np.zeros(2),),
                "forward": lambda self, xs, device: (abs(xs[0]),),
            },
            "100 samples were all at nondifferentiable points",
        ),
    ],
)
def test_a_wrong_function_is_found(name, attributes, message):
    with pytest.raises(testing.FunctionTestError, match=message):
        getattr(_doubling(**attributes), f"test_{name}")(CPU)


@pytest.mark.parametrize("error", [testing.FunctionTestError, testing.LinkTestError])
def test_how_errors_of_test_cases_are_raised(error):
    error.check(True, "no")
    with pytest.raises(error, match=r"^wrong$"):
        error.check([], "wrong")
    with pytest.raises(error, match=r"^wrong$"):
        error.fail("wrong")
    with pytest.raises(error, match=r"^wrong\n\n\(caused by\)\nKeyError: 3"):
        with error.raise_if_fail("wrong", (KeyError, IndexError)):
            {}[3]
    with pytest.raises(ValueError, match="other"), error.raise_if_fail("wrong"):
        raise ValueError("other")


@pytest.mark.parametrize(
    "attributes, error, message",
    [
        (
            {"generate_inputs": lambda self: [np.ones(3)]},
            TypeError,
            r"`generate_inputs\(\)` must ret",
        ),
        (
            {"generate_inputs": lambda self: (1.0,)},
            TypeError,
            "arrays or None, not of <class 'float'>",
        ),
        ({"forward_expected": lambda self, xs: xs[0]}, TypeError, r"`forward_expected\(\)` must"),
        ({"contiguous": "F"}, ValueError, "contiguous must be None or 'C', not 'F'"),
        ({"skip_forward_test": True}, unittest.SkipTest, "skip_forward_test is set"),
    ],
)
def test_misuse_of_a_function_test(attributes, error, message):
    with pytest.raises(error, match=message):
        _doubling(**attributes).test_forward(CPU)


@pytest.mark.parametrize("method", ["generate_inputs", "forward", "forward_expected"])
def test_methods_that_must_be_defined(method):
    case = _doubling(**{method: getattr(testing.FunctionTestCase, method)})
    with pytest.raises(NotImplementedError, match=rf"{method}\(\) is not implemented"):
        case.test_forward(CPU)


def test_hooks_and_options_of_a_function_test():
    calls = []

    def forward(self, inputs, device):
        x, t = inputs
        calls.append((self.test_name, x.array.strides, x.dtype, device.name, t.array[0]))
        return (F.relu(x) ** 2,)

    def check(self, outputs, expected):
        calls.append("check_forward_outputs")
        testing.FunctionTestCase.check_forward_outputs(self, outputs, expected)

    case = _doubling(
        before_test=lambda self, name: calls.append((name, self.test_name, self.backend_config)),
        generate_inputs=lambda self: (np.random.uniform(-1, 1, (2, 3)).astype("e"), np.array([5])),
        forward=forward,
        forward_expected=lambda self, xs: (np.maximum(xs[0], 0) ** 2,),
        check_forward_outputs=check,
        generate_grad_outputs=lambda self, ys: (np.ones_like(ys[0]),),
        generate_grad_grad_inputs=lambda self, xs: (np.ones_like(xs[0]), None),
        dodge_nondifferentiable=True,
    )
    for options in (case.check_backward_options, case.check_double_backward_options):
        options.update({"atol": 1e-2, "rtol": 1e-2})
    case.test_forward(CPU)
    assert calls == [
        ("test_forward", "test_forward", CPU),
        ("test_forward", (-24, -4), np.float16, "@numpy", 5),
        "check_forward_outputs",
    ]
    calls.clear()
    case.test_backward(CPU)
    case.test_double_backward(CPU)
    dtypes = [call[2] for call in calls if len(call) == 5 and call[0] == "test_double_backward"]
    assert dtypes[0] == np.float16 and {*dtypes[1:]} == {np.dtype(np.float64)}

    case = _doubling(forward=forward, contiguous="C", numerical_grad_dtype=np.float32)
    case.generate_inputs = lambda: (np.ones((2, 3), "e"), np.array([5]))
    case.check_backward_options = {"atol": 1, "dtype": np.float64}
    calls.clear()
    case.test_backward(CPU)
    assert [call[1:3] for call in calls] == [((6, 2), "e"), ((24, 8), "d"), ((24, 8), "d")]


class LinearCase(testing.LinkTestCase):
    """A right test of a right link; ``__test__`` prevents pytest from collecting it."""

    __test__ = False
    param_names = ("W", "b")

    def generate_inputs(self):
        return (np.random.uniform(-1, 1, (2, 3)).astype("f"),)

    def generate_params(self):
        return initializers.Normal(), InitializerArgument(None, 0)

    def create_link(self, initializers):
        W, b = initializers
        return L.Linear(3, 4, initialW=W, initial_bias=b)

    def forward_expected(self, link, inputs):
        return (inputs[0] @ link.W.array.T + link.b.array,)


def test_a_right_link_passes():
    _run_all(_case(LinearCase))
    with pytest.raises(unittest.SkipTest, match="skip_backward_test is set"):
        _case(LinearCase, skip_backward_test=True).test_backward(CPU)


@pytest.mark.parametrize(
    "name, attributes, error, message",
    [
        (
            "forward",
            {"forward": lambda self, link, xs, d: (link(*xs) * 2,)},
            None,
            "Outputs do not",
        ),
        ("forward", {"forward": lambda self, link, xs, d: link(*xs)}, None, "must return a tuple"),
        (
            "backward",
            {"forward": lambda self, link, xs, d: (F.linear(xs[0], link.W.array, link.b),)},
            None,
            "backward is not implemented correctly",
        ),
        ("backward", {"param_names": ("q",)}, None, "does not have a parameter named 'q'"),
        (
            "forward",
            {"create_link": lambda self, inits: 3},
            TypeError,
            "must return an mpchain.Link",
        ),
        (
            "forward",
            {"generate_params": lambda self: (0.5, None)},
            ValueError,
            "A None initializer must be wrapped in an InitializerArgument",
        ),
    ],
)
def test_a_wrong_link_is_found(name, attributes, error, message):
    with pytest.raises(error or testing.LinkTestError, match=message):
        getattr(_case(LinearCase, **attributes), f"test_{name}")(CPU)


class LinearInitializersCase(testing.LinkInitializersTestCase):
    """Tests the initializers of a link whose input size is known at its first call."""

    __test__ = False
    param_names = ("W", "b")
    generate_inputs = LinearCase.generate_inputs
    generate_params = LinearCase.generate_params

    def create_link(self, initializers):
        W, b = initializers
        return L.Linear(None, 4, initialW=W, initial_bias=b)

    def get_initializers(self):
        arrays = np.arange(12.0, dtype="f").reshape(4, 3), np.ones(4, "f")
        return [
            [initializers.Constant(2.0), 2.0, arrays[0]],
            [InitializerArgument(None, 0), initializers.One(), arrays[1]],
        ]


def test_initializers():
    _case(LinearInitializersCase).test_initializers(CPU)
    case = _case(LinearInitializersCase)
    case.get_initializers = lambda: [[InitializerArgument(3, 4)]]
    with pytest.raises(testing.LinkTestError, match=r"Outputs do not match"):
        case.test_initializers(CPU)
    case.check_initializers_options = {"atol": 1.5}
    case.test_initializers(CPU)
    with pytest.raises(ValueError, match="expected_initializer must not be None"):
        InitializerArgument(3, None)

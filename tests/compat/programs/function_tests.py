"""Tests functions with chainer.testing, run by unittest."""

import sys
import unittest
import warnings

import chainer.functions as F
import numpy as np
from chainer import testing
from chainer.testing import attr, condition


def classes(decorated):
    """Returns the classes that pytest collects from a decorated class."""
    found, names = [], vars(sys.modules["__main__"])
    for name, value in list(names.items()):
        if isinstance(value, type) and issubclass(value, unittest.TestCase):
            found.append(value)
    return [c for c in found if "SquareAdd" in c.__name__]


@testing.parameterize(
    *testing.product({"shape": [(3, 2), (4,)], "dtype": [np.float32, np.float64]})
)
@testing.inject_backend_tests(None, [{}])
class TestSquareAdd(testing.FunctionTestCase):
    def setUp(self):
        self.check_backward_options = {"atol": 1e-2, "rtol": 1e-2}
        self.check_double_backward_options = {"atol": 1e-2, "rtol": 1e-2}

    def generate_inputs(self):
        return tuple(np.random.uniform(-1, 1, self.shape).astype(self.dtype) for _ in range(2))

    def forward_expected(self, inputs):
        return (inputs[0] ** 2 + inputs[1],)

    def forward(self, inputs, device):
        return (F.square(inputs[0]) + inputs[1],)


class TestOthers(unittest.TestCase):
    @condition.retry(3)
    def test_retried(self):
        testing.assert_allclose(np.ones(2), np.ones(2) + 1e-7)

    @attr.slow
    def test_warns(self):
        with testing.assert_warns(UserWarning):
            warnings.warn("x", UserWarning)


result = unittest.TestResult()
for cls in (*classes(TestSquareAdd), TestOthers):
    names = [n for n in dir(cls) if n.startswith("test_") and callable(getattr(cls, n))]
    unittest.TestSuite([cls(n) for n in names if "gpu" not in n]).run(result)
assert result.wasSuccessful(), result.failures + result.errors
print(int(result.testsRun >= 8))

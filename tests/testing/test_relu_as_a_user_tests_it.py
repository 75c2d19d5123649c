"""A user's test of relu, with 44 code lines and 252 cases. Cases that need a GPU are skipped
without one."""

import unittest

import numpy

import mpchain.functions as F
from mpchain import testing


@testing.parameterize(
    *testing.product(
        {
            "shape": [(3, 2), ()],
            "dtype": [numpy.float16, numpy.float32, numpy.float64],
            "contiguous": ["C", None],
        }
    )
)
@testing.fix_random()
@testing.inject_backend_tests(
    None,
    [
        {},
        *testing.product({"use_cuda": [True], "use_cudnn": ["never", "auto", "always"]}),
        *testing.product({"use_cuda": [True], "autotune": [True, False]}),
        *testing.product({"use_cuda": [True], "cuda_device": [0, 1, 2]}),
    ],
)
class TestReLU(testing.FunctionTestCase):
    dodge_nondifferentiable = True

    def setUp(self):
        self.check_forward_options.update({"atol": 0, "rtol": 0})
        if self.dtype == numpy.float16:
            options = {"atol": 1e-2, "rtol": 1e-2}
            self.check_backward_options.update(options)
            self.check_double_backward_options.update(options)

    def before_test(self, test_name):
        if self.test_name != test_name:
            raise unittest.SkipTest("the attribute is set before the hook is called")

    def generate_inputs(self):
        x = numpy.random.uniform(-1, 1, self.shape).astype(self.dtype)
        return (x,)

    def forward(self, inputs, device):
        (x,) = inputs
        return (F.relu(x),)

    def forward_expected(self, inputs):
        (x,) = inputs
        return (numpy.maximum(x, numpy.zeros_like(x)),)


testing.run_module(__name__, __file__)

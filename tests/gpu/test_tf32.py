"""Tests the switch for TF32, with which tensor cores round the factors of products in single
precision."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import using_config
from mpchain.backends import cuda
from mpchain.kernels.gpu import cudnn
from mpchain.observers import current
from tests.gpu.test_graphs import Capturing

pytestmark = pytest.mark.gpu
EXACT, ROUNDED, DOUBLE = 68, 77, 70
"""CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 and CUBLAS_COMPUTE_64F of cublas_api.h."""


@pytest.fixture
def types(double, calls_of):
    """Returns a list of the types in which cuBLAS computed, in order."""
    return calls_of(cuda.cupy.cuda.cublas, "multiply", lambda *args: args[-2])


def _computed(function, shapes, dtype):
    """Returns the results of a function and its gradients on the GPU."""
    draw = np.random.RandomState(0)
    values = [(draw.randn(*shape) / 2).astype(dtype) for shape in shapes]
    xs = [mpchain.Variable(mpchain.get_device("@cupy:0").send(value)) for value in values]
    y = function(*xs)
    gradients = mpchain.grad([y], xs, [mpchain.Variable(y.array)])
    return [mpchain.cuda.to_cpu(v.array) for v in (y, *gradients)]


PRODUCTS = {
    "two matrices": (F.matmul, [(3, 4), (4, 5)]),
    "stacks": (F.matmul, [(2, 3, 4), (2, 4, 5)]),
    "linear": (F.linear, [(3, 4), (5, 4), (5,)]),
    "convolution": (lambda x, W: F.convolution_2d(x, W), [(2, 3, 6, 6), (4, 3, 3, 3)]),
}


@pytest.mark.parametrize("dtype, rounded", [("f", ROUNDED), ("e", EXACT), ("d", DOUBLE)])
@pytest.mark.parametrize("name", PRODUCTS)
def test_all_products_round_where_it_is_on(name, dtype, rounded, types):
    function, shapes = PRODUCTS[name]
    with using_config("use_cudnn", "never"):
        expected = _computed(function, shapes, dtype)
        assert ROUNDED not in types
        types.clear()
        with using_config("use_cudnn_tensor_core", "always"):
            actual = _computed(function, shapes, dtype)
    assert set(types) <= {rounded}
    # CuPy multiplies two matrices of other dtypes by calls that are not counted here.
    if dtype == "f":
        assert len(types) == 3
    for x, y in zip(actual, expected, strict=True):  # the double does not round
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "setting, expected", [("auto", EXACT), ("never", EXACT), ("always", ROUNDED)]
)
def test_captured_products_round_too(setting, expected, types, double):
    a = cuda.cupy.ones((2, 3), np.float32)
    with using_config("use_cudnn_tensor_core", setting), Capturing(cuda.cupy) as capturing:
        assert current.graph is capturing
        y = F.matmul(a, a, transb=True).array
    capturing.graph.launch()
    np.testing.assert_array_equal(y.get(), 3)
    assert types == [expected]


def test_it_is_off_unless_asked_for():
    assert mpchain.config.use_cudnn_tensor_core == "auto"
    tensor_cores = {"TENSOR_CORE", "DOWN_CONVERT_INPUTS"}
    for dtype, are_used in (("float16", True), ("bfloat16", True), ("float32", False)):
        assert tensor_cores.isdisjoint(cudnn.avoided_notes(dtype)) == are_used
    with using_config("use_cudnn_tensor_core", "always"):
        assert tensor_cores.isdisjoint(cudnn.avoided_notes("float32"))

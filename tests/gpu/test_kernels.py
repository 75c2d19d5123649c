"""Our own kernels on a GPU: how many launches an operation takes."""

import numpy as np
import pytest

import mpchain
from mpchain import kernels
from tests.kernels.test_kernels import CASES

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

MOST = {
    "convolution_output": 2,
    "convolution_input": 2,
    "convolution_filter": 3,
    "sum_windows": 1,
    "spread_windows": 1,
    "max_windows": 1,
    "take_from_windows": 1,
    "place_in_windows": 1,
    "unfold_windows": 1,
    "fold_windows": 1,
}
"""The launches of each operation."""


def _arguments(arguments, dtype):
    send = mpchain.get_device("@cupy:0").send
    for x in arguments:
        if not isinstance(x, np.ndarray):
            yield x
        else:
            yield send(x.astype(dtype) if x.dtype.kind == "f" else x)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("operation", MOST)
def test_launches(operation, dtype, double):
    for make in CASES[operation].values():
        arguments = tuple(_arguments(make(), dtype))
        chosen = kernels.operations[operation].select(*arguments)
        assert chosen.library.startswith("cuda")
        double.reset()
        chosen.compute(*arguments)
        assert double.launches.total() <= MOST[operation], double.launches
        assert not double.synchronizations


def test_what_is_refused():
    x, W, window = CASES["convolution_output"]["2d"]()
    send = mpchain.get_device("@cupy:0").send
    refuse = kernels.convolution_output.kernels[-2].refuse
    assert refuse(x, W, window) == "not CuPy arrays"
    rule = "not arrays of half, single or double precision, and one dtype"
    assert refuse(send(x.astype(np.float32)), send(W), window) == rule
    long = window._replace(in_size=(2**31, 7))
    assert refuse(send(x), send(W), long) == "an axis of more than 2^30 elements"

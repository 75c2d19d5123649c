"""cuDNN's kernels on its double, which runs graphs node by node on the memory they are given."""

import contextlib
import sys

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import kernels
from mpchain.kernels import cudnn
from tests.kernels.test_kernels import CASES

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

CONVOLUTIONS = ["convolution_output", "convolution_input", "convolution_filter"]


@pytest.fixture
def library(double, monkeypatch):
    """The double of cuDNN, in place of cuDNN."""
    import cudnn_double

    monkeypatch.setitem(sys.modules, "cudnn", cudnn_double)
    _forget()
    cudnn_double.executed.clear()
    yield cudnn_double
    _forget()


def _forget():
    cudnn._library.cache_clear()
    cudnn._made.cache_clear()
    cudnn._handles.of.clear()


def _misaligned(x):
    whole = mpchain.get_array_module(x).empty(x.size + 1, x.dtype)
    view = whole[1:].reshape(x.shape)
    view[...] = x
    return view


def _channels_last(x):
    xp = mpchain.get_array_module(x)
    return xp.moveaxis(xp.ascontiguousarray(xp.moveaxis(x, 1, -1)), -1, 1)


LAYOUTS = {
    "contiguous": lambda x: x,
    "reversed": lambda x: x[::-1].copy()[::-1],
    "misaligned": _misaligned,
    "channels last": _channels_last,
    "fortran": lambda x: x.T.copy().T,
}
TOLERANCE = {np.float16: 4e-3, np.float32: 1e-5, np.float64: 1e-12}


def _arguments(operation, name, dtype=np.float32, layout="contiguous"):
    """Returns the arguments of a case, on the GPU."""
    send = mpchain.get_device("@cupy:0").send
    return [
        LAYOUTS[layout](send(x.astype(dtype))) if isinstance(x, np.ndarray) else x
        for x in CASES[operation][name]()
    ]


def _kernel(operation):
    return next(k for k in kernels.operations[operation].kernels if k.library == "cudnn")


def _compute(operation, arguments):
    kernel = _kernel(operation)
    reason = kernel.refuse(*arguments)
    assert reason is None, reason
    return kernel.compute(*arguments)


def _right(operation, arguments):
    """Returns what the reference computes in double precision."""
    wide = [x.get().astype(float) if hasattr(x, "get") else x for x in arguments]
    return kernels.operations[operation].kernels[-1].compute(*wide)


def _check(operation, arguments, dtype):
    result, right = _compute(operation, arguments), _right(operation, arguments)
    assert result.dtype == dtype and result.shape == right.shape
    atol = TOLERANCE[dtype] * max(1, np.abs(right).max())
    np.testing.assert_allclose(result.get(), right, TOLERANCE[dtype], atol)
    return result


# Convolutions.


@pytest.mark.parametrize(
    "layout, dtype",
    [("contiguous", np.float16), ("contiguous", np.float64), *((x, np.float32) for x in LAYOUTS)],
)
@pytest.mark.parametrize("operation", CONVOLUTIONS)
def test_every_geometry(operation, layout, dtype, library):
    for name in CASES[operation]:
        arguments = _arguments(operation, name, dtype, layout)
        if name.startswith("no samples"):
            assert "cudnn: no: an array without elements" in kernels.explain(operation, *arguments)
        else:
            _check(operation, arguments, dtype)


@pytest.mark.parametrize("operation", CONVOLUTIONS)
def test_channels_last_stay_last(operation, library):
    arguments = _arguments(operation, "large", layout="channels last")
    result = _check(operation, arguments, np.float32)
    assert mpchain.get_array_module(result).moveaxis(result, 1, -1).flags.c_contiguous
    first, *others = arguments
    mixed = _check(operation, [LAYOUTS["fortran"](first), *others], np.float32)
    assert mixed.flags.c_contiguous


def test_plans_are_made_once_for_equal_arguments(library):
    operation = "convolution_output"
    for _ in range(2):
        for name in ("2d", "grouped"):
            _compute(operation, _arguments(operation, name))
    assert cudnn._made.cache_info().misses == 2
    _compute(operation, _arguments(operation, "2d", np.float64))
    _compute(operation, _arguments(operation, "2d", layout="channels last"))
    with mpchain.using_config("cudnn_deterministic", True):
        _compute(operation, _arguments(operation, "2d"))
    assert cudnn._made.cache_info().misses == 5


@pytest.mark.parametrize(
    "dtype, options, plan",
    [
        (np.float16, {}, "fast"),
        (np.float16, {"cudnn_deterministic": True}, "exact"),
        (np.float16, {"use_cudnn_tensor_core": "never"}, "exact"),
        (np.float32, {}, "exact"),
        (np.float32, {"use_cudnn_tensor_core": "always"}, "fast"),
        (np.float64, {}, "exact"),
    ],
)
def test_the_configuration_chooses_the_plan(dtype, options, plan, library):
    arguments = _arguments("convolution_output", "large", dtype)
    with contextlib.ExitStack() as stack:
        for name, value in options.items():
            stack.enter_context(mpchain.using_config(name, value))
        _compute("convolution_output", arguments)
    assert library.executed == [("CONV_FPROP", plan)]


def test_the_workspace_is_limited(library, monkeypatch):
    arguments = _arguments("convolution_output", "large", np.float16)
    monkeypatch.setattr(library, "WORKSPACE", 1 << 20)
    with mpchain.using_config("cudnn_deterministic", True):
        assert _kernel("convolution_output").refuse(*arguments) is None
        monkeypatch.setattr(mpchain.backends.cuda, "_max_workspace_size", 1 << 10)
        reason = _kernel("convolution_output").refuse(*arguments)
    assert reason == "cuDNN has no plan: No execution plans support the graph."


def test_what_is_refused(library, monkeypatch):
    x, W, window = _arguments("convolution_output", "2d")
    refuse = _kernel("convolution_output").refuse
    assert refuse(x.get(), W, window) == "not CuPy arrays"
    rule = "not arrays of half, single or double precision, and one dtype"
    assert refuse(x, W.astype("d"), window) == rule
    many = window._replace(ksize=(1, 1, 1, 1))
    assert refuse(x, W, many) == "more than three spatial axes"
    with mpchain.using_config("use_cudnn", "never"):
        assert refuse(x, W, window) == "config.use_cudnn is 'never'"
    monkeypatch.setattr(library, "create_handle", lambda: 1 / 0)
    cudnn._library.cache_clear()
    assert refuse(x, W, window) == "cuDNN cannot be used: division by zero"
    monkeypatch.setitem(sys.modules, "cudnn", None)
    cudnn._library.cache_clear()
    assert refuse(x, W, window).startswith("cuDNN is not installed (")
    assert kernels.convolution_output.select(x, W, window).library == "cuda_windows"


def test_networks_use_it(library, double):
    x, W, b = (np.random.randn(*s).astype("f") for s in ((2, 4, 9, 9), (6, 4, 3, 3), (6,)))

    def derivatives(device):
        send = mpchain.get_device(device).send
        x_, W_, b_ = (mpchain.Variable(send(v)) for v in (x, W, b))
        y = F.convolution_2d(x_, W_, b_, pad=1, stride=2)
        gx, gW = mpchain.grad([y * y], [x_, W_], enable_double_backprop=True)
        second = mpchain.grad([F.sum(gx * gx) + F.sum(gW * gW)], [x_, W_])
        return [mpchain.cuda.to_cpu(v.array) for v in (y, gx, gW, *second)]

    double.reset()
    on_gpu = derivatives("@cupy:0")
    assert {tags for tags, _ in library.executed} == {"CONV_FPROP", "CONV_DGRAD", "CONV_WGRAD"}
    assert not any("unfold" in name for name, _ in double.launches)
    for result, right in zip(on_gpu, derivatives("@numpy"), strict=True):
        np.testing.assert_allclose(result, right, 1e-4, 1e-5 * np.abs(right).max())


def test_other_gpus_and_streams(library, double):
    import cupy

    operation = "convolution_output"
    x, W, window = _arguments(operation, "large")
    right = _right(operation, (x, W, window))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.wait_event(cupy.cuda.get_current_stream().null.record())
        y = _compute(operation, (x, W, window))
        stream.synchronize()
    np.testing.assert_allclose(y.get(), right, 1e-4, 1e-4)
    with cupy.cuda.Device(1):
        y = _compute(operation, (x.copy(), W.copy(), window))
        assert y.device.id == 1
        np.testing.assert_allclose(y.get(), right, 1e-4, 1e-4)
    assert cudnn._made.cache_info().misses == 2


def test_work_on_another_stream_has_no_order_with_the_arrays(library, double):
    """The double notices a handle whose stream is not that of the arrays."""
    import cupy

    arguments = _arguments("convolution_output", "2d")
    with cupy.cuda.Stream(non_blocking=True), pytest.raises(RuntimeError, match="no order"):
        _compute("convolution_output", arguments)
    double.reset()

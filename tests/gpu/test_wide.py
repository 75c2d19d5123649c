"""Tests elementwise kernels whose threads load 128 bits, which have the same values at all
positions in memory."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import kernels
from mpchain.kernels.gpu import cuda_channels, cuda_random
from mpchain.kernels.gpu.cuda_wide import WideKernel, wide
from tests.gpu import nvrtc, sass

on_gpu = pytest.mark.gpu
_OPERATION = "const T t = a * number; y = t + b; z = t > (T)0 ? t : (T)0"
_KERNEL = WideKernel(["a", "b", "number"], ["y", "z"], _OPERATION, "mpchain_tried")
_SIZES = [1, 7, 8, 9, 130, 5001]


def _expected(a, b, number):
    t = (a * a.dtype.type(number)).astype(a.dtype)
    return (t + b).astype(a.dtype), np.maximum(t, 0)


def _send(x):
    return mpchain.get_device("@cupy:0").send(x)


def _check(a, b, number=0.75):
    """Compares results for arrays of the GPU with the host."""
    ys = _KERNEL(a, b, number)
    for y, x in zip(ys, _expected(a.get(), b.get(), number), strict=True):
        assert y.dtype == a.dtype
        np.testing.assert_array_equal(y.get(), x)
    return ys


def _is_wide(double):
    return any("words_" in text for (name, _), text in double.kernels.items() if "tried" in name)


@on_gpu
@pytest.mark.parametrize("dtype", ["e", "f", "d"])
@pytest.mark.parametrize("size", _SIZES)
def test_all_sizes(size, dtype, double):
    a, b = np.random.randn(2, size).astype(dtype)
    _check(_send(a), _send(b))
    assert _is_wide(double)


@on_gpu
@pytest.mark.parametrize("begin", range(1, 8))
def test_places_that_no_thread_can_load_at_once(begin, double):
    a, b = (_send(x) for x in np.random.randn(2, 100).astype("e"))
    _check(a[begin:], b[begin:])
    assert not _is_wide(double)


@on_gpu
def test_gaps_and_other_orders_and_no_elements(double):
    a, b = (_send(x) for x in np.random.randn(2, 24, 32).astype("f"))
    _check(a[:, ::2], b[:, ::2])
    _check(a.T, b.T)
    _check(a.T, b.T.copy())
    _check(a[:0], b[:0])
    assert not _is_wide(double)


@on_gpu
def test_channels_last_stay_last(double):
    a, b = (_send(x).transpose(0, 3, 1, 2) for x in np.random.randn(2, 2, 3, 4, 5).astype("e"))
    ys = _check(a, b)
    assert all(y.strides == a.strides for y in ys)
    assert _is_wide(double)
    for ys in (_check(a, b.copy(order="C")), _check(a.copy(order="C"), b)):
        assert all(y.strides == a.strides for y in ys)


@on_gpu
def test_repeated_elements_take_the_layout_of_others(double):
    """Gradients of means are repeated along axes."""
    of_channels, b = np.random.randn(2, 5, 1, 1).astype("e"), np.random.randn(2, 3, 4, 5)
    b = _send(b.astype("e")).transpose(0, 3, 1, 2)
    a = mpchain.cuda.cupy.broadcast_to(_send(of_channels), b.shape)
    for ys in (_check(a, b), _check(b, a)):
        assert all(y.strides == b.strides for y in ys)
    double.reset()
    relu = F.relu(mpchain.Variable(b))
    F.sum(F.mean(F.relu(relu), axis=(2, 3))).backward()
    assert "ascontiguousarray" not in {name for name, _ in double.launches}


@on_gpu
def test_a_function_loads_wide_words(double):
    """Wide loads do not move fewer bytes, but more bytes are in flight."""
    x = mpchain.Variable(_send(np.ones((3, 8), "e")))
    y = F.relu(x)
    y.grad = y.array
    y.backward()
    work = [each for each in double.work if "relu" in each.name]
    assert len(work) == 2 and all(each.grain == 0 for each in work)


_LAYOUTS = {"channels last": (2, 3, 5, 16), "one piece each": (2, 8, 2, 8), "neither": (2, 3, 5, 5)}


@on_gpu
@pytest.mark.parametrize("layout", _LAYOUTS)
@pytest.mark.parametrize("dtype", ["e", "f", "d"])
def test_normalization_of_batches(dtype, layout, double):
    """The kernels load wide words if no word has parts of several channels, or if the channels are
    last and fill whole words."""
    x, g = np.random.RandomState(0).uniform(-1, 1, (2, *_LAYOUTS[layout])).astype(dtype)
    if layout == "channels last":
        x, g = x.transpose(0, 3, 1, 2), g.transpose(0, 3, 1, 2)
    gamma, beta = np.random.RandomState(1).rand(2, 1, x.shape[1], 1, 1).astype(dtype)
    results = {}
    for send in (np.asarray, _send):
        y, mean, inverse, _ = kernels.batch_normalization(
            send(x), send(gamma), send(beta), (0, 2, 3), 1e-5
        )
        more = kernels.batch_normalization_gradient(
            send(g), send(x), send(gamma), mean, inverse, (0, 2, 3)
        )
        results[send] = y, mean, *more
    for actual, expected in zip(results[_send], results[np.asarray], strict=True):
        assert actual.shape == expected.shape
        tolerance = {"e": 2e-2, "f": 1e-4, "d": 1e-10}[dtype]
        np.testing.assert_allclose(actual.get(), expected, tolerance, tolerance)
    texts = [text for (name, _), text in double.kernels.items() if "normaliz" in name]
    assert ["words_y" in text for text in texts] == [layout != "neither"] * 2
    if layout == "channels last":
        sent = _send(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        y = kernels.batch_normalization(sent, _send(gamma), _send(beta), (0, 2, 3), 1e-5)[0]
        assert y.strides == sent.strides
        np.testing.assert_array_equal(y.get(), results[_send][0].get())


@on_gpu
def test_half_precision_stays_with_the_channels_last(double, library):
    """Convolution, normalization, ReLU, sum and their backward copy no large array."""
    with mpchain.using_config("dtype", mpchain.mixed16):
        first = L.Convolution2D(2, 16, 3, pad=1, nobias=True)
        second, norm = L.Convolution2D(16, 16, 1, nobias=True), L.BatchNormalization(16)
    model = mpchain.ChainList(first, second, norm).to_device("@cupy:0")
    x = mpchain.Variable(_send(np.random.randn(2, 2, 12, 12).astype("e")))
    h = first(x)
    for _ in range(2):
        model.cleargrads()
        double.reset()
        y = F.relu(norm(second(h)) + h)
        y.grad = y.array
        y.backward(retain_grad=True)
    for array in (h.array, y.array, h.grad):
        assert array.strides == h.array.strides and not array.flags.c_contiguous
    large = h.array.nbytes
    copies = {"copy", "setitem", "ascontiguousarray", "cudnn: order of axes"}
    assert not any(w.name in copies and w.n_bytes >= large for w in double.work)
    assert not any(w.copied for w in double.work)


@on_gpu
@pytest.mark.parametrize("dtype", ["e", "f"])
@pytest.mark.parametrize("has_sum", [False, True])
def test_dropout_draws_the_same_by_wide_loads(has_sum, dtype, double):
    """The shapes include rows that are multiples of a thread's words, and other rows, which CuPy's
    kernel computes."""
    for shape, is_wide in (((6, 40), True), ((5, 2056), True), ((3, 6), False)):
        x, h = np.random.RandomState(0).uniform(-1, 1, (2, *shape)).astype(dtype)
        counters = kernels.Counters(7, shape[0], 1, 2, 3, 4)
        expected = kernels.drop(x, h if has_sum else None, counters, 0.3)
        double.reset()
        y = kernels.drop(_send(x), _send(h) if has_sum else None, counters, 0.3)
        np.testing.assert_allclose(y.get(), expected, 2e-3 if dtype == "e" else 1e-6, 1e-3)
        np.testing.assert_array_equal(y.get() == (h if has_sum else 0), expected == (h * has_sum))
        assert is_wide == any(name.endswith("_wide") for name, _ in double.kernels)


@pytest.mark.skipif(nvrtc.load() is None, reason=nvrtc.REASON)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("char", ["e", "f"])
def test_dropout_compiles(char, architecture):
    value = "h + (word >= least ? x * factor : 0)"
    for text in (("f", value, "hx", char), ("f", "word >= least ? (T)1 : (T)0", "", char)):
        log, binary = nvrtc.compiled(cuda_random._wide_drop(*text), architecture)
        assert log == "" and binary


def test_one_kernel_for_the_same_arguments():
    args = ["a"], ["y"], "y = a", "mpchain_kept"
    assert wide(*args) is wide(*args)


@pytest.mark.skipif(
    nvrtc.load() is None or sass.load() is None,
    reason=nvrtc.REASON if nvrtc.load() is None else sass.REASON,
)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("char", ["e", "f", "d"])
def test_machine_code_has_wide_loads(char, architecture):
    texts = [_KERNEL.text(char, (True, True, False))]
    texts += [
        kernel.text(char, "f" * len(kernel.channels))
        for kernel in (cuda_channels.NORMALIZE, cuda_channels.NORMALIZE_GRADIENT)
    ]
    for text, n_loads, n_stores in zip(texts, (2, 1, 2), (2, 1, 1), strict=True):
        log, binary = nvrtc.compiled(text, architecture)
        assert log == "" and binary
        names = [x.name for x in sass.disassembled(binary).instructions]
        for kind, n in (("LDG", n_loads), ("STG", n_stores)):
            assert sum(name.startswith(kind) and "128" in name for name in names) >= n
        assert not any(name.startswith(("LDL", "STL")) for name in names)

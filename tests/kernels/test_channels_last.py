"""Tests arrays whose channels are adjacent in memory: which functions make and keep them, and that
results are equal."""

import functools

import numpy as np
import pytest

import mpchain
from mpchain import Variable, kernels
from mpchain import functions as F
from mpchain import links as L
from mpchain.functions.array import summed
from mpchain.kernels import thresholds
from mpchain.kernels.cpu import channels_last, numba_cpu
from mpchain.kernels.cpu.channels_last import as_last, as_plain, empty_last, is_last, is_only_last
from tests.kernels.needs import needs_numba, needs_onednn


def _random(*shape):
    return np.random.RandomState(0).uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (1, 3, 1, 2), (2, 3, 0, 5)])
def test_a_copy_has_the_same_elements_in_another_order(shape):
    x = _random(*shape)
    y = as_last(x)
    assert y.base is None and is_last(y)
    assert not x.size or is_only_last(y)
    np.testing.assert_array_equal(y, x)
    assert as_last(y) is y
    order = (0, *range(2, x.ndim), 1)
    np.testing.assert_array_equal(channels_last.rows(y), x.transpose(order).reshape(-1, 3))
    np.testing.assert_array_equal(channels_last.in_memory(y), x.transpose(order).reshape(-1))
    assert channels_last.in_memory(x).base is x
    assert not x.size or np.shares_memory(channels_last.rows(y), y)


@pytest.mark.parametrize("shape", [(2, 1, 4, 5), (2, 3, 1, 1), (2, 3, 1)])
def test_one_channel_or_pixel_lies_in_both_ways(shape):
    x = _random(*shape)
    assert is_last(x) and not is_only_last(x)


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((2, 3)),
        np.zeros((2, 3, 4, 5, 6)),
        np.zeros((2, 3, 4, 5)),
        empty_last((2, 6, 4, 5), "f")[:, ::2],
        empty_last((2, 3, 4, 6), "f")[..., ::2],
        np.zeros((5, 4, 3, 2)).T,
    ],
    ids=["matrix", "three spatial axes", "plain", "gaps", "gaps between pixels", "columns"],
)
def test_other_arrays_are_not_taken(x):
    assert not is_last(x) and not is_only_last(x)


def test_a_replay_gets_its_memory_where_the_layout_fits():
    shape = (2, 3, 4, 5)
    plain, last = np.zeros(shape, "f"), empty_last(shape, "f")
    for out, like in ((plain, plain), (last, last)):
        assert channels_last.result(shape, np.float32, like, out=out) is out
    for out, like in ((plain, last), (last, plain)):
        made = channels_last.result(shape, np.float32, like, out=out)
        assert made is not out and is_only_last(made) == is_only_last(like)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [(0, 2, 3), (0, 1, 3), (2, 3), 1, None])
def test_sums(axis, keepdims):
    x = as_last(_random(3, 5, 4, 6))
    y = summed(x, axis, keepdims)
    expected = np.sum(np.ascontiguousarray(x, float), axis, keepdims=keepdims)
    assert y.dtype == np.float32 and y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("keepdims", [False, True])
def test_sums_of_sequences(keepdims):
    x = as_last(_random(3, 5, 4))
    y, expected = summed(x, (0, 2), keepdims), np.sum(x.copy(), (0, 2), keepdims=keepdims)
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@needs_numba
def test_statistics_far_from_zero():
    # The mean is 8 standard deviations, so sums of squares in single precision, added one by one,
    # would have errors of 1e-4. Deviations from the first pixel, which is zero, would not help.
    x = as_last(_random(64, 8, 12, 12) + np.float32(1000))
    x[0] = 0
    one = np.ones((1, 8, 1, 1), np.float32)
    y, mean, _, var = kernels.batch_normalization(x, one, 0 * one, (0, 2, 3), 0.0)
    assert is_only_last(y)
    exact = np.ascontiguousarray(x, float)
    np.testing.assert_allclose(mean, exact.mean((0, 2, 3), keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(var, exact.var((0, 2, 3), keepdims=True), rtol=1e-5)


@needs_onednn
def test_reshaped_arrays_are_plain():
    h = L.Convolution2D(3, 16, 3, pad=1)(_random(4, 3, 12, 12))
    assert is_only_last(h.array)
    y = F.reshape(h, (4, 4, 4, 144))
    assert y.array.flags.c_contiguous
    np.testing.assert_array_equal(y.array, h.array.reshape(y.shape))
    (gh,) = mpchain.grad([y * y], [h])
    np.testing.assert_array_equal(gh.array, 2 * h.array)


@needs_numba
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_normalization_of_what_is_not_finite(value):
    plain = _random(16, 8, 24, 24)
    plain[3, 2, 5, 7] = value
    one = np.ones((1, 8, 1, 1), np.float32)
    for x in (plain, as_last(plain)):
        y, mean, inverse_std, _ = kernels.batch_normalization(x, one, one, (0, 2, 3), 1e-5)
        gx, _, _ = kernels.batch_normalization_gradient(x, x, one, mean, inverse_std, (0, 2, 3))
        for result in (y, gx):
            is_finite = np.isfinite(result).all((0, 2, 3))
            assert np.delete(is_finite, 2).all()  # other channels remain finite
            assert value == 3e38 or not is_finite[2]


STEPS = {
    "convolution": lambda n: L.Convolution2D(n, n, 3, pad=1),
    "convolution without bias": lambda n: L.Convolution2D(n, n, 3, pad=1, nobias=True),
    "strided": lambda n: L.Convolution2D(n, n, 4, 2, 1),
    "grouped": lambda n: L.Convolution2D(n, n, 3, pad=1, groups=4),
    "depthwise": lambda n: L.DepthwiseConvolution2D(n, 1, 3, pad=1),
    "pointwise": lambda n: L.Convolution2D(n, n, 1),
    "pointwise, strided": lambda n: L.Convolution2D(n, n, 1, 2),
    "transposed": lambda n: L.Deconvolution2D(n, n, 4, 2, 1),
    "normalization": lambda n: L.BatchNormalization(n),
    "relu": lambda n: F.relu,
    "leaky_relu": lambda n: F.leaky_relu,
    "tanh": lambda n: F.tanh,
    "sum": lambda n: lambda x: F.relu(x) + x,
    "dropout": lambda n: F.dropout,
    "max_pooling": lambda n: functools.partial(F.max_pooling_2d, ksize=3, stride=2, pad=1),
    "average_pooling": lambda n: functools.partial(F.average_pooling_2d, ksize=2),
    "padded average": lambda n: functools.partial(F.average_pooling_2d, ksize=3, stride=2, pad=1),
    "concat": lambda n: lambda x: F.concat([x, x * 2]),
}


@needs_onednn
@needs_numba
@pytest.mark.parametrize("name", STEPS)
@thresholds.using(compiled_loop=0)
def test_neighbors_of_convolutions_keep_the_layout(name):
    n, results = 32, []
    np.random.seed(0)
    before, step = L.Convolution2D(3, n, 3, pad=1), STEPS[name](n)
    x = _random(16, 3, 24, 24)
    for library in ("onednn", "reference"):
        np.random.seed(1)
        links = [before] + [step] * isinstance(step, mpchain.Link)
        with mpchain.using_config("kernels", None if library == "onednn" else (library,)):
            h = before(x)
            y = step(h)
            gy = as_last(_random(*y.shape)) if library == "onednn" else _random(*y.shape)
            for link in links:
                link.cleargrads()
            (gh,) = mpchain.grad([y], [h], [Variable(gy)])
            y.grad = gy
            y.backward()
        if library == "onednn":
            assert is_only_last(h.array) and is_only_last(y.array) and is_only_last(gh.array)
        grads = [p.grad.copy() for link in links for p in link.params()]
        results.append([y.array, gh.array, *grads])
    for found, expected in zip(*results, strict=True):
        # The gradient of a bias before a normalization consists of rounding errors only.
        atol = 1e-5 * max(10, np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=atol)


@needs_onednn
def test_few_channels_are_plain():
    x = _random(4, 16, 20, 20)
    for n, is_side_by_side in ((3, False), (16, True)):
        y = L.Convolution2D(16, n, 3)(x)
        assert is_only_last(y.array) is is_side_by_side


@needs_onednn
def test_derivatives_of_second_order():
    x, W, b = _random(4, 8, 12, 12), _random(8, 8, 3, 3), _random(8)

    def derivatives():
        variables = [Variable(v) for v in (x, W, b)]
        h = F.convolution_2d(*variables, pad=1)
        y = F.convolution_2d(F.tanh(h), variables[1], pad=1, stride=2)
        gs = mpchain.grad([F.sum(y * y)], variables, enable_double_backprop=True)
        return [g.array for g in (*gs, *mpchain.grad([sum(F.sum(g * g) for g in gs)], variables))]

    found = derivatives()
    with mpchain.using_config("kernels", ("reference",)):
        expected = derivatives()
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(b).max())


@needs_onednn
@needs_numba
@pytest.mark.annex("captured")
def test_a_replayed_step_keeps_the_layout(calls_of):
    np.random.seed(0)
    found = calls_of(numba_cpu, "_normalize_last", lambda *args: len(args))
    model = mpchain.Sequential(
        L.Convolution2D(3, 16, 3), L.BatchNormalization(16), F.relu, L.Convolution2D(16, 16, 3)
    )

    def step(x):
        y = model(x)
        model.cleargrads()
        F.sum(y * y).backward()
        return y

    captured = mpchain.capture(step)
    for i in range(5):
        x = _random(16, 3, 24, 24) + i
        expected = step(x).array
        grads = [p.grad.copy() for p in model.params()]
        found.clear()
        y = captured(x).array
        assert len(found) >= 1
        assert is_only_last(expected)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
        for p, grad in zip(model.params(), grads, strict=True):
            np.testing.assert_allclose(p.grad, grad, rtol=1e-3, atol=1e-3 * np.abs(grad).max())
    assert captured.reason is None


@needs_numba
@pytest.mark.parametrize(
    "shape",
    [(4, 64, 32, 32), (16, 64, 64), (3, 80, 8, 10), (32, 512, 7, 7), (0, 64, 32, 32), (2, 3, 5, 7)],
)
def test_arrays_change_their_layout_by_blocks(shape):
    x = np.random.RandomState(0).randn(*shape).astype("f")
    with thresholds.using(compiled_loop=-1):
        last = as_last(x)
        plain = as_plain(last)
    np.testing.assert_array_equal(last, x)
    np.testing.assert_array_equal(plain, x)
    assert is_last(last) and plain.flags.c_contiguous
    for part in (x[::-1], x[..., ::-1]):
        np.testing.assert_array_equal(as_last(part), part)
        np.testing.assert_array_equal(as_plain(part), part)
        assert is_last(as_last(part)) and as_plain(part).flags.c_contiguous

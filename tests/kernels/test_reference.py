"""Tests the specification of the operations against plain loops and SciPy."""

import itertools

import numpy as np
import pytest
import scipy.special

from mpchain import kernels
from mpchain.kernels import reference
from mpchain.kernels.window import Window, layout
from mpchain.utils.conv import as_tuple, get_conv_outsize, get_deconv_outsize

pytestmark = pytest.mark.slow


def _windows(n):
    """Returns random geometries of one to three axes: dilated, strided, padded, with and without
    cover_all."""
    random = np.random.RandomState(0)
    windows = []
    while len(windows) < n:
        ndim = random.randint(1, 4)
        size, k, s = (tuple(random.randint(1, high, ndim).tolist()) for high in (7, 4, 4))
        p, d = (
            tuple(random.randint(0, 3, ndim).tolist()),
            tuple(random.randint(1, 3, ndim).tolist()),
        )
        cover = bool(random.randint(2))
        axes = zip(size, k, s, p, d)
        out = tuple(get_conv_outsize(i, k, s, p, cover, d) for i, k, s, p, d in axes)
        if min(out) > 0:
            windows.append(Window(k, s, p, d, int(random.randint(1, 3)), size, out))
    return windows


EVERY_WINDOW = pytest.mark.parametrize("window", _windows(60), ids=lambda w: str(w[:4]))


def _elements(window):
    """Yields (window, index of the element, position in x) for each window and each of its
    elements."""
    places = list(itertools.product(*map(range, window.ksize)))
    for out in itertools.product(*map(range, window.out_size)):
        for number, place in enumerate(places):
            axes = zip(out, window.stride, window.pad, place, window.dilate)
            yield out, number, tuple(o * s - p + k * d for o, s, p, k, d in axes)


def _inside(position, window):
    return all(0 <= i < size for i, size in zip(position, window.in_size))


def _values_of_windows(x, window, outside=0.0):
    """Returns the windows of x as an array (n_elements, N, C, *out_size)."""
    values = np.full((window.n_elements, *x.shape[:2], *window.out_size), outside)
    for out, number, position in _elements(window):
        if _inside(position, window):
            values[(number, slice(None), slice(None), *out)] = x[(..., *position)]
    return values


def _random(*shape):
    return np.random.RandomState(len(shape)).uniform(-2, 2, shape)


@EVERY_WINDOW
def test_layout(window):
    padded_size, inner, offsets = layout(window)
    marks = np.arange(np.prod(padded_size)).reshape(padded_size)
    assert marks[inner].shape == window.in_size and len(offsets) == window.n_elements
    for out, number, position in _elements(window):
        padded = tuple(i + p for i, p in zip(position, window.pad))
        assert marks[offsets[number]].shape == window.out_size
        assert marks[offsets[number]][out] == marks[padded]
        if _inside(position, window):
            assert marks[inner][position] == marks[padded]
    assert layout(Window(*window)) is layout(window)


@EVERY_WINDOW
def test_convolution_family(window):
    n, c, o = 2, 2 * window.groups, 3 * window.groups
    x, W = _random(n, c, *window.in_size), _random(o, c // window.groups, *window.ksize)
    expected = np.zeros((n, o, *window.out_size))
    values = _values_of_windows(x, window)
    for group in range(window.groups):
        outs = slice(3 * group, 3 * group + 3)
        ins = slice(2 * group, 2 * group + 2)
        filters = W[outs].reshape(3, 2, -1)
        expected[:, outs] = np.einsum("ock,knc...->no...", filters, values[:, :, ins])
    y = reference.convolution_output(x, W, window)
    np.testing.assert_allclose(y, expected, 1e-12, 1e-12)
    # The other two members of the family are adjoints of this member.
    v = _random(*y.shape)
    form = (v * y).sum()
    gx, gW = reference.convolution_input(v, W, window), reference.convolution_filter(x, v, window)
    assert gx.shape == x.shape and gW.shape == W.shape
    np.testing.assert_allclose([(gx * x).sum(), (gW * W).sum()], form, 1e-10, 1e-10)


@EVERY_WINDOW
def test_sums_of_windows(window):
    x = _random(2, 3, *window.in_size)
    y = reference.sum_windows(x, window)
    np.testing.assert_allclose(y, _values_of_windows(x, window).sum(0), 1e-12, 1e-12)
    v = _random(*y.shape)
    spread = reference.spread_windows(v, window)
    np.testing.assert_allclose((spread * x).sum(), (v * y).sum(), 1e-10, 1e-10)


@EVERY_WINDOW
def test_all_elements_of_windows(window):
    x = _random(2, 3, *window.in_size)
    y = reference.unfold_windows(x, window)
    np.testing.assert_array_equal(np.moveaxis(y, 2, 0), _values_of_windows(x, window))
    v = _random(*y.shape)
    folded = reference.fold_windows(v, window)
    np.testing.assert_allclose((folded * x).sum(), (v * y).sum(), 1e-10, 1e-10)


@EVERY_WINDOW
def test_chosen_elements_of_windows(window):
    x = _random(2, 3, *window.in_size)
    values = _values_of_windows(x, window, -np.inf)
    y, places = reference.max_windows(x, window)
    np.testing.assert_array_equal(y, values.max(0))
    np.testing.assert_array_equal(places, values.argmax(0))
    assert places.dtype == np.int32
    values[np.isinf(values)] = 0
    chosen = np.random.RandomState(0).randint(0, window.n_elements, y.shape)
    taken = reference.take_from_windows(x, chosen, window)
    np.testing.assert_array_equal(taken, np.take_along_axis(values, chosen[None], 0)[0])
    v = _random(*y.shape)
    placed = reference.place_in_windows(v, chosen, window)
    np.testing.assert_allclose((placed * x).sum(), (v * taken).sum(), 1e-10, 1e-10)


def test_the_first_of_equal_elements_is_the_maximum_and_nan_wins():
    window = Window((3,), (1,), (0,), (1,), 1, (5,), (3,))
    x = np.array([[[2.0, 2.0, 1.0, np.nan, 3.0]]])
    y, places = reference.max_windows(x, window)
    np.testing.assert_array_equal(y[0, 0], [2, np.nan, np.nan])
    np.testing.assert_array_equal(places[0, 0], [0, 2, 1])


@pytest.mark.parametrize("shape, axis", [((3, 5), 1), ((3, 5), 0), ((2, 3, 4), -1), ((5,), 0)])
def test_softmax(shape, axis):
    x = _random(*shape) * 20
    expected = scipy.special.softmax(x, axis)
    np.testing.assert_allclose(reference.softmax(x, axis), expected, 1e-12, 1e-15)
    expected = scipy.special.log_softmax(x, axis)
    np.testing.assert_allclose(reference.log_softmax(x, axis), expected, 1e-12)


@pytest.mark.parametrize("function", [reference.softmax, reference.log_softmax])
def test_softmax_of_extreme_scores(function):
    x = np.array([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]], np.float32)
    expected = np.array([[1, 0, 0], [1 / 3] * 3])
    result = function(x, 1)
    result = np.exp(result) if function is reference.log_softmax else result
    np.testing.assert_allclose(result, expected, 1e-3)


def test_linear():
    x, W, b = _random(3, 5), _random(7, 5), _random(7)
    expected = [[sum(x[n] * W[o]) + b[o] for o in range(7)] for n in range(3)]
    np.testing.assert_allclose(reference.linear(x, W, b), expected, 1e-12)
    np.testing.assert_allclose(reference.linear(x, W, None), np.array(expected) - b, 1e-12, 1e-12)


def test_half_precision_is_summed_in_single_precision():
    n = 4096
    x, W = np.full((1, n), 0.5, np.float16), np.full((1, n), 0.5, np.float16)
    assert kernels.linear(x, W, None) == 1024
    window = Window((1,), (1,), (0,), (1,), 1, (1,), (1,))
    y = kernels.convolution_output(x.reshape(1, n, 1), W.reshape(1, n, 1), window)
    assert y.dtype == np.float16 and y.item() == 1024


# The sizes of windows.


@pytest.mark.parametrize("s, p, d", list(itertools.product(range(1, 4), range(3), range(1, 4))))
def test_numbers_of_windows(s, p, d):
    for size, k in itertools.product(range(1, 7), range(1, 5)):
        span = (k - 1) * d + 1
        n = get_conv_outsize(size, k, s, p, d=d)
        if span > size + 2 * p:
            assert n <= 0
            continue
        assert n == len([start for start in range(-p, size + p, s) if start + span <= size + p])
        reach = -p + (get_conv_outsize(size, k, s, p, True, d) - 1) * s + span
        assert size + p <= reach < size + p + s
        back = get_deconv_outsize(n, k, s, p, d=d)
        assert get_conv_outsize(back, k, s, p, d=d) == n
        assert get_conv_outsize(back - 1, k, s, p, d=d) < n


def test_as_tuple():
    assert as_tuple(2, 3) == (2, 2, 2) and as_tuple((1, 2), 2) == (1, 2)
    assert as_tuple(np.array([1, 2]), 2) == (1, 2)
    with pytest.raises(ValueError, match=r"expected one integer or 3, but got \(1, 2\)"):
        as_tuple((1, 2), 3)

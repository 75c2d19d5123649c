"""Tests convolution and pooling for random geometries, with NaN in all new memory.

The values are small integers, whose sums are exact, so kernels must agree bit by bit, except where
they compute fractions: winograd and means. A kernel that leaves memory unwritten, or reads past the
ends of its arrays, returns NaN.
"""

import itertools

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable, kernels
from mpchain.kernels.cpu import onednn, onednn_library, winograd
from mpchain.kernels.cpu.compiler import load_numba
from mpchain.kernels.window import Window
from mpchain.utils.conv import get_conv_outsize

pytestmark = pytest.mark.slow


def _blocks(ordinary, slow, size):
    """Returns seeds and sizes of blocks of geometries; the slow blocks have 1000 each."""
    blocks = [pytest.param(seed, size, id=f"{size} of seed {seed}") for seed in range(ordinary)]
    return blocks + [
        pytest.param(seed, 1000, id=f"1000 of seed {seed}", marks=pytest.mark.nightly)
        for seed in range(1000, 1000 + slow)
    ]


def _window(in_size, ksize, stride, pad, dilate=None, groups=1, cover_all=False):
    dilate = dilate or (1,) * len(in_size)
    axes = zip(in_size, ksize, stride, pad, dilate)
    out_size = tuple(get_conv_outsize(i, k, s, p, cover_all, d) for i, k, s, p, d in axes)
    return Window(ksize, stride, pad, dilate, groups, in_size, out_size)


def _integers(rng, shape, dtype):
    return rng.integers(-3, 4, shape).astype(dtype)


# Convolution.

MEMBERS = {"output": "xW", "input": "yW", "filter": "xy"}


def _wrong_convolutions(memory, rng, n, c, o, window, dtype=np.float32):
    """Returns descriptions of the convolution kernels whose results differ from the reference's,
    or which write beyond an array."""
    shapes = {
        "x": (n, c, *window.in_size),
        "W": (o, c // window.groups, *window.ksize),
        "y": (n, o, *window.out_size),
    }
    can_be_last = len(window.ksize) < 3
    arrays = {
        name: (memory.copy_last if can_be_last and rng.integers(2) else memory.copy)(
            _integers(rng, shape, dtype)
        )
        for name, shape in shapes.items()
    }
    wrong = []
    for member, roles in MEMBERS.items():
        arguments = [*(arrays[role] for role in roles), window]
        *others, reference = getattr(kernels, f"convolution_{member}").kernels
        right = reference.compute(*arguments)
        assert np.isfinite(right).all()
        for kernel in others:
            if kernel.refuse(*arguments) is None:
                if kernel.library == "onednn":
                    onednn_library.load().buffer.fill(255)
                result = kernel.compute(*arguments)
                is_wrong = result != right
                if kernel.library == "winograd":  # fractions are rounded
                    is_wrong = ~(abs(result - right) <= 1e-5 * abs(right).max())
                if is_wrong.any():
                    n_wrong = is_wrong.sum()
                    wrong.append(f"{member} of {kernel.library}: {n_wrong} of {result.size}")
    if memory.has_broken_fences():
        wrong.append("writes beyond an array")
    return wrong


# oneDNN 3.2 computes these cases wrongly with AVX-512: n, c, o, groups, in_size, ksize, stride,
# pad.
REFUSED = {
    "stride 2": (2, 3, 8, 1, (4, 6, 6), (5, 3, 3), (2, 2, 2), (3, 1, 1)),
    "one channel": (3, 1, 3, 1, (6, 3, 7), (6, 1, 5), (2, 1, 1), (5, 0, 1)),
    "two slices": (1, 3, 3, 1, (2, 8, 4), (4, 1, 2), (2, 2, 2), (3, 0, 1)),
    "stride 4": (2, 1, 5, 1, (6, 5, 4), (7, 5, 3), (4, 3, 2), (6, 2, 0)),
    "stride 3": (3, 3, 8, 1, (4, 6, 5), (5, 2, 5), (3, 1, 1), (4, 0, 1)),
    "pad of two strides": (1, 3, 1, 1, (3, 8, 3), (6, 3, 3), (2, 1, 1), (4, 0, 1)),
    "pad of three strides": (3, 2, 1, 1, (2, 3, 8), (7, 1, 1), (2, 2, 2), (6, 0, 0)),
    "more slices than the window": (1, 3, 8, 1, (8, 4, 3), (6, 3, 2), (4, 1, 1), (5, 1, 0)),
    "as many slices": (2, 3, 5, 1, (7, 3, 3), (7, 2, 2), (2, 1, 1), (3, 1, 1)),
    "blocks of channels": (1, 16, 16, 1, (5, 4, 3), (8, 3, 2), (2, 1, 1), (4, 1, 0)),
    "groups": (1, 32, 32, 2, (6, 4, 3), (6, 3, 2), (2, 1, 1), (5, 1, 0)),
}
TAKEN = {
    "stem of a residual network": (1, 3, 8, 1, (16, 9, 9), (7, 7, 7), (2, 2, 2), (3, 3, 3)),
    "small stem": (1, 3, 8, 1, (8, 9, 9), (7, 7, 7), (2, 2, 2), (3, 3, 3)),
    "pad of one stride": (1, 3, 8, 1, (4, 6, 6), (5, 3, 3), (2, 2, 2), (2, 1, 1)),
    "stride 1": (1, 3, 8, 1, (2, 6, 6), (5, 3, 3), (1, 1, 1), (2, 1, 1)),
    "plane": (1, 3, 8, 1, (4, 6), (5, 3), (2, 2), (3, 1)),
}


def _filter_arguments(n, c, o, groups, *geometry):
    window = _window(*geometry, groups=groups)
    x = np.zeros((n, c, *window.in_size), np.float32)
    return x, np.zeros((n, o, *window.out_size), np.float32), window


@pytest.mark.parametrize("name", [*REFUSED, *TAKEN])
def test_filter_gradients_where_the_depth_is_hard_to_count(name, memory):
    rng = np.random.default_rng(0)
    n, c, o, groups, *geometry = {**REFUSED, **TAKEN}[name]
    window = _window(*geometry, groups=groups)
    with mpchain.using_config("kernels", ("onednn",)):
        assert not _wrong_convolutions(memory, rng, n, c, o, window)


@pytest.mark.parametrize("name", [*REFUSED, *TAKEN])
def test_onednn_refuses_only_the_filter_gradients_that_it_computes_wrong(name, with_onednn):
    x, y, window = _filter_arguments(*{**REFUSED, **TAKEN}[name])
    with mpchain.using_config("kernels", ("onednn",)):
        reason = onednn.refusal("filter", x, y, window)
        wrong = "a geometry for which oneDNN 3.2 computes a wrong gradient"
        assert reason == (wrong if name in REFUSED else None)
        W = np.zeros((y.shape[1], x.shape[1] // window.groups, *window.ksize), np.float32)
        assert onednn.refusal("output", x, W, window) is None
        assert onednn.refusal("input", y, W, window) is None


def _draw_convolution(rng, deep):
    """Returns a random case; a deep case has few slices, a large window and much padding."""
    ndim = 3 if deep else rng.integers(1, 4)
    while True:
        k, s, p, d, size = rng.integers([1, 1, 0, 1, 1], [6, 4, 6, 4, 9], (ndim, 5)).T.tolist()
        d = [max(v, 1) if rng.integers(2) else 1 for v in d]
        if deep:
            k[0], s[0], p[0], d[0] = rng.integers(4, 8), rng.integers(2, 5), rng.integers(3, 7), 1
            size[0] = rng.integers(2, 7)
        geometry = [tuple(int(v) for v in axes) for axes in (size, k, s, p, d)]
        groups = int(rng.choice([1, 1, 2, 3]))
        window = _window(*geometry, groups=groups, cover_all=rng.integers(4) == 0)
        if min(window.out_size) > 0:
            break
    n, c, o = (int(rng.choice([1, 2, 3, 8, 16], p=[0.2, 0.25, 0.25, 0.2, 0.1])) for _ in range(3))
    dtype = np.float64 if rng.integers(8) == 0 else np.float32
    return min(n, 3), c * groups, o * groups, window, dtype


@pytest.mark.long
@pytest.mark.parametrize("seed, size", _blocks(5, 80, 100))
def test_convolutions(seed, size, memory):
    rng = np.random.default_rng(seed)
    found = []
    with mpchain.using_config("kernels", ("onednn",)):
        for i in range(size):
            case = _draw_convolution(rng, deep=i % 2)
            if wrong := _wrong_convolutions(memory, rng, *case):
                found.append(f"{case}: {wrong}")
    assert not found, "\n".join(found)


def _draw_square_convolution(rng, channels=40):
    """Returns a random case with a small window; most cases have several tiles."""
    k, stride = [(2, 1), (3, 1), (3, 2), (4, 2), (5, 2), (6, 2)][rng.integers(6)]
    while True:
        size, pad = (tuple(v) for v in rng.integers([1, 0], [24, k + 2], (2, 2)).T.tolist())
        window = _window(size, (k, k), (stride, stride), pad, cover_all=rng.integers(4) == 0)
        if min(window.out_size) > 0:
            break
    n, c, o = (int(v) for v in rng.integers(1, [4, channels, channels]))
    return n, c, o, window


@pytest.fixture
def compiled_tiles():
    """Compiles the loops of the tiles, which is impossible while NumPy's functions are replaced."""
    if onednn_library.why_absent() or load_numba() is None:
        pytest.skip("needs the extra cpu")
    # numba compiles for arrays with gaps and for arrays without, such as filters of one channel.
    for k, stride, n, c, o in itertools.product((2, 3, 4), (1, 2), *[(1, 2)] * 3):
        window = _window((5, 5), (k, k), (stride, stride), (1, 1))
        x, W = np.ones((n, c, 5, 5), "f"), np.ones((o, c, k, k), "f")
        with mpchain.using_config("kernels", ("winograd",)):
            if winograd.refusal("output", x, W, window) is None:
                y = kernels.convolution_output(x, W, window)
                kernels.convolution_input(y, W, window)
                kernels.convolution_filter(x, y, window)


@pytest.mark.parametrize("seed, size", _blocks(3, 20, 30))
def test_convolutions_of_few_taps(seed, size, compiled_tiles, memory):
    rng = np.random.default_rng(seed)
    found = []
    with mpchain.using_config("kernels", ("winograd",)):
        for _ in range(size):
            case = _draw_square_convolution(rng)
            if wrong := _wrong_convolutions(memory, rng, *case):
                found.append(f"{case}: {wrong}")
    assert not found, "\n".join(found)


# Pooling: the functions, through each library that has a kernel, against plain NumPy.

POOLINGS = ("sum_windows", "spread_windows", "max_windows", "take_from_windows", "place_in_windows")
LIBRARIES = sorted({k.library for name in POOLINGS for k in kernels.operations[name].kernels})


def _spread(array, window, fill):
    """Returns the windows of an array (..., *in_size) as (..., *out_size, n_elements)."""
    axes = zip(window.out_size, window.ksize, window.stride, window.pad, window.in_size)
    room = [(p, max((o - 1) * s + k - size - p, 0)) for o, k, s, p, size in axes]
    lead = array.ndim - len(room)
    padded = np.pad(array, [(0, 0)] * lead + room, constant_values=fill)
    views = np.lib.stride_tricks.sliding_window_view(
        padded, window.ksize, tuple(range(lead, array.ndim))
    )
    picked = tuple(slice(0, (o - 1) * s + 1, s) for o, s in zip(window.out_size, window.stride))
    views = views[(slice(None),) * lead + picked]
    return views.reshape(*array.shape[:lead], *window.out_size, window.n_elements)


def _plain_pooling(kind, x, gy, window):
    """Returns values and gradients; each element of a window gets its part of gy."""
    size = np.prod(window.in_size)
    positions = np.arange(size).reshape(window.in_size)
    positions = np.broadcast_to(_spread(positions, window, -1), (*gy.shape, window.n_elements))
    if kind == "max":
        windows = _spread(x, window, -np.inf)
        # Of equal elements, the first one is chosen; NaN is the largest.
        places = windows.argmax(-1)[..., None]
        y = np.take_along_axis(windows, places, -1)[..., 0]
        positions, parts = np.take_along_axis(positions, places, -1), gy[..., None]
    else:
        count = window.n_elements if kind == "average" else (positions >= 0).sum(-1)
        y = _spread(x, window, 0).sum(-1) / count
        parts = np.broadcast_to((gy / count)[..., None], positions.shape)
    gx = np.zeros((*x.shape[:2], size + 1))
    n, c = np.indices(x.shape[:2])
    n, c = (v.reshape(*v.shape, *(1,) * (positions.ndim - 2)) for v in (n, c))
    np.add.at(gx, (n, c, positions), parts)  # the last element gets the part of the padding
    return y, gx[..., :-1].reshape(x.shape)


def _pool(kind, x, gy, window, cover_all):
    x = Variable(x)
    geometry = window.ksize, window.stride, window.pad
    if kind == "max":
        y = F.max_pooling_nd(x, *geometry, cover_all=cover_all)
    else:
        y = F.average_pooling_nd(x, *geometry, pad_value=0 if kind == "average" else None)
    y.grad = gy
    y.backward()
    return y.array, x.grad


def _draw_pooling(rng):
    ndim = rng.integers(1, 4)
    while True:
        k, s, p, size = rng.integers([1, 1, 0, 1], [6, 5, 5, 9], (ndim, 4)).T.tolist()
        p = [min(p, k - 1) for p, k in zip(p, k)]  # a mean of no elements is undefined
        cover_all = bool(rng.integers(2))
        window = _window(*map(tuple, (size, k, s, p)), cover_all=cover_all)
        if min(window.out_size) > 0:
            return window, cover_all


@pytest.mark.parametrize("seed, size", _blocks(3, 20, 100))
def test_poolings(seed, size, memory):
    rng = np.random.default_rng(seed)
    found = []
    for i in range(size):
        window, cover_all = _draw_pooling(rng)
        kind = "max" if cover_all else ("max", "average", "average of what is there")[i % 3]
        dtype = (np.float32, np.float64)[i % 2]
        n, c = rng.integers(1, 4, 2)
        x = _integers(rng, (n, c, *window.in_size), dtype)
        if kind == "max" and i % 8 == 0:
            x[rng.random(x.shape) < 0.2] = np.nan
        gy = _integers(rng, (n, c, *window.out_size), dtype)
        right = _plain_pooling(kind, x, gy, window)
        for library in LIBRARIES:
            with mpchain.using_config("kernels", (library,)):
                copies = [
                    (memory.copy_last if x.ndim < 5 and rng.integers(2) else memory.copy)(v)
                    for v in (x, gy)
                ]
                results = _pool(kind, *copies, window, cover_all)
            # Maxima are exact; means have the rounding error of a division.
            rtol = 0 if kind == "max" else 20 * np.finfo(dtype).eps
            for name, result, expected in zip(("y", "gx"), results, right):
                if not np.allclose(result, expected, rtol, 10 * rtol, equal_nan=True):
                    found.append(f"{name} of {kind}, {library}, {dtype.__name__}: {window}")
            if memory.has_broken_fences():
                found.append(f"{kind}, {library} writes beyond an array: {window}")
    assert not found, "\n".join(found)

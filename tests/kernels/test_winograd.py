"""Tests convolutions by tiles: the transforms, which are exact, and the limits of the kernels.

tests/kernels/test_geometries.py tests random geometries.
"""

from fractions import Fraction

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import kernels
from mpchain.kernels import thresholds
from mpchain.kernels.cpu import channels_last, onednn_library, winograd
from mpchain.kernels.cpu.compiler import load_numba
from mpchain.kernels.cpu.winograd_tiles import F4_2, F4_3, Tiles, filter_matrix, loop_of
from mpchain.kernels.window import Window

needs_libraries = pytest.mark.skipif(
    onednn_library.why_absent() is not None or load_numba() is None, reason="needs the extra cpu"
)
TILES = {"F(4, 3)": F4_3, "F(4, 2)": F4_2, "F(2, 3)": Tiles(2, 3, (0, 1, -1))}


def _random(*shape):
    return np.random.RandomState(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def _compute(member, *arguments):
    """Computes a convolution by tiles for any size."""
    operation = kernels.operations[f"convolution_{member}"]
    (kernel,) = (k for k in operation.kernels if k.library == "winograd")
    return kernel.compute(*arguments)


def _times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector)) for row in matrix]


@pytest.mark.parametrize("name", TILES)
def test_matrices_are_exact(name):
    tiles = TILES[name]
    taps = [Fraction(i + 2, 3) for i in range(tiles.taps)]
    inputs = [Fraction((-1) ** i * (i + 1), 7) for i in range(tiles.size)]
    products = [
        a * b for a, b in zip(_times(tiles.of_filters(), taps), _times(tiles.of_inputs(), inputs))
    ]
    assert _times(tiles.of_outputs(), products) == [
        sum(tap * inputs[i + j] for j, tap in enumerate(taps)) for i in range(tiles.outputs)
    ]


def _as_array(matrix):
    return np.array([[float(value) for value in row] for row in matrix])


@needs_libraries
@pytest.mark.parametrize("tiles", [F4_3, F4_2], ids=["F(4, 3)", "F(4, 2)"])
def test_loops_multiply_by_the_matrices(tiles):
    q = tiles.size
    of_inputs, of_outputs = _as_array(tiles.of_inputs()), _as_array(tiles.of_outputs())
    for name, matrix in (("inputs", of_inputs), ("gradients of outputs", of_outputs.T)):
        size = matrix.shape[1]
        x, y = _random(3, size, size, 5), np.empty((q, q, 3, 5), np.float32)
        loop_of(tiles, name)(0, 3, 0, x, y, 1, 1, 1, 0, 0, 0)
        right = np.einsum("ai,nijc,bj->abnc", matrix, x, matrix)
        np.testing.assert_allclose(y, right, rtol=1e-5, atol=1e-5, err_msg=name)
    x, y = _random(3, q, q, 5), np.full((q, q, 3, 15), 7, np.float32)
    loop_of(tiles, "phases of inputs")(0, 3, 0, x, y, 1, 1, 1, 0, 0, 5)
    right = np.einsum("ai,nijc,bj->abnc", of_inputs, x, of_inputs)
    np.testing.assert_allclose(y[..., 5:10], right, rtol=1e-5, atol=1e-5)
    assert (y[..., :5] == 7).all() and (y[..., 10:] == 7).all()
    size = tiles.outputs
    tile, y = _random(q, q, 3, 5), np.empty((3, size, size, 5), np.float32)
    bias = _random(5)
    loop_of(tiles, "outputs")(0, 3, 0, y, tile, bias, 1, 1, size, size, 1, 0, 0)
    right = np.einsum("ia,abnc,jb->nijc", of_outputs, tile, of_outputs) + bias
    np.testing.assert_allclose(y, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tiles", [F4_3, F4_2], ids=["F(4, 3)", "F(4, 2)"])
@pytest.mark.parametrize("is_flipped", [False, True])
def test_one_matrix_transforms_filters(tiles, is_flipped):
    G, taps = _as_array(tiles.of_filters()), _random(7, tiles.taps, tiles.taps)
    result = filter_matrix(tiles, is_flipped) @ taps.reshape(7, -1).T
    used = taps[:, ::-1, ::-1] if is_flipped else taps
    right = np.einsum("ai,nij,bj->abn", G, used, G).reshape(-1, 7)
    np.testing.assert_allclose(result, right, rtol=1e-5, atol=1e-6)


def _window(size, k=3, stride=1, pad=1, dilate=1, groups=1):
    out = (size + 2 * pad - (k - 1) * dilate - 1) // stride + 1
    pairs = [(value, value) for value in (k, stride, pad, dilate)]
    return Window(*pairs, groups, (size, size), (out, out))


def _arrays(n, c, o, window):
    x, W = _random(n, c, *window.in_size), _random(o, c // window.groups, *window.ksize)
    return {"x": x, "W": W, "y": _random(n, o, *window.out_size)}


MEMBERS = {"output": "xW", "input": "yW", "filter": "xy"}


@needs_libraries
@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize(
    "case, reason",
    [
        ((8, 64, 64, _window(28)), None),
        ((32, 128, 128, _window(16, 4, 2)), None),
        ((8, 3, 64, _window(28)), "not worth it: windows are as fast"),
        ((1, 64, 64, _window(8)), "not worth it: windows are as fast"),
        ((8, 512, 512, _window(4)), "not worth it: windows are as fast"),
        ((8, 64, 64, _window(28, 5)), "not 2 or 3 taps"),
        ((8, 64, 64, _window(28, 1, pad=0)), "not 2 or 3 taps"),
        ((8, 64, 64, _window(28, 9, 3)), "not 2 or 3 taps"),
        ((8, 64, 64, _window(28, groups=2)), "groups"),
        ((8, 64, 64, _window(28, dilate=2)), "not a window of equal sizes and strides on two axes"),
        ((0, 64, 64, _window(28)), "an array without elements"),
    ],
)
def test_what_is_taken(member, case, reason):
    arrays = _arrays(*case)
    first, second = (arrays[role] for role in MEMBERS[member])
    assert winograd.refusal(member, first, second, case[-1]) == reason
    if reason is None:
        operation = kernels.operations[f"convolution_{member}"]
        (kernel,) = (k for k in operation.kernels if k.library == "winograd")
        window = case[-1]
        assert kernel.refuse(first, second, window) is None
        assert kernel.refuse(first.astype(float), second, window) == "not NumPy arrays of float32"
        rule = "not arrays of the sizes of the window and of one dtype"
        assert kernel.refuse(first, second.astype(float), window) == rule


@needs_libraries
@pytest.mark.parametrize("size, is_taken", [(14, False), (56, True)])
def test_tiles_must_save_more_where_products_are_faster(size, is_taken, set_avx512):
    x, W, _ = _arrays(8, 64, 64, window := _window(size)).values()
    for has_avx512 in (False, True):
        set_avx512(has_avx512)
        with thresholds.using(saved_by_wide=0.4, of_tile_for_threads=thresholds.of_tile):
            reason = winograd.refusal("output", x, W, window)
        assert (reason is None) == (is_taken or not has_avx512)


@needs_libraries
@pytest.mark.parametrize("channels", [64, 128, 256])
def test_errors_do_not_grow_with_channels(channels):
    random = np.random.RandomState(0)
    x = random.standard_normal((2, channels, 14, 14))
    W = random.standard_normal((64, channels, 3, 3)) / channels**0.5
    x, W = x.astype(np.float32), W.astype(np.float32)
    right = F.convolution_2d(x.astype(float), W.astype(float), pad=1).array
    with mpchain.using_config("kernels", ("winograd",)):
        y = F.convolution_2d(x, W, pad=1).array
    # Sums over all channels at once would have errors of 7.7e-7, 1.0e-6 and 1.4e-6.
    assert ((y - right) ** 2).mean() ** 0.5 < 9e-7 * (right**2).mean() ** 0.5


@needs_libraries
def test_reproducible_communicators_sum_products():
    first, second, window = _random(8, 64, 28, 28), _random(64, 64, 3, 3), _window(28)
    assert winograd.refusal("output", first, second, window) is None
    with thresholds.using(tiles=thresholds.tiles):
        mpchain.create_communicator(reproducible=True)
        reason = winograd.refusal("output", first, second, window)
    assert reason == "not worth it: windows are as fast"


@needs_libraries
@pytest.mark.parametrize("case", [(3, 40, 24, _window(21)), (3, 20, 40, _window(18, 4, 2))])
def test_rows_of_tiles_may_be_worked_through_in_parts(case, monkeypatch):
    *_, window = case
    arrays = _arrays(*case)
    for member, roles in MEMBERS.items():
        operands = [arrays[role] for role in roles]
        results = []
        for at_once in (1, 1 << 16, 1 << 30):
            monkeypatch.setattr(
                winograd,
                "_blocks",
                lambda n, *_, step=at_once: [(i, min(i + step, n)) for i in range(0, n, step)],
            )
            results.append(_compute(member, *operands, window))
        for result in results[1:]:
            np.testing.assert_allclose(result, results[0], rtol=1e-5, atol=1e-4)


@needs_libraries
def test_results_lie_side_by_side_and_repeat_to_the_bit():
    x, W, y = _arrays(2, 24, 32, window := _window(14)).values()
    for member, operands in (("output", (x, W)), ("input", (y, W)), ("filter", (x, y))):
        result = _compute(member, *operands, window)
        again = _compute(member, *map(np.copy, operands), window)
        assert result.tobytes() == again.tobytes()
        assert channels_last.is_last(result) or member == "filter"


@needs_libraries
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_in_its_tile(value):
    x, W, _ = _arrays(2, 24, 32, window := _window(16)).values()
    x[0, 3, 5, 6] = value
    y, right = (
        _compute("output", x, W, window),
        kernels.convolution_output.kernels[-1].compute(x, W, window),
    )
    assert not np.isfinite(y[~np.isfinite(right)]).any()
    assert np.isfinite(y[1]).all() and np.isfinite(y[0, :, 12:]).all()


@needs_libraries
def test_a_network_has_the_derivatives_of_double_precision():
    x, W, _ = _arrays(4, 48, 48, window := _window(24)).values()
    assert winograd.refusal("output", x, W, window) is None
    results = []
    for dtype in (np.float32, np.float64):
        x_of, W_of = (mpchain.Variable(array.astype(dtype)) for array in (x, W / 20))
        y = F.tanh(F.convolution_2d(x_of, W_of, np.ones(48, dtype), pad=1))
        (gx,) = mpchain.grad([F.sum(y * y)], [x_of], enable_double_backprop=True)
        gW, ggx = mpchain.grad([F.sum(gx * gx)], [W_of, x_of])
        results.append([v.array for v in (y, gx, gW, ggx)])
    for result, right in zip(*results):
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, right, rtol=1e-4, atol=2e-5 * abs(right).max())

"""Tests pooling of arrays whose channels are last in memory: they stay there without copies."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import kernels
from mpchain.kernels.window import Window

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

WINDOWS = {
    "overlapping": Window((3, 3), (2, 2), (1, 1), (1, 1), 1, (7, 9), (4, 5)),
    "dilated": Window((2, 3), (1, 2), (0, 2), (2, 1), 1, (6, 5), (4, 4)),
    "volumes": Window((2, 2, 2), (2, 1, 2), (0, 0, 1), (1, 1, 1), 1, (4, 3, 5), (2, 2, 3)),
    "rows": Window((3,), (2,), (1,), (1,), 1, (8,), (4,)),
}
TO_X, TO_Y = (
    ("sum_windows", "max_windows", "take_from_windows"),
    (
        "spread_windows",
        "place_in_windows",
    ),
)


def _last(x):
    """Returns the same values with the channels last in memory."""
    return np.moveaxis(np.moveaxis(x, 1, -1).copy(), -1, 1)


def _arguments(operation, window, dtype):
    n, c = 2, 5
    of_x, of_y = (n, c, *window.in_size), (n, c, *window.out_size)
    x = np.random.randn(*(of_x if operation in TO_X else of_y)).astype(dtype)
    if operation.startswith(("take", "place")):
        places = np.random.randint(0, window.n_elements, of_y).astype(np.int32)
        return [x, places, window]
    return [x, window]


def _send(x):
    if not isinstance(x, np.ndarray):
        return x
    order = np.argsort([-s for s in x.strides], kind="stable")
    on_gpu = mpchain.get_device("@cupy:0").send(np.ascontiguousarray(x.transpose(order)))
    return on_gpu.transpose(np.argsort(order).tolist())


def _is_last(x):
    return x.transpose(0, *range(2, x.ndim), 1).flags.c_contiguous


@pytest.mark.parametrize("dtype", ["e", "f", "d"])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=list(WINDOWS))
@pytest.mark.parametrize("operation", [*TO_X, *TO_Y])
def test_channels_stay_last(operation, window, dtype, double):
    arguments = _arguments(operation, window, dtype)
    expected = getattr(kernels, operation)(*arguments)
    layouts = [[_last(x) if isinstance(x, np.ndarray) else x for x in arguments]]
    if len(arguments) == 3:
        layouts += [[x, _last(p), w] for x, p, w in [arguments]]
        layouts += [[_last(x), p, w] for x, p, w in [arguments]]
    for i, layout in enumerate(layouts):
        on_gpu = [_send(x) for x in layout]
        double.reset()
        results = getattr(kernels, operation)(*on_gpu)
        names = [name for name, _ in double.launches.elements()]
        assert len(names) == 1 + (i > 0) and any(name.endswith("_last") for name in names), names
        results = results if isinstance(results, tuple) else (results,)
        rights = expected if isinstance(expected, tuple) else (expected,)
        for result, right in zip(results, rights, strict=True):
            assert _is_last(result) and result.dtype == right.dtype
            tolerance = {"e": 4e-3, "f": 1e-5, "d": 1e-12}[dtype]
            np.testing.assert_allclose(result.get(), right, tolerance, tolerance)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_extremes(value):
    x = np.random.randn(2, 3, 6, 6)
    x[0, 1, 2:4, 2:4] = x[1, 2, 5, 0] = value
    window = Window((3, 3), (2, 2), (1, 1), (1, 1), 1, (6, 6), (3, 3))
    for result, right in zip(
        kernels.max_windows(_send(_last(x)), window), kernels.max_windows(x, window), strict=True
    ):
        np.testing.assert_array_equal(result.get(), right)


@pytest.mark.parametrize("pool", [F.max_pooling_2d, F.average_pooling_2d])
def test_derivatives_of_every_order(pool):
    values = np.random.randn(2, 3, 6, 6)

    def derivatives(x):
        x = mpchain.Variable(x)
        y, found = pool(x, 3, 2, 1), []
        g = y**4
        for _ in range(3):
            (g,) = mpchain.grad([F.sum(g)], [x], enable_double_backprop=True)
            found.append(mpchain.cuda.to_cpu(g.array))
        return y.array, found

    y, on_gpu = derivatives(_send(_last(values)))
    assert _is_last(y)
    for result, right in zip(on_gpu, derivatives(values)[1], strict=True):
        np.testing.assert_allclose(result, right, 1e-9, 1e-9)

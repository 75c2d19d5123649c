"""Tests reductions of rows by compiled loops: unusual values, memory, layouts, threads and higher
orders."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable, kernels
from mpchain.kernels import thresholds
from mpchain.kernels.cpu.numba_reductions import sum_columns
from tests.kernels.needs import needs_numba

pytestmark = [
    pytest.mark.slow,
    needs_numba,
]
DTYPES = [np.float32, np.float64]
SOFTMAX = {
    "softmax": (1,),
    "softmax of scaled rows": (1, 0.3),
    "log_softmax": (1,),
    "softmax_gradient": (1, 0.3),
    "log_softmax_gradient": (1,),
}
SCANS = {"running_sums": [(False,), (True,)], "products_of_others": [()]}
SHAPE = (301, 230)  # the last elements of a row do not fill a group of four


def kernel_of(operation, library="numba_cpu"):
    (kernel,) = (k for k in kernels.operations[operation].kernels if k.library == library)
    return kernel


def unusual(dtype, seed=0):
    """Returns rows of which the first contain NaN of both signs, infinities, and large, tiny and
    equal numbers."""
    x = np.random.RandomState(seed).randn(*SHAPE).astype(dtype)
    for row, value in enumerate((np.nan, -np.nan, np.inf, -np.inf)):
        x[row, 3] = value
    large = 1e30 if dtype == np.float32 else 1e300
    x[4], x[5], x[6], x[7], x[8] = -np.inf, large, -large, 0, -0.0
    x[9] *= np.finfo(dtype).smallest_subnormal * 9
    x[10, :7] = 1e4
    x[11] = np.linspace(-90, 0, SHAPE[1])
    return x


def by_both(operation, *arguments, shape=SHAPE):
    """Returns the results of loops, in memory that was full of NaN, and of the reference."""
    loop, other = kernel_of(operation), kernel_of(operation, "reference")
    assert loop.refuse(*arguments) is None
    out = np.full(shape, np.nan, arguments[0].dtype)
    with np.errstate(all="ignore"):
        y, expected = loop.compute(*arguments, out=out), other.compute(*arguments)
    assert y is out and expected.dtype == y.dtype
    return y, expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax(name, dtype):
    x, operation = unusual(dtype), name.partition(" ")[0]
    arrays = [x]
    if "gradient" in name:
        forward = kernel_of(operation.removesuffix("_gradient"), "reference")
        with np.errstate(all="ignore"):
            arrays = [unusual(dtype, 1)[::-1].copy(), forward.compute(x, 1)]
    y, expected = by_both(operation, *arrays, *SOFTMAX[name])
    eps = np.finfo(dtype).eps
    tiny = 4 * np.finfo(dtype).smallest_subnormal
    scale = np.abs(arrays[0][np.isfinite(arrays[0])]).max() if "gradient" in name else 0
    # Infinities are excluded, because they hide the other numbers.
    rows = slice(12, -12) if scale else slice(None)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    np.testing.assert_allclose(y[rows], expected[rows], 8 * eps, (9 * eps) if scale else tiny)


@pytest.mark.parametrize("dtype", DTYPES)
def test_exponentials_and_their_sums(dtype):
    x, eps = unusual(dtype), np.finfo(dtype).eps
    loop, other = kernel_of("exponentials"), kernel_of("exponentials", "reference")
    with np.errstate(all="ignore"):
        found, expected = loop.compute(x, out=np.full_like(x, np.nan)), other.compute(x)
    for y, right in zip(found, expected, strict=True):
        assert (y.dtype, y.shape) == (right.dtype, right.shape)
        np.testing.assert_allclose(y, right, 90 * eps, 4 * np.finfo(dtype).smallest_subnormal)
    np.testing.assert_array_equal(found[2], expected[2])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", ["mean", "no"])
def test_cross_entropy_and_three_orders_of_derivatives(reduce, dtype):
    random = np.random.RandomState(0)
    x, t = random.randn(*SHAPE).astype(dtype), random.randint(-1, SHAPE[1], SHAPE[0])
    x[0, :3] = 60, -60, 1e-30

    def results():
        v = Variable(x)
        y = F.softmax_cross_entropy(v, t, reduce=reduce)
        found = [y, y * y]
        for _ in range(3):
            found += mpchain.grad([F.sum(found[-1] ** 2)], [v], enable_double_backprop=True)
        F.sum(y).backward()
        return [y.array for y in (*found, v.grad_var)]

    found = results()
    with mpchain.using_config("kernels", ("reference",)):
        others = results()
    eps = np.finfo(dtype).eps
    for y, expected in zip(found, others, strict=True):
        assert y.dtype == dtype
        np.testing.assert_allclose(y, expected, 60 * eps, 60 * eps * np.abs(expected).max())


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_is_exact_where_it_is_tiny(dtype):
    x = np.linspace(-85, 0, 300).astype(dtype) * np.ones((230, 1), dtype)
    wide = np.exp(x.astype(np.longdouble))
    total = wide.sum(axis=1, keepdims=True)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(kernels.softmax(x, 1), (wide / total).astype(dtype), 5 * eps)
    expected = (x - np.log(total)).astype(dtype)
    np.testing.assert_allclose(kernels.log_softmax(x, 1), expected, 3 * eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SCANS)
def test_scans_have_the_bits_of_numpy(name, dtype):
    for constants in SCANS[name]:
        y, expected = by_both(name, unusual(dtype), *constants)
        np.testing.assert_array_equal(y, expected)
    x = unusual(dtype).T  # the reduced rows are columns in memory
    if name == "products_of_others":
        assert kernel_of(name).refuse(x) is None
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(
                kernel_of(name).compute(x), kernel_of(name, "reference").compute(x)
            )


@pytest.mark.parametrize("library", ["numba_cpu", "reference"])
@pytest.mark.parametrize("is_of_columns", [False, True])
def test_products_of_others_whose_parts_leave_the_range(library, is_of_columns):
    x = np.ones((300, 256), np.float32)
    x[:, 1:4], x[:, 5:8], x[7, 9] = 1e20, 1e-20, 0
    x[9:12, 20] = 0.5
    if is_of_columns:
        x = x.T.copy().T
    y = kernel_of("products_of_others", library).compute(x)
    filled = np.where(x == 0, 1, x.astype(np.float64))
    product = filled.prod(axis=1, keepdims=True)
    has_zero = (x == 0).any(axis=1, keepdims=True)
    np.testing.assert_allclose(y, np.where(has_zero & (x != 0), 0, product / filled), 1e-6)


EXTREMA = {  # each row has a shape and axes
    "rows": (SHAPE, (1,)),
    "columns": (SHAPE, (0,)),
    "middle": ((3, SHAPE[0], SHAPE[1]), (1,)),
    "two": ((3, SHAPE[0], 5, SHAPE[1]), (1, 2)),
    "none": (SHAPE, ()),
    "all": (SHAPE, (0, 1)),
}


@pytest.mark.parametrize("is_least", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EXTREMA)
def test_extrema_are_those_of_numpy(name, dtype, is_least):
    shape, axes = EXTREMA[name]
    x = np.resize(unusual(dtype), shape)
    x[-1, -1] = np.inf if is_least else -np.inf
    of_nan = np.array([0x7FC00000, 0xFFC00000], np.uint32).view(np.float32).astype(dtype)
    x.reshape(-1)[5], x.reshape(-1)[7 * x.shape[-1]] = of_nan  # both signs of NaN occur
    if name in ("none", "all"):
        assert kernel_of("extremum").refuse(x, axes, is_least) is not None
        return
    result = tuple(n for i, n in enumerate(shape) if i not in axes)
    for values in (x, np.nan_to_num(x)):
        y, expected = by_both("extremum", values, axes, is_least, shape=result)
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_rows(dtype):
    x = np.random.RandomState(0).randn(*SHAPE).astype(dtype)
    x[0, 3], x[1, 3], x[2, 3], x[2, 4] = np.nan, np.inf, -np.inf, np.inf
    y, _ = by_both("row_sums", x, shape=SHAPE[:1])
    with np.errstate(all="ignore"):
        expected = x.astype(np.longdouble).sum(axis=1)
    error = np.abs(y[3:] - expected[3:]) / np.abs(x[3:]).sum(axis=1)
    assert error.max() < 6 * np.finfo(dtype).eps
    np.testing.assert_array_equal(y[:3], expected[:3])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(301, 230), (1, 70000), (8, 9000), (9, 9000), (2100, 33)])
def test_sums_of_columns_have_the_bits_of_numpy(dtype, shape):
    x = np.resize(unusual(dtype), shape)
    x[:, :3] = -0.0
    with np.errstate(all="ignore"), thresholds.using(compiled_loop=-1):
        expected = x.sum(axis=0)
        for y in (F.sum(x, 0).array, F.sum_to(x, shape[1:]).array, sum_columns(x)):
            np.testing.assert_array_equal(y, expected)
            np.testing.assert_array_equal(np.signbit(y), np.signbit(expected))


def test_sums_of_columns_that_numpy_computes():
    x = np.ones((400, 400), np.float32)
    with thresholds.using(compiled_loop=-1):
        assert sum_columns(x) is not None
        for other in (x[:, ::2], x.T[::2], x[:9], x.astype(">f4"), x.reshape(-1, 16), x[:0]):
            assert sum_columns(other) is None
        with mpchain.using_config("kernels", ("reference",)):
            assert sum_columns(x) is None
    with thresholds.using(compiled_loop=1 << 50):
        assert sum_columns(x) is None


def test_plans_of_reductions_know_their_layouts():
    random = np.random.RandomState(0)
    for shape in ((300, 256), (256, 300), (3, 100, 256), (300, 256)):
        for dtype in DTYPES:
            for _ in range(2):  # the second call uses the plan of the first
                x = random.randn(*shape).astype(dtype)
                for axes in ((0,), (1,)):
                    y = kernels.extremum(x, axes, False)
                    np.testing.assert_array_equal(y, x.max(axis=axes))
                    y = kernels.extremum(x, axes, True)
                    np.testing.assert_array_equal(y, x.min(axis=axes))
                y = kernels.row_sums(x.reshape(-1, 256))
                np.testing.assert_array_equal(y, kernel_of("row_sums").compute(x.reshape(-1, 256)))
                with thresholds.using(threads=1):
                    np.testing.assert_array_equal(y, kernels.row_sums(x.reshape(-1, 256)))


@pytest.mark.parametrize("function", [F.max, F.min])
@pytest.mark.parametrize("axis", [None, 0, 1, (1, 0)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_functions_of_extrema_and_their_derivatives(function, axis, keepdims):
    x = np.random.RandomState(0).permutation(261 * 260).reshape(261, 260).astype(np.float32)

    def results():
        v = Variable(x / 1000)
        y = function(v, axis, keepdims)
        found = [y, F.sum(y * y * y)]
        for _ in range(3):
            found += mpchain.grad([F.sum(found[-1] * v)], [v], enable_double_backprop=True)
        return [y.array for y in found]

    found = results()
    with mpchain.using_config("kernels", ("reference",)):
        for y, expected in zip(found, results(), strict=True):
            np.testing.assert_allclose(y, expected, 2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products(dtype):
    x = np.random.RandomState(0).uniform(0.5, 1.5, SHAPE).astype(dtype)
    x[0, 3], x[1, 3], x[2, 3], x[3, 3] = np.nan, np.inf, -np.inf, 0
    x[4] *= np.finfo(dtype).tiny
    y, _ = by_both("products", x, shape=SHAPE[:1])
    expected = x.astype(np.longdouble).prod(axis=1).astype(dtype)
    tolerance = np.finfo(dtype).eps * (1 if dtype == np.float32 else SHAPE[1])
    np.testing.assert_allclose(y, expected, tolerance)


@pytest.mark.parametrize("operation", [*SCANS, "products", "row_sums", *list(SOFTMAX)[2:4]])
def test_threads_do_not_change_the_bits(operation):
    x = np.random.RandomState(0).randn(*SHAPE).astype("f")
    constants = SCANS.get(operation, [SOFTMAX.get(operation, ())])[-1]
    arrays = [x, x] if "gradient" in operation else [x]
    found = []
    for n in (0, 1 << 40):
        with thresholds.using(threads=n):
            found.append(kernel_of(operation).compute(*arrays, *constants))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:, ::2],
        lambda x: x.astype(np.float16),
        lambda x: x[:2],
        lambda x: x[:0],
        lambda x: x[:, :0],
        lambda x: x.astype(">f4"),
    ],
    ids=["gaps", "half", "small", "no rows", "no columns", "foreign"],
)
def test_arrays_that_loops_do_not_take(change):
    x = change(np.ones((400, 400), np.float32))
    for operation in (*SCANS, "products", "softmax", "log_softmax", "row_sums"):
        constants = SCANS.get(operation, [SOFTMAX.get(operation, ())])[-1]
        assert kernel_of(operation).refuse(x, *constants) is not None


def test_other_axes_are_not_taken():
    x = np.ones((300, 300), np.float32)
    assert "last axis" in kernel_of("softmax").refuse(x, 0)
    assert kernel_of("softmax").refuse(x, -1) is None


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "cumsum", "cumprod", "prod"])
def test_three_orders_of_derivatives_are_those_of_the_reference(name, axis):
    random = np.random.RandomState(3)
    x = random.uniform(0.5, 1.6, (261, 260))
    x[3, 4] = x[200, 4] = x[3, 8] = 0
    weight = random.randn(*x.shape)

    def results():
        v = Variable(x.copy())
        y = getattr(F, name)(v, axis)
        found = [F.sum(y**4 * (weight if y.ndim == 2 else weight[0, :1] * np.ones(y.shape)))]
        for _ in range(3):
            found += mpchain.grad([F.sum(found[-1] * weight)], [v], enable_double_backprop=True)
        return [y.array for y in found]

    by_loops = results()
    with mpchain.using_config("kernels", ("reference",)):
        others = results()
    for y, right in zip(by_loops, others, strict=True):
        np.testing.assert_allclose(y, right, 1e-9, 1e-11 * np.abs(right).max())

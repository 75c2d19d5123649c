"""Reference kernels, which specify the results of operations for NumPy and CuPy arrays."""

import math

import numpy as np

from mpchain.backends.cuda import get_array_module, is_gpu_array, scatter_add
from mpchain.backends.dtypes import is_bfloat16, is_half, widened
from mpchain.kernels import thresholds
from mpchain.kernels.cpu.channels_last import is_only_last
from mpchain.kernels.operation import Operation, are_alike
from mpchain.kernels.window import Window, layout
from mpchain.typing import Array


def _wide(*arrays):
    """Converts float16 arrays to single precision, in which products are summed."""
    return [x.astype(np.float32) if x.dtype.char == "e" else x for x in arrays]


def _are_rows(x, W, b):
    return (
        x.ndim == W.ndim == 2
        and x.shape[1] == W.shape[1]
        and (are_alike(x, W) if b is None else b.shape == W.shape[:1] and are_alike(x, W, b))
    )


@Operation.given("x (N, I), W (O, I), b (O,) or None, of one dtype", _are_rows)
def linear(x: Array, W: Array, b: Array | None) -> Array:
    """Returns y = x W^T + b for x (N, I), W (O, I), b (O,) or None.

    Example:
        >>> linear(np.ones((2, 3)), np.ones((1, 3)), np.ones(1))
        array([[4.],
               [4.]])
    """
    if is_gpu_array(x):
        y = product(x, W.T)
    elif x.dtype.char in "fd" and W.dtype.char in "fd":
        y = x.dot(W.T)
    elif is_bfloat16(x.dtype):
        return linear(*map(widened, (x, W, b))).astype(x.dtype)
    else:
        wide_x, wide_W = _wide(x, W)
        y = wide_x.dot(wide_W.T)
    if b is not None and b.dtype.itemsize > y.dtype.itemsize:
        y = y + b
    elif b is not None:
        y += b
    return y.astype(x.dtype, copy=False) if x.dtype.char == "e" else y


def _are_factors(a, b, out=None):
    shape, other = a.shape, b.shape
    if len(shape) < 2 or len(other) < 2 or shape[-1] != other[-2] or not are_alike(a, b):
        return False
    if out is None and len(shape) == len(other) == 2:
        return True
    if not _broadcast(shape[:-2], other[:-2]):
        return False
    if out is None:
        return True
    stack = np.broadcast_shapes(shape[:-2], other[:-2])
    return out.shape == (*stack, shape[-2], other[-1]) and are_alike(a, out)


def _broadcast(shape, other):
    return shape == other or all(m == n or 1 in (m, n) for m, n in zip(shape[::-1], other[::-1]))


@Operation.given(
    "a (..., n, k), b (..., k, m), out (..., n, m) or None, of one dtype", _are_factors
)
def product(a: Array, b: Array, out: Array | None = None) -> Array:
    """Returns the product of two matrices, or of two stacks of matrices that broadcast.

    Half precision is summed in single precision.

    Args:
        a: array (..., n, k).
        b: array (..., k, m).
        out: the array (..., n, m) to which the product is written; None means a new array.

    Example:
        >>> product(np.ones((2, 3)), np.ones((3, 1)))
        array([[3.],
               [3.]])
    """
    # on GPUs, sums are in single precision without a conversion
    if not is_half(a.dtype) or is_gpu_array(a):
        return np.matmul(a, b) if out is None else np.matmul(a, b, out=out)
    if is_bfloat16(a.dtype):
        y = product(widened(a), widened(b)).astype(a.dtype)
    else:
        y = np.matmul(*_wide(a, b)).astype(np.result_type(a, b))
    if out is None:
        return y
    out[...] = y
    return out


@Operation.given(
    "an id for each row",
    lambda rows, ids, n: rows.shape[: ids.ndim] == ids.shape and rows.__class__ is ids.__class__,
)
def sum_rows(rows: Array, ids: Array, n: int) -> Array:
    """Returns an array (n, *shape): row i is the sum of those rows of ``rows`` (..., *shape) whose
    element of ``ids`` (...) is i.

    Half precision is summed in single precision, so that small values are not lost.

    Example:
        >>> sum_rows(np.array([[1.0], [2.0], [3.0]]), np.array([0, 1, 0]), 2)
        array([[4.],
               [2.]])
    """
    xp, shape = get_array_module(rows), rows.shape[ids.ndim :]
    x = xp.zeros((n, *shape), np.promote_types(rows.dtype, np.float32))
    if xp is not np:
        scatter_add(x, ids, rows)
        return x.astype(rows.dtype, copy=False)
    # NumPy adds elements of a vector several times faster than rows of a matrix.
    width = math.prod(shape)
    places = ids.reshape(-1, 1).astype(np.intp, copy=False) * width + np.arange(width)
    np.add.at(x.reshape(-1), places.reshape(-1), rows.reshape(-1))
    return x.astype(rows.dtype, copy=False)


@Operation.given(
    "a matrix of rows, and an id for each row",
    lambda rows, ids, n: (
        rows.ndim == 2 and ids.shape == rows.shape[:1] and rows.__class__ is ids.__class__
    ),
)
def sum_distinct_rows(rows: Array, ids: Array, n: int) -> tuple[Array, Array]:
    """Returns, for each of the different elements of ``ids`` (N,) that are not negative, the sum of
    its ``rows`` (N, D); and these elements, in the order in which they first appear. All ids are
    below ``n``.

    Example:
        >>> sum_distinct_rows(np.array([[1.0], [2.0], [3.0]]), np.array([4, -1, 4]), 5)
        (array([[4.]]), array([4]))
    """
    known = ids >= 0
    if not known.all():
        ids, rows = ids[known], rows[known]
    present, places = _distinct(ids, n)
    return sum_rows(rows, places, len(present)), present


def _distinct(ids, n):
    """Returns the different elements of ``ids``, which are below ``n``, in the order in which they
    first appear, and the place of each element among them. For NumPy arrays, ``np.unique``, which
    sorts, takes several times as long."""
    xp = get_array_module(ids)
    if xp is not np or n > MOST_LISTED:
        present, first, places = xp.unique(ids, return_index=True, return_inverse=True)
        order = first.argsort()
        return present[order], order.argsort()[places]
    places, first = np.arange(ids.size), np.empty(n, np.intp)
    # of equal elements, the first one is written last; the rest of the memory is not read
    first[ids[::-1]] = places[::-1]
    first = first.take(ids)
    is_first = first == places
    ranks = np.add.accumulate(is_first, dtype=np.intp)
    ranks -= 1
    return ids[is_first], ranks.take(first)


MOST_LISTED = 1 << 22
"""The most rows of a table for which each gradient uses a list of all rows; more of them would take
the memory from the system."""


def _are_joined(axis, *arrays):
    (first, *_), shapes = arrays, [list(x.shape) for x in arrays]
    if not -first.ndim <= axis < first.ndim or not are_alike(*arrays):
        return False
    for shape in shapes:
        shape[axis : axis + 1 or None] = [0]
    return all(shape == shapes[0] for shape in shapes)


@Operation.given("arrays of one dtype, whose other axes are equal", _are_joined, first=1)
def concatenate(axis: int, *arrays: Array) -> Array:
    """Joins arrays along an axis.

    Example:
        >>> concatenate(1, np.zeros((2, 1)), np.ones((2, 2)))
        array([[0., 1., 1.],
               [0., 1., 1.]])
    """
    return get_array_module(*arrays).concatenate(arrays, axis)


def _add_in_place(y, b):
    y += b
    return y


def _has_axis(x, axis, scale=1.0):
    return -x.ndim <= axis < x.ndim


def _have_axis(g, y, axis, scale=1.0):
    return _has_axis(g, axis) and g.shape == y.shape and are_alike(g, y)


def below_zero(x: Array, axis: int) -> Array:
    """Returns x - max(x) along ``axis``, whose exponentials are finite; the axis may be empty.

    Example:
        >>> below_zero(np.array([1.0, 3.0]), 0)
        array([-2.,  0.])
    """
    # NumPy is slow on the short rows of arrays with channels last
    x = x.copy() if isinstance(x, np.ndarray) and is_only_last(x) else x
    # CuPy's max takes no initial value, but without one it refuses an empty axis.
    return x - _most(x, axis) if x.size else x.copy()


def _most(x, axis):
    """Returns the largest elements along an axis, which remains with size one. For few elements,
    ``x.max`` would take twice as long."""
    if x.__class__ is not np.ndarray:
        return x.max(axis=axis, keepdims=True)
    return np.maximum.reduce(x, axis, keepdims=True)


@Operation.given("an axis of x", _has_axis)
def softmax(x: Array, axis: int, scale: float = 1.0) -> Array:
    """Returns exp(scale x) / sum(exp(scale x)) along ``axis``.

    Example:
        >>> softmax(np.zeros((1, 2)), 1)
        array([[0.5, 0.5]])
    """
    xp = get_array_module(x)
    (wide,) = _wide(x)
    y = below_zero(wide if scale == 1 else wide * scale, axis)
    xp.exp(y, out=y)
    y /= _total(y, axis)
    return y.astype(x.dtype, copy=False)


@Operation.given("an axis of x", _has_axis)
def log_softmax(x: Array, axis: int) -> Array:
    """Returns x - log(sum(exp(x))) along ``axis``.

    Example:
        >>> np.exp(log_softmax(np.zeros((1, 2)), 1))
        array([[0.5, 0.5]])
    """
    xp = get_array_module(x)
    (wide,) = _wide(x)
    y = below_zero(wide, axis)
    y -= xp.log(_total(xp.exp(y), axis))
    return y.astype(x.dtype, copy=False)


@Operation.given("g and y of one shape and dtype, with this axis", _have_axis)
def softmax_gradient(g: Array, y: Array, axis: int, scale: float = 1.0) -> Array:
    """Returns scale y (g - sum(g y)), the gradient of x, given the gradient ``g`` of y =
    softmax(scale x).

    Example:
        >>> softmax_gradient(np.array([1.0, 0.0]), np.array([0.5, 0.5]), 0)
        array([ 0.25, -0.25])
    """
    wide_g, wide_y = _wide(g, y)
    gx = wide_g * wide_y
    gx -= wide_y * _total(gx, axis)
    if scale != 1:
        gx *= scale
    return gx.astype(g.dtype, copy=False)


@Operation.given("g and y of one shape and dtype, with this axis", _have_axis)
def log_softmax_gradient(g: Array, y: Array, axis: int) -> Array:
    """Returns g - exp(y) sum(g), the gradient of x, given the gradient ``g`` of y = log_softmax(x).

    Example:
        >>> log_softmax_gradient(np.array([1.0, 0.0]), np.log([0.5, 0.5]), 0)
        array([ 0.5, -0.5])
    """
    wide_g, wide_y = _wide(g, y)
    gx = get_array_module(g).exp(wide_y)
    gx *= -_total(wide_g, axis)
    gx += wide_g
    return gx.astype(g.dtype, copy=False)


@Operation.given("x with elements along the second axis", lambda x: x.ndim > 1 and x.shape[1] > 0)
def exponentials(x: Array) -> tuple[Array, Array, Array]:
    """Returns exp(x - most), its sum along the second axis, and ``most``, the largest element along
    this axis.

    Example:
        >>> exponentials(np.log([[1.0, 2.0]]))[0]
        array([[0.5, 1. ]])
    """
    # The array is copied for the reason given in below_zero.
    x = x.copy() if isinstance(x, np.ndarray) and is_only_last(x) else x
    most = _most(x, 1) if x.shape[1] else x.sum(axis=1, keepdims=True)
    y = x - most
    get_array_module(x).exp(y, out=y)
    return y, _total(y, 1), most


def _at_least_single(x):
    return np.promote_types(x.dtype, np.float32)


@Operation.given("x of two axes", lambda x: x.ndim == 2)
def row_sums(x: Array) -> Array:
    """Returns the sum of each row of a matrix.

    Example:
        >>> row_sums(np.ones((2, 3)))
        array([3., 3.])
    """
    return x.sum(axis=1)


def _has_elements(x, axes, is_least):
    return all(0 <= a < x.ndim and x.shape[a] for a in axes)


@Operation.given("x with elements along the axes", _has_elements)
def extremum(x: Array, axes: tuple[int, ...], is_least: bool) -> Array:
    """Returns the greatest or the least element along axes; NaN if any element is NaN.

    Example:
        >>> extremum(np.array([[1.0, 3.0], [2.0, 0.0]]), (1,), False)
        array([3., 2.])
    """
    return x.min(axis=axes) if is_least else x.max(axis=axes)


@Operation.given("x of one axis or more", lambda x, is_backward: x.ndim > 0)
def running_sums(x: Array, is_backward: bool) -> Array:
    """Returns cumulative sums along the last axis, which start at the first element or, if
    ``is_backward``, at the last.

    Example:
        >>> running_sums(np.array([1.0, 2.0, 4.0]), False), running_sums(np.ones(2), True)
        (array([1., 3., 7.]), array([2., 1.]))
    """
    along = x[..., ::-1] if is_backward else x
    y = get_array_module(x).cumsum(along, axis=-1, dtype=_at_least_single(x))
    return (y[..., ::-1] if is_backward else y).astype(x.dtype, copy=False)


@Operation.given("x of one axis or more", lambda x: x.ndim > 0)
def products(x: Array) -> Array:
    """Returns products along the last axis; half precision is multiplied in single precision.

    Example:
        >>> products(np.array([[1.0, 2.0, 4.0]]))
        array([8.])
    """
    return x.prod(axis=-1, dtype=_at_least_single(x)).astype(x.dtype, copy=False)


@Operation.given("x with elements along the last axis", lambda x: x.ndim > 0 < x.shape[-1])
def products_of_others(x: Array) -> Array:
    """Returns, for each element, the product of all other elements along the last axis, computed
    without division.

    On the host, single precision is multiplied in double precision, because the products of the
    elements before and after an element may lie outside of the range of single precision.

    Example:
        >>> products_of_others(np.array([2.0, 3.0, 0.0]))
        array([0., 0., 6.])
    """
    xp, wide = get_array_module(x), _at_least_single(x)
    if xp is np:
        wide = np.promote_types(wide, np.float64)
    ones = xp.ones((*x.shape[:-1], min(x.shape[-1], 1)), wide)

    def before(x):
        return xp.concatenate([ones, xp.cumprod(x[..., :-1], axis=-1, dtype=wide)], axis=-1)

    return (before(x) * before(x[..., ::-1])[..., ::-1]).astype(x.dtype, copy=False)


def _kept(x, axis):
    """Returns the shape of a sum over axes, which remain as axes of size one."""
    reduced = {a % x.ndim for a in axis}
    return tuple(1 if i in reduced else n for i, n in enumerate(x.shape))


def _have_shape(shape, like, *arrays):
    return all(x.shape == shape and x.__class__ is like.__class__ for x in arrays)


def _are_of_batch(x, gamma, beta, axis, eps):
    return _have_shape(_kept(x, axis), x, gamma, beta)


def _are_of_batch_gradient(g, x, gamma, mean, inverse_std, axis):
    return _have_shape(x.shape, x, g) and _have_shape(_kept(x, axis), x, gamma, mean, inverse_std)


_OF_BATCH = "a number for each channel, with size one for all other axes"


@Operation.given(_OF_BATCH, _are_of_batch)
def batch_normalization(
    x: Array, gamma: Array, beta: Array, axis: tuple[int, ...], eps: float
) -> tuple[Array, ...]:
    """Returns gamma (x - mean) / sqrt(var + eps) + beta, with statistics over ``axis``.

    Gamma and beta broadcast to x. The other results are mean, 1 / sqrt(var + eps) and var, in which
    the reduced axes have size one.

    Example:
        >>> one = np.ones((1, 1))
        >>> batch_normalization(np.array([[1.0], [3.0]]), one, one, (0,), 0.0)[0]
        array([[0.],
               [2.]])
    """
    (wide,) = _wide(x)
    mean = _average(wide, axis)
    y = wide - mean
    var = _average(y * y, axis)
    inverse_std = _inverse_root(var + eps)
    y *= (inverse_std * gamma).astype(y.dtype, copy=False)
    y += beta.astype(y.dtype, copy=False)
    return y.astype(x.dtype, copy=False), mean, inverse_std, var


@Operation.given(_OF_BATCH, _are_of_batch_gradient)
def batch_normalization_gradient(
    g: Array, x: Array, gamma: Array, mean: Array, inverse_std: Array, axis: tuple[int, ...]
) -> tuple[Array, ...]:
    """Returns the gradients of x, gamma and beta, given the gradient ``g`` of y; see
    :func:`batch_normalization`.

    Example:
        >>> x, one = np.array([[1.0], [3.0]]), np.ones((1, 1))
        >>> batch_normalization_gradient(x, x, one, 2 * one, one, (0,))[2]
        array([[4.]])
    """
    (g,) = _wide(g)
    # Only two arrays are used, since allocating memory costs more than the arithmetic.
    normalized = x - mean
    normalized *= inverse_std
    work = g * normalized
    g_gamma, g_beta = _total(work, axis), _total(g, axis)
    count = max(g.size // max(g_beta.size, 1), 1)
    normalized *= g_gamma / count
    normalized += g_beta / count
    gx = np.subtract(g, normalized, out=work)
    gx *= gamma * inverse_std
    return gx.astype(x.dtype, copy=False), g_gamma, g_beta


@Operation
def shift_and_scale(x: Array, mean: Array, scale: Array, beta: Array) -> Array:
    """Returns (x - mean) scale + beta for arrays that broadcast to x. Only one array is allocated.

    Example:
        >>> shift_and_scale(np.array([[1.0, 7.0]]), *np.ones((3, 1, 2)))
        array([[1., 7.]])
    """
    dtype = np.result_type(x.dtype, mean.dtype, scale.dtype, beta.dtype)
    if type(x) is not np.ndarray or x.size <= thresholds.scaled or len(mean) > 1:
        y = np.subtract(x, mean, dtype=dtype)
        y *= scale
        y += beta
        return y
    y = np.empty(x.shape, dtype)
    for sample, part in zip(x, y):
        np.subtract(sample, mean[0], out=part)
        part *= scale[0]
        part += beta[0]
    return y


def mean_and_inverse_std(x: Array, axis: tuple[int, ...], eps: float) -> tuple[Array, Array]:
    """Returns the mean and the inverse standard deviation over ``axis``; the reduced axes have size
    one.

    The function also accepts Variables.

    Example:
        >>> mean_and_inverse_std(np.array([1.0, 3.0]), (0,), 0.0)
        (array([2.]), array([1.]))
    """
    mean = _average(x, axis)
    deviation = x - mean
    variance = _average(deviation * deviation, axis)
    return mean, _inverse_root(variance + eps)


def _inverse_root(x):
    """Returns x ** -0.5. NumPy's power of a few numbers takes longer than all other operations of a
    small normalization."""
    return 1 / np.sqrt(x) if isinstance(x, (np.ndarray, np.floating)) else x**-0.5


def _average(x, axis):
    """Returns the mean over axes, which remain with size one. For an empty batch, which has no
    mean, the result is zero."""
    if x.__class__ is not np.ndarray or x.dtype.char not in "fd" or not x.size:
        return (np.mean if x.size else np.sum)(x, axis=axis, keepdims=True)
    # the sum and the division give the bits of np.mean in half the time
    y = np.add.reduce(x, axis, keepdims=True)
    y /= x.size // y.size
    return y


def _total(x, axis):
    """Returns the sum over axes, which remain with size one. For few elements, ``x.sum`` would take
    twice as long."""
    if x.__class__ is not np.ndarray:
        return x.sum(axis=axis, keepdims=True)
    return np.add.reduce(x, axis, keepdims=True)


def _are_of_samples(x, gamma, beta, axis, eps):
    return _have_shape(gamma.shape, x, gamma, beta)


def _are_of_samples_gradient(g, x, gamma, *others):
    *statistics, axis = others
    return _have_shape(x.shape, x, g) and _have_shape(_kept(x, axis), x, *statistics)


_OF_SAMPLES = "parameters of the same shape, and statistics with a number for each sample"


@Operation.given(_OF_SAMPLES, _are_of_samples)
def sample_normalization(
    x: Array, gamma: Array, beta: Array, axis: tuple[int, ...], eps: float
) -> tuple[Array, ...]:
    """Returns gamma (x - mean) / sqrt(var + eps) + beta, with statistics over trailing axes.

    Gamma and beta broadcast to x. The other results are mean and 1 / sqrt(var + eps), in which the
    reduced axes have size one.

    Example:
        >>> sample_normalization(np.array([[1.0, 3.0]]), np.ones(2), np.zeros(2), (-1,), 0.0)[0]
        array([[-1.,  1.]])
    """
    (wide,) = _wide(x)
    mean = _average(wide, axis)
    y = wide - mean
    inverse_std = _inverse_root(_average(y * y, axis) + eps)
    y *= inverse_std
    y *= gamma
    y += beta
    return y.astype(x.dtype, copy=False), mean, inverse_std


@Operation.given(_OF_SAMPLES, _are_of_samples_gradient)
def sample_normalization_gradient(
    g: Array,
    x: Array,
    gamma: Array,
    mean: Array,
    inverse_std: Array,
    axis: tuple[int, ...],
) -> tuple[Array, ...]:
    """Returns the gradients of x, gamma and beta, given the gradient ``g`` of y; see
    :func:`sample_normalization`.

    Beta has the shape of gamma.

    Example:
        >>> x, one = np.array([[1.0, 3.0]]), np.ones((1, 1))
        >>> sample_normalization_gradient(x, x, np.ones(2), 2 * one, one, (-1,))[2]
        array([1., 3.])
    """
    (g,) = _wide(g)
    normalized = x - mean
    normalized *= inverse_std
    gx, g_gamma = scale_gradients(g, gamma, normalized, inverse_std, axis, True)
    g_gamma = g_gamma.astype(gamma.dtype, copy=False)
    g_beta = _sum_to(g, gamma.shape).astype(gamma.dtype, copy=False)
    return gx.astype(x.dtype, copy=False), g_gamma, g_beta


def _sum_to(x, shape):
    if x.__class__ is np.ndarray and shape and x.shape[1:] == shape:
        return np.add.reduce(x, 0)
    lead = x.ndim - len(shape)
    axes = (*range(lead), *(i for i, n in enumerate(shape, lead) if n == 1 and x.shape[i] != 1))
    return _total(x, axes).reshape(shape) if axes else x.copy()


def scale_gradients(
    g: Array,
    gamma: Array,
    normalized: Array,
    inverse: Array,
    axis: tuple[int, ...],
    is_centered: bool,
) -> tuple[Array, Array]:
    """Returns the gradients of x and gamma for y = gamma normalized. The array ``normalized`` is
    overwritten.

    Args:
        g: the gradient of y.
        gamma: an array that broadcasts to x.
        normalized: the array inverse x, or with ``is_centered`` inverse (x - mean).
        inverse: the factor on x, which is a function of the deviations or the squares of x over
            ``axis``.
        axis: the axes that are normalized together.
        is_centered: whether the mean of x was subtracted.

    Example:
        >>> g, one = np.array([[1.0, 3.0]]), np.ones((1, 1))
        >>> scale_gradients(g, np.ones(2), np.array([[1.0, 1.0]]), one, (-1,), False)
        (array([[-1.,  1.]]), array([1., 3.]))
    """
    # Only two arrays are used, since allocating memory costs more than the arithmetic.
    n = g.size // max(inverse.size, 1)
    work = g * normalized
    g_gamma = _sum_to(work, gamma.shape)
    work *= gamma
    normalized *= _total(work, axis) / n
    h = np.multiply(g, gamma, out=work)
    if is_centered:
        normalized += _total(h, axis) / n
    h -= normalized
    h *= inverse
    return h, g_gamma


def inverse_rms(x: Array, axis: tuple[int, ...], eps: float) -> Array:
    """Returns 1 / sqrt(mean(x ** 2) + eps) over ``axis``; the reduced axes have size one. The
    function also accepts Variables.

    Example:
        >>> inverse_rms(np.array([1.0, 7.0]), (0,), 0.0)
        array([0.2])
    """
    average = np.mean if x.size else np.sum  # an empty batch has no mean, but its sum is zero
    return _inverse_root(average(x * x, axis=axis, keepdims=True) + eps)


@Operation
def rms_normalization(
    x: Array, gamma: Array, axis: tuple[int, ...], eps: float
) -> tuple[Array, Array]:
    """Returns gamma x / sqrt(mean(x ** 2) + eps), with the mean over trailing axes.

    Gamma broadcasts to x. The second result is 1 / sqrt(mean(x ** 2) + eps), in which the reduced
    axes have size one.

    Example:
        >>> rms_normalization(np.array([[1.0, 7.0]]), np.ones(2), (-1,), 0.0)[0]
        array([[0.2, 1.4]])
    """
    inverse = inverse_rms(x, axis, eps)
    y = x * inverse
    y *= gamma
    return y, inverse


@Operation.given(_OF_SAMPLES, _are_of_samples_gradient)
def rms_normalization_gradient(
    g: Array, x: Array, gamma: Array, inverse: Array, axis: tuple[int, ...]
) -> tuple[Array, Array]:
    """Returns the gradients of x and gamma, given the gradient ``g`` of y; see
    :func:`rms_normalization`.

    Example:
        >>> x, one = np.array([[1.0, 1.0]]), np.ones((1, 1))
        >>> rms_normalization_gradient(x, x, np.ones(2), one, (-1,))[1]
        array([1., 1.])
    """
    return scale_gradients(g, gamma, x * inverse, inverse, axis, False)


def _padded(x, window, value=0):
    """Returns ``x`` (N, C, *spatial) with padding, except padding at the end that no window
    contains."""
    padded_size, inner, _ = layout(window)
    if padded_size == x.shape[2:]:
        return x
    padded = get_array_module(x).full_like(x, value, shape=(*x.shape[:2], *padded_size))
    padded[(..., *inner)] = x
    return padded


def _columns(x, window):
    """Returns the elements of all windows of ``x`` as an array (groups, C / groups * k, N *
    out)."""
    n, c = x.shape[:2]
    xp = get_array_module(x)
    padded = _padded(x, window).swapaxes(0, 1)
    columns = xp.empty((c, window.n_elements, n, *window.out_size), x.dtype)
    for i, place in enumerate(layout(window).offsets):
        columns[:, i] = padded[(..., *place)]
    return columns.reshape(window.groups, c // window.groups * window.n_elements, -1)


def _by_group(y, window):
    """Returns ``y`` (N, O, *out) as a matrix for each group: (groups, O / groups, N * out)."""
    channels = y.shape[1] // window.groups
    return (
        get_array_module(y).ascontiguousarray(y.swapaxes(0, 1)).reshape(window.groups, channels, -1)
    )


# The functions below check the contracts of operations on windows, whose first array is x (N, C,
# *in_size) or y (N, O, *out_size).


def _is_filter(W, n_in, n_out, window):
    """Returns whether W is (O, C / groups, *ksize), which implies that all groups have the same
    size."""
    return (
        W.shape[2:] == window.ksize
        and W.shape[0] == n_out
        and W.shape[1] * window.groups == n_in
        and not n_out % window.groups
    )


def _are_of_output(x, W, window):
    return (
        x.shape[2:] == window.in_size
        and _is_filter(W, x.shape[1], W.shape[0], window)
        and are_alike(x, W)
    )


def _are_of_output_with_bias(x, W, b, window):
    return _are_of_output(x, W, window) and b.shape == W.shape[:1] and are_alike(x, b)


def _are_of_input(y, W, window):
    return (
        y.shape[2:] == window.out_size
        and _is_filter(W, W.shape[1] * window.groups, y.shape[1], window)
        and are_alike(y, W)
    )


def _are_of_filter(x, y, window):
    return (
        x.shape[2:] == window.in_size
        and y.shape[2:] == window.out_size
        and len(x) == len(y)
        and not x.shape[1] % window.groups
        and not y.shape[1] % window.groups
        and are_alike(x, y)
    )


def _is_input(x, window):
    return x.shape[2:] == window.in_size


def _are_taken(x, places, window):
    return _is_input(x, window) and _have_shape((*x.shape[:2], *window.out_size), x, places)


def _is_output(y, window):
    return y.shape[2:] == window.out_size


def _are_placed(y, places, window):
    return _is_output(y, window) and _have_shape(y.shape, y, places)


def _are_elements(y, window):
    return y.shape[2:] == (window.n_elements, *window.out_size)


_OF_WINDOWS = "arrays of the sizes of the window"
_OF_CONVOLUTION = f"{_OF_WINDOWS} and of one dtype"


@Operation.given(_OF_CONVOLUTION, _are_of_output)
def convolution_output(x: Array, W: Array, window: Window) -> Array:
    """Returns y = x * W: x (N, C, *in_size), W (O, C / groups, *ksize), y (N, O, *out_size).

    Example:
        >>> from mpchain.kernels.window import Window
        >>> window = Window((2,), (1,), (0,), (1,), 1, (3,), (2,))
        >>> convolution_output(np.array([[[1.0, 2.0, 3.0]]]), np.array([[[1.0, 1.0]]]), window)
        array([[[3., 5.]]])
    """
    wide_x, wide_W = _wide(x, W)
    y = wide_W.reshape(window.groups, W.shape[0] // window.groups, -1) @ _columns(wide_x, window)
    y = y.reshape(W.shape[0], x.shape[0], *window.out_size).swapaxes(0, 1)
    return get_array_module(x).ascontiguousarray(y, x.dtype)


@Operation.given(_OF_CONVOLUTION, _are_of_output_with_bias)
def convolution_with_bias(x: Array, W: Array, b: Array, window: Window) -> Array:
    """Returns :func:`convolution_output` plus the bias b (O,) of the output channels.

    Example:
        >>> from mpchain.kernels.window import Window
        >>> window = Window((1,), (1,), (0,), (1,), 1, (2,), (2,))
        >>> convolution_with_bias(np.ones((1, 1, 2)), np.ones((1, 1, 1)), np.ones(1), window)
        array([[[2., 2.]]])
    """
    return _add_in_place(convolution_output(x, W, window), b.reshape(-1, *[1] * len(window.ksize)))


@Operation.given(_OF_CONVOLUTION, _are_of_input)
def convolution_input(y: Array, W: Array, window: Window) -> Array:
    """Returns the adjoint of x -> x * W, which computes x (N, C, *in_size) from y (N, O,
    *out_size).

    Example:
        >>> from mpchain.kernels.window import Window
        >>> window = Window((2,), (1,), (0,), (1,), 1, (3,), (2,))
        >>> convolution_input(np.array([[[1.0, 2.0]]]), np.array([[[1.0, 1.0]]]), window)
        array([[[1., 3., 2.]]])
    """
    xp = get_array_module(y)
    wide_y, wide_W = _wide(y, W)
    n, c, groups = y.shape[0], W.shape[1] * window.groups, window.groups
    matrices = wide_W.reshape(groups, W.shape[0] // groups, -1)
    columns = matrices.swapaxes(1, 2) @ _by_group(wide_y, window)
    columns = columns.reshape(c, window.n_elements, n, *window.out_size)
    padded_size, inner, offsets = layout(window)
    x = xp.zeros((c, n, *padded_size), columns.dtype)
    for i, place in enumerate(offsets):
        x[(..., *place)] += columns[:, i]
    return xp.ascontiguousarray(x[(..., *inner)].swapaxes(0, 1), y.dtype)


@Operation.given(_OF_CONVOLUTION, _are_of_filter)
def convolution_filter(x: Array, y: Array, window: Window) -> Array:
    """Returns the adjoint of W -> x * W, which computes W (O, C / groups, *ksize) from x and y.

    Example:
        >>> from mpchain.kernels.window import Window
        >>> window = Window((2,), (1,), (0,), (1,), 1, (3,), (2,))
        >>> convolution_filter(np.array([[[1.0, 2.0, 3.0]]]), np.array([[[1.0, 0.0]]]), window)
        array([[[1., 2.]]])
    """
    wide_x, wide_y = _wide(x, y)
    W = _by_group(wide_y, window) @ _columns(wide_x, window).swapaxes(1, 2)
    shape = (y.shape[1], x.shape[1] // window.groups, *window.ksize)
    return W.reshape(shape).astype(x.dtype, copy=False)


@Operation.given(_OF_WINDOWS, _is_input)
def sum_windows(x: Array, window: Window) -> Array:
    """Returns the sum of each window, an array (N, C, *out_size); padding counts as zeros.

    Example:
        >>> from mpchain.kernels.window import Window
        >>> window = Window((2,), (1,), (0,), (1,), 1, (3,), (2,))
        >>> sum_windows(np.array([[[1.0, 2.0, 3.0]]]), window)
        array([[[3., 5.]]])
    """
    padded = _padded(_wide(x)[0], window)
    first, *others = layout(window).offsets
    y = padded[(..., *first)].copy("K")
    for place in others:
        y += padded[(..., *place)]
    return y.astype(x.dtype, copy=False)


@Operation.given(_OF_WINDOWS, _is_output)
def spread_windows(y: Array, window: Window) -> Array:
    """Returns the adjoint of :func:`sum_windows`, an array (N, C, *in_size): each element is the
    sum of the values of the windows that contain it.

    Example:
        >>> from mpchain.kernels.window import Window
        >>> window = Window((2,), (1,), (0,), (1,), 1, (3,), (2,))
        >>> spread_windows(np.array([[[1.0, 2.0]]]), window)
        array([[[1., 3., 2.]]])
    """
    padded_size, inner, offsets = layout(window)
    x = get_array_module(y).zeros_like(y, shape=(*y.shape[:2], *padded_size))
    for place in offsets:
        x[(..., *place)] += y
    return x if padded_size == window.in_size else x[(..., *inner)].copy("K")


@Operation.given(_OF_WINDOWS, _is_input)
def max_windows(x: Array, window: Window) -> tuple[Array, Array]:
    """Returns the maximum of each window, and the index of the first maximum in the window.

    Example:
        >>> from mpchain.kernels.window import Window
        >>> window = Window((2,), (1,), (0,), (1,), 1, (3,), (2,))
        >>> max_windows(np.array([[[1.0, 3.0, 2.0]]]), window)
        (array([[[3., 3.]]]), array([[[1, 0]]]...))
    """
    xp = get_array_module(x)
    padded = _padded(x, window, -np.inf)
    values = [padded[(..., *place)] for place in layout(window).offsets]
    y = values[0].copy("K")
    for value in values[1:]:
        xp.maximum(y, value, out=y)  # np.maximum propagates NaN
    places = xp.zeros(y.shape, np.int32)
    is_nan = y != y
    # on a GPU, NaN is always assumed, because the host would wait for the result of a check
    has_nan = xp is not np or bool(is_nan.any())
    # The loop runs backwards, so that the first maximum is written last.
    for i in range(len(values) - 1, -1, -1):
        found = values[i] == y
        if has_nan:
            found |= is_nan & (values[i] != values[i])
        xp.copyto(places, xp.int32(i), where=found)
    return y, places


@Operation.given(_OF_WINDOWS, _are_taken)
def take_from_windows(x: Array, places: Array, window: Window) -> Array:
    """Returns, from each window, the element whose index in the window is the window's element of
    ``places``.

    Example:
        >>> from mpchain.kernels.window import Window
        >>> window = Window((2,), (1,), (0,), (1,), 1, (3,), (2,))
        >>> take_from_windows(np.array([[[1.0, 3.0, 2.0]]]), np.array([[[1, 1]]]), window)
        array([[[3., 2.]]])
    """
    xp = get_array_module(x)
    padded = _padded(x, window)
    y = xp.zeros(places.shape, x.dtype)
    for i, place in enumerate(layout(window).offsets):
        xp.copyto(y, padded[(..., *place)], where=places == i)
    return y


@Operation.given(_OF_WINDOWS, _are_placed)
def place_in_windows(y: Array, places: Array, window: Window) -> Array:
    """Returns the adjoint of :func:`take_from_windows`: each value is added to the element of its
    window that ``places`` selects.

    Example:
        >>> from mpchain.kernels.window import Window
        >>> window = Window((2,), (1,), (0,), (1,), 1, (3,), (2,))
        >>> place_in_windows(np.array([[[1.0, 2.0]]]), np.array([[[1, 0]]]), window)
        array([[[0., 3., 0.]]])
    """
    xp = get_array_module(y)
    padded_size, inner, offsets = layout(window)
    x = xp.zeros((*y.shape[:2], *padded_size), y.dtype)
    for i, place in enumerate(offsets):
        x[(..., *place)] += xp.where(places == i, y, y.dtype.type(0))
    return xp.ascontiguousarray(x[(..., *inner)])


@Operation.given(_OF_WINDOWS, _is_input)
def unfold_windows(x: Array, window: Window) -> Array:
    """Returns all elements of each window, an array (N, C, n_elements, *out_size); padding counts
    as zeros.

    Example:
        >>> from mpchain.kernels.window import Window
        >>> window = Window((2,), (1,), (0,), (1,), 1, (3,), (2,))
        >>> unfold_windows(np.array([[[1.0, 2.0, 3.0]]]), window)[0, 0]
        array([[1., 2.],
               [2., 3.]])
    """
    padded = _padded(x, window)
    shape = (*x.shape[:2], window.n_elements, *window.out_size)
    y = get_array_module(x).empty(shape, x.dtype)
    for i, place in enumerate(layout(window).offsets):
        y[:, :, i] = padded[(..., *place)]
    return y


@Operation.given(_OF_WINDOWS, _are_elements)
def fold_windows(y: Array, window: Window) -> Array:
    """Returns the adjoint of :func:`unfold_windows`: each element is the sum of its copies in the
    windows.

    Example:
        >>> from mpchain.kernels.window import Window
        >>> window = Window((2,), (1,), (0,), (1,), 1, (3,), (2,))
        >>> fold_windows(np.ones((1, 1, 2, 2)), window)
        array([[[1., 2., 1.]]])
    """
    xp = get_array_module(y)
    padded_size, inner, offsets = layout(window)
    x = xp.zeros((*y.shape[:2], *padded_size), y.dtype)
    for i, place in enumerate(offsets):
        x[(..., *place)] += y[:, :, i]
    return xp.ascontiguousarray(x[(..., *inner)])

"""Activation functions."""

import math
from typing import Any

import numpy as np

from mpchain import kernels, random
from mpchain.backends.dtypes import is_floating
from mpchain.configuration import config
from mpchain.formulas.symbol import written_as
from mpchain.functions.arithmetic import aligned
from mpchain.functions.array import reshape
from mpchain.functions.declaring.declaration import differentiable, elementwise
from mpchain.functions.declaring.precision import differ, mixed
from mpchain.functions.joining import concat
from mpchain.functions.mathematics import _limited
from mpchain.functions.reduction import max
from mpchain.functions.reduction import sum as sum_over
from mpchain.functions.special import _bell, _ndtr, ndtr
from mpchain.kernels.logistic import limited, logistic
from mpchain.typing import Array, Input, Output
from mpchain.utils.type_check import check
from mpchain.variable import Parameter, Variable, as_variable


@elementwise(lambda g, y: g * np.greater(y, 0))
def relu(x: Input) -> Output:
    """Rectified linear unit: max(x, 0), elementwise; the derivative at zero is zero.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.relu(np.array([-1.0, 0.0, 2.0])).array
        array([0., 0., 2.])
    """
    return np.maximum(x, 0)


@elementwise(lambda g, y, z: g * np.logical_and(np.greater(y, 0), np.less(y, z)))
def clipped_relu(x: Input, z: float = 20.0) -> Output:
    """Clipped rectified linear unit: min(max(x, 0), z), elementwise; the gradient at 0 and z is
    zero.

    Args:
        x: Variable or array of any shape, floating point.
        z: the upper limit, positive.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.clipped_relu(np.array([-1.0, 3.0, 30.0]), 20.0).array
        array([ 0.,  3., 20.])
    """
    return np.minimum(np.maximum(x, 0), z)


def relu6(x: Input) -> Variable:
    """Rectified linear unit limited to six: min(max(x, 0), 6), elementwise.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.relu6(np.array([-1.0, 3.0, 30.0])).array
        array([0., 3., 6.])

    See A. Krizhevsky, Convolutional deep belief networks on CIFAR-10, 2010.
    """
    return clipped_relu(x, 6.0)


def crelu(x: Input, axis: int = 1) -> Variable:
    """Concatenated rectified linear unit: max(x, 0) and max(-x, 0), concatenated along an axis.

    Args:
        x: Variable or array, floating point.
        axis: the axis of the concatenation, whose size doubles.

    Returns:
        Variable of the dtype of ``x``, with twice the size of ``x`` along the axis.

    Raises:
        InvalidType: ``x`` has no such axis.

    Example:
        >>> F.crelu(np.array([[-1.0, 2.0]])).array
        array([[0., 2., 1., 0.]])

    See W. Shang et al., Understanding and improving convolutional neural networks via concatenated
    rectified linear units, ICML 2016.
    """
    x = as_variable(x)
    check(-x.ndim <= axis < x.ndim, "crelu", "axis must be an axis of x", x=x, axis=axis)
    return concat([relu(x), relu(-x)], axis)


# On a CPU, np.where takes several times as long, because the CPU cannot predict the signs.
@elementwise(lambda g, x, slope: g * (np.maximum(np.sign(x), 0) * (1 - slope) + slope))
def leaky_relu(x: Input, slope: float = 0.2) -> Output:
    """Leaky rectified linear unit: max(x, slope * x) for slopes below one, elementwise.

    Args:
        x: Variable or array of any shape, floating point.
        slope: factor on negative elements.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.leaky_relu(np.array([-1.0, 0.0, 2.0])).array
        array([-0.2,  0. ,  2. ])

    See A. Maas et al., Rectifier nonlinearities improve neural network acoustic models, 2013.
    """
    return np.maximum(x, 0) + np.minimum(x, 0) * slope


@elementwise(
    lambda g, x, slope: np.where(np.greater_equal(x, 0), g, g * slope),
    lambda g, x: np.where(np.greater_equal(x, 0), 0, g * x),
)
def _prelu(x, slope):
    return np.where(np.greater_equal(x, 0), x, x * slope)


def prelu(x: Input, W: Input) -> Variable:
    """Parametric rectified linear unit: x where x is not negative, else W x.

    Args:
        x: Variable or array (N, ...), floating point.
        W: Variable or array of slopes, whose shape is the sizes of axes 1 to ``W.ndim`` of ``x``:
            (C,) for a slope per channel.

    Returns:
        Variable of the shape and dtype of ``x``.

    Raises:
        InvalidType: the shape of ``W`` does not match ``x``, or the dtype of ``x`` is wider than
            the dtype of ``W``.

    Example:
        >>> F.prelu(np.array([[-1.0, 2.0]]), np.array([0.1, 0.1])).array
        array([[-0.1,  2. ]])

    See K. He et al., Delving deep into rectifiers, ICCV 2015.
    """
    if differ(x, W):
        return mixed("prelu", prelu, {"x": x}, {"W": W})
    return _prelu(x, aligned("prelu", x, W, 1))


def rrelu(
    x: Input,
    l: float = 1.0 / 8,
    u: float = 1.0 / 3,
    *,
    r: Array | None = None,
    return_r: bool = False,
) -> Variable | Any:
    """Randomized leaky rectified linear unit: x where x is not negative, else r x.

    In training, each element draws its slope r uniformly between ``l`` and ``u``; where
    ``config.train`` is False, r is the mean of ``l`` and ``u``.

    Args:
        x: Variable or array of any shape, floating point.
        l, u: the range of the slopes.
        r: array of the shape of ``x``: the slopes to use in training; None draws random slopes.
        return_r: whether to return the slopes too.

    Returns:
        Variable of the shape and dtype of ``x``; with ``return_r``, a pair of this Variable and the
        slopes.

    Raises:
        InvalidType: ``x`` is not floating point, or, in training, ``r`` does not have the shape of
            ``x``.
        ValueError: ``l`` is not below ``u``.

    Example:
        >>> with mpchain.using_config("train", False):
        ...     F.rrelu(np.array([-1.0, 2.0]), 0.25, 0.75).array
        array([-0.5,  2. ])

    See B. Xu et al., Empirical evaluation of rectified activations in convolutional network, 2015.
    """
    if l >= u:
        raise ValueError(f"rrelu: l must be below u, but they are {l} and {u}")
    x = as_variable(x)
    check(is_floating(x.dtype), "rrelu", "x must be floating point", x=x)
    slopes: Any = r
    if not config.train:
        slopes = x.xp.full(x.shape, (l + u) / 2, x.dtype)
    elif r is None:
        draws = random.source(x.xp, isinstance(x, Parameter))
        slopes = draws.uniform(l, u, x.shape).astype(x.dtype)
    check(slopes.shape == x.shape, "rrelu", "r must have the shape of x", x=x, r=slopes)
    y = _prelu(x, slopes)
    return (y, slopes) if return_r else y


@elementwise(
    lambda g, x, alpha: np.where(np.greater(x, 0), g, g * (np.exp(np.minimum(x, 0)) * alpha))
)
def elu(x: Input, alpha: float = 1.0) -> Output:
    """Exponential linear unit: x where x is positive, else alpha (exp(x) - 1), elementwise.

    Args:
        x: Variable or array of any shape, floating point.
        alpha: a factor; the result approaches -alpha as x approaches minus infinity.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.elu(np.array([-1.0, 0.0, 2.0])).array.round(2)
        array([-0.63,  0.  ,  2.  ])

    See D.-A. Clevert et al., Fast and accurate deep network learning by exponential linear units,
    ICLR 2016.
    """
    return np.where(np.greater(x, 0), x, np.expm1(np.minimum(x, 0)) * alpha)


def selu(
    x: Input, alpha: float = 1.6732632423543772, scale: float = 1.0507009873554805
) -> Variable:
    """Scaled exponential linear unit: scale times :func:`elu`.

    Args:
        x: Variable or array of any shape, floating point.
        alpha, scale: the factors; with weights drawn by LeCunNormal, the defaults keep mean and
            variance near 0 and 1 from layer to layer.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.selu(np.array([-1.0, 0.0, 2.0])).array.round(2)
        array([-1.11,  0.  ,  2.1 ])

    See G. Klambauer et al., Self-normalizing neural networks, NIPS 2017.
    """
    return elu(x, alpha) * scale


_logistic = written_as(
    "({0} < (T)0 ? (T)exp({0}) : (T)1) / ((T)exp(-fabs({0})) + (T)1)", special="logistic({})"
)(logistic)


@elementwise(lambda g, y: g * (y - y * y))
def sigmoid(x: Input) -> Output:
    """Logistic sigmoid: 1 / (1 + exp(-x)), elementwise.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.sigmoid(np.array([-1.0, 0.0, 2.0])).array.round(2)
        array([0.27, 0.5 , 0.88])
    """
    return _logistic(x)


_logistic.declared = sigmoid


@elementwise(lambda g, y: g * 0.2 * np.logical_and(np.greater(y, 0), np.less(y, 1)))
def hard_sigmoid(x: Input) -> Output:
    """Piecewise linear sigmoid: min(max(0.2 x + 0.5, 0), 1), elementwise; flat at both ends.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.hard_sigmoid(np.array([-1.0, 0.0, 2.0])).array.round(2)
        array([0.3, 0.5, 0.9])
    """
    return np.minimum(np.maximum(x * 0.2 + 0.5, 0), 1)


def swish(x: Input, beta: Input) -> Variable:
    """Swish: x sigmoid(beta x), elementwise.

    Args:
        x: Variable or array (N, ...), floating point.
        beta: Variable or array whose shape is the sizes of axes 1 to ``beta.ndim`` of ``x``: (C,)
            for one value per channel.

    Returns:
        Variable of the shape and dtype of ``x``.

    Raises:
        InvalidType: the shape of ``beta`` does not match ``x``, or the dtype of ``x`` is wider than
            the dtype of ``beta``.

    Example:
        >>> F.swish(np.array([[-1.0, 2.0]]), np.array([1.0, 2.0])).array.round(2)
        array([[-0.27,  1.96]])

    See P. Ramachandran et al., Searching for activation functions, 2017.
    """
    if differ(x, beta):
        return mixed("swish", swish, {"x": x}, {"beta": beta})
    x = as_variable(x)
    return x * sigmoid(x * aligned("swish", x, beta, 1))


def _silu_derivative(g, x):
    s = sigmoid.on(x)
    return g * (s * (x * (1 - s) + 1))


@elementwise(_silu_derivative)
def silu(x: Input) -> Output:
    """Sigmoid-weighted linear unit: x sigmoid(x), elementwise.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.silu(np.array([-1.0, 0.0, 2.0])).array.round(2)
        array([-0.27,  0.  ,  1.76])

    See S. Elfwing et al., Sigmoid-weighted linear units for neural network function approximation
    in reinforcement learning, 2018.
    """
    return x * sigmoid.on(x)


@elementwise(lambda g, y: g - g * y * y)
def tanh(x: Input) -> Output:
    """Hyperbolic tangent, elementwise.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.tanh(np.array([-1.0, 0.0, 2.0])).array.round(2)
        array([-0.76,  0.  ,  0.96])
    """
    return np.tanh(x)


@elementwise(lambda g, x, beta: g * sigmoid.on(x * beta))
def softplus(x: Input, beta: float = 1.0) -> Output:
    """Smooth rectifier: log(1 + exp(beta x)) / beta, elementwise.

    Args:
        x: Variable or array of any shape, floating point.
        beta: the sharpness of the bend at zero.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.softplus(np.array([-1.0, 0.0, 2.0])).array.round(2)
        array([0.31, 0.69, 2.13])
    """
    bx = x * beta
    # log(1 + exp(z)) overflows for large z; the sum below does not.
    return (np.maximum(bx, 0) + np.log1p(np.exp(-np.absolute(bx)))) / beta


def _mish_derivative(g, x):
    t = np.tanh(softplus.on(x, 1.0))
    # Beyond these limits, the slope is 0 or 1, and products of x could overflow.
    x = _limited(x, -800, 800)
    return g * (x * sigmoid.on(x) * (1 - np.square(t)) + t)


@elementwise(_mish_derivative)
def mish(x: Input) -> Output:
    """Mish: x tanh(softplus(x)), elementwise.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.mish(np.array([-1.0, 0.0, 2.0])).array.round(2)
        array([-0.3 ,  0.  ,  1.94])

    See D. Misra, Mish: a self regularized non-monotonic activation function, 2019.
    """
    return x * np.tanh(softplus.on(x, 1.0))


_DENSITY = 1 / math.sqrt(2 * math.pi)
_LIMITED = "({0} < (T)-40 ? (T)-40 : {0} > (T)40 ? (T)40 : {0})"


@written_as(
    f"(T)0.5 * (T)erfc({_LIMITED} * (T)-0.7071067811865476) + "
    f"{_LIMITED} * (T)exp({_LIMITED} * {_LIMITED} * (T)-0.5) * (T){_DENSITY}",
    special="slope_of_gelu({})",
)
def _slope_of_gelu(x):
    # Beyond these limits, the slope is 0 or 1, and products of x could overflow.
    x = limited(x, -40, 40)
    return _ndtr(x) + x * (np.exp(np.square(x) * -0.5) * _DENSITY)


def _gelu_curvature(g, x):
    x = _limited(x, -40, 40)
    return g * (_bell.on(x, -0.5) * ((2 - np.square(x)) * _DENSITY))


@elementwise(_gelu_curvature)
def _gelu_slope(x):
    return _slope_of_gelu(x)


_slope_of_gelu.declared = _gelu_slope


@elementwise(lambda g, x: g * _gelu_slope.on(x))
def _gelu(x):
    return x * ndtr.on(x)


_FAR = 25  # With the tanh formula, gelu(x) rounds to 0 below -25 and to x above 25.


def _gelu_exponent(x):
    """Returns z such that 1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)) = 2 sigmoid(z)."""
    return (np.square(x) * 0.044715 + 1) * (x * (2 * math.sqrt(2 / math.pi)))


def _gelu_tanh_derivative(g, x):
    x = _limited(x, -_FAR, _FAR)  # the square of a larger x could overflow
    s = sigmoid.on(_gelu_exponent(x))
    slope = (np.square(x) * (3 * 0.044715) + 1) * (2 * math.sqrt(2 / math.pi))
    return g * (s * (x * ((1 - s) * slope) + 1))


@elementwise(_gelu_tanh_derivative)
def _gelu_tanh(x):
    return x * sigmoid.on(_gelu_exponent(_limited(x, -_FAR, _FAR)))


def gelu(x: Input, approximate: str = "none") -> Variable:
    """Gaussian error linear unit: x times the normal distribution function of x, elementwise.

    Args:
        x: Variable or array of any shape, floating point.
        approximate: 'none' (needs SciPy for most arrays in host memory), or 'tanh' for
            0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).

    Returns:
        Variable of the shape and dtype of ``x``.

    Raises:
        ValueError: ``approximate`` is neither 'none' nor 'tanh'.

    Example:
        >>> F.gelu(np.array([-1.0, 0.0, 2.0])).array.round(2)
        array([-0.16,  0.  ,  1.95])

    See D. Hendrycks and K. Gimpel, Gaussian error linear units, 2016.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', but is {approximate!r}")
    return _gelu(x) if approximate == "none" else _gelu_tanh(x)


def maxout(x: Input, pool_size: int, axis: int = 1) -> Variable:
    """Maximum over groups of neighbors along an axis.

    Args:
        x: Variable or array, floating point.
        pool_size: the size of a group.
        axis: the axis along which neighbors form groups; its size is divided by ``pool_size``.

    Returns:
        Variable of the dtype of ``x``.

    Raises:
        InvalidType: ``x`` has no such axis, or the size of the axis is not a multiple of
            ``pool_size``.
        ValueError: ``pool_size`` is not positive.

    Example:
        >>> F.maxout(np.array([[1.0, 5.0, 3.0, 2.0]]), 2).array
        array([[5., 3.]])

    See I. Goodfellow et al., Maxout networks, ICML 2013.
    """
    if pool_size <= 0:
        raise ValueError(f"maxout: pool_size must be positive, but is {pool_size}")
    check(-x.ndim <= axis < x.ndim, "maxout", "axis must be an axis of x", x=x, axis=axis)
    axis %= x.ndim
    size: int = x.shape[axis]
    groups, rest = size // pool_size, size % pool_size
    check(
        rest == 0, "maxout", "pool_size must divide the size of the axis", x=x, pool_size=pool_size
    )
    shape = (*x.shape[:axis], groups, pool_size, *x.shape[axis + 1 :])
    return max(reshape(x, shape), axis=axis + 1)


def _softmax_derivative(g, y, axis):
    if not isinstance(g, Variable):
        return kernels.softmax_gradient(g, y, axis)
    gy = g * y
    return gy - y * sum_over.on(gy, axis, True)


@differentiable(_softmax_derivative, any_dtype=False)
def softmax(x: Input, axis: int = 1) -> Output:
    """Softmax along an axis: exp(x) / sum(exp(x)).

    Args:
        x: Variable or array, floating point.
        axis: the axis along which the result sums to one.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.softmax(np.log([[1.0, 2.0, 1.0]])).array.round(2)
        array([[0.25, 0.5 , 0.25]])
    """
    return kernels.softmax(x, axis)


def _log_softmax_derivative(g, y, axis):
    if not isinstance(g, Variable):
        return kernels.log_softmax_gradient(g, y, axis)
    return g - np.exp(y) * sum_over.on(g, axis, True)


@differentiable(_log_softmax_derivative, any_dtype=False)
def log_softmax(x: Input, axis: int = 1) -> Output:
    """Logarithm of the softmax along an axis: x - log(sum(exp(x))), without overflow.

    Args:
        x: Variable or array, floating point.
        axis: the axis along which the exponentials of the result sum to one.

    Returns:
        Variable of the shape and dtype of ``x``.

    Example:
        >>> F.log_softmax(np.log([[1.0, 2.0, 1.0]])).array.round(2)
        array([[-1.39, -0.69, -1.39]])
    """
    return kernels.log_softmax(x, axis)

"""Activation functions."""

import math

import numpy as np

from mpchain import kernels, random
from mpchain.backends.cuda import get_array_module
from mpchain.configuration import config
from mpchain.functions.arithmetic import aligned
from mpchain.functions.array import reshape
from mpchain.functions.declaration import differentiable, elementwise
from mpchain.functions.joining import concat
from mpchain.functions.precision import differ, mixed
from mpchain.functions.reduction import max
from mpchain.functions.reduction import sum as sum_over
from mpchain.functions.special import ndtr
from mpchain.utils.type_check import check
from mpchain.variable import as_variable


@elementwise(lambda g, y: g * np.greater(y, 0))
def relu(x):
    """Rectified linear unit: max(x, 0), elementwise; the derivative at zero is zero.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.maximum(x, 0)


@elementwise(lambda g, y, z: g * np.logical_and(np.greater(y, 0), np.less(y, z)))
def clipped_relu(x, z=20.0):
    """Rectified linear unit with a limit: min(max(x, 0), z), elementwise; flat at both ends.

    Args:
        x: Variable or array of any shape, floating point.
        z (float): the limit, positive.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.minimum(np.maximum(x, 0), z)


def relu6(x):
    """Rectified linear unit limited to six: min(max(x, 0), 6), elementwise.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    See A. Krizhevsky, Convolutional deep belief networks on CIFAR-10, 2010.
    """
    return clipped_relu(x, 6.0)


def crelu(x, axis=1):
    """Concatenated rectified linear unit: max(x, 0) and max(-x, 0), side by side.

    Args:
        x: Variable or array, floating point.
        axis (int): the axis that doubles.

    Returns:
        Variable of the dtype of ``x``.

    Raises:
        InvalidType: there is no such axis.

    See W. Shang et al., Understanding and improving convolutional neural networks via concatenated
    rectified linear units, ICML 2016.
    """
    x = as_variable(x)
    check(-x.ndim <= axis < x.ndim, "crelu", "axis must be one of x", x=x, axis=axis)
    return concat([relu(x), relu(-x)], axis)


@elementwise(lambda g, x, slope: np.where(np.greater(x, 0), g, g * slope))
def leaky_relu(x, slope=0.2):
    """Leaky rectified linear unit: max(x, slope * x) for slopes below one, elementwise.

    Args:
        x: Variable or array of any shape, floating point.
        slope (float): factor on negative elements.

    Returns:
        Variable of the shape and dtype of ``x``.

    See A. Maas et al., Rectifier nonlinearities improve neural network acoustic models, 2013.
    """
    return np.where(np.greater_equal(x, 0), x, x * slope)


@elementwise(
    lambda g, x, slope: np.where(np.greater_equal(x, 0), g, g * slope),
    lambda g, x: np.where(np.greater_equal(x, 0), 0, g * x),
)
def _prelu(x, slope):
    return np.where(np.greater_equal(x, 0), x, x * slope)


def prelu(x, W):
    """Parametric rectified linear unit: x where that is not negative, else W x.

    Args:
        x: Variable or array (N, ...), floating point.
        W: Variable or array of the shape of the axes of ``x`` that follow the first, as many as it
            has: (C,) for a slope per channel.

    Returns:
        Variable of the shape and dtype of ``x``.

    Raises:
        InvalidType: ``W`` does not fit.

    See K. He et al., Delving deep into rectifiers, ICCV 2015.
    """
    if differ(x, W):
        return mixed("prelu", prelu, {"x": x}, {"W": W})
    return _prelu(x, aligned("prelu", x, W, 1))


def rrelu(x, l=1.0 / 8, u=1.0 / 3, *, r=None, return_r=False):
    """Randomized leaky rectified linear unit: x where that is not negative, else r x.

    In training each element has a slope r of its own, uniform between ``l`` and ``u``; where
    ``config.train`` is False it is their mean.

    Args:
        x: Variable or array of any shape, floating point.
        l, u (float): the range of the slopes.
        r: array of the shape of ``x``: the slopes to use in training instead of random ones.
        return_r (bool): return the slopes too.

    Returns:
        Variable of the shape and dtype of ``x``; with ``return_r``, that and the slopes.

    Raises:
        InvalidType: ``r`` does not have the shape of ``x``.
        ValueError: ``l`` is not below ``u``.

    See B. Xu et al., Empirical evaluation of rectified activations in convolutional network, 2015.
    """
    if l >= u:
        raise ValueError(f"rrelu: l must be below u, but they are {l} and {u}")
    x = as_variable(x)
    check(x.dtype.kind == "f", "rrelu", "x must be floating point", x=x)
    xp = get_array_module(x)
    if not config.train:
        r = xp.full(x.shape, (l + u) / 2, x.dtype)
    elif r is None:
        r = random.source(xp).uniform(l, u, x.shape).astype(x.dtype)
    check(r.shape == x.shape, "rrelu", "r must have the shape of x", x=x, r=r)
    y = _prelu(x, r)
    return (y, r) if return_r else y


@elementwise(
    lambda g, x, alpha: np.where(np.greater(x, 0), g, g * (np.exp(np.minimum(x, 0)) * alpha))
)
def elu(x, alpha=1.0):
    """Exponential linear unit: x where that is positive, else alpha (exp(x) - 1), elementwise.

    Args:
        x: Variable or array of any shape, floating point.
        alpha (float): the limit for small elements is its negative.

    Returns:
        Variable of the shape and dtype of ``x``.

    See D.-A. Clevert et al., Fast and accurate deep network learning by exponential linear units,
    ICLR 2016.
    """
    return np.where(np.greater(x, 0), x, np.expm1(np.minimum(x, 0)) * alpha)


def selu(x, alpha=1.6732632423543772, scale=1.0507009873554805):
    """Scaled exponential linear unit: scale times :func:`elu`.

    Args:
        x: Variable or array of any shape, floating point.
        alpha, scale (float): by default those that keep mean 0 and variance 1 from layer to layer.

    Returns:
        Variable of the shape and dtype of ``x``.

    See G. Klambauer et al., Self-normalizing neural networks, NIPS 2017.
    """
    return elu(x, alpha) * scale


@elementwise(lambda g, y: g * (y - y * y))
def sigmoid(x):
    """Logistic sigmoid: 1 / (1 + exp(-x)), elementwise.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    # The form with tanh neither overflows nor branches.
    return np.tanh(x * 0.5) * 0.5 + 0.5


@elementwise(lambda g, y: g * 0.2 * np.logical_and(np.greater(y, 0), np.less(y, 1)))
def hard_sigmoid(x):
    """Piecewise linear sigmoid: min(max(0.2 x + 0.5, 0), 1), elementwise; flat at both ends.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.minimum(np.maximum(x * 0.2 + 0.5, 0), 1)


def swish(x, beta):
    """Swish: x sigmoid(beta x), elementwise.

    Args:
        x: Variable or array (N, ...), floating point.
        beta: Variable or array of the shape of the axes of ``x`` that follow the first, as many as
            it has: (C,) for one per channel.

    Returns:
        Variable of the shape and dtype of ``x``.

    Raises:
        InvalidType: ``beta`` does not fit.

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
def silu(x):
    """Sigmoid-weighted linear unit: x sigmoid(x), elementwise.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    See S. Elfwing et al., Sigmoid-weighted linear units for neural network function approximation
    in reinforcement learning, 2018.
    """
    return x * sigmoid.on(x)


@elementwise(lambda g, y: g - g * y * y)
def tanh(x):
    """Hyperbolic tangent, elementwise.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return np.tanh(x)


@elementwise(lambda g, x, beta: g * sigmoid.on(x * beta))
def softplus(x, beta=1.0):
    """Smooth rectifier: log(1 + exp(beta x)) / beta, elementwise.

    Args:
        x: Variable or array of any shape, floating point.
        beta (float): sharpness.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    bx = x * beta
    # log(1 + exp(z)) overflows for large z; this form does not.
    return (np.maximum(bx, 0) + np.log1p(np.exp(-np.absolute(bx)))) / beta


def _mish_derivative(g, x):
    t = np.tanh(softplus.on(x, 1.0))
    return g * (x * sigmoid.on(x) * (1 - np.square(t)) + t)


@elementwise(_mish_derivative)
def mish(x):
    """Mish: x tanh(softplus(x)), elementwise.

    Args:
        x: Variable or array of any shape, floating point.

    Returns:
        Variable of the shape and dtype of ``x``.

    See D. Misra, Mish: a self regularized non-monotonic activation function, 2019.
    """
    return x * np.tanh(softplus.on(x, 1.0))


def _gelu_derivative(g, x):
    density = np.exp(np.square(x) * -0.5) * (1 / math.sqrt(2 * math.pi))
    return g * (ndtr.on(x) + x * density)


@elementwise(_gelu_derivative)
def _gelu(x):
    return x * ndtr.on(x)


def _gelu_exponent(x):
    """The z with 1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)) = 2 sigmoid(z)."""
    return (np.square(x) * 0.044715 + 1) * (x * (2 * math.sqrt(2 / math.pi)))


def _gelu_tanh_derivative(g, x):
    s = sigmoid.on(_gelu_exponent(x))
    slope = (np.square(x) * (3 * 0.044715) + 1) * (2 * math.sqrt(2 / math.pi))
    return g * (s * (x * ((1 - s) * slope) + 1))


@elementwise(_gelu_tanh_derivative)
def _gelu_tanh(x):
    return x * sigmoid.on(_gelu_exponent(x))


def gelu(x, approximate="none"):
    """Gaussian error linear unit: x times the normal distribution function of x, elementwise.

    Args:
        x: Variable or array of any shape, floating point.
        approximate (str): 'none', which needs SciPy in host memory, or 'tanh' for
            0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).

    Returns:
        Variable of the shape and dtype of ``x``.

    Raises:
        ValueError: an unknown approximation.

    See D. Hendrycks and K. Gimpel, Gaussian error linear units, 2016.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', but is {approximate!r}")
    return _gelu(x) if approximate == "none" else _gelu_tanh(x)


def maxout(x, pool_size, axis=1):
    """Maximum over groups of neighbors along an axis.

    Args:
        x: Variable or array, floating point.
        pool_size (int): the size of a group.
        axis (int): the axis, whose size becomes that divided by ``pool_size``.

    Returns:
        Variable of the dtype of ``x``.

    Raises:
        InvalidType: there is no such axis, or it does not divide into groups.
        ValueError: ``pool_size`` is not positive.

    See I. Goodfellow et al., Maxout networks, ICML 2013.
    """
    if pool_size <= 0:
        raise ValueError(f"maxout: pool_size must be positive, but is {pool_size}")
    known = -x.ndim <= axis < x.ndim
    check(known, "maxout", "axis must be one of x", x=x, axis=axis)
    axis %= x.ndim
    groups, rest = divmod(x.shape[axis], pool_size)
    check(rest == 0, "maxout", "pool_size must divide the axis", x=x, pool_size=pool_size)
    shape = (*x.shape[:axis], groups, pool_size, *x.shape[axis + 1 :])
    return max(reshape(x, shape), axis=axis + 1)


def _softmax_derivative(g, y, axis):
    gy = g * y
    return gy - y * sum_over.on(gy, axis, True)


@differentiable(_softmax_derivative, any_dtype=False)
def softmax(x, axis=1):
    """Softmax along an axis: exp(x) / sum(exp(x)).

    Args:
        x: Variable or array, floating point.
        axis (int): the axis over which the result sums to one.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return kernels.softmax(x, axis)


@differentiable(lambda g, y, axis: g - np.exp(y) * sum_over.on(g, axis, True), any_dtype=False)
def log_softmax(x, axis=1):
    """Logarithm of the softmax along an axis: x - log(sum(exp(x))), without overflow.

    Args:
        x: Variable or array, floating point.
        axis (int): the axis over which the exponentials sum to one.

    Returns:
        Variable of the shape and dtype of ``x``.
    """
    return kernels.log_softmax(x, axis)

"""Regression losses and negative log-likelihoods."""

import math

import numpy as np

from mpchain.backends.dtypes import is_floating
from mpchain.functions.activation import softplus
from mpchain.functions.arithmetic import absolute
from mpchain.functions.array import cast, widened
from mpchain.functions.counting import note
from mpchain.functions.declaring.declaration import elementwise
from mpchain.functions.loss import check_option, reduced
from mpchain.functions.mathematics import exp, square, squared_difference
from mpchain.functions.reduction import sum
from mpchain.typing import Input
from mpchain.utils.type_check import check, fail
from mpchain.variable import Variable, as_variable


def _alike(name, **arrays):
    """Returns the arguments as Variables. Raises InvalidType unless they have the same shape and
    are floating point."""
    first, *others = arrays.values()
    alike = all(x.shape == first.shape for x in others)
    if not alike or any(not is_floating(x.dtype) for x in arrays.values()):
        rule = f"{', '.join(arrays)} must have the same shape and be floating point"
        fail(name, rule, **arrays)
    return [as_variable(x) for x in arrays.values()]


def absolute_error(x0: Input, x1: Input) -> Variable:
    """Elementwise absolute difference: abs(x0 - x1); its derivative at zero is zero.

    Args:
        x0, x1: Variables or arrays of the same shape, floating point.

    Returns:
        Variable of this shape.

    Raises:
        InvalidType: the shapes differ, or an argument is not floating point.

    Example:
        >>> F.absolute_error(np.array([1.0, 3.0]), np.array([2.0, 0.0])).array
        array([1., 3.])
    """
    x0, x1 = _alike("absolute_error", x0=x0, x1=x1)
    return absolute(x0 - x1)


def mean_absolute_error(x0: Input, x1: Input) -> Variable:
    """Mean of the absolute differences of all elements.

    Args:
        x0, x1: Variables or arrays of the same shape, floating point.

    Returns:
        Variable: a scalar.

    Raises:
        InvalidType: the shapes differ, or an argument is not floating point.

    Example:
        >>> F.mean_absolute_error(np.array([1.0, 3.0]), np.array([2.0, 0.0])).item()
        2.0
    """
    x0, x1 = _alike("mean_absolute_error", x0=x0, x1=x1)
    return note(reduced("mean_absolute_error", absolute(x0 - x1), "mean"), x0.size)


def squared_error(x0: Input, x1: Input) -> Variable:
    """Elementwise squared difference: (x0 - x1) ** 2.

    Args:
        x0, x1: Variables or arrays of the same shape, floating point.

    Returns:
        Variable of this shape.

    Raises:
        InvalidType: the shapes differ, or an argument is not floating point.

    Example:
        >>> F.squared_error(np.array([1.0, 3.0]), np.array([2.0, 0.0])).array
        array([1., 9.])
    """
    return squared_difference(*_alike("squared_error", x0=x0, x1=x1))


def mean_squared_error(x0: Input, x1: Input) -> Variable:
    """Mean of the squared differences of all elements.

    Args:
        x0, x1: Variables or arrays of the same shape, floating point.

    Returns:
        Variable: a scalar.

    Raises:
        InvalidType: the shapes differ, or an argument is not floating point.

    Example:
        >>> F.mean_squared_error(np.array([1.0, 3.0]), np.array([2.0, 0.0])).item()
        5.0
    """
    x0, x1 = _alike("mean_squared_error", x0=x0, x1=x1)
    return note(reduced("mean_squared_error", squared_difference(x0, x1), "mean"), x0.size)


@elementwise(
    lambda g, x, delta: g * np.where(np.less_equal(np.absolute(x), delta), x, np.sign(x) * delta)
)
def _huber(x, delta):
    # Only the smaller one of abs(x) and delta is squared, so that nothing overflows.
    size = np.absolute(x)
    inner = np.minimum(size, delta)
    return inner * (size - inner * 0.5)


def huber_loss(x: Input, t: Input, delta: float, reduce: str = "sum_along_second_axis") -> Variable:
    """Huber loss: half the squared error near zero, and a linear function of the absolute error
    farther away.

    With a = x - t, the loss is a ** 2 / 2 where abs(a) <= delta, else delta (abs(a) - delta / 2).

    Args:
        x, t: Variables or arrays (N, D, ...), of one shape, floating point.
        delta: the absolute error up to which the loss is quadratic.
        reduce: 'sum_along_second_axis', or 'no' for one loss per element.

    Returns:
        Variable (N, ...), the sum over axis 1; of the shape of ``x`` with reduce='no'.

    Raises:
        InvalidType: the shapes differ, an argument is not floating point, or ``x`` has no axis 1
            to sum over.
        ValueError: ``reduce`` is unknown.

    Example:
        >>> F.huber_loss(np.array([[0.5, 3.0]]), np.zeros((1, 2)), 1.0).array
        array([2.625])

    See P. J. Huber, Robust estimation of a location parameter, 1964.
    """
    check_option("huber_loss", "reduce", reduce, ("sum_along_second_axis", "no"))
    x, t = _alike("huber_loss", x=x, t=t)
    loss = _huber(x - t, delta)
    if reduce == "no":
        return loss
    check(x.ndim >= 2, "huber_loss", "x must have two axes or more to sum over the second", x=x)
    return sum(loss, axis=1)


def smooth_l1_loss(x: Input, t: Input, beta: float = 1.0, reduce: str = "mean") -> Variable:
    """Smooth L1 loss: the Huber loss divided by its width.

    With a = x - t, the loss is a ** 2 / (2 beta) where abs(a) <= beta, else abs(a) - beta / 2.

    Args:
        x, t: Variables or arrays of the same shape, floating point.
        beta: the absolute error up to which the loss is quadratic, positive.
        reduce: 'mean' or 'sum' of all elements, or 'no' for one loss per element.

    Returns:
        Variable: a scalar, or of the shape of ``x`` with reduce='no'.

    Raises:
        InvalidType: the shapes differ, or an argument is not floating point.
        ValueError: ``reduce`` is unknown, or ``beta`` is not positive.

    Example:
        >>> F.smooth_l1_loss(np.array([0.5, 3.0]), np.zeros(2), reduce="no").array
        array([0.125, 2.5  ])

    See R. Girshick, Fast R-CNN, ICCV 2015.
    """
    if beta <= 0:
        raise ValueError(f"smooth_l1_loss: beta must be positive, but is {beta}")
    x, t = _alike("smooth_l1_loss", x=x, t=t)
    return reduced("smooth_l1_loss", _huber(x - t, beta) / beta, reduce)


def bernoulli_nll(x: Input, y: Input, reduce: str = "sum") -> Variable:
    """Negative log-likelihood of Bernoulli distributions given by their log-odds.

    The loss is softplus(y) - x y, which is -x log(sigmoid(y)) - (1 - x) log(1 - sigmoid(y)).

    Args:
        x: Variable or array of any shape, floating point: the observations, from 0 to 1.
        y: Variable or array of the shape of ``x``: the log-odds of 1.
        reduce: 'sum', 'mean', or 'no' for one loss per element.

    Returns:
        Variable: a scalar, or of the shape of ``x`` with reduce='no'.

    Raises:
        InvalidType: the shapes differ, or an argument is not floating point.
        ValueError: ``reduce`` is unknown.

    Example:
        >>> F.bernoulli_nll(np.array([1.0, 0.0]), np.zeros(2), reduce="no").array.round(2)
        array([0.69, 0.69])
    """
    x, y = _alike("bernoulli_nll", x=x, y=y)
    return reduced("bernoulli_nll", softplus(y) - x * y, reduce)


def gaussian_nll(x: Input, mean: Input, ln_var: Input, reduce: str = "sum") -> Variable:
    """Negative log-likelihood of independent normal distributions.

    The loss is (ln_var + (x - mean) ** 2 / exp(ln_var) + log(2 pi)) / 2.

    Args:
        x: Variable or array of any shape, floating point: the observations.
        mean, ln_var: Variables or arrays of the shape of ``x``: means, and logarithms of the
            variances.
        reduce: 'sum', 'mean', or 'no' for one loss per element.

    Returns:
        Variable: a scalar, or of the shape of ``x`` with reduce='no'.

    Raises:
        InvalidType: the shapes differ, or an argument is not floating point.
        ValueError: ``reduce`` is unknown.

    Example:
        >>> x, mean, ln_var = np.array([0.0, 1.0]), np.zeros(2), np.zeros(2)
        >>> F.gaussian_nll(x, mean, ln_var, reduce="no").array.round(2)
        array([0.92, 1.42])
    """
    x, mean, ln_var = _alike("gaussian_nll", x=x, mean=mean, ln_var=ln_var)
    # In half precision, exp would overflow early, and its product with zero would be NaN.
    wide = [widened(v) for v in (x, mean, ln_var)]
    z = (wide[0] - wide[1]) * exp(wide[2] * -0.5)
    loss = (wide[2] + square(z) + math.log(2 * math.pi)) * 0.5
    return cast(reduced("gaussian_nll", loss, reduce), x.dtype)


def gaussian_kl_divergence(mean: Input, ln_var: Input, reduce: str = "sum") -> Variable:
    """Kullback-Leibler divergence of normal distributions from the standard normal distribution.

    The divergence is (mean ** 2 + exp(ln_var) - ln_var - 1) / 2.

    Args:
        mean, ln_var: Variables or arrays of the same shape: means, and logarithms of the variances.
        reduce: 'sum', 'mean', or 'no' for one value per element.

    Returns:
        Variable: a scalar, or of the shape of ``mean`` with reduce='no'.

    Raises:
        InvalidType: the shapes differ, or an argument is not floating point.
        ValueError: ``reduce`` is unknown.

    Example:
        >>> F.gaussian_kl_divergence(np.array([0.0, 1.0]), np.zeros(2), reduce="no").array
        array([0. , 0.5])
    """
    mean, ln_var = _alike("gaussian_kl_divergence", mean=mean, ln_var=ln_var)
    divergence = (square(mean) + exp(ln_var) - ln_var - 1) * 0.5
    return reduced("gaussian_kl_divergence", divergence, reduce)

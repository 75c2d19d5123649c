"""Losses of real-valued predictions, and negative log-likelihoods."""

import math

import numpy as np

from mpchain.functions.activation import softplus
from mpchain.functions.arithmetic import absolute
from mpchain.functions.declaration import elementwise
from mpchain.functions.loss import check_option, reduced
from mpchain.functions.mathematics import exp, square, squared_difference
from mpchain.functions.reduction import sum
from mpchain.utils.type_check import check
from mpchain.variable import as_variable


def _alike(name, **arrays):
    """Returns the arguments as Variables, which must have one shape and be floating point."""
    first, *others = arrays.values()
    alike = all(x.shape == first.shape for x in others)
    rule = f"{', '.join(arrays)} must have one shape and be floating point"
    check(alike and all(x.dtype.kind == "f" for x in arrays.values()), name, rule, **arrays)
    return [as_variable(x) for x in arrays.values()]


def absolute_error(x0, x1):
    """Elementwise absolute difference: abs(x0 - x1); its derivative at zero is zero.

    Args:
        x0, x1: Variables or arrays of one shape, floating point.

    Returns:
        Variable of that shape.

    Raises:
        InvalidType: the shapes differ.
    """
    x0, x1 = _alike("absolute_error", x0=x0, x1=x1)
    return absolute(x0 - x1)


def mean_absolute_error(x0, x1):
    """Mean of the absolute differences of all elements.

    Args:
        x0, x1: Variables or arrays of one shape, floating point.

    Returns:
        Variable: a scalar.

    Raises:
        InvalidType: the shapes differ.
    """
    x0, x1 = _alike("mean_absolute_error", x0=x0, x1=x1)
    return reduced("mean_absolute_error", absolute(x0 - x1), "mean")


def squared_error(x0, x1):
    """Elementwise squared difference: (x0 - x1) ** 2.

    Args:
        x0, x1: Variables or arrays of one shape, floating point.

    Returns:
        Variable of that shape.

    Raises:
        InvalidType: the shapes differ.
    """
    return squared_difference(*_alike("squared_error", x0=x0, x1=x1))


def mean_squared_error(x0, x1):
    """Mean of the squared differences of all elements.

    Args:
        x0, x1: Variables or arrays of one shape, floating point.

    Returns:
        Variable: a scalar.

    Raises:
        InvalidType: the shapes differ.
    """
    x0, x1 = _alike("mean_squared_error", x0=x0, x1=x1)
    return reduced("mean_squared_error", squared_difference(x0, x1), "mean")


@elementwise(
    lambda g, x, delta: g * np.where(np.less_equal(np.absolute(x), delta), x, np.sign(x) * delta)
)
def _huber(x, delta):
    # The smaller of abs(x) and delta is squared alone, so that nothing overflows.
    size = np.absolute(x)
    inner = np.minimum(size, delta)
    return inner * (size - inner * 0.5)


def huber_loss(x, t, delta, reduce="sum_along_second_axis"):
    """Squared error near zero and absolute error beyond.

    With a = x - t, it is a ** 2 / 2 where abs(a) <= delta, else delta (abs(a) - delta / 2).

    Args:
        x, t: Variables or arrays (N, D, ...), of one shape, floating point.
        delta (float): where the square ends.
        reduce (str): 'sum_along_second_axis', or 'no' for one loss per element.

    Returns:
        Variable (N, ...), the sum over axis 1; of the shape of ``x`` with reduce='no'.

    Raises:
        InvalidType: the shapes differ, or there is no axis 1 to sum over.
        ValueError: an unknown option.

    See P. J. Huber, Robust estimation of a location parameter, 1964.
    """
    check_option("huber_loss", "reduce", reduce, ("sum_along_second_axis", "no"))
    x, t = _alike("huber_loss", x=x, t=t)
    loss = _huber(x - t, delta)
    if reduce == "no":
        return loss
    check(x.ndim >= 2, "huber_loss", "x must have two axes or more to sum over the second", x=x)
    return sum(loss, axis=1)


def smooth_l1_loss(x, t, beta=1.0, reduce="mean"):
    """Absolute error, smoothed near zero: the Huber loss divided by its width.

    With a = x - t, it is a ** 2 / (2 beta) where abs(a) <= beta, else abs(a) - beta / 2.

    Args:
        x, t: Variables or arrays of one shape, floating point.
        beta (float): where the square ends, positive.
        reduce (str): 'mean' or 'sum' of all elements, or 'no' for one loss per element.

    Returns:
        Variable: a scalar, or of the shape of ``x`` with reduce='no'.

    Raises:
        InvalidType: the shapes differ.
        ValueError: an unknown option, or ``beta`` is not positive.

    See R. Girshick, Fast R-CNN, ICCV 2015.
    """
    if beta <= 0:
        raise ValueError(f"smooth_l1_loss: beta must be positive, but is {beta}")
    x, t = _alike("smooth_l1_loss", x=x, t=t)
    return reduced("smooth_l1_loss", _huber(x - t, beta) / beta, reduce)


def bernoulli_nll(x, y, reduce="sum"):
    """Negative log-likelihood of Bernoulli distributions given by their log-odds.

    It is softplus(y) - x y, which is -x log(sigmoid(y)) - (1 - x) log(1 - sigmoid(y)).

    Args:
        x: Variable or array of any shape, floating point: the observations, from 0 to 1.
        y: Variable or array of the shape of ``x``: the log-odds of 1.
        reduce (str): 'sum', 'mean', or 'no' for one loss per element.

    Returns:
        Variable: a scalar, or of the shape of ``x`` with reduce='no'.

    Raises:
        InvalidType: the shapes differ.
        ValueError: an unknown option.
    """
    x, y = _alike("bernoulli_nll", x=x, y=y)
    return reduced("bernoulli_nll", softplus(y) - x * y, reduce)


def gaussian_nll(x, mean, ln_var, reduce="sum"):
    """Negative log-likelihood of independent normal distributions.

    It is (ln_var + (x - mean) ** 2 / exp(ln_var) + log(2 pi)) / 2.

    Args:
        x: Variable or array of any shape, floating point: the observations.
        mean, ln_var: Variables or arrays of that shape: means, and logarithms of the variances.
        reduce (str): 'sum', 'mean', or 'no' for one loss per element.

    Returns:
        Variable: a scalar, or of the shape of ``x`` with reduce='no'.

    Raises:
        InvalidType: the shapes differ.
        ValueError: an unknown option.
    """
    x, mean, ln_var = _alike("gaussian_nll", x=x, mean=mean, ln_var=ln_var)
    loss = (ln_var + squared_difference(x, mean) * exp(-ln_var) + math.log(2 * math.pi)) * 0.5
    return reduced("gaussian_nll", loss, reduce)


def gaussian_kl_divergence(mean, ln_var, reduce="sum"):
    """Kullback-Leibler divergence of normal distributions from the standard one.

    It is (mean ** 2 + exp(ln_var) - ln_var - 1) / 2.

    Args:
        mean, ln_var: Variables or arrays of one shape: means, and logarithms of the variances.
        reduce (str): 'sum', 'mean', or 'no' for one value per element.

    Returns:
        Variable: a scalar, or of the shape of ``mean`` with reduce='no'.

    Raises:
        InvalidType: the shapes differ.
        ValueError: an unknown option.
    """
    mean, ln_var = _alike("gaussian_kl_divergence", mean=mean, ln_var=ln_var)
    divergence = (square(mean) + exp(ln_var) - ln_var - 1) * 0.5
    return reduced("gaussian_kl_divergence", divergence, reduce)

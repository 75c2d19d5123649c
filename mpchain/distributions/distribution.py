"""The base classes of distributions."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain import functions as F
from mpchain import random
from mpchain.backend import get_array_module
from mpchain.backends.dtypes import is_floating
from mpchain.configuration import config, get_dtype
from mpchain.distributions import logarithms
from mpchain.distributions.logarithms import choose
from mpchain.typing import Array, Input
from mpchain.utils.type_check import check, fail, is_integer
from mpchain.variable import Parameter, Variable, as_array, as_variable


class Distribution:
    """Base of batches of probability distributions with differentiable methods.

    Subclasses define methods and properties; methods and properties that are not defined raise
    NotImplementedError. An array of points has the shape (..., *event_shape), whose first axes
    broadcast with ``batch_shape``.

    >>> class Point(mpchain.Distribution):
    ...     def __init__(self, x):
    ...         self.x = x
    ...     batch_shape = event_shape = ()
    ...     def sample_n(self, n):
    ...         return Variable(np.full(n, self.x))
    >>> Point(2.0).sample(3).array
    array([2., 2., 2.])
    """

    def _lacks(self, what):
        return NotImplementedError(f"{type(self).__name__}: {what} is not defined")

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of the batch, a tuple."""
        raise self._lacks("batch_shape")

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of a sample of one distribution of the batch, a tuple."""
        raise self._lacks("event_shape")

    @property
    def params(self) -> dict[str, Variable]:
        """The parameters, as a dict of Variables by name."""
        raise self._lacks("params")

    @property
    def support(self) -> str:
        """The domain in words, such as ``'real'``."""
        raise self._lacks("support")

    @property
    def xp(self) -> Any:
        """The array module of the parameters, ``numpy`` or ``cupy``."""
        return get_array_module(*self.params.values())

    @property
    def mean(self) -> Variable:
        """Variable (*batch_shape, *event_shape)."""
        raise self._lacks("mean")

    @property
    def mode(self) -> Variable:
        """Variable (*batch_shape, *event_shape): the point of the highest density or
        probability."""
        raise self._lacks("mode")

    @property
    def variance(self) -> Variable:
        """Variable (*batch_shape, *event_shape): the variance of each element of the event."""
        raise self._lacks("variance")

    @property
    def stddev(self) -> Variable:
        """Variable (*batch_shape, *event_shape): the standard deviation of each element."""
        return F.sqrt(self.variance)

    @property
    def covariance(self) -> Variable:
        """Variable (*batch_shape, d, d): the covariance of the d elements of the event."""
        raise self._lacks("covariance")

    @property
    def entropy(self) -> Variable:
        """Variable of the shape ``batch_shape``, in nats."""
        raise self._lacks("entropy")

    def log_prob(self, x: Input) -> Variable:
        """Returns the logarithm of the density, or of the probability if the distribution is
        discrete.

        Args:
            x: Variable or array of points.

        Returns:
            Variable of the shape of ``x`` without the event axes, broadcast with ``batch_shape``;
            -inf outside of the support.
        """
        raise self._lacks("log_prob")

    def prob(self, x: Input) -> Variable:
        """Returns the density or probability; see :meth:`log_prob`."""
        return F.exp(self.log_prob(x))

    def perplexity(self, x: Input) -> Variable:
        """Returns the reciprocal of :meth:`prob`."""
        return F.exp(-self.log_prob(x))

    def cdf(self, x: Input) -> Variable:
        """Returns the probability that a sample is at most ``x``; see :meth:`log_prob`."""
        raise self._lacks("cdf")

    def icdf(self, x: Input) -> Variable:
        """Returns quantiles, which are the points at which :meth:`cdf` is ``x``.

        Args:
            x: Variable or array of probabilities, which broadcasts with the batch.

        Returns:
            Variable of points.
        """
        raise self._lacks("icdf")

    def log_cdf(self, x: Input) -> Variable:
        """Returns the logarithm of :meth:`cdf`."""
        return logarithms.log(self.cdf(x))

    def survival_function(self, x: Input) -> Variable:
        """Returns the probability that a sample is above ``x``."""
        return 1 - self.cdf(x)

    def log_survival_function(self, x: Input) -> Variable:
        """Returns the logarithm of :meth:`survival_function`."""
        return logarithms.log(self.survival_function(x))

    def sample(self, sample_shape: int | tuple[int, ...] = ()) -> Variable:
        """Draws samples from ``config.rng``, or from NumPy's or CuPy's global generator if
        ``config.rng`` is None.

        In updates of a multi-node optimizer, numbers may belong to samples: see
        :mod:`mpchain.random`.

        Args:
            sample_shape: the shape of the array of independent draws.

        Returns:
            Variable (*sample_shape, *batch_shape, *event_shape). If the distribution is
            continuous, gradients flow through samples to the parameters.

        Raises:
            ValueError: a size is negative.
        """
        is_size = is_integer(sample_shape)
        shape = (sample_shape,) if is_size else tuple(sample_shape)
        if any(n < 0 for n in shape):
            name = type(self).__name__
            raise ValueError(f"{name}.sample: sample_shape must not be negative, but is {shape}")
        is_shared = shape == () and self._belongs_to_no_sample()
        with random.shared() if is_shared else contextlib.nullcontext():
            samples = self.sample_n(math.prod(shape))
        return F.reshape(samples, (*shape, *samples.shape[1:]))

    def _belongs_to_no_sample(self):
        """Returns whether a draw must be the same on all ranks because the parameters are scalars
        or model parameters."""
        return False

    def sample_n(self, n: int) -> Variable:
        """Draws ``n`` samples; returns a Variable (n, *batch_shape, *event_shape). See
        :meth:`sample`."""
        raise self._lacks("sample_n")


POSITIVE = "be positive", lambda x: x <= 0
NOT_NEGATIVE = "not be negative", lambda x: x < 0
PROBABILITY = "be from 0 to 1", lambda x: (x < 0) | (x > 1)
"""Rules of parameters: the rule in words, and a function that is True for elements that violate the
rule (NaN does not)."""


class Parametric(Distribution):
    """Base of distributions with floating-point parameters that broadcast with each other.

    Scalars and lists are converted to the dtype of the first parameter that is an array, or to
    ``config.dtype`` if there is none. Values are checked if ``config.type_check`` is True; on a
    GPU, values are checked only in debug mode.

        >>> mpchain.distributions.Exponential(np.array([1.0, 2.0])).params["lam"].array
        array([1., 2.])

    Args:
        parameters: Variables, arrays or scalars by name; they are broadcast and become attributes.

    Raises:
        InvalidType: a parameter is not floating point, or the parameters do not broadcast.
        ValueError: a parameter is out of its domain.
    """

    _rules = {}
    _n_event_axes = 0
    _inner = 1.0  # points outside of the support are replaced by this point of the support

    def __init__(self, **parameters: Input) -> None:
        params = broadcast(self._name, as_parameters(self._name, parameters))
        for name, rule in self._rules.items():
            if name in params:
                check_values(self._name, name, params[name], *rule)
        vars(self).update(params)
        self._params = params
        shape = next(iter(params.values())).shape
        self._set_shapes(shape, self._n_event_axes)

    def _belongs_to_no_sample(self):
        return any(p.shape == () or isinstance(p, Parameter) for p in self._params.values())

    def _set_shapes(self, shape, n_event_axes):
        n = len(shape) - n_event_axes
        if n < 0:
            names = " and ".join(self._params)
            rule = f"{names} must have {n_event_axes} axis or more"
            fail(self._name, rule, **self._params)
        self._batch_shape: tuple[int, ...] = shape[:n]
        self._event_shape: tuple[int, ...] = shape[n:]

    _name = property(lambda self: type(self).__name__)

    @property
    def _like(self):
        """Returns a Variable with the dtype and device of the parameters."""
        return next(iter(self._params.values()))

    batch_shape = property(lambda self: self._batch_shape)
    event_shape = property(lambda self: self._event_shape)
    params = property(lambda self: dict(self._params))

    def _points(self, method, x, event_shape=None):
        """Checks an argument, and returns the argument as a floating-point Variable."""
        event_shape = self.event_shape if event_shape is None else event_shape
        dtype = self._like.dtype
        if not hasattr(x, "dtype"):
            x = self.xp.asarray(x, dtype)
        x = as_variable(x if isinstance(x, Variable) else as_array(x))
        x = x if is_floating(x.dtype) else F.cast(x, dtype)
        n = x.ndim - len(event_shape)
        fits = n >= 0 and x.shape[n:] == event_shape and _broadcasts(x.shape[:n], self.batch_shape)
        if not fits:
            shape = (*self.batch_shape, *event_shape)
            tail = f" (axes of the event: {len(event_shape)})" if event_shape else ""
            rule = f"x must broadcast with the shape {shape}{tail}"
            fail(f"{self._name}.{method}", rule, x=x)
        return x

    def log_prob(self, x: Input) -> Variable:
        return self._evaluate("log_prob", x, self._log_density, -math.inf)

    def _evaluate(self, method, x, formula, value):
        """Returns ``formula(x)`` inside the support, and the scalar ``value`` elsewhere."""
        x = self._points(method, x)
        outside = self._outside(x.array)
        if outside is None:
            return formula(x)
        axes = tuple(range(outside.ndim, outside.ndim + len(self.event_shape)))
        inner = choose(np.expand_dims(outside, axes) if axes else outside, self._inner, x)
        return choose(outside, value, formula(inner))

    def _outside(self, x):
        """Returns an array that is True where points are outside of the support; None if no point
        can be outside."""
        return None

    def _log_density(self, x):
        """Returns the logarithm of the density at a Variable of points of the support."""
        raise self._lacks("log_prob")


def as_parameters(owner: str, parameters: dict[str, Any]) -> dict[str, Variable]:
    """Checks that parameters are floating point, and returns them as Variables by name.

    >>> as_parameters("Normal", {"loc": np.zeros(2, np.float32), "scale": 1})["scale"].dtype
    dtype('float32')
    """
    found = [v for v in parameters.values() if hasattr(v, "dtype")]
    dtype = found[0].dtype if found else get_dtype(None, map_mixed16=np.float32)
    xp = get_array_module(*found)
    variables = {}
    for name, value in parameters.items():
        if not hasattr(value, "dtype"):
            value = xp.asarray(value, dtype)
        variable = as_variable(value if isinstance(value, Variable) else as_array(value))
        rule = f"{name} must be floating point"
        check(is_floating(variable.dtype), owner, rule, **{name: variable})
        variables[name] = variable
    return variables


def broadcast(owner: str, variables: dict[str, Variable]) -> dict[str, Variable]:
    """Returns Variables by name, broadcast to their common shape.

    >>> given = {"loc": Variable(np.zeros(2)), "scale": Variable(np.ones(()))}
    >>> broadcast("Normal", given)["scale"].shape
    (2,)
    """
    try:
        shape = np.broadcast_shapes(*(v.shape for v in variables.values()))
    except ValueError:
        fail(owner, f"{' and '.join(variables)} must broadcast", **variables)
    return {name: to_shape(v, shape) for name, v in variables.items()}


def to_shape(variable: Variable, shape: tuple[int, ...]) -> Variable:
    """Broadcasts a Variable to a shape; returns the Variable itself if it already has this shape.

    >>> to_shape(Variable(np.ones(())), (2,)).array
    array([1., 1.])
    """
    return variable if variable.shape == shape else F.broadcast_to(variable, shape)


def check_values(
    owner: str, name: str, variable: Variable, rule: str, broken: Callable[[Array], Array]
) -> None:
    """Raises ValueError if an element of a parameter violates its rule, and values are checked (see
    :class:`Parametric`).

        >>> check_values("Normal", "scale", Variable(np.ones(2)), *POSITIVE)

    Args:
        owner, name: the names of the distribution and of the parameter.
        variable: the parameter.
        rule: the rule in words: the parameter "must ...".
        broken: function of the array that returns an array that is True where the rule is violated.
    """
    array = variable.array
    if config.type_check and (isinstance(array, np.ndarray) or config.debug):
        wrong = array[broken(array)]
        if wrong.size:
            raise ValueError(f"{owner}: {name} must {rule}, but holds {wrong.ravel()[0]}")


def _broadcasts(shape, other):
    try:
        np.broadcast_shapes(shape, other)
    except ValueError:
        return False
    return True


def only_one(
    owner: str, one: tuple[str, ...], other: tuple[str, ...], **given: Any
) -> dict[str, Any]:
    """Raises ValueError unless all arguments of exactly one of two groups are given.

        >>> only_one("Bernoulli", ("p",), ("logit",), p=0.5, logit=None)
        {'p': 0.5}

    Args:
        owner: the name of the distribution.
        one, other: the names of the arguments of each group.
        given: all arguments; None for an argument that is not given.

    Returns:
        dict of the arguments of the given group.
    """
    names = tuple(name for name, value in given.items() if value is not None)
    if names not in (one, other):
        ways = f"{' and '.join(one)}, or {' and '.join(other)}"
        told = " and ".join(names) or "none"
        raise ValueError(f"{owner}: either {ways} must be given, but got {told}")
    return {name: given[name] for name in names}

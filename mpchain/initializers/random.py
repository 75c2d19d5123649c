"""Initializers that draw random numbers, each independently of the others.

The numbers are drawn on the host in float64 and then rounded and sent: a seed means the same
initial values on every device and, but for rounding, for every dtype.
"""

import math

import numpy as np

from mpchain import backend
from mpchain.configuration import config
from mpchain.initializer import Initializer, get_fans


class RandomInitializer(Initializer):
    """Base of the initializers that draw random numbers.

    Args:
        scale (float): factor on the values.
        dtype: see :class:`Initializer`.
        rng (numpy.random.Generator or RandomState): what draws; None means ``config.rng``, and
            NumPy's global state if that is None too.

    Raises:
        TypeError: ``rng`` cannot draw.
    """

    def __init__(self, scale=1.0, dtype=None, *, rng=None):
        if rng is not None and not hasattr(rng, "normal"):
            raise TypeError(
                f"{type(self).__name__}: rng must be a numpy.random.Generator or RandomState, "
                f"not {rng!r}"
            )
        super().__init__(dtype)
        self.scale = scale
        self.rng = rng

    def __call__(self, array):
        backend.copyto(array, self.draw(self.rng or config.rng or np.random, array.shape))

    def draw(self, rng, shape):
        """Returns an array of random values drawn from ``rng``."""
        raise NotImplementedError(f"{type(self).__name__} does not implement draw")


def _lecun(shape):
    return math.sqrt(1 / max(get_fans(shape)[0], 1))


def _glorot(shape):
    return math.sqrt(2 / max(sum(get_fans(shape)), 1))


def _he(shape, fan_option="fan_in"):
    return math.sqrt(2 / max(get_fans(shape)[fan_option == "fan_out"], 1))


class Normal(RandomInitializer):
    """Draws from the normal distribution of mean 0 and standard deviation ``scale``.

    Args:
        scale, dtype, rng: see :class:`RandomInitializer`.
    """

    def __init__(self, scale=0.05, dtype=None, *, rng=None):
        super().__init__(scale, dtype, rng=rng)

    def gain(self, shape):
        """The standard deviation for an array of that shape, before ``scale``."""
        return 1.0

    def draw(self, rng, shape):
        return rng.normal(0.0, self.scale * self.gain(shape), shape)


class LeCunNormal(Normal):
    """Draws normally, with standard deviation scale · sqrt(1 / fan_in).

    Args:
        scale, dtype, rng: see :class:`RandomInitializer`.

    See Y. LeCun et al., Efficient backprop, 1998.
    """

    def __init__(self, scale=1.0, dtype=None, *, rng=None):
        super().__init__(scale, dtype, rng=rng)

    def gain(self, shape):
        return _lecun(shape)


class GlorotNormal(Normal):
    """Draws normally, with standard deviation scale · sqrt(2 / (fan_in + fan_out)).

    Args:
        scale, dtype, rng: see :class:`RandomInitializer`.

    See X. Glorot and Y. Bengio, Understanding the difficulty of training deep feedforward neural
    networks, AISTATS 2010.
    """

    def __init__(self, scale=1.0, dtype=None, *, rng=None):
        super().__init__(scale, dtype, rng=rng)

    def gain(self, shape):
        return _glorot(shape)


class HeNormal(Normal):
    """Draws normally, with standard deviation scale · sqrt(2 / fan).

    Args:
        scale, dtype, rng: see :class:`RandomInitializer`.
        fan_option (str): ``'fan_in'`` or ``'fan_out'``.

    Raises:
        ValueError: ``fan_option`` is another.

    See K. He et al., Delving deep into rectifiers, ICCV 2015.
    """

    def __init__(self, scale=1.0, dtype=None, fan_option="fan_in", *, rng=None):
        if fan_option not in ("fan_in", "fan_out"):
            raise ValueError(
                f"HeNormal: fan_option must be 'fan_in' or 'fan_out', not {fan_option!r}"
            )
        super().__init__(scale, dtype, rng=rng)
        self.fan_option = fan_option

    def gain(self, shape):
        return _he(shape, self.fan_option)


class Uniform(RandomInitializer):
    """Draws from the uniform distribution over [-scale, scale].

    Args:
        scale, dtype, rng: see :class:`RandomInitializer`.
    """

    def __init__(self, scale=0.05, dtype=None, *, rng=None):
        super().__init__(scale, dtype, rng=rng)

    def gain(self, shape):
        """The bound for an array of that shape, before ``scale``."""
        return 1.0

    def draw(self, rng, shape):
        bound = self.scale * self.gain(shape)
        return rng.uniform(-bound, bound, shape)


class LeCunUniform(Uniform):
    """Draws uniformly, with the standard deviation of :class:`LeCunNormal`."""

    def __init__(self, scale=1.0, dtype=None, *, rng=None):
        super().__init__(scale, dtype, rng=rng)

    def gain(self, shape):
        return math.sqrt(3) * _lecun(shape)


class GlorotUniform(Uniform):
    """Draws uniformly, with the standard deviation of :class:`GlorotNormal`."""

    def __init__(self, scale=1.0, dtype=None, *, rng=None):
        super().__init__(scale, dtype, rng=rng)

    def gain(self, shape):
        return math.sqrt(3) * _glorot(shape)


class HeUniform(Uniform):
    """Draws uniformly, with the standard deviation of :class:`HeNormal` by fan_in."""

    def __init__(self, scale=1.0, dtype=None, *, rng=None):
        super().__init__(scale, dtype, rng=rng)

    def gain(self, shape):
        return math.sqrt(3) * _he(shape)

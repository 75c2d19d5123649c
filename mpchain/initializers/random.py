"""Initializers that draw independent random numbers.

The numbers are drawn on the host in float64, then rounded and copied to the device, so that a seed
gives the same initial values on every device and, up to rounding, for every dtype.
"""

import math
from typing import Any, TypeAlias

import numpy as np

from mpchain import backend
from mpchain.configuration import config
from mpchain.initializers.initializer import Initializer, get_fans
from mpchain.typing import Array, DTypeLike

Rng: TypeAlias = np.random.Generator | np.random.RandomState | None
"""A source of random numbers; None means ``config.rng``, or NumPy's global state if ``config.rng``
is None."""


class RandomInitializer(Initializer):
    """Base of the initializers that draw random numbers.

        >>> class Exponential(mpchain.initializers.random.RandomInitializer):
        ...     def draw(self, rng, shape):
        ...         return rng.exponential(self.scale, shape)
        >>> bool((L.Linear(3, 2, initialW=Exponential()).W.array > 0).all())
        True

    Args:
        scale: factor on the values.
        dtype: see :class:`Initializer`.
        rng: the source of random numbers; None means ``config.rng``, or NumPy's global state if
            ``config.rng`` is None.

    Raises:
        TypeError: ``rng`` is neither a Generator nor a RandomState of NumPy.
    """

    def __init__(self, scale: float = 1.0, dtype: DTypeLike = None, *, rng: Rng = None) -> None:
        if rng is not None and not hasattr(rng, "normal"):
            raise TypeError(
                f"{type(self).__name__}: rng must be a numpy.random.Generator or RandomState, "
                f"not {rng!r}"
            )
        super().__init__(dtype)
        self.scale = scale
        self.rng = rng

    def __call__(self, array: Array) -> None:
        backend.copyto(array, self.draw(self.rng or config.rng or np.random, array.shape))

    def draw(self, rng: object, shape: tuple[int, ...]) -> Array:
        """Returns an array of random values drawn from ``rng``."""
        raise NotImplementedError(f"{type(self).__name__} does not implement draw")


class _Gain(RandomInitializer):
    """Base of initializers whose values are proportional to a gain that depends on the shape of the
    array."""

    def gain(self, shape: tuple[int, ...]) -> float:
        """Returns the standard deviation or the bound, without the factor ``scale``, for an array
        of the given shape."""
        return 1.0


class _Normal(_Gain):
    def draw(self, rng: Any, shape: tuple[int, ...]) -> Array:
        return rng.normal(0.0, self.scale * self.gain(shape), shape)


class _Uniform(_Gain):
    def draw(self, rng: Any, shape: tuple[int, ...]) -> Array:
        bound = self.scale * self.gain(shape)
        return rng.uniform(-bound, bound, shape)


def _lecun(shape):
    return math.sqrt(1 / max(get_fans(shape)[0], 1))


def _glorot(shape):
    return math.sqrt(2 / max(sum(get_fans(shape)), 1))


def _he(shape, fan_option="fan_in"):
    return math.sqrt(2 / max(get_fans(shape)[fan_option == "fan_out"], 1))


class Normal(_Normal):
    """Draws from the normal distribution of mean 0 and standard deviation ``scale``.

        >>> mpchain.initializers.generate_array(mpchain.initializers.Normal(0.1), (2, 3), np).shape
        (2, 3)

    Args:
        scale, dtype, rng: see :class:`RandomInitializer`.
    """

    def __init__(self, scale: float = 0.05, dtype: DTypeLike = None, *, rng: Rng = None) -> None:
        super().__init__(scale, dtype, rng=rng)


class LeCunNormal(_Normal):
    """Draws normally, with standard deviation scale · sqrt(1 / fan_in).

        >>> float(mpchain.initializers.LeCunNormal().gain((10, 4)))  # (outputs, inputs)
        0.5

    Args:
        scale, dtype, rng: see :class:`RandomInitializer`.

    See Y. LeCun et al., Efficient backprop, 1998.
    """

    def gain(self, shape: tuple[int, ...]) -> float:
        return _lecun(shape)


class GlorotNormal(_Normal):
    """Draws normally, with standard deviation scale · sqrt(2 / (fan_in + fan_out)).

        >>> mpchain.initializers.GlorotNormal().gain((4, 4))
        0.5

    Args:
        scale, dtype, rng: see :class:`RandomInitializer`.

    See X. Glorot and Y. Bengio, Understanding the difficulty of training deep feedforward neural
    networks, AISTATS 2010.
    """

    def gain(self, shape: tuple[int, ...]) -> float:
        return _glorot(shape)


class HeNormal(_Normal):
    """Draws normally, with standard deviation scale · sqrt(2 / fan).

        >>> mpchain.initializers.HeNormal().gain((10, 8))  # (outputs, inputs)
        0.5

    Args:
        scale, dtype, rng: see :class:`RandomInitializer`.
        fan_option: ``'fan_in'`` or ``'fan_out'``.

    Raises:
        ValueError: ``fan_option`` is neither ``'fan_in'`` nor ``'fan_out'``.

    See K. He et al., Delving deep into rectifiers, ICCV 2015.
    """

    def __init__(
        self,
        scale: float = 1.0,
        dtype: DTypeLike = None,
        fan_option: str = "fan_in",
        *,
        rng: Rng = None,
    ) -> None:
        if fan_option not in ("fan_in", "fan_out"):
            raise ValueError(
                f"HeNormal: fan_option must be 'fan_in' or 'fan_out', not {fan_option!r}"
            )
        super().__init__(scale, dtype, rng=rng)
        self.fan_option = fan_option

    def gain(self, shape: tuple[int, ...]) -> float:
        return _he(shape, self.fan_option)


class Uniform(_Uniform):
    """Draws from the uniform distribution over [-scale, scale].

        >>> W = L.Linear(3, 2, initialW=mpchain.initializers.Uniform(0.5)).W.array
        >>> bool(abs(W).max() <= 0.5)
        True

    Args:
        scale, dtype, rng: see :class:`RandomInitializer`.
    """

    def __init__(self, scale: float = 0.05, dtype: DTypeLike = None, *, rng: Rng = None) -> None:
        super().__init__(scale, dtype, rng=rng)


class LeCunUniform(_Uniform):
    """Draws uniformly, with the standard deviation of :class:`LeCunNormal`.

    >>> round(mpchain.initializers.LeCunUniform().gain((2, 3)), 6)  # the bound, sqrt(3 / fan_in)
    1.0
    """

    def gain(self, shape: tuple[int, ...]) -> float:
        return math.sqrt(3) * _lecun(shape)


class GlorotUniform(_Uniform):
    """Draws uniformly, with the standard deviation of :class:`GlorotNormal`.

    >>> round(mpchain.initializers.GlorotUniform().gain((3, 3)), 6)
    1.0
    """

    def gain(self, shape: tuple[int, ...]) -> float:
        return math.sqrt(3) * _glorot(shape)


class HeUniform(_Uniform):
    """Draws uniformly, with the standard deviation of :class:`HeNormal` with
    ``fan_option='fan_in'``.

    >>> round(mpchain.initializers.HeUniform().gain((2, 6)), 6)
    1.0
    """

    def gain(self, shape: tuple[int, ...]) -> float:
        return math.sqrt(3) * _he(shape)

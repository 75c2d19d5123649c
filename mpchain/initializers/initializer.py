"""The base class of initializers."""

import math

from mpchain.typing import Array, DTypeLike


class Initializer:
    """Base of initializers, which are called with an array and fill the array in place.

        >>> class Ramp(mpchain.Initializer):
        ...     def __call__(self, array):
        ...         array[...] = np.arange(array.size).reshape(array.shape)
        >>> L.Linear(3, 2, initialW=Ramp()).W.array
        array([[0., 1., 2.],
               [3., 4., 5.]], dtype=float32)

    Args:
        dtype: dtype of the parameters that the initializer fills; None means ``config.dtype``.
    """

    def __init__(self, dtype: DTypeLike = None) -> None:
        self.dtype = dtype

    def __call__(self, array: Array) -> None:
        """Fills ``array``, a NumPy or CuPy array, in place."""
        raise NotImplementedError(f"{type(self).__name__} does not implement __call__")


def get_fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns the fan-in and fan-out of weights.

        >>> get_fans((8, 3, 5, 5))  # the weights of a 5x5 convolution from 3 to 8 channels
        (75, 200)

    Args:
        shape: (outputs, inputs, *window).

    Returns:
        (fan_in, fan_out): numbers of inputs and outputs, times the size of the window.

    Raises:
        ValueError: the shape has fewer than two axes.
    """
    if len(shape) < 2:
        raise ValueError(
            f"get_fans: shape must have two axes or more (outputs, inputs, ...), but is {shape}"
        )
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window

"""What initializers have in common."""

import math


class Initializer:
    """Fills arrays with initial values: called with an array, it overwrites it in place.

    Args:
        dtype: dtype of the arrays that are made for it; None means the configuration's.
    """

    def __init__(self, dtype=None):
        self.dtype = dtype

    def __call__(self, array):
        """Fills ``array``, a NumPy or CuPy array, in place."""
        raise NotImplementedError(f"{type(self).__name__} does not implement __call__")


def get_fans(shape):
    """Returns the numbers of inputs and outputs that an element of a weight array connects.

    Args:
        shape (tuple of int): (outputs, inputs, *window).

    Returns:
        (fan_in, fan_out): inputs and outputs, times the size of the window.

    Raises:
        ValueError: there are fewer than two axes.
    """
    if len(shape) < 2:
        raise ValueError(
            f"get_fans: shape must have two axes or more (outputs, inputs, ...), but is {shape}"
        )
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window

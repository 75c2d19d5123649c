"""Links of elementwise arithmetic with parameters."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from mpchain import functions as F
from mpchain import variable
from mpchain.initializers import get_initializer
from mpchain.link import Chain, Link
from mpchain.typing import Input
from mpchain.variable import Variable, as_array


def _second_operand(link, name, own, xs):
    """Returns x and the second operand, which is the link's parameter ``own``, or the second
    argument if ``own`` is None."""
    n = 1 if own is not None else 2
    if len(xs) != n:
        wanted = "x alone" if n == 1 else f"x and {name}"
        raise TypeError(f"{type(link).__name__}: call it with {wanted}, not {len(xs)} arguments")
    return xs[0], xs[1] if own is None else own


class Bias(Link):
    """Adds a bias, which is a parameter or the second argument of a call:
    :func:`mpchain.functions.bias`.

        >>> L.Bias(shape=(3,))(np.ones((5, 3), np.float32)).shape
        (5, 3)
        >>> L.Bias()(np.zeros((2, 3)), np.arange(3.0)).array
        array([[0., 1., 2.],
               [0., 1., 2.]])

    Args:
        axis: the axis of the input that corresponds to the first axis of the bias.
        shape: shape of the bias; None means that the bias is the second argument of a call.

    Attributes:
        b (Parameter): the bias, initially zeros, or None.
    """

    def __init__(self, axis: int = 1, shape: int | tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.axis = axis
        self.b: variable.Parameter | None = None
        if shape is not None:
            with self.init_scope():
                self.b = variable.Parameter(get_initializer(0), shape)

    @property
    def printable_specs(self) -> Iterable[tuple[str, Any]]:
        yield from (("axis", self.axis), ("shape", None if self.b is None else self.b.shape))

    def forward(self, *xs: Input) -> Variable:
        """Returns x plus the bias, with the shape of x: ``link(x)``, or ``link(x, b)``."""
        return F.bias(*_second_operand(self, "b", self.b, xs), self.axis)


class Scale(Chain):
    """Multiplies by a scale, which is a parameter or the second argument of a call:
    :func:`mpchain.functions.scale`.

        >>> L.Scale(W_shape=(3,), bias_term=True)(np.ones((5, 3), np.float32)).shape
        (5, 3)
        >>> L.Scale()(np.ones((2, 3)), np.arange(3.0)).array
        array([[0., 1., 2.],
               [0., 1., 2.]])

    Args:
        axis: the axis of the input that corresponds to the first axis of the scale.
        W_shape: shape of the scale; None means that the scale is the second argument of a call.
        bias_term: whether to add a bias after scaling.
        bias_shape: shape of the bias if ``W_shape`` is None; otherwise, the bias has the shape
            ``W_shape``.

    Attributes:
        W (Parameter): the scale, initially ones, or None.
        bias (Bias): the bias, with parameter ``b``; absent without ``bias_term``.

    Raises:
        ValueError: ``bias_term`` is set, and neither ``W_shape`` nor ``bias_shape`` is given.
    """

    def __init__(
        self,
        axis: int = 1,
        W_shape: int | tuple[int, ...] | None = None,
        bias_term: bool = False,
        bias_shape: int | tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        self.axis = axis
        self.bias_term = bias_term
        self.W: variable.Parameter | None = None
        shape = bias_shape if W_shape is None else W_shape
        if bias_term and shape is None:
            raise ValueError("Scale: with bias_term, W_shape or bias_shape must be given")
        with self.init_scope():
            if W_shape is not None:
                self.W = variable.Parameter(get_initializer(1), W_shape)
            if bias_term:
                self.bias = Bias(axis, shape)

    def forward(self, *xs: Input) -> Variable:
        """Returns the scaled x, plus the bias if there is one, with the shape of x: ``link(x)``, or
        ``link(x, W)``."""
        y = F.scale(*_second_operand(self, "W", self.W, xs), self.axis)
        return self.bias(y) if self.bias_term else y


class Parameter(Link):
    """A parameter as a link: a call without arguments returns it.

        >>> L.Parameter(np.zeros((2, 3), np.float32))().shape
        (2, 3)

    Args:
        array: the initial value.

    Attributes:
        W (Parameter): the parameter, of the shape of ``array``.
    """

    def __init__(self, array: Input) -> None:
        super().__init__()
        array = as_array(array)
        with self.init_scope():
            self.W = variable.Parameter(np.asarray(array) if np.isscalar(array) else array)

    @property
    def printable_specs(self) -> Iterable[tuple[str, Any]]:
        yield from (("shape", self.W.shape), ("dtype", str(self.W.dtype)))

    def forward(self) -> variable.Parameter:
        """Returns the parameter."""
        return self.W

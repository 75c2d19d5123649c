"""Gradients of tables, stored as the rows that are not zero.

Backpropagation gives a parameter a gradient of rows (:func:`give_rows`) if the step of the
parameter's update rule changes nothing where the gradient is zero; the update then changes only the
rows of the gradient. If code reads ``param.grad``, the whole array is made, and the update covers
the whole parameter.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from mpchain.observers import current, refuse
from mpchain.typing import Array


class RowGradient(NamedTuple):
    """The gradient (n, *shape) of a table: row ``ids[i]`` is ``rows[i]``, and all other rows are
    zero.

    >>> RowGradient(np.array([2]), np.ones((1, 2)), 3).dense()
    array([[0., 0.],
           [0., 0.],
           [1., 1.]])
    """

    ids: Array
    rows: Array
    n: int

    def dense(self) -> Array:
        """Returns the gradient as an array (n, *shape)."""
        array = np.zeros((self.n, *self.rows.shape[1:]), self.rows.dtype)
        array[self.ids] = self.rows
        return array


RECORDED: Any = object()
"""A placeholder for the RowGradient of a large table in a recorded step, because a replay needs a
whole array."""


def refuse_large_tables(params: Iterable[Any]) -> None:
    """Refuses to record an update that changes few rows of large tables, because replays would be
    slower than normal steps.

    >>> refuse_large_tables([mpchain.Parameter(np.ones((3, 2)))])
    """
    for param in params:
        if param.__dict__.pop("_has_few_rows", False):
            refuse(
                f"the gradient of {param.name}, a table of shape {param.shape}, has few rows, and "
                "a replay would make an array of the whole table: run this step without capture, "
                "which takes less time"
            )


class GradientOnRequest:
    """The descriptor of ``Variable._grad``, which makes the array from ``_row_gradient`` when the
    attribute is read."""

    def __get__(self, variable, cls=None):
        if variable is None:
            return None
        rows = variable.__dict__.pop("_row_gradient", None)
        variable._grad = None if rows is None else rows.dense()
        return variable._grad


def row_gradient_of(variable: Any) -> RowGradient | None:
    """Returns the RowGradient of a variable; None if the gradient was not computed as rows, or if
    its array has been read.

    >>> W = mpchain.Parameter(np.ones((3, 2)))
    >>> set_row_gradient(W, RowGradient(np.array([2]), np.ones((1, 2)), 3))
    >>> row_gradient_of(W).ids, W.grad.sum(), row_gradient_of(W)
    (array([2]), np.float64(2.0), None)
    """
    values = variable.__dict__
    return None if "_grad" in values else values.get("_row_gradient")


def set_row_gradient(variable: Any, gradient: RowGradient) -> None:
    """Sets the gradient of a variable to a RowGradient, whose array is made when ``variable.grad``
    is read."""
    variable.__dict__.pop("_grad", None)
    variable._grad_var, variable._row_gradient = None, gradient


def has_gradient(variable: Any) -> bool:
    """Returns whether a variable has a gradient, without making an array of a RowGradient.

    >>> has_gradient(mpchain.Variable(np.ones(2), grad=np.ones(2)))
    True
    """
    values = variable.__dict__
    if values.get("_grad") is not None:
        return True
    return row_gradient_of(variable) is not None or variable.grad is not None


def give_rows(node: Any, find: Callable, find_arguments: Callable[[], tuple]) -> bool:
    """Gives the parameter of a node the rows of its gradient that are not zero.

    Args:
        node: the :class:`mpchain.variable.VariableNode`.
        find: function that returns a :class:`RowGradient`, None if most rows are not zero, or
            :data:`RECORDED`.
        find_arguments: function that returns the arguments of ``find``.

    Returns:
        bool: whether the parameter received the rows. False, for example, if the parameter already
            has a gradient, if its update may change other rows, or if most rows are not zero.
    """
    leaf = node.get_variable_or_none()
    step = getattr(getattr(leaf, "update_rule", None), "step", None)
    if not hasattr(step, "leaves_zero_gradients"):
        return False
    is_plain = type(leaf.array) is np.ndarray
    if (
        not (is_plain or current.recorder is not None)
        or (leaf.array.shape, leaf.array.dtype) != (node.shape, node.dtype)
        or (is_plain and leaf.grad is not None)
    ):
        return False
    gradient = find(*find_arguments())
    if gradient is RECORDED:
        leaf._has_few_rows = True
        return False
    if gradient is not None:
        set_row_gradient(leaf, gradient)
    return gradient is not None

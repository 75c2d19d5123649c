"""Positions of elements, which functions find by the values, and which have no gradient."""

from mpchain.observers import current
from mpchain.typing import Array
from mpchain.variable import Variable


def shown(name: str, x: Variable, constants: tuple, positions: Array) -> Array:
    """Returns positions that were found in ``x``, after observers saw them.

    No node of the graph stands for them, but exporters need to know where they come from.

    Args:
        name: the operation: argmax, argmin, argsort or topk.
        x: where they were found.
        constants: other arguments: the axis; for argsort and topk also whether large values come
            first; for topk the number of elements last.
        positions: integers.

    Example:
        >>> x = mpchain.Variable(np.array([1.0, 3.0]))
        >>> shown("argmax", x, (0,), x.array.argmax(0, keepdims=True))
        array([1])
    """
    for observer in current.observers or ():
        positions = observer.positions(name, x, constants, positions)
    return positions

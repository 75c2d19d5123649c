"""Positions of elements that functions such as argmax find; positions have no gradient."""

from mpchain.observers import current
from mpchain.typing import Array
from mpchain.variable import Variable


def shown(name: str, x: Variable, constants: tuple, positions: Array) -> Array:
    """Shows observers the positions that were found in ``x``, and returns the positions.

    No node of the graph represents positions, but exporters must know where they come from.

    Args:
        name: the operation: argmax, argmin, argsort or topk.
        x: the Variable in which the positions were found.
        constants: other arguments: the axis; for argsort and topk also whether large values come
            first; for topk the number of elements last.
        positions: the positions, integers.

    Example:
        >>> x = mpchain.Variable(np.array([1.0, 3.0]))
        >>> shown("argmax", x, (0,), x.array.argmax(0, keepdims=True))
        array([1])
    """
    for observer in current.observers or ():
        positions = observer.positions(name, x, constants, positions)
    return positions

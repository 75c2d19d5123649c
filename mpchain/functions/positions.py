"""Positions of elements, which functions such as argmax find. Positions have no gradient."""

from mpchain.observers import current
from mpchain.typing import Array
from mpchain.variable import Variable


def shown(name: str, x: Variable, constants: tuple, positions: Array) -> Array:
    """Shows observers the positions that were found in ``x``; returns the positions to use, which
    observers may replace.

    No node of the graph represents positions, so exporters learn by this call how positions were
    computed.

    Args:
        name: the operation: argmax, argmin, argsort or topk.
        x: the Variable in which the positions were found.
        constants: the other arguments of the operation: the axis; for argsort and topk, then
            whether large values come first; for topk, then the number of elements.
        positions: the positions, integers.

    Example:
        >>> x = mpchain.Variable(np.array([1.0, 3.0]))
        >>> shown("argmax", x, (0,), x.array.argmax(0, keepdims=True))
        array([1])
    """
    for observer in current.observers or ():
        positions = observer.positions(name, x, constants, positions)
    return positions

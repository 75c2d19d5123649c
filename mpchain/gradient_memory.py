"""Tells which gradients have memory of their own, so that backpropagation may add to them."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpchain.backends import cuda
from mpchain.typing import Array

if TYPE_CHECKING:
    from mpchain.function_node import FunctionNode

_FEW = 1 << 13


def may_be_shared(gx: Array, gys: Sequence, gxs: Sequence, function: "FunctionNode") -> bool:
    """Returns whether ``gx`` may be, or may be a view of, an array that is referenced elsewhere.

    Args:
        gx: the gradient of an input of a function.
        gys: the gradients of the function's outputs.
        gxs: the gradients of its inputs that need gradients.
        function: the :class:`mpchain.FunctionNode`.

    >>> x = Variable(np.ones(2))
    >>> may_be_shared(np.ones(2), [np.ones(2)], [], F.exp(x).creator_node)
    False
    """
    if not function.returns_fresh_gradients:
        return True
    if gx.base is not None:
        return not _takes_over(gx, gys, gxs)
    for gy in gys:
        if gx is gy:
            return True
    return len(gxs) > 1 and [gx is other for other in gxs].count(True) > 1


def _takes_over(gx, gys, gxs):
    """Returns whether ``gx`` is a slice of a gradient that only its slices ``gxs`` reference.

    If the result is True, a reshaped gradient or a part of a split gradient needs no copy.
    For few elements in host memory the result is False, because a copy takes less time than this
    check.
    """
    if gx.size < _FEW and not cuda.is_gpu_array(gx):
        return False
    base: Any = gx.base
    parts = [part for part in gxs if part is not None and part.base is base]
    n = sum(gy is base for gy in gys)
    # On GPUs, the base may also be an array that a kernel allocated for these parts, and that
    # nothing else references.
    if not (n or cuda.is_gpu_array(gx)) or sys.getrefcount(base) > _REFERENCES + n + len(parts):
        return False
    may_overlap = cuda.get_array_module(gx).may_share_memory
    return (
        gx.flags.c_contiguous
        and getattr(gx.flags, "writeable", True)
        and sum(part.size for part in parts) == base.size
        and sum(part is gx or may_overlap(part, gx) for part in parts) == 1
    )


def _count_references():
    """Returns Python's reference count of an object that only one local variable holds."""
    lone = object()
    return sys.getrefcount(lone)


_REFERENCES = _count_references()

"""Parameters as Chainer's: a gradient that nobody cleared is NaN, and copies share their array."""

import math
import weakref
from typing import Any

from mpchain.backends.dtypes import is_floating
from mpchain.variable import Parameter, Variable

_initialize = Parameter.initialize
_set_array: Any = Variable.array.fset


class _Sharing(list):
    """The parameters, held weakly, that copies of a link share an array with.

    A copy by pickle or by ``copy.deepcopy`` has arrays of its own.
    """

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return _Sharing, ()


def _initialize_with_gradient(self: Parameter, shape: Any) -> None:
    """Fills the gradient, too: a program that forgets to clear it gets NaN, as on Chainer."""
    _initialize(self, shape)
    fill = vars(self).pop("_gradient_until_cleared", math.nan)
    if fill is not None and is_floating(self.array.dtype):
        self.grad = self.xp.full_like(self.array, fill)


def _cleargrad(self: Parameter) -> None:
    Variable.cleargrad(self)
    if self.array is None:
        self._gradient_until_cleared = None


def _zerograd(self: Parameter) -> None:
    Variable.zerograd(self)
    if self.array is None:
        self._gradient_until_cleared = 0


def _copy(self: Parameter) -> Parameter:
    """Returns a copy for which setting ``array`` sets it for both, as with Chainer."""
    copied = Variable.__copy__(self)
    sharing = vars(self).get("_sharing") or _Sharing([weakref.ref(self)])
    sharing.append(weakref.ref(copied))
    self._sharing = copied._sharing = sharing
    return copied


def _set_for_all(self: Parameter, array: Any) -> None:
    _set_array(self, array)
    for reference in vars(self).get("_sharing", ()):
        other = reference()
        if other is not None and other is not self:
            _set_array(other, array)


REPLACED: list[tuple[Any, str, Any]] = [
    (Parameter, "initialize", _initialize_with_gradient),
    (Parameter, "cleargrad", _cleargrad),
    (Parameter, "zerograd", _zerograd),
    (Parameter, "__copy__", _copy),
    (Parameter, "array", property(Variable.array.fget, _set_for_all)),
    (Parameter, "data", property(Variable.array.fget, _set_for_all)),
]
"""Owner, name, and what stands there while compat is installed."""

"""Makes parameters behave like Chainer's.

A gradient is NaN until it is cleared, copies share their array, and a parameter that has several
names is counted, and updated, once for each name.
"""

import math
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from mpchain import optimizer
from mpchain.backends.dtypes import is_floating
from mpchain.parameter_tree import ParameterTree
from mpchain.update_rule import update_all
from mpchain.variable import Parameter, Variable

_initialize = Parameter.initialize
_set_array: Any = Variable.array.fset
_scale_of_step: list[Any] = [1]
_namedparams, _params = ParameterTree.namedparams, ParameterTree.params


class _Sharing(list):
    """Weak references to a parameter and its copies, which share an array.

    Copies made by pickle or ``copy.deepcopy`` have their own arrays.
    """

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return _Sharing, ()


def _initialize_with_gradient(self: Parameter, shape: Any) -> None:
    """Initializes a parameter, and fills its gradient with NaN, as Chainer does, so that a program
    that forgets to clear gradients gets NaN."""
    _initialize(self, shape)
    fill = vars(self).pop("_gradient_until_cleared", math.nan)
    if fill is not None and is_floating(self.array.dtype):
        self.grad = self.xp.full_like(self.array, fill)


def _cleargrad(self: Parameter) -> None:
    Variable.cleargrad(self)
    if self.array is None:
        vars(self)["_gradient_until_cleared"] = None


def _zerograd(self: Parameter) -> None:
    Variable.zerograd(self)
    if self.array is None:
        vars(self)["_gradient_until_cleared"] = 0


def _copy(self: Parameter) -> Parameter:
    """Returns a copy that shares ``array``: as in Chainer, setting ``array`` of one sets both."""
    copied: Any = Variable.__copy__(self)
    sharing = vars(self).get("_sharing") or _Sharing([weakref.ref(self)])
    sharing.append(weakref.ref(copied))
    vars(self)["_sharing"] = copied._sharing = sharing
    return copied


def _set_for_all(self: Parameter, array: Any) -> None:
    _set_array(self, array)
    for reference in vars(self).get("_sharing", ()):
        other = reference()
        if other is not None and other is not self:
            _set_array(other, array)


def _is_exchange(frame):
    """Returns whether the caller averages gradients, and so must get each gradient only once."""
    return frame.f_globals.get("__name__", "").startswith("mpchain.distributed.")


def _namedparams_under_each_name(
    self: ParameterTree, include_uninit: bool = True
) -> Iterator[tuple[str, Parameter]]:
    if _is_exchange(sys._getframe(1)):
        return _namedparams(self, include_uninit)
    named = self._all_named_params()
    return ((name, p) for name, p in named if include_uninit or p.is_initialized)


def _params_under_each_name(
    self: ParameterTree, include_uninit: bool = True
) -> Iterator[Parameter]:
    if _is_exchange(sys._getframe(1)):
        return _params(self, include_uninit)
    params = (p for _, p in self._all_named_params())
    return (p for p in params if include_uninit or p.is_initialized)


def _remove_loss_scale_once(self: Any) -> None:
    """Divides each gradient by the loss scale once; stores the scale for repeated updates."""
    if self._loss_scale not in (None, 1):
        pairs = {id(param): (rule, param) for rule, param in self.rules_and_params()}
        for _, param in pairs.values():
            if param.grad is not None:
                param.grad = (param.grad / self._loss_scale).astype(param.dtype, copy=False)
    _scale_of_step[:] = [self._loss_scale or 1]


def _update_under_each_name(params: Iterable[Parameter], *more: Any) -> None:
    """Updates parameters in order; a parameter that occurs twice is updated twice.

    Chainer divides the gradient by the loss scale in each of these updates.
    """
    params, seen = list(params), set()
    if len({id(param) for param in params}) == len(params):
        update_all(params, *more)
        return
    for param in params:
        if id(param) in seen and _scale_of_step != [1]:
            param.grad = (param.grad / _scale_of_step[0]).astype(param.dtype, copy=False)
        seen.add(id(param))
        param.update()


REPLACED: list[tuple[Any, str, Any]] = [
    (ParameterTree, "namedparams", _namedparams_under_each_name),
    (ParameterTree, "params", _params_under_each_name),
    (optimizer.Optimizer, "_remove_loss_scale", _remove_loss_scale_once),
    (optimizer, "update_all", _update_under_each_name),
    (Parameter, "initialize", _initialize_with_gradient),
    (Parameter, "cleargrad", _cleargrad),
    (Parameter, "zerograd", _zerograd),
    (Parameter, "__copy__", _copy),
    (Parameter, "array", property(Variable.array.fget, _set_for_all)),
    (Parameter, "data", property(Variable.array.fget, _set_for_all)),
]
"""Rows of owner, attribute name, and the attribute's value while compat is installed."""

"""Adds keywords and attributes of Chainer's classes to mpchain's while compat is installed."""

import functools
import inspect
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain import links
from mpchain.compat import arguments, parameters, private_state
from mpchain.dataset import ConcatWithAsyncTransfer
from mpchain.datasets import LabeledImageDataset, SubDataset
from mpchain.device_resident import DeviceResident
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.mpi import load_mpi
from mpchain.function_hooks import TimerHook
from mpchain.function_hooks.report import TIME_UNITS
from mpchain.kernels import thresholds
from mpchain.link import ChainList, Link, Sequential
from mpchain.link_hooks import TimerHook as LinkTimerHook
from mpchain.links.n_step import _NStepRNN
from mpchain.links.recurrent import _PlainLSTMCell as _LSTM
from mpchain.optimizer import GradientMethod
from mpchain.optimizers import Adam
from mpchain.optimizers.adam import AdamRule
from mpchain.testing import FunctionTestCase
from mpchain.training import Trainer
from mpchain.training.extensions import DumpGraph, LogReport, PlotReport
from mpchain.training.triggers import EarlyStoppingTrigger, IntervalTrigger
from mpchain.utils.walker_alias import WalkerAlias
from mpchain.variable import Parameter, Variable, VariableNode

_TIMES = {unit: round(1 / seconds) for unit, seconds in TIME_UNITS.items()}

_ATTRIBUTES: list[tuple[type, str, Callable[[Any], Any]]] = [
    (ChainList, "_children", lambda self: self._layers),
    (Sequential, "_children", lambda self: [x for x in self._layers if isinstance(x, Link)]),
    (ConcatWithAsyncTransfer, "compute_stream", lambda self: self._compute_stream),
    (FunctionTestCase, "run_test_forward", lambda self: self.test_forward),
    (FunctionTestCase, "run_test_backward", lambda self: self.test_backward),
    (FunctionTestCase, "run_test_double_backward", lambda self: self.test_double_backward),
    (EarlyStoppingTrigger, "already_warning", lambda self: False),
    (IntervalTrigger, "count", lambda self: 0),
    (links.Bilinear, "zero_grads", lambda self: self.zerograds),
    (links.DepthwiseConvolution2D, "channel_multiplier", lambda self: self.out_channels),
    (LabeledImageDataset, "_pairs", lambda self: list(zip(self._images._paths, self._labels))),
    (LabeledImageDataset, "_root", lambda self: self._images._root),
    (LabeledImageDataset, "_dtype", lambda self: self._images._dtype),
    (Link, "_device_id", lambda self: getattr(getattr(self.device, "device", None), "id", None)),
    (Link, "_persistent", lambda self: self._persistents),
    (LinkTimerHook, "table", lambda self: _TIMES),
    (LogReport, "_log_name", lambda self: self._filename),
    (PlotReport, "_file_name", lambda self: self.filename),
    (SubDataset, "_order", lambda s: None if isinstance(s._indices, range) else s._indices),
    (SubDataset, "_size", len),
    (TimerHook, "table", lambda self: _TIMES),
    (Trainer, "_extensions", lambda self: self._entries),
    (Variable, "_data", lambda self: [self.array]),
    (WalkerAlias, "sample_gpu", lambda self: self.sample),
    (WalkerAlias, "sample_xp", lambda self: lambda xp, shape: self.sample(shape)),
    (WalkerAlias, "use_gpu", lambda self: self.xp is not np),
    (VariableNode, "_requires_grad", lambda self: self.requires_grad),
]

_DEPRECATED = [
    (Adam, "lr", "alpha_t"),
    (AdamRule, "lr", "alpha_t"),
    (DeviceResident, "to_cpu", "to_device"),
    (DeviceResident, "to_intel64", "to_device"),
    (GradientMethod, "use_cleargrads", None),
    (Parameter, "zerograd", "cleargrad"),
    (Variable, "zerograd", "cleargrad"),
    (WalkerAlias, "to_cpu", "to_device"),
]
"""Rows of class, deprecated method or property, and its replacement; Chainer warns in each case."""

_RENAMED = [
    (LogReport, "log_name", "filename"),
    (DumpGraph, "out_name", "filename"),
    (EarlyStoppingTrigger, "patients", "patience"),
]
"""Rows of class, Chainer's older name for a keyword of its constructor, and the current name."""

_ADVICE = {
    "test": "use chainer.using_config('train', False)",
    "train": "use chainer.using_config('train', ...)",
    "volatile": "use chainer.no_backprop_mode()",
    "use_cudnn": "use chainer.using_config('use_cudnn', ...)",
    "deterministic": "use chainer.using_config('cudnn_deterministic', ...)",
    "invoke_before_training": "use initializer=..., or call_before_training=True",
    "wscale": "scale the initializer instead, as in initialW=initializers.HeNormal(scale)",
}
"""Maps an argument that only Chainer 1 accepted to advice for users."""

_REFUSING = [(Variable, "__init__"), (links.BatchNormalization, "forward")]
_REFUSING += [
    (getattr(links, name), "__init__")
    for name in ("Convolution2D", "Deconvolution2D", "LocalConvolution2D", "MLPConvolution2D")
]
_REFUSING += [(links.Classifier, "forward"), (_NStepRNN, "__init__"), (Trainer, "extend")]


class _OwnProcess:
    """The ``mpi_comm``, as in ChainerMN, of a communicator of one process, which sends nothing.

    Communicators that send messages have this attribute themselves.
    """

    def __get__(self, communicator: Any, owner: Any = None) -> Any:
        return None if communicator is None else load_mpi().COMM_SELF


_INITIALIZING = [
    next(cls for cls in link.__mro__ if "_initialize" in vars(cls))
    for link in (
        links.Linear,
        links.ConvolutionND,
        links.LocalConvolution2D,
        links.BatchNormalization,
        links.LayerNormalization,
    )
]
"""The classes whose ``_initialize`` gives parameters shapes that depend on the first input."""

_ABSENT = object()
_before: list[tuple[type, str, Any]] = []
_numbers: dict[str, Any] = {}


def refuse_removed(name: str, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Raises ValueError, with advice, if a call has an argument that only Chainer 1 accepted."""
    for keyword in _ADVICE.keys() & kwargs.keys():
        if keyword not in inspect.signature(function).parameters:
            raise ValueError(
                f"{name}: the argument {keyword} is not supported anymore: {_ADVICE[keyword]}"
            )


def _refusing(cls, method):
    original = getattr(cls, method)
    name = cls.__name__ if method == "__init__" else f"{cls.__name__}.{method}"

    @functools.wraps(original)
    def checked(self, *args, **kwargs):
        if kwargs:
            refuse_removed(name, original, kwargs)
        return original(self, *args, **kwargs)

    return checked


def _renaming(cls, old, new):
    original = cls.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        if old in kwargs:
            kwargs[new] = kwargs.pop(old)
        original(self, *args, **kwargs)

    return __init__


def warn(old: str, instead: str | None) -> None:
    """Warns the caller's caller, as Chainer does, unless the caller's caller is mpchain."""
    if sys._getframe(2).f_globals.get("__name__", "").startswith("mpchain."):
        return
    advice = "" if instead is None else f": use {instead}"
    warnings.warn(f"{old} is deprecated{advice}", DeprecationWarning, stacklevel=3)


def _initializing(self, *shape):
    """Calls ``_initialize_params``, because a program's subclass may override that method."""
    takes_size = isinstance(self, links.LayerNormalization | links.GroupNormalization)
    self._initialize_params(*(shape[0] if takes_size else shape))


def _draw_weights(self):
    """Initializes an LSTM whose number of inputs is known."""
    W = self.upward.W
    _LSTM._draw_weights(self, W.shape[1] if W.is_initialized else self.upward.in_size)


def _warning(cls, name, instead):
    original = getattr(cls, name)
    is_property = isinstance(original, property)
    call: Any = original.fget if is_property else original

    @functools.wraps(call)
    def method(self, *args, **kwargs):
        warn(f"{cls.__name__}.{name}", instead)
        return call(self, *args, **kwargs)

    return property(method) if is_property else method


def install() -> None:
    """Adds Chainer's attributes to mpchain's classes, for programs that use them."""
    if _before:
        return
    _numbers.update(thresholds.put(tiles=math.inf))
    for cls, name, value in _ATTRIBUTES:
        _set(cls, name, property(value))
    for cls, name, place in private_state.RENAMED:
        _set(cls, name, private_state.Renamed(place))
    for cls, name, value in private_state.COMPUTED:
        _set(cls, name, property(value))
    _set(Communicator, "mpi_comm", _OwnProcess())
    for owner, name, value in parameters.REPLACED:
        _set(owner, name, value)
    for cls, name, instead in _DEPRECATED:
        _set(cls, name, _warning(cls, name, instead))
    for owner, name, value in [*arguments.REPLACED, *private_state.REPLACED]:
        _set(owner, name, value)
    for cls, old, new in _RENAMED:
        _set(cls, "__init__", _renaming(cls, old, new))
    for cls, method in _REFUSING:
        _set(cls, method, _refusing(cls, method))
    for cls in _INITIALIZING:
        _set(cls, "_initialize_params", vars(cls)["_initialize"])
        _set(cls, "_initialize", _initializing)
    _set(_LSTM, "_initialize_params", _draw_weights)


def _set(cls, name, value):
    _before.append((cls, name, vars(cls).get(name, _ABSENT)))
    setattr(cls, name, value)


def uninstall() -> None:
    """Undoes :func:`install`."""
    thresholds.put(**_numbers)
    while _before:
        cls, name, value = _before.pop()
        if value is _ABSENT:
            delattr(cls, name)
        else:
            setattr(cls, name, value)

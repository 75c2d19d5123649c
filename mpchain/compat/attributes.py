"""Keywords and attributes of Chainer's classes; mpchain has them while compat is installed."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain import links
from mpchain.datasets import LabeledImageDataset, SubDataset
from mpchain.link import ChainList, Link
from mpchain.training.extensions import DumpGraph, LogReport
from mpchain.training.triggers import EarlyStoppingTrigger
from mpchain.utils.walker_alias import WalkerAlias
from mpchain.variable import Variable, VariableNode

_ATTRIBUTES: list[tuple[type, str, Callable[[Any], Any]]] = [
    (ChainList, "_children", lambda self: self._layers),
    (LabeledImageDataset, "_pairs", lambda self: list(zip(self._images._paths, self._labels))),
    (LabeledImageDataset, "_root", lambda self: self._images._root),
    (LabeledImageDataset, "_dtype", lambda self: self._images._dtype),
    (Link, "_device_id", lambda self: getattr(getattr(self.device, "device", None), "id", None)),
    (Link, "_persistent", lambda self: self._persistents),
    (SubDataset, "_order", lambda s: None if isinstance(s._indices, range) else s._indices),
    (SubDataset, "_size", len),
    (Variable, "_data", lambda self: [self.array]),
    (WalkerAlias, "use_gpu", lambda self: self.xp is not np),
    (VariableNode, "_requires_grad", lambda self: self.requires_grad),
]

_RENAMED = [
    (LogReport, "log_name", "filename"),
    (DumpGraph, "out_name", "filename"),
    (EarlyStoppingTrigger, "patients", "patience"),
]
"""Keywords of constructors: class, Chainer's older name, the name today."""

_ADVICE = {
    "test": "use chainer.using_config('train', False)",
    "train": "use chainer.using_config('train', ...)",
    "volatile": "use chainer.no_backprop_mode()",
    "use_cudnn": "use chainer.using_config('use_cudnn', ...)",
    "deterministic": "use chainer.using_config('cudnn_deterministic', ...)",
    "wscale": "scale the initializer instead, as in initialW=initializers.HeNormal(scale)",
}
"""What Chainer 1 took as an argument, and what to do instead."""

_REFUSING = [(Variable, "__init__"), (links.BatchNormalization, "forward")]
_REFUSING += [
    (getattr(links, name), "__init__")
    for name in ("Convolution2D", "Deconvolution2D", "LocalConvolution2D", "MLPConvolution2D")
]
_REFUSING += [(links.Classifier, "forward"), (links.NStepLSTM, "forward")]

_before: list[tuple[type, str, Any]] = []


def refuse_removed(name: str, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Raises ValueError, with advice, where a call has an argument that only Chainer 1 took."""
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


def install() -> None:
    """Gives mpchain's classes what programs of Chainer use of its own."""
    if _before:
        return
    for cls, name, value in _ATTRIBUTES:
        _set(cls, name, property(value))
    for cls, old, new in _RENAMED:
        _set(cls, "__init__", _renaming(cls, old, new))
    for cls, method in _REFUSING:
        _set(cls, method, _refusing(cls, method))


def _set(cls, name, value):
    _before.append((cls, name, vars(cls).get(name)))
    setattr(cls, name, value)


def uninstall() -> None:
    """Takes :func:`install` back."""
    while _before:
        cls, name, value = _before.pop()
        if value is None:
            delattr(cls, name)
        else:
            setattr(cls, name, value)

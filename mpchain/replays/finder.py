"""Finds the place in a step where the first non-finite number is computed."""

import dataclasses
import linecache
import os
import sys
import sysconfig
from types import FrameType
from typing import Any

import numpy as np

from mpchain import backend
from mpchain.backends.dtypes import is_floating
from mpchain.distributed.watch.call_sites import PACKAGE
from mpchain.function_hook import FunctionHook
from mpchain.function_node import FunctionNode
from mpchain.link import Link
from mpchain.observers import Observer, Span
from mpchain.typing import Array, Arrays

_OTHERS = (
    PACKAGE,
    "<",
    *{os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")},
)


def is_of_user(frame: FrameType) -> bool:
    """Returns whether a frame belongs to the user's program.

    >>> is_of_user(sys._getframe())
    False
    """
    return not frame.f_code.co_filename.startswith(_OTHERS)


def users_frame(frame: FrameType | None) -> FrameType | None:
    """Returns the innermost frame of the user's program, starting the search from a frame; None if
    there is no such frame.

    >>> users_frame(None) is None
    True
    """
    while frame is not None and not is_of_user(frame):
        frame = frame.f_back
    return frame


@dataclasses.dataclass
class Place:
    """A line of the user's program.

    Attributes:
        file, line, function: the location; empty if no line of the program made the call.
    """

    file: str = ""
    line: int = 0
    function: str = ""

    def __str__(self):
        if not self.file:
            return "no line of the program"
        text = linecache.getline(self.file, self.line).strip()
        return f"{os.path.basename(self.file)}:{self.line} in {self.function}: {text}"


@dataclasses.dataclass
class Finding:
    """The place where the first non-finite number was computed.

    Attributes:
        what: the name of the function, argument or parameter with the number, for a message.
        place: the line of the program.
        rows: the indices, along the first axis, of the rows with non-finite numbers.
        n_rows: the length of the first axis.
        part: the index of the micro-batch in which the number was computed.
        is_nan: whether a number is NaN, and not only infinite.
    """

    what: str
    place: Place
    rows: list[int]
    n_rows: int
    part: int
    is_nan: bool


def _not_finite(x: Any) -> Array | None:
    """Returns the array if it holds a non-finite number; otherwise None."""
    if x is None or not is_floating(x.dtype) or np.isfinite(x.sum()):
        return None
    xp = backend.get_array_module(x)
    return x if not bool(xp.isfinite(x).all()) else None


class Finder(Observer):
    """Checks all results of functions in a ``with`` block, forward and backward.

    Attributes:
        part: the index of the current micro-batch; callers set it before each micro-batch.
        stops: function that is called with the user's frame when forward computes the first NaN;
            None if no function is called.

    Example:
        >>> with Finder() as finder, np.errstate(invalid="ignore"):
        ...     y = F.sqrt(np.array([1.0, -1.0]))
        >>> finder.finding(False).what, finder.finding(False).rows
        ('sqrt', [1])
    """

    def __init__(self, stops: Any = None, target: Link | None = None):
        self.part, self.stops, self._target = 0, stops, target
        self._nan: Finding | None = None
        self._infinite: Finding | None = None
        self._gradient: Finding | None = None
        self._places: dict[int, tuple[Any, Place]] = {}  # the references keep the functions alive
        self._outputs: dict[int, Any] = {}  # maps ids to arrays, which these references keep alive
        # This dict maps the id of a function to the ids of its outputs.
        self._of_function: dict[int, list[int]] = {}
        # This dict maps the id of an array to the functions that use it, in the order of use.
        self._users: dict[int, list[Any]] = {}
        self._done: list[int] = []  # lists the ids of functions whose derivatives were computed
        self._hook = _Gradients(self)

    def __enter__(self):
        self._hook.__enter__()
        return super().__enter__()

    def __exit__(self, *exc_info):
        super().__exit__()
        self._hook.__exit__()

    def forward_preprocess(self, function: FunctionNode, in_data: Arrays) -> None:
        place = self._place(sys._getframe(1))
        self._places[id(function)] = function, place
        for i, x in enumerate(in_data):
            if x is None:
                continue
            self._users.setdefault(id(x), []).append(function)
            if id(x) not in self._outputs:
                self._outputs[id(x)] = x
                what = (
                    self._name_of(x)
                    or f"argument {i} of {function.label}, which no function computed"
                )
                self._look(x, what, place)

    def _name_of(self, x):
        named = () if self._target is None else self._target.namedparams()
        names = [name for name, param in named if param.is_initialized and param.array is x]
        return f"the parameter {names[0]}" if names else ""

    def computed(self, function: FunctionNode, outputs: Arrays) -> None:
        frame = sys._getframe(1)
        _, place = self._places.get(id(function)) or (None, self._place(frame))
        for y in outputs:
            self._outputs[id(y)] = y
            self._of_function.setdefault(id(function), []).append(id(y))
            is_first = self._nan is None
            self._look(y, function.label, place)
            if is_first and self._nan is not None and self.stops is not None:
                self.stops(users_frame(frame))

    def ends(self, span: Span, begun: Any) -> None:
        if span.kind == "backward" and self._target is not None:
            for name, param in self._target.namedparams():
                if param.is_initialized and _not_finite(param.grad) is not None:
                    self._note_gradient(param.grad, [id(param.array)], name)

    def _look(self, x, what, place):
        if self._nan is not None or _not_finite(x) is None:
            return
        finding = self._describe(x, what, place)
        if finding.is_nan:
            self._nan = finding
        elif self._infinite is None:
            self._infinite = finding

    def _describe(self, x, what, place):
        xp = backend.get_array_module(x)
        is_nan = bool(xp.isnan(x).any())
        bad = xp.isnan(x) if is_nan else ~xp.isfinite(x)
        rows = []
        if x.ndim:
            rows = xp.flatnonzero(bad.reshape(len(x), -1).any(axis=1)).tolist()
        return Finding(what, place, rows, len(x) if x.ndim else 1, self.part, is_nan)

    def takes_gradients(self, function: FunctionNode, out_grad: Arrays) -> None:
        """Is called before the derivative of a function is computed."""
        for g in out_grad:
            if _not_finite(g) is not None:
                self._note_gradient(g, self._of_function.get(id(function), []), function.label)
        self._done.append(id(function))

    def _note_gradient(self, g, arrays, name):
        """Records a gradient of arrays, which the last function that uses the arrays computed."""
        if self._gradient is not None:
            return
        users = [function for array in arrays for function in self._users.get(array, [])]
        users = [function for function in users if id(function) in self._done]
        what, place = f"the gradient of {name}", Place()
        if users:
            last = max(users, key=lambda function: self._done.index(id(function)))
            what, place = f"the derivative of {last.label}", self._places[id(last)][1]
        self._gradient = self._describe(g, what, place)

    def finding(self, is_finite: bool) -> Finding | None:
        """Returns the first finding; None if there is none.

        Args:
            is_finite: whether the losses are finite; if they are, infinite numbers, such as in
                masks, did no harm and are ignored.
        """
        return self._nan or (None if is_finite else self._infinite) or self._gradient

    @staticmethod
    def _place(frame):
        frame = users_frame(frame)
        if frame is None:
            return Place()
        return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


class _Gradients(FunctionHook):
    """Passes the gradients of backward to a finder."""

    name = "mpchain.replays"

    def __init__(self, finder):
        self._finder = finder

    def backward_preprocess(self, function, in_data, out_grad):
        self._finder.takes_gradients(function, out_grad)

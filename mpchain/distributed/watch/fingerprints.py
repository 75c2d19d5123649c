"""The fingerprint of a collective: what must be alike on all ranks, and what a report says of it.

The call site is told but not compared: ranks may well come to a collective by different branches.
"""

import dataclasses
import functools
import weakref
import zlib

from mpchain.configuration import is_debug
from mpchain.distributed.watch import call_sites
from mpchain.distributed.watch.table import encode


class CollectiveMismatchError(RuntimeError):
    """Ranks have called different collectives, or the same with arguments that do not fit."""


@dataclasses.dataclass(frozen=True)
class _Kind:
    """How a method of a communicator is watched.

    Attributes:
        root: place of the argument ``root`` among the method's; None if it has none.
        compare: whether shape and dtype of the first argument must be alike on all ranks.
        checks: whether it checks its arguments before it communicates; what it is counts only then.
        peer: place and name of the argument that is another rank, for a message; such a method is
            no collective.
        goes_on: whether it returns a request of an operation that goes on.
        is_part: whether it is a part of others, or may be called in any order.
    """

    root: int | None = None
    compare: bool = False
    checks: bool = True
    peer: tuple | None = None
    goes_on: bool = False
    is_part: bool = False


_PART, _BY_ALL, _AT_ONCE = _Kind(is_part=True), _Kind(), _Kind(checks=False)
_BEGUN, _PART_BEGUN = _Kind(compare=True, goes_on=True), _Kind(is_part=True, goes_on=True)
_WATCHED = {
    "barrier": _AT_ONCE,
    "bcast_obj": _Kind(root=2, checks=False),
    "gather_obj": _Kind(root=1, checks=False),
    "allgather_obj": _AT_ONCE,
    "scatter_obj": _Kind(root=1, checks=False),
    "alltoall_obj": _AT_ONCE,
    "bcast": _Kind(root=1),
    "gather": _Kind(root=1),
    "allgather": _BY_ALL,
    "scatter": _Kind(root=1),
    "alltoall": _BY_ALL,
    "allreduce": _Kind(compare=True),
    "reduce": _Kind(root=1, compare=True),
    "reduce_scatter": _BY_ALL,
    "ibarrier": _Kind(goes_on=True),
    "ibcast": _Kind(root=1, compare=True, goes_on=True),
    "iallgather": _BEGUN,
    "ireduce_scatter": _BEGUN,
    "iallreduce": _BEGUN,
    "make_buffers": _AT_ONCE,
    "split": _AT_ONCE,
    "finalize": _AT_ONCE,
    "send": _Kind(peer=(1, "dest")),
    "recv": _Kind(peer=(0, "source")),
    "send_obj": _Kind(peer=(1, "dest")),
    "recv_obj": _Kind(peer=(0, "source")),
    "begin": _PART_BEGUN,
    "begin_sum": _PART_BEGUN,
    "_exchange": _PART,
    "_broadcast": _PART,
    "_sum": _PART,
    "_sum_at": _PART,
    "_send_header": _PART,
    "_recv_header": _PART,
}


def watched(communicator_class):
    """Class decorator: the collectives of a communicator tell its ``_watch``, if it has one."""
    for name, kind in _WATCHED.items():
        method = getattr(communicator_class, name)
        if not hasattr(method, "_watched_as"):
            wrap = _watch_part if kind.is_part else _watch_method
            wrapped = functools.wraps(method)(wrap(method, name, kind))
            wrapped._watched_as = kind
            setattr(communicator_class, name, wrapped)
    return communicator_class


def _watch_part(method, name, kind):
    def call(self, *args, **kwargs):
        watch = self._watch
        if watch is None:
            return method(self, *args, **kwargs)
        is_inside = watch.is_inside and watch.is_inside_here()
        if watch.announced is not None:
            watch.enter()
        result = method(self, *args, **kwargs)
        if is_inside or not kind.goes_on:
            return result
        return Request(result, watch, watch.describe(name, kind, args, kwargs))

    return call


def _watch_method(method, name, kind):
    def call(self, *args, **kwargs):
        watch = self._watch
        if watch is None:
            return method(self, *args, **kwargs)
        if watch.is_inside and watch.is_inside_here():
            if watch.announced is not None:
                watch.enter()
            return method(self, *args, **kwargs)
        if not kind.checks and kind.root is not None:
            self._check_rank(name, "root", _argument(kind.root, "root", args, kwargs, 0))
        watch.announce(name, kind, args, kwargs)
        try:
            if not kind.checks:
                watch.enter()
            result = method(self, *args, **kwargs)
        finally:
            text = watch.leave()
        if kind.goes_on and text is not None:
            return Request(result, watch, text)
        return result

    return call


def _argument(place, name, args, kwargs, default=None):
    return args[place] if len(args) > place else kwargs.get(name, default)


class Request:
    """A request whose waiting is watched."""

    __slots__ = ("Test", "_request", "_text", "_watch")

    def __init__(self, request, watch, text):
        self._request, self._watch, self._text = request, watch, text
        watch.begun = weakref.ref(request)
        self.Test = request.Test

    def Wait(self):
        """Waits until the operation is complete, and returns its result."""
        watch = self._watch
        if (watch.is_inside and watch.is_inside_here()) or self.Test():
            return self._request.Wait()  # which has the result
        with watch.waiting(self._text):
            return self._request.Wait()

    def __getattr__(self, name):
        return getattr(self._request, name)


class Fingerprints:
    """The fingerprints of one rank's collectives, remembered by where they were called."""

    most_remembered = 4096

    def __init__(self):
        self._known = {}

    def take(self, name, kind, args, kwargs, frame):
        """Returns a number that must be alike on all ranks, and the text of a report.

        Args:
            name (str): name of the method.
            kind: its entry in the table.
            args, kwargs: its arguments.
            frame: where it was called.

        Returns:
            (int, bytes)
        """
        x = args[0] if args else kwargs.get("x")
        shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
        # In debug mode they are compared by the communicator, with an error on all ranks.
        compare = kind.compare and not is_debug()
        other = None
        if kind.root is not None:
            other = _argument(kind.root, "root", args, kwargs, 0)
        elif kind.peer is not None:
            other = _argument(*kind.peer, args, kwargs)
        inner, outer = call_sites.calling_frames(frame)
        key = (
            *(name, shape, dtype, other, compare),
            *(id(inner.f_code), inner.f_lasti),
            *(outer and id(outer.f_code), outer and outer.f_lasti),
        )
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= self.most_remembered:
                self._known.clear()
            alike = (name, other, shape, str(dtype)) if compare else (name, other)
            text = _words(name, kind, shape, dtype, other)
            text = f"{text}, called at {call_sites.describe(inner, outer)}"
            # The code objects are kept, so that no others get their ids.
            codes = inner.f_code, outer and outer.f_code
            number = zlib.crc32(repr(alike).encode())
            found = self._known[key] = (number, encode(text), codes)
        return found[:2]


def _words(name, kind, shape, dtype, other):
    array = "" if shape is None else f" of {tuple(shape)} {dtype}"
    if kind.peer is not None:
        return f"{name}{array} {'to' if kind.peer[1] == 'dest' else 'from'} rank {other}"
    return f"{name}{array}" + ("" if other is None else f" with root {other}")

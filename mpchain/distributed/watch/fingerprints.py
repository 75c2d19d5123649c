"""The fingerprint of a collective: the data that must match on all ranks, and a description.

The call site is reported but not compared: ranks may reach a collective by different branches.
"""

import dataclasses
import functools
import inspect
import weakref
import zlib
from types import FrameType
from typing import TYPE_CHECKING, Any

from mpchain.configuration import is_debug
from mpchain.distributed.watch import call_sites, losses
from mpchain.distributed.watch.table import encode
from mpchain.observers import observed

if TYPE_CHECKING:
    from mpchain.distributed.watch.watchdog import Watch


class CollectiveMismatchError(RuntimeError):
    """Ranks called different collectives, or one collective with arguments that do not fit.

    >>> from mpchain.distributed import CollectiveMismatchError
    >>> issubclass(CollectiveMismatchError, RuntimeError)
    True
    """


@dataclasses.dataclass(frozen=True)
class _Kind:
    """The way in which a method of a communicator is watched.

    Attributes:
        compare: whether shape and dtype of the first argument must be the same on all ranks.
        checks: whether the method checks its arguments before it communicates; if so, it counts as
            called only when it communicates.
        is_begun: whether the method returns a request of an operation that continues in the
            background.
        is_part: whether other methods call the method, or ranks may call it in any order.
        rank_argument: position and name of the argument that is a rank; None if there is none.
    """

    compare: bool = False
    checks: bool = True
    is_begun: bool = False
    is_part: bool = False
    rank_argument: tuple[int, str] | None = None

    @property
    def is_message(self):
        """Whether the method sends a message to one other rank, or receives one, as no collective
        does."""
        return self.rank_argument is not None and self.rank_argument[1] != "root"

    def other_rank(self, args, kwargs):
        """Returns the value of the argument that is a rank; None if there is none."""
        if self.rank_argument is None:
            return None
        position, name = self.rank_argument
        return args[position] if len(args) > position else kwargs.get(name, 0)

    def awaited(self, args, kwargs, n_ranks):
        """Returns the encoding for :attr:`Row.waits_for` of the rank that must take part in a
        message."""
        other = self.other_rank(args, kwargs)
        # The argument may be None, or stand for any source.
        if not isinstance(other, int) or not 0 <= other < n_ranks:
            return 0
        sends = self.rank_argument is not None and self.rank_argument[1] == "dest"
        return -other - 1 if sends else other + 1


_METHODS = {
    "barrier bcast_obj gather_obj allgather_obj allreduce_obj": _Kind(checks=False),
    "scatter_obj alltoall_obj": _Kind(checks=False),
    "make_buffers split finalize": _Kind(checks=False),
    "bcast gather allgather scatter alltoall reduce_scatter": _Kind(),
    "send recv sendrecv send_obj recv_obj": _Kind(),
    "allreduce reduce sum_now": _Kind(compare=True),
    "ibcast iallgather ireduce_scatter iallreduce": _Kind(compare=True, is_begun=True),
    "ibarrier": _Kind(is_begun=True),
    "begin begin_sum": _Kind(is_part=True, is_begun=True),
    "_exchange _broadcast _sum _sum_at _send_header _recv_header _answer": _Kind(is_part=True),
    "_post _take": _Kind(is_part=True),
    "_begin_sum_of_products": _Kind(is_part=True),
}
WATCHED = {name: kind for names, kind in _METHODS.items() for name in names.split()}
"""The kind of each watched method, by name."""


def watched(communicator_class: type) -> type:
    """Class decorator: a communicator reports its collectives to its ``watch``, if it has one."""
    for name, kind in WATCHED.items():
        method = getattr(communicator_class, name)
        if not hasattr(method, "_watched_as"):
            parameters = list(inspect.signature(method).parameters)[1:]
            positions = [
                (i, p) for i, p in enumerate(parameters) if p in ("root", "dest", "source")
            ]
            # The last of these arguments of sendrecv is the source, for which the rank waits.
            kind = dataclasses.replace(kind, rank_argument=positions[-1] if positions else None)
            wrap = _watch_part if kind.is_part else _watch_method
            wrapped = functools.wraps(method)(wrap(method, name, kind))
            if not kind.is_part:
                wrapped = observed("collective", name)(wrapped)
            vars(wrapped)["_watched_as"] = kind
            setattr(communicator_class, name, wrapped)
    return communicator_class


def _watch_part(method, name, kind):
    def call(self, *args, **kwargs):
        watch = self.watch
        if watch is None:
            return method(self, *args, **kwargs)
        is_inside = watch.is_inside and watch.is_inside_here()
        if watch.announced is not None:
            watch.enter()
        if name == "_exchange":
            watch.row.waits_for = 0  # the other rank has arrived
        result = method(self, *args, **kwargs)
        # If the result is a Request of this module, the base class's method has wrapped it already.
        if is_inside or not kind.is_begun or isinstance(result, Request):
            return result
        return Request(result, watch, watch.describe(name, kind, args, kwargs))

    return call


def _watch_method(method, name, kind):
    def call(self, *args, **kwargs):
        watch = self.watch
        if watch is None:
            return method(self, *args, **kwargs)
        if watch.is_inside and watch.is_inside_here():
            if watch.announced is not None:
                watch.enter()
            return method(self, *args, **kwargs)
        if not kind.checks and kind.rank_argument is not None:
            self.check_rank(name, "root", kind.other_rank(args, kwargs))
        watch.announce(name, kind, args, kwargs)
        try:
            if not kind.checks:
                watch.enter()
            result = method(self, *args, **kwargs)
        except Exception as error:
            has_entered = watch.announced is None
            losses.raise_loss_behind(error, in_collective=has_entered)
            raise
        finally:
            text = watch.leave()
        if not kind.is_begun or text is None:
            return result
        return Request(result, watch, text, watch.reopen())

    return call


class Request:
    """A request that shows the watchdog when its rank waits.

    Args:
        request: the request, with ``Test`` and ``Wait``.
        watch: the watchdog of this rank.
        text: encoded description of the operation.
        number: the operation's number among the collectives; None if it is not a collective.

    Attributes:
        request: the request.
    """

    __slots__ = ("_number", "_text", "_watch", "request")

    def __init__(self, request: Any, watch: "Watch", text: bytes, number: int | None = None):
        self.request, self._watch, self._text = request, watch, text
        self._number = number
        watch.begun = weakref.ref(request)

    def Test(self) -> bool:
        """Returns whether the operation is complete."""
        is_complete = self.request.Test()
        if is_complete and self._number is not None:
            self._watch.finish(self._number)
            self._number = None
        return is_complete

    def Wait(self) -> Any:
        """Waits until the operation is complete, and returns its result."""
        watch = self._watch
        if (watch.is_inside and watch.is_inside_here()) or self.Test():
            return self.request.Wait()  # the inner request holds the result
        with watch.waiting(self._text):
            result = self.request.Wait()
        self.Test()
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.request, name)


_ALL = weakref.WeakSet()  # the fingerprints of all communicators


def n_calls(but: Any) -> int:
    """Returns the number of this process's calls of communicators other than ``but``.

    >>> n_calls(comm)
    0
    """
    own = None if but.watch is None else but.watch.fingerprints
    return sum(fingerprints.n_taken for fingerprints in _ALL if fingerprints is not own)


class Fingerprints:
    """The fingerprints of one rank's collectives, cached by call site and arguments.

    Attributes:
        n_taken: the number of calls that have communicated; each gets a fingerprint.
    """

    most_remembered = 4096

    def __init__(self):
        self._known = {}
        self.n_taken = 0
        _ALL.add(self)

    def take(
        self, name: str, kind: _Kind, args: tuple, kwargs: dict[str, Any], frame: FrameType
    ) -> tuple[int, bytes]:
        """Returns the number of a call, which must be equal on all ranks, and an encoded text for
        reports.

        Args:
            name: the name of the method.
            kind: the method's kind.
            args, kwargs: the arguments of the call.
            frame: the frame of the call.
        """
        self.n_taken += 1
        x = args[0] if args else kwargs.get("x")
        shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
        # In debug mode, the communicator compares shapes itself, and raises an error on all ranks.
        compare = kind.compare and not is_debug()
        other, place, codes = kind.other_rank(args, kwargs), kwargs.get("place"), None
        where, inner, outer = place, None, None
        if where is None:
            inner, outer = call_sites.calling_frames(frame)
            where = id(inner.f_code), inner.f_lasti
            where += outer and id(outer.f_code), outer and outer.f_lasti
        key = name, shape, dtype, other, compare, where
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= self.most_remembered:
                self._known.clear()
            alike = (name, other, shape, str(dtype)) if compare else (name, other)
            text = name if shape is None else f"{name} of {tuple(shape)} {dtype}"
            if kind.rank_argument is not None:
                word = {"root": "with root", "dest": "to rank", "source": "from rank"}
                text += f" {word[kind.rank_argument[1]]} {other}"
            if inner is not None:
                place = call_sites.describe(inner, outer)
                # The cache keeps these code objects alive, so that their ids are not reused.
                codes = inner.f_code, outer and outer.f_code
            text = f"{text}, called at {place}"
            number = zlib.crc32(repr(alike).encode())
            found = self._known[key] = (number, encode(text), codes)
        return found[:2]

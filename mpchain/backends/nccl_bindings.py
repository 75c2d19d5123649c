"""The NCCL functions that a communicator needs, through one of three bindings."""

import contextlib
import copy
import functools
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np

from mpchain.backends import cuda, pynccl

TYPES = {"int32": 2, "int64": 4, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
"""Maps the name of a dtype to NCCL's number for it."""

SUM = 0
"""NCCL's number for the reduction that sums."""

MOST_IN_GROUP = 2048
"""The most operations in one group, which NCCL launches together."""

_ON_HOST = 1  # this value says that the factor lies in host memory

_IN_PROGRESS = 7
_OF_OTHERS = 2, 6  # NCCL's codes for errors of the system or of another rank

_REVOKES = 22900  # the first NCCL version that can revoke communicators
_ABORT = 1  # this flag lets a failed communicator shrink


class NcclError(RuntimeError):
    """A call of NCCL has failed.

    Attributes:
        is_of_others: whether the network, or another rank, may be the cause.

    Example:
        >>> raise NcclError("NCCL by pynccl: ncclAllReduce: remote process exited")
        Traceback (most recent call last):
        ...
        mpchain.backends.nccl_bindings.NcclError: NCCL by pynccl: ...
    """

    is_of_others = False


class Connection:
    """One rank's communicator of NCCL.

    Args:
        n_ranks: the number of ranks.
        identity: the result of :func:`new_identity` on one of the ranks.
        rank: the number of this rank, which uses the current GPU.
        binding: the name of one of ``BINDINGS``; None selects the first binding that works here.

    Attributes:
        binding: the name of the binding.
        has_products: whether :meth:`product` can be called.
        can_shrink: whether :meth:`shrink` can be called; CuPy's binding and NCCL before 2.29 lack
            it, and it cannot be called after :meth:`revoke` has failed.

    Raises:
        RuntimeError: the binding, or NCCL itself, is missing.
        NcclError: a call of NCCL has failed; :meth:`run`, :meth:`group` and :meth:`shrink` may
            raise this error, too.

    Example:
        >>> nccl = Connection(1, new_identity(), 0)  # doctest: +SKIP
        >>> x = x.data.ptr, x.data.ptr, x.size  # doctest: +SKIP
        >>> nccl.run("all_reduce", *x, TYPES["float32"], SUM, stream=0)  # doctest: +SKIP
    """

    def __init__(self, n_ranks: int, identity: bytes, rank: int, binding: str | None = None):
        self.binding = find_binding(binding)
        self._nccl = BINDINGS[self.binding]()
        self.has_products = hasattr(self._nccl, "red_op_create_pre_mul_sum")
        can_revoke = hasattr(self._nccl, "comm_revoke")
        self.can_shrink = can_revoke and self._nccl.get_version() >= _REVOKES
        self._comm, self._is_revoked = None, False
        # No other thread may use the communicator while one thread frees it.
        self._turn = threading.RLock()
        with self._explained():
            self._comm = self._nccl.comm_init_rank(n_ranks, identity, rank)

    @property
    def handle(self) -> object:
        """The binding's own communicator, for calls of NCCL functions that this class does not
        offer."""
        return self._comm

    def run(self, name: str, *args: int, stream: int) -> None:
        """Calls ``all_reduce``, ``reduce``, ``broadcast``, ``all_gather``, ``reduce_scatter``,
        ``send`` or ``recv`` with NCCL's arguments, except the communicator."""
        if self._is_revoked:
            raise NcclError(
                f"NCCL by {self.binding}: the communicator was revoked or aborted; make a new one"
            )
        with self._explained():
            getattr(self._nccl, name)(*args, self._comm, stream)

    @contextlib.contextmanager
    def _explained(self):
        try:
            yield
        except self._nccl.Error as error:
            failure = NcclError(f"NCCL by {self.binding}: {error}{self._reason()}")
            failure.is_of_others = getattr(error, "status", None) in _OF_OTHERS
            raise failure from error

    def _reason(self):
        """Returns a colon and NCCL's text for its last error; empty if the binding has no text."""
        reason = "" if self.binding == "cupy" else self._nccl.get_last_error(self._comm)
        return reason and f": {reason}"

    @contextlib.contextmanager
    def group(self) -> Iterator[None]:
        """Context manager: groups NCCL calls into one launch."""
        self._nccl.group_start()
        try:
            yield
        finally:
            with self._explained():
                self._nccl.group_end()

    @contextlib.contextmanager
    def product(self, factor: float, dtype: np.dtype) -> Iterator[int]:
        """Context manager: yields a reduction that multiplies each rank's array by the factor of
        the rank and sums the products.

        Not all bindings have this reduction (:attr:`has_products`).
        """
        scalar = np.array(factor, dtype)
        op = self._nccl.red_op_create_pre_mul_sum(
            scalar.ctypes.data, TYPES[scalar.dtype.name], _ON_HOST, self._comm
        )
        try:
            yield op
        finally:
            self._nccl.red_op_destroy(op, self._comm)

    def find_error(self) -> str | None:
        """Returns the text of an error that NCCL found in the background, or None."""
        with self._turn:
            if self._is_revoked:
                return None
            code = self._nccl.comm_get_async_error(self._comm)
            return f"NCCL has failed (error {int(code)}){self._reason()}" if code else None

    def revoke(self) -> None:
        """Aborts all work at once, even work that waits for lost ranks; the outputs of this work
        are undefined.

        Any thread may call this method. Afterwards :meth:`abort` can be called, and :meth:`shrink`
        if :attr:`can_shrink` is True; otherwise the connection has been aborted already.
        """
        with self._turn:
            if self._is_revoked:
                return
            self._is_revoked = True
            if self.can_shrink:
                try:
                    self._nccl.comm_revoke(self._comm, 0)
                except self._nccl.Error as error:
                    self.can_shrink = error.status == _IN_PROGRESS
            if not self.can_shrink:
                self.abort()

    def shrink(self, lost: Sequence[int]) -> "Connection":
        """Returns a connection of the remaining ranks, all of which must call this method, and
        aborts this connection.

        Args:
            lost: the numbers of the lost ranks in this connection.
        """
        made, excluded = copy.copy(self), np.array(lost, np.int32)
        while self._nccl.comm_get_async_error(self._comm) == _IN_PROGRESS:
            time.sleep(1e-3)  # NCCL waits until revoked operations have ended
        with self._explained():
            what = excluded.ctypes.data, excluded.size
            made._comm = self._nccl.comm_shrink(self._comm, *what, 0, _ABORT)
        made._is_revoked = False
        self.abort()
        return made

    def abort(self) -> None:
        """Aborts all work, and the connection. Any thread may call this method."""
        with self._turn:
            comm, self._comm, self._is_revoked = self._comm, None, True
            if comm is not None:
                self._nccl.comm_abort(comm)

    def destroy(self) -> None:
        """Frees the connection after its work has ended; all ranks must call this method."""
        self._nccl.comm_destroy(self._comm)


def new_identity(binding: str | None = None) -> bytes:
    """Returns the identity of a new group of ranks.

    Example:
        >>> len(new_identity())  # doctest: +SKIP
        128
    """
    return BINDINGS[find_binding(binding)]().get_unique_id()


def find_binding(name: str | None = None) -> str:
    """Returns the name of a binding, by default the first of ``BINDINGS`` that works here.

    Raises:
        RuntimeError: the named binding does not work here, or, without a name, no binding does.
        ValueError: there is no binding named ``name``.

    Example:
        >>> find_binding("pynccl")  # doctest: +SKIP
        'pynccl'
    """
    if name is not None and name not in BINDINGS:
        raise ValueError(
            f"NcclCommunicator: unknown binding {name!r}; the bindings are {', '.join(BINDINGS)}"
        )
    reasons = []
    for candidate in BINDINGS if name is None else [name]:
        reason = _why_not(candidate)
        if reason is None:
            return candidate
        reasons.append(f"{candidate}: {reason}")
    raise RuntimeError(f"NCCL cannot be used ({'; '.join(reasons)}): pip install 'mpchain[gpu]'")


@functools.cache
def _why_not(name):
    try:
        BINDINGS[name]().get_version()
    except Exception as error:  # a broken installation raises many kinds of errors
        return str(error)
    return None


class _OfNccl4py:
    """The low-level functions of NVIDIA's nccl4py, which take pointers and need no driver."""

    def __init__(self):
        from nccl.bindings import nccl

        self._nccl = nccl
        self.Error = nccl.NCCLError

    def __getattr__(self, name):
        return getattr(self._nccl, name)

    def get_unique_id(self):
        return bytes(self._nccl.get_unique_id())

    def get_last_error(self, comm):
        return self._nccl.get_last_error(self._nccl.Comm() if comm is None else comm)

    def comm_init_rank(self, n_ranks, identity, rank):
        return self._nccl.comm_init_rank(n_ranks, self._nccl.UniqueId.from_buffer(identity), rank)


class _OfCupy:
    """CuPy's own binding, under nccl4py's names."""

    _methods = {
        "all_reduce": "allReduce",
        "all_gather": "allGather",
        "reduce_scatter": "reduceScatter",
        **{name: name for name in ("broadcast", "reduce", "send", "recv")},
    }

    def __init__(self):
        self._nccl = cuda.cupy.cuda.nccl
        if not self._nccl.available:
            raise RuntimeError("CuPy finds no NCCL")
        self.Error = self._nccl.NcclError
        self.get_version = self._nccl.get_version
        self.get_unique_id = self._nccl.get_unique_id
        self.group_start, self.group_end = self._nccl.groupStart, self._nccl.groupEnd

    def __getattr__(self, name):
        if name not in self._methods:
            raise AttributeError(f"CuPy's binding of NCCL has no {name}")
        return lambda *args: getattr(args[-2], self._methods[name])(*args[:-2], args[-1])

    def comm_init_rank(self, n_ranks, identity, rank):
        return self._nccl.NcclCommunicator(n_ranks, identity, rank)

    def comm_get_async_error(self, comm):
        try:
            comm.check_async_error()
        except self.Error as error:
            return error.status
        return 0

    def comm_abort(self, comm):
        comm.abort()

    def comm_destroy(self, comm):
        comm.destroy()


# Only CuPy's binding lacks premultiplied sums. The third binding needs nothing but the library of
# NCCL. (PyPI's package pynccl is not an option: it does not work with current versions of NCCL.)
BINDINGS = {"nccl4py": _OfNccl4py, "cupy": _OfCupy, "pynccl": lambda: pynccl}
"""The bindings, in order of preference."""

"""Starts, supervises and ends worker processes."""

import contextlib
import multiprocessing
import os
import pickle
import re
import signal
import sys
import threading
import tokenize
import traceback
from collections.abc import Callable
from multiprocessing import connection, forkserver
from typing import Any

import numpy as np

from mpchain.backends import linux

_ABOUT_MPI = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "HYDI_", "MPI_LOCAL", "MV2_", "MPIR_")
"""Prefixes of the environment variables that show that a process is a rank."""

_OPENMP = re.compile(r"lib(gomp|iomp5|omp)\b.*\.so")

_GRACE = 2.0  # the number of seconds to wait for a process that must exit


def get_context(start_method: str | None, caller: str) -> Any:
    """Returns the ``multiprocessing`` context that starts processes.

    Args:
        start_method: 'spawn', 'forkserver' or 'fork'; None means the method set by
            :func:`multiprocessing.set_start_method`, unless it is 'fork'; otherwise the forkserver
            if it is available, or else spawn.
        caller: the name of the caller in errors.

    Raises:
        ValueError: there is no method ``start_method`` on this system.
        RuntimeError: the method is 'fork' and MPI was initialized, which a fork would break, or
            OpenMP has started threads, for which the forked process would wait forever.

    Example:
        >>> get_context("spawn", "MyIterator").get_start_method()
        'spawn'
    """
    methods = multiprocessing.get_all_start_methods()
    if start_method is None:
        start_method = multiprocessing.get_start_method(allow_none=True)
        if start_method in (None, "fork"):  # "fork" may be the default of the system
            start_method = "forkserver" if "forkserver" in methods else "spawn"
    if start_method not in methods:
        raise ValueError(f"{caller}: start_method must be one of {methods}, not {start_method!r}")
    mpi = sys.modules.get("mpi4py.MPI")
    if start_method == "fork" and mpi is not None and mpi.Is_initialized():
        raise RuntimeError(
            f"{caller}: processes must not be forked after MPI was initialized; "
            "use start_method='forkserver' or 'spawn'"
        )
    if start_method == "fork" and (runtime := openmp_with_threads()):
        raise RuntimeError(
            f"{caller}: processes must not be forked after OpenMP ({runtime}) has started threads, "
            "which oneDNN, Numba and PyTorch use: a forked process would hang. Request the first "
            "batch earlier, set OMP_NUM_THREADS=1, or use start_method='forkserver' or 'spawn'"
        )
    context = multiprocessing.get_context(start_method)
    if start_method == "forkserver" and _uses_default_preload():
        # The server imports this module once, before it forks, so that its processes start faster.
        context.set_forkserver_preload(["__main__", __name__])
    return context


def openmp_with_threads() -> str | None:
    """Returns the name of an OpenMP runtime that seems to have threads in this process; None if
    there is none, or the system is not Linux.

    Example:
        >>> openmp_with_threads()  # doctest: +SKIP
        'libgomp.so.1'
    """
    try:
        n_threads = len(os.listdir("/proc/self/task"))
    except OSError:
        return None
    # OpenBLAS still works after a fork, so its threads do not count.
    n_known = threading.active_count() + sum(get() - 1 for get, _ in linux.openblas())
    runtimes = [p for p in map(os.path.basename, linux.libraries()) if _OPENMP.match(p)]
    return min(runtimes) if runtimes and n_threads > n_known else None


def runs_main_program_again() -> bool:
    """Returns whether processes that are not forked would run the main program again.

    Such processes import the script, so they run it if it does not check ``__name__``.

    Example:
        >>> runs_main_program_again()
        False
    """
    main = sys.modules["__main__"]
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if path is None or (spec is not None and spec.name.rpartition(".")[2] == "__main__"):
        return False
    try:
        with tokenize.open(path) as file:
            return "__name__" not in file.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return False


def _uses_default_preload():
    server = getattr(forkserver, "_forkserver", None)
    return getattr(server, "_preload_modules", None) == ["__main__"]


def peek_at_random_state() -> int:
    """Returns a seed from NumPy's global state without changing that state.

    Example:
        >>> peek_at_random_state() == peek_at_random_state()
        True
    """
    copy = np.random.RandomState()
    copy.set_state(np.random.get_state())
    return int(copy.randint(2**32, dtype=np.uint32))


class WorkerError(RuntimeError):
    """A worker process ended without an answer.

    Example:
        >>> raise WorkerError("MultiprocessIterator: process 0 ended with exit code 1")
        Traceback (most recent call last):
        mpchain.iterators.worker.WorkerError: MultiprocessIterator: process 0 ended with exit code 1
    """


class Worker:
    """A process that runs a function, and a pipe to it.

    :meth:`receive` raises the exception of the function, with the worker's traceback as a note, or
    WorkerError if the process ended in another way. The process ends when this process ends, for
    any reason. It ignores Ctrl-C.

    Args:
        context: a result of :func:`get_context`.
        name: the name of the worker in errors.
        function: function that is called with the pipe (``recv()`` requests, ``send()`` answers)
            and ``args``.
        args: further arguments, which must be picklable (unless the context forks).
        daemon: whether the process must not start processes itself.

    Example:
        >>> worker = Worker(get_context(None, "f"), "reader", function)  # doctest: +SKIP
        >>> worker.send("a request")  # doctest: +SKIP
        >>> answer = worker.receive()  # doctest: +SKIP
    """

    def __init__(
        self, context: Any, name: str, function: Callable, *args: Any, daemon: bool = True
    ):
        self.name = name
        self._has_answered = False
        self._pipe, its_end = context.Pipe()
        self._process = context.Process(
            target=_work, args=(its_end, function, args), name=name, daemon=daemon
        )
        try:
            with _no_rank():
                self._process.start()
        except BaseException:
            self._pipe.close()
            raise
        finally:
            its_end.close()

    def send(self, request: object) -> None:
        """Sends a request. If the process has ended, the next :meth:`receive` raises
        WorkerError."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send(request)

    def poll(self, timeout: float | None) -> bool:
        """Returns whether an answer, or the end of the process, came within ``timeout`` seconds."""
        return bool(connection.wait([self._pipe], timeout))

    def receive(self) -> Any:
        """Waits for the next answer and returns it.

        Raises:
            Exception: the exception of the function.
            WorkerError: the process has ended.
        """
        try:
            kind, answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise WorkerError(f"{self.name} {self._how_it_ended()}") from None
        self._has_answered = True
        if kind == "error":
            raise answer
        return answer

    def _how_it_ended(self):
        self._process.join(_GRACE)
        code = self._process.exitcode
        if code is not None and code < 0:
            cause = " (memory may have run out)" if -code == signal.SIGKILL else ""
            return f"was ended by {signal.Signals(-code).name}{cause}"
        text = f"ended with exit code {code}"
        if not self._has_answered:
            text += (
                "; its output above says why. A script that starts processes must do so "
                "below `if __name__ == '__main__':`"
            )
        return text

    def hang_up(self) -> None:
        """Closes the pipe, so that the process ends as soon as it is idle."""
        self._pipe.close()

    def close(self) -> None:
        """Ends the process: lets it exit if it is idle, and kills it if it is busy."""
        self.hang_up()
        self._process.join(0.1)
        for end in (self._process.terminate, self._process.kill):
            if self._process.exitcode is None:
                end()
                self._process.join(_GRACE)
        if self._process.exitcode is not None:
            self._process.close()


@contextlib.contextmanager
def _no_rank():
    """Context manager: processes started within it do not regard themselves as ranks of this
    job."""
    hidden = {name: x for name, x in os.environ.items() if name.startswith(_ABOUT_MPI)}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)


class _ParentLeft(BaseException):
    """The other end of the pipe is closed."""


class _Answers:
    """The worker's end of the pipe."""

    def __init__(self, pipe):
        self._pipe = pipe

    def recv(self):
        try:
            return self._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise _ParentLeft from None

    def send(self, answer, kind="answer"):
        try:
            self._pipe.send((kind, answer))
        except (BrokenPipeError, ConnectionResetError):
            raise _ParentLeft from None


def _work(pipe, function, args):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answers = _Answers(pipe)
    with contextlib.suppress(_ParentLeft):
        try:
            function(answers, *args)
        except Exception as error:
            answers.send(portable(error), "error")


def _end_with_parent():
    # A busy process would notice the end of its parent only at its next answer.
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
    os._exit(1)


def portable(error: BaseException) -> BaseException:
    """Returns a copy of an exception that can be sent to another process; its traceback is a note.

    If the exception cannot be pickled, a RuntimeError with its type and text replaces it.

    Example:
        >>> portable(ValueError("no such example"))
        ValueError('no such example')
    """
    text = f"in process {os.getpid()}:\n{traceback.format_exc()}"
    try:
        copy = pickle.loads(pickle.dumps(error))
        if type(copy) is not type(error):
            raise TypeError(type(copy))
    except Exception:
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.add_note(text)
    return copy

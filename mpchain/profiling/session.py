"""Profiles: starts and ends the recording, and writes the files."""

import contextlib
import os
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Any, Self

from mpchain.distributed.communicators import Communicator
from mpchain.profiling import table
from mpchain.profiling.clocks import compare, own_clock
from mpchain.profiling.recorder import Recorder
from mpchain.profiling.trace import Trace, merge, path_of_rank, trace_of, write
from mpchain.serializers.files import PathLike, open_atomic
from mpchain.training import Extension, Trainer

_active = []
_turn = threading.Lock()


def profile(
    file: PathLike | None = None,
    comm: Communicator | None = None,
    *,
    skip: int = 0,
    steps: int | None = None,
) -> "Profile":
    """Returns a :class:`Profile`, which measures where the time of a program goes.

    Args:
        file: path of the ``.json`` file to which rank 0 writes the trace of all ranks at the end,
            with the table beside it as ``.txt``. None writes no file. As an extension, a relative
            path is in the trainer's folder, and None means ``trace.json`` there.
        comm: the ranks, all of which must profile. None means only this process; as an extension,
            it means the ranks of the trainer's multi-node optimizer.
        skip: number of steps to leave out at the beginning.
        steps: number of steps after which recording ends. None means no limit in a ``with`` block,
            and 100 as an extension. A step adds about 10 kB to the file per 100 function calls.

    Raises:
        ValueError: ``skip`` is negative, or ``steps`` is not positive.

    Example:
        >>> model = L.Linear(3, 2)
        >>> optimizer = optimizers.SGD().setup(model)
        >>> with mpchain.profile() as profile:
        ...     for _ in range(3):
        ...         optimizer.update(lambda x: F.sum(model(x)), np.ones((5, 3), np.float32))
        >>> profile.print_table()  # doctest: +ELLIPSIS
        1 rank, steps 2 to 3, ... ms each
        ...
    """
    return Profile(file, comm, skip=skip, steps=steps)


class Profile(Extension):
    """Measures where the time of a program goes: a context manager, and an extension.

    A profile records the thread that starts it: calls of functions and links, forward and backward,
    with the link's path; iterators and converters; updates; communication between ranks, with the
    time spent waiting; evaluation; extensions; memory. :meth:`span` marks any other code. A step is
    a trainer's iteration or, without a trainer, the time from one optimizer update to the next.
    Without an active profile, there is no overhead.
    On a GPU the profile waits for each function: the times are right, but no work overlaps.
    With several ranks, starting and ending are collective. If an exception ends the profile, each
    rank keeps its own record, and writes its own file if ``file`` was given.

    Args:
        file, comm, skip, steps: see :func:`profile`.

    Attributes:
        trace: the recorded events in Chrome's trace format; on rank 0, those of all ranks. None
            before the end.

    Raises:
        RuntimeError: another profile is active when this one starts.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater((2, "iteration"))
        >>> trainer.extend(mpchain.profile())
        >>> trainer.run()
        >>> sorted(os.listdir(trainer.out))
        ['trace.json', 'trace.txt']
    """

    default_name = "profile"

    def __init__(
        self,
        file: PathLike | None = None,
        comm: Communicator | None = None,
        *,
        skip: int = 0,
        steps: int | None = None,
    ):
        if skip < 0 or (steps is not None and steps < 1):
            raise ValueError(
                "profile: skip must not be negative, and steps must be positive, but they are "
                f"{skip} and {steps}"
            )
        self._file, self._comm, self._skip, self._steps = file, comm, skip, steps
        self._recorder: Any = None
        self._clock: Any = None
        self._is_recording = self._has_failed = False
        self.trace: Trace | None = None

    # The methods below begin and end the recording.

    def __enter__(self) -> Self:
        with _turn:
            if _active:
                raise RuntimeError(
                    "profile: another profile is active; end the other profile first, or omit "
                    "--trace of mpchain-launch"
                )
            _active.append(self)
        try:
            self._clock = own_clock() if self._comm is None else compare(self._comm)
            limits = self._skip, self._steps
            self._recorder = Recorder(*limits, self.stop, self._on_communicator)
            self._recorder.__enter__()
            self._is_recording = True
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(exc_type is not None)

    def _on_communicator(self, comm):
        """Is called with each communicator of several ranks that the program makes."""

    def stop(self) -> None:
        """Ends the recording on this rank, before the end of the block or of training."""
        if self._is_recording:
            self._is_recording = False
            self._recorder.__exit__()
        if self in _active:
            _active.remove(self)

    def _end(self, has_failed):
        self.stop()
        comm = self._comm or Communicator()
        if not has_failed and comm.size > 1:
            self._clock = compare(comm, clock=self._clock)
        self.trace = trace_of(self._recorder, self._clock, comm.rank, comm.size)
        if not has_failed:
            traces = comm.gather_obj(self.trace)
            self.trace = self.trace if traces is None else merge(traces)
        if self._file is not None:
            if has_failed and comm.size > 1:
                write(self.trace, path_of_rank(os.fspath(self._file), comm.rank))
            elif comm.rank == 0:
                self.save(self._file)

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Context manager: records the time of the block under this name.

        >>> with mpchain.profile() as profile:
        ...     with profile.span("augment"):
        ...         pass
        >>> [row.name for row in profile.rows()]
        ['augment']
        """
        recorder = self._recorder
        if recorder is None or not recorder.is_mine():
            yield
            return
        start = recorder.now()
        try:
            yield
        finally:
            if self._is_recording:
                recorder.add(start, "span", name)

    # The methods below make the profile an extension.

    def initialize(self, trainer: Trainer) -> None:
        if self._comm is None:
            for optimizer in trainer.updater.get_all_optimizers().values():
                self._comm = self._comm or optimizer.communicator
        self._file = os.path.join(trainer.out, "trace.json" if self._file is None else self._file)
        self._steps = self._steps or 100
        self._has_failed = False
        self.__enter__()

    def __call__(self, trainer: object) -> None:
        """Does nothing, because the recorder observes iterations by itself."""

    def on_error(self, trainer: object, exc: BaseException, tb: TracebackType | None) -> None:
        self._has_failed = True

    def finalize(self) -> None:
        if self._recorder is not None:
            self._end(self._has_failed)

    # The methods below show the results.

    def rows(self, step: int | None = None) -> list[table.Row]:
        """Returns the rows of the table, the longest first; see :func:`mpchain.profiling.rows`.

        Args:
            step: the number of a step; None returns means over the steps.

        Raises:
            RuntimeError: the profile has not ended.
        """
        return table.rows(self._ended("rows"), step)

    def print_table(self, file: IO[str] | None = None, n_rows: int | None = None) -> None:
        """Prints the share of a step that each kind of work takes.

        Args:
            file: the output; None means the standard output.
            n_rows: the number of rows to show; None shows those of at least 0.5 % of a step.

        Raises:
            RuntimeError: the profile has not ended.
        """
        table.print_table(self._ended("print_table"), file, n_rows)

    def save(self, path: PathLike) -> None:
        """Writes the trace, for https://ui.perfetto.dev, and beside it the table as ``.txt``.

        Raises:
            RuntimeError: the profile has not ended.
        """
        save(self._ended("save"), os.fspath(path))

    def _ended(self, method):
        if self.trace is None:
            raise RuntimeError(f"Profile.{method}: the profile has not ended; call {method} later")
        return self.trace


def save(trace: Trace, path: str) -> None:
    """Writes a trace, and beside it its table as ``.txt``.

    >>> with mpchain.profile() as profile:
    ...     y = F.exp(np.zeros(2))
    >>> save(profile.trace, "trace.json")
    """
    write(trace, path)
    with open_atomic(os.path.splitext(path)[0] + ".txt", "w", encoding="utf-8") as file:
        table.print_table(trace, file)

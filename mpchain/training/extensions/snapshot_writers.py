"""Writers of snapshots, which write while training waits, or in a thread or a process.

Writers in the background copy the state to host memory before they return, so that a file holds the
state of one moment. If writing fails, the error is raised by the next call of the writer, which
still takes its own snapshot first, or by ``finalize``, which waits until all files are written.
"""

import collections
import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.reduction
import os
import pickle
import signal
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from mpchain.serializers import save_npz
from mpchain.serializers.files import replacing
from mpchain.training.states import FrozenState


class Writer:
    """Base of the objects that :func:`snapshot` calls to write a file.

    Example:
        >>> class Reporting(extensions.snapshot_writers.SimpleWriter):
        ...     def __call__(self, filename, outdir, target):
        ...         super().__call__(filename, outdir, target)
        ...         print(filename, "is written")
    """

    def __call__(self, filename: str, outdir: str, target: object) -> None:
        """Writes a snapshot.

        Args:
            filename: name of the file.
            outdir: path of the folder for the file.
            target: the object to save, which has ``serialize``.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement __call__")

    def save(
        self, filename: str, outdir: str, target: object, savefun: Callable, **kwds: Any
    ) -> None:
        """Lets ``savefun`` write a file of a temporary name, and renames the file when it is
        complete."""
        with replacing(os.path.join(outdir, filename)) as temporary:
            savefun(temporary, target, **kwds)

    def finalize(self) -> None:
        """Waits until all snapshots are written; called once, when training has ended."""


class SimpleWriter(Writer):
    """Writes each snapshot while training waits.

    The file appears under its name only when it is complete.

    Args:
        savefun: function of ``(path, target)`` that writes the file.
        kwds: further arguments of ``savefun``.

    Example:
        >>> import os, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     SimpleWriter(compression=True)("model.npz", folder, L.Linear(3, 2))
        ...     os.listdir(folder)
        ['model.npz']
    """

    def __init__(self, savefun: Callable = save_npz, **kwds: Any):
        self._savefun, self._kwds = savefun, kwds

    def __call__(self, filename: str, outdir: str, target: object) -> None:
        """Writes the snapshot; see :class:`Writer`."""
        self.save(filename, outdir, target, self._savefun, **self._kwds)


class QueueWriter(Writer):
    """Queues snapshots, which a thread writes one after another.

    If ``max_waiting`` copies are in the queue, training waits until the oldest is written.

    Args:
        savefun: function of ``(path, target)`` that writes the file.
        task: writer to call in the thread; None means :class:`SimpleWriter` with ``savefun``.

    Example:
        >>> extension = extensions.snapshot(writer=QueueWriter())
    """

    max_waiting = 4

    def __init__(self, savefun: Callable = save_npz, task: Writer | None = None):
        self._task = self.create_task(savefun) if task is None else task
        self._executor = None
        self._futures = collections.deque()
        self._errors = []

    def create_task(self, savefun: Callable, **kwds: Any) -> Writer:
        """Returns the writer that is called in the thread."""
        return SimpleWriter(savefun, **kwds)

    def __call__(self, filename: str, outdir: str, target: object) -> None:
        """Queues a copy of the state; see :class:`Writer`.

        Raises:
            Exception: an earlier snapshot could not be written.
        """
        state = FrozenState(target)
        self._collect(self.max_waiting - 1)
        if self._executor is None:
            self._executor = concurrent.futures.ThreadPoolExecutor(1, "snapshot writer")
        future = self._executor.submit(self._task, filename, outdir, state)
        self._futures.append((filename, future))
        self._raise()

    def finalize(self) -> None:
        """Waits until all snapshots are written.

        Raises:
            Exception: a snapshot could not be written.
        """
        self._collect(0)
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
        self._task.finalize()
        self._raise()

    def _collect(self, n_left):
        """Waits until at most ``n_left`` snapshots are pending; keeps the errors of all other
        snapshots."""
        while self._futures and (len(self._futures) > n_left or self._futures[0][1].done()):
            filename, future = self._futures.popleft()
            error = future.exception()
            if error is not None:
                error.add_note(f"raised while the snapshot {filename} was written")
                self._errors.append(error)

    def _raise(self):
        if not self._errors:
            return
        first, *others = self._errors
        self._errors = []
        for error in others:
            first.add_note(f"another snapshot also failed: {error!r}, {error.__notes__[0]}")
        raise first


class ThreadQueueWriter(QueueWriter):
    """Queues snapshots, which a thread writes one after another; see :class:`QueueWriter`.

    Args:
        savefun, task: see :class:`QueueWriter`.

    Example:
        >>> extension = extensions.snapshot(writer=ThreadQueueWriter())
    """


class ProcessQueueWriter(QueueWriter):
    """Queues snapshots, which another process writes one after another.

    The process imports the main module of the program, as :mod:`multiprocessing` does. The module
    must therefore guard its work by ``if __name__ == "__main__":``.

    Args:
        savefun: see :class:`QueueWriter`; it must be a function at the top level of a module.
        task: see :class:`QueueWriter`; it must be picklable.

    Raises:
        TypeError: ``savefun`` or ``task`` cannot be pickled.

    Example:
        ::

            trainer.extend(extensions.snapshot(writer=ProcessQueueWriter()))
    """

    def __init__(self, savefun: Callable = save_npz, task: Writer | None = None):
        super().__init__(savefun, task and ProcessTask(task))

    def create_task(self, savefun: Callable, **kwds: Any) -> Writer:
        """Returns the writer that sends snapshots to the process."""
        return ProcessTask(SimpleWriter(savefun, **kwds))


class StandardWriter(QueueWriter):
    """Writes each snapshot in a thread; the next snapshot waits until the thread has written it.

    Args:
        savefun: function of ``(path, target)`` that writes the file.
        kwds: further arguments of ``savefun``.

    Example:
        >>> extension = extensions.snapshot(writer=StandardWriter(compression=True))
    """

    max_waiting = 1

    def __init__(self, savefun: Callable = save_npz, **kwds: Any):
        super().__init__(task=self.create_task(savefun, **kwds))


class ThreadWriter(StandardWriter):
    """Writes each snapshot in a thread; the next snapshot waits until the thread has written it.

    Args:
        savefun, kwds: see :class:`StandardWriter`.

    Example:
        >>> extension = extensions.snapshot(writer=ThreadWriter())
    """


class ProcessWriter(StandardWriter):
    """Writes each snapshot in another process; the next snapshot waits until the process has
    written it.

    Args:
        savefun: see :class:`ProcessQueueWriter`.
        kwds: further arguments of ``savefun``.

    Raises:
        TypeError: ``savefun`` cannot be pickled.

    Example:
        ::

            trainer.extend(extensions.snapshot(writer=ProcessWriter()))
    """

    create_task = ProcessQueueWriter.create_task


class ProcessTask(Writer):
    """Calls a writer in another process, and waits until it returns.

    The process ignores Ctrl-C, which a terminal also sends to it, and ends when this process ends.

    Args:
        writer: the writer; it must be picklable.

    Example:
        ::

            writer = QueueWriter(task=ProcessTask(SimpleWriter()))
    """

    def __init__(self, writer: Writer):
        try:
            self._pickled = bytes(multiprocessing.reduction.ForkingPickler.dumps(writer))
        except Exception as error:
            raise TypeError(
                "ProcessTask: the writer, with its savefun and arguments if it has them, must be "
                "picklable, because another process uses it (a function must be at the top level "
                f"of a module): {error}"
            ) from error
        self._process = None
        # The process is started here, so that a program without `if __name__ == "__main__"` fails
        # early, in the process.
        self._start()

    def _start(self):
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, self._pickled), name="snapshot writer", daemon=True
        )
        self._process.start()
        theirs.close()

    def __call__(self, filename: str, outdir: str, target: object) -> None:
        """Writes the snapshot; see :class:`Writer`.

        If the process dies, for example because memory ran out, another process tries once more.

        Raises:
            RuntimeError: the process could not write the file, or the second process died, too.
        """
        for is_last in (False, True):
            try:
                trouble = self._ask((filename, outdir, target))
            except (OSError, EOFError) as error:
                sentence = (
                    f"the process that writes snapshots died (exit code {self._stop()}) before "
                    f"{filename} was written"
                )
                if is_last:
                    raise RuntimeError(sentence) from error
                warnings.warn(f"{sentence}; another process tries again", stacklevel=1)
            else:
                if trouble:
                    where = "the process that writes it raised"
                    raise RuntimeError(f"{filename} was not written; {where}:\n{trouble}")
                return

    def _ask(self, arguments):
        if self._process is None:
            self._start()
        self._connection.send(arguments)
        return self._connection.recv()

    def finalize(self) -> None:
        """Ends the process that writes."""
        if self._process is not None:
            self._stop()

    def _stop(self):
        with contextlib.suppress(OSError):
            self._connection.send(None)  # a forked process may keep a copy of this end open
        self._connection.close()
        process, self._process = self._process, None
        assert process is not None
        process.join()
        code = process.exitcode
        process.close()
        return code


def _serve(connection, pickled):
    """Runs in the process: writes the snapshots that it receives, until it receives None or the
    pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    writer = pickle.loads(pickled)
    with contextlib.suppress(OSError, EOFError):
        while arguments := connection.recv():
            try:
                writer(*arguments)
                trouble = ""
            except Exception:
                trouble = traceback.format_exc()
            connection.send(trouble)
    writer.finalize()

"""Starts a function on several ranks, from a notebook or a script."""

import codecs
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

from mpchain import annexes
from mpchain.distributed.communicators import create_communicator

_LAUNCHER = "mpchain_launch"


def run(function: Callable[..., Any], *args: Any, n: int = 2, timeout: float | None = None) -> list:
    """Starts ``n`` ranks on this machine with ``mpchain-launch``, and calls a function on each.

    The function may be defined in a notebook. It is sent to the ranks by cloudpickle, with the
    variables that it uses; the ranks change only their copies. The function calls
    :func:`~mpchain.create_communicator`, as a script does. The output of the ranks is shown here.

    Args:
        function: the function; each rank calls ``function(*args)``.
        args: the function's arguments.
        n: number of ranks.
        timeout: seconds after which the ranks are ended; None means no limit.

    Returns:
        A list of the function's results, by rank.

    Raises:
        Exception: the exception of the rank that raised first, with its traceback as a note.
        RuntimeError: a rank ended in another way, ``timeout`` has passed, or cloudpickle is
            missing.
        MissingAnnexError: the launcher was deleted; see :mod:`mpchain.annexes`.

    Example:
        >>> def train():
        ...     comm = mpchain.create_communicator()
        ...     return comm.allreduce_obj(comm.rank)
        >>> mpchain.run(train, n=2)  # doctest: +SKIP
        [1, 1]
    """
    annexes.require("launcher", "run")
    cloudpickle = _cloudpickle()
    with tempfile.TemporaryDirectory(prefix="mpchain_run_") as folder:
        task = {"path": sys.path, "call": cloudpickle.dumps((function, args))}
        pathlib.Path(folder, "task").write_bytes(cloudpickle.dumps(task))
        limit = [] if timeout is None else [f"--timeout={timeout}"]
        command = [sys.executable, "-m", _LAUNCHER, f"-n={n}", *limit, "-m", __name__, folder]
        code, last = _show_output(command)
        paths = [*pathlib.Path(folder).glob("result_*"), *pathlib.Path(folder).glob("error_*")]
        answers = {path.name: cloudpickle.loads(path.read_bytes()) for path in paths}
    errors = [answers[name] for name in answers if name.startswith("error")]
    if errors:
        _, error, note = min(errors, key=lambda each: each[0])
        error.add_note(note)
        raise error
    if code or len(answers) < n:
        raise RuntimeError(
            f"run: the ranks ended with exit code {code}, before all returned a result: {last}"
        )
    return [answers[f"result_{rank}"] for rank in range(n)]


def _cloudpickle():
    return annexes.library("cloudpickle", "run: cloudpickle is missing: pip install 'mpchain[mpi]'")


def _show_output(command):
    """Runs a command and prints its output here; returns its exit code and its last line."""
    # A notebook does not show what a process writes directly to standard output. Python's copy of
    # the environment is passed, because a loaded MPI library may have added variables to C's.
    process = subprocess.Popen(
        command,
        env=dict(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # only the notebook's process handles Ctrl-C
    )
    output: Any = process.stdout
    decoder, shown = codecs.getincrementaldecoder("utf-8")("replace"), ""
    try:
        while data := output.read1(65536):
            text = decoder.decode(data)
            sys.stdout.write(text)
            sys.stdout.flush()
            shown = (shown + text)[-4096:]
        return process.wait(), shown.strip().rpartition("\n")[2]
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
        output.close()


def _run_task(folder):
    """Runs the function on a rank, and writes its result or error to the folder."""
    cloudpickle = _cloudpickle()
    rank = create_communicator("naive").rank
    task = cloudpickle.loads(pathlib.Path(folder, "task").read_bytes())
    sys.path[:] = task["path"]
    try:
        function, args = cloudpickle.loads(task["call"])
        answer = cloudpickle.dumps(function(*args))
        name = f"result_{rank}"
    except Exception as error:
        name, answer = f"error_{rank}", _describe(error, rank, cloudpickle)
    path = pathlib.Path(folder, f"incomplete_{rank}")
    path.write_bytes(answer)
    path.rename(pathlib.Path(folder, name))
    if name.startswith("error"):
        raise SystemExit(1)  # the launcher ends the other ranks; run shows the traceback


def _describe(error, rank, cloudpickle):
    """Returns the time, the exception and its note as pickled bytes. An exception that cannot be
    pickled is replaced by a RuntimeError with its text."""
    own = error.__traceback__.tb_next  # the frame of this file is left out
    note = "".join(traceback.format_exception(error.with_traceback(own)))
    when, note = time.monotonic(), f"on rank {rank}:\n{note.rstrip()}"
    try:
        answer = cloudpickle.dumps((when, error.with_traceback(None), note))
        cloudpickle.loads(answer)
        return answer
    except Exception:
        substitute = RuntimeError(f"{type(error).__name__}: {error}")
        return cloudpickle.dumps((when, substitute, note))


if __name__ == "__main__":
    _run_task(sys.argv[1])

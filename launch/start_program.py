"""Runs the program of a rank, as ``python`` does, and writes its stacks when a signal arrives.

The supervisor (rank.py) starts this file with the pipe for stacks, the number of the signal that
requests stacks, and the arguments of ``python``.
"""

import atexit
import faulthandler
import importlib
import os
import runpy
import signal
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # importing importlib.abc would take long

# The program writes this byte into the pipe for stacks when it is over and did not fail.
OVER = b"\0"
# The program writes these bytes into the pipe for stacks as it starts: one at the beginning of each
# phase. In some phases a rank waits for all other ranks.
PHASES = (STARTED, IN_MPI_INIT, AFTER_MPI_INIT, IN_CREATE, AFTER_CREATE) = range(1, 6)
# A module of this name exists only in programs that the launcher started; mpchain looks for it.
STARTER = "mpchain_launch_starter"
# Under --elastic, these variables hold two pipes: into the first, the program writes lines of JSON
# about lost ranks; from the second, it reads the numbers of ranks whose loss MPI may not notice.
NOTES, LOSSES = "MPCHAIN_LAUNCH_NOTES", "MPCHAIN_LAUNCH_LOSSES"


def tell_where(pipe: int, number: int) -> None:
    """Installs handlers that report the position of the program to the launcher.

    On the signal ``number`` the stacks of all threads are written to ``pipe``, even while a thread
    runs C code. The program also writes the beginning of its phases and its end to the pipe.
    """
    if sys.stderr is not None:
        faulthandler.enable()  # crashes print stacks, too
    os.set_inheritable(pipe, False)
    faulthandler.register(number, file=pipe)
    phases = Phases(pipe)
    phases.tell(STARTED)
    sys.meta_path.insert(0, phases)
    starter = sys.modules[STARTER] = types.ModuleType(STARTER)
    vars(starter)["creates_communicator"] = phases.creates_communicator
    # atexit calls this function last, because it is registered first: by then the program, its
    # threads and its other exit functions have ended, and only MPI_Finalize follows.
    atexit.register(tell_end, pipe, number, os.getpid(), _identity(pipe))


def tell_end(pipe: int, number: int, process: int, identity: object) -> None:
    """Reports that the program is over, and ignores the signal from then on."""
    if os.getpid() == process:  # a process forked from the program writes nothing
        faulthandler.unregister(number)
        signal.signal(number, signal.SIG_IGN)
        # The program may have closed all files, and may have opened another file with this
        # descriptor.
        if _identity(pipe) == identity:
            os.write(pipe, OVER)


def _identity(descriptor):
    try:
        return os.fstat(descriptor)[1:3]
    except OSError:
        return None


class Phases:
    """Reports to the launcher when MPI_Init and create_communicator begin and end.

    This class is a finder of modules, because importing mpi4py.MPI initializes MPI.
    """

    def __init__(self, pipe: int):
        self._pipe, self._process, self._identity = pipe, os.getpid(), _identity(pipe)
        self._last = 0

    def tell(self, phase: int) -> None:
        """Writes a phase once, and no earlier phase after it; does nothing in a forked process, or
        if the program has closed the pipe."""
        is_mine = os.getpid() == self._process and _identity(self._pipe) == self._identity
        if phase > self._last and is_mine:
            self._last = phase
            os.write(self._pipe, bytes([phase]))

    def creates_communicator(self, ends: bool) -> None:
        """Reports the beginning or end of the first communicator's creation; mpchain calls this
        method."""
        self.tell(AFTER_CREATE if ends else IN_CREATE)

    def find_spec(self, name, path=None, target=None):
        """Finds mpi4py.MPI as other finders do, but with a loader that reports phases."""
        if name != "mpi4py.MPI":
            return None
        sys.meta_path.remove(self)
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next(filter(None, found), None)
        if spec and spec.loader and getattr(sys.modules["mpi4py"].rc, "initialize", True):
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(Loader):
    """Loads mpi4py.MPI through another loader, and reports when loading begins and ends."""

    def __init__(self, loader, phases):
        self._loader, self._phases = loader, phases

    def create_module(self, spec):
        self._phases.tell(IN_MPI_INIT)
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._phases.tell(AFTER_MPI_INIT)


def of_program(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Returns the part of a traceback below the frames of this file, of runpy and of mpi4py, which
    only started the program; the whole traceback if it has no other frames.

    Example:
        >>> of_program(None)
    """
    inner = traceback
    while inner and _is_starter(inner.tb_frame):
        inner = inner.tb_next
    return inner or traceback


def _is_starter(frame):
    names = frame.f_globals.get("__name__"), frame.f_globals.get("__package__")
    return frame.f_code.co_filename == __file__ or names[0] == "runpy" or names[1] == "mpi4py"


def run(arguments: list[str]) -> None:
    """Runs a program, given ``[-m] program arguments`` as ``python`` gets them."""
    is_module = arguments[0] == "-m"
    if not sys.flags.safe_path:
        del sys.path[0]  # this is the folder of this file
    if arguments[:2] == ["-m", "mpi4py"]:
        # This import must find the installed mpi4py, rather than a module of the same name beside
        # the user's program.
        importlib.import_module("mpi4py")
    sys.argv[:] = arguments[is_module:]
    if is_module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(sys.argv[0])))
        runpy.run_path(sys.argv[0], run_name="__main__")


# Processes that the program starts with multiprocessing run this file again, but not this block.
if __name__ == "__main__":
    tell_where(int(sys.argv[1]), int(sys.argv[2]))
    if NOTES in os.environ:
        os.set_inheritable(int(os.environ[NOTES]), False)
        listener = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lost_ranks.py")
        runpy.run_path(listener)["listen"](int(os.environ.pop(LOSSES)))
    try:
        run(sys.argv[3:])
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code:
            atexit.unregister(tell_end)  # the program failed
        error.__traceback__ = of_program(error.__traceback__)
        raise

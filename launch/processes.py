"""Starts processes that cannot outlive this one; finds and ends descendants.

This module also removes files that a killed MPI leaves behind and that would fill the disk in time.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Container, Iterable, Mapping, Sequence

# These constants are from linux/prctl.h.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def find_program(names: Iterable[str], folders: Iterable[str]) -> str | None:
    """Returns the path of the first program with one of the names in the folders, or None if there
    is none.

    Example:
        >>> find_program(["no-such-program", "sh"], ["/nowhere", "/bin"])
        '/bin/sh'
    """
    for folder in folders:
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
    return None


def read(path: str) -> str:
    """Returns the stripped text of a file of the kernel; empty if the file cannot be read.

    Example:
        >>> read("/proc/self/comm") != "", read("/proc/0/comm")
        (True, '')
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def ask(command: Sequence[str], seconds: float = 60.0) -> str:
    """Returns the output of a command, including errors; empty if the command cannot be started, or
    takes more than ``seconds``.

    Example:
        >>> ask(["echo", "hello"]), ask(["/nowhere/program"])
        ('hello\\n', '')
    """
    import subprocess  # it is seldom needed, and slow to import

    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout


def fill_standard_files() -> None:
    """Opens the null device where standard input, output or error is closed.

    Otherwise the next opened file would get the number of a standard file and receive its data.

    Example:
        >>> fill_standard_files()
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose parent ends (on Linux).

    Example:
        >>> adopt_orphans()  # doctest: +SKIP
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def spawn(command: list[str], environment: Mapping[str, str], stdout: int, stderr: int) -> int:
    """Starts a command in a new session, without input; the kernel kills it when this process ends.

    Args:
        command: The program and its arguments.
        environment: All environment variables of the new process.
        stdout: File descriptor for the standard output of the new process.
        stderr: File descriptor for the standard error of the new process.

    Returns:
        The process id. The exit code is 127 if the program could not be started.

    Example:
        >>> child = spawn(["sh", "-c", "exit 3"], dict(os.environ), 1, 2)
        >>> os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        3
    """
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:  # the parent may have ended before the line above
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            # Python ignores SIGPIPE, and the new program would inherit this setting.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.execvpe(command[0], command, environment)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def shell_code(code: int) -> int:
    """Returns an exit code as a shell shows it: 128 + n for -n, which stands for signal n.

    Example:
        >>> shell_code(3), shell_code(-9)
        (3, 137)
    """
    return code if code >= 0 else 128 - code


def collect_children() -> tuple[dict[int, int], bool]:
    """Reaps ended children; returns their statuses by process id, and whether children are left.

    Example:
        >>> ended, others_are_left = collect_children()  # doctest: +SKIP
    """
    ended = {}
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if not child:
            return ended, True
        ended[child] = status


def kill_descendants(spared: Container[int] = frozenset(), seconds: float = 5.0) -> None:
    """Kills all descendants of this process, except the spared ones, and waits for their end.

    Args:
        spared: Ids of processes that are not killed; their descendants are not killed, either.
        seconds: The longest wait, which is reached only if a process hangs in the kernel.

    Example:
        >>> kill_descendants(spared={1234})  # doctest: +SKIP
    """
    deadline = time.monotonic() + seconds
    while collect_children()[1] and time.monotonic() < deadline:
        victims = descendants(os.getpid(), spared)
        if not victims:
            return
        for victim in victims:
            signal_process(victim, signal.SIGKILL)
        time.sleep(0.005)


def signal_process(process: int, number: int) -> None:
    """Sends a signal to a process, unless it has ended.

    Example:
        >>> signal_process(os.getpid(), 0)
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def signal_session(leader: int, number: int) -> None:
    """Sends a signal to the process group of a process that `spawn` started.

    Example:
        >>> signal_session(spawn(["true"], {}, 1, 2), 15)  # doctest: +SKIP
    """
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        signal_process(leader, number)  # a new process may not have a group yet


def descendants(ancestor: int, spared: Container[int] = frozenset()) -> list[int]:
    """Returns the ids of the descendants of `ancestor`, including those not yet reaped.

    The list is empty on systems without /proc.

    Example:
        >>> descendants(0) != []
        True
    """
    children = {}
    for process in _processes():
        children.setdefault(_parent(process), []).append(process)
    found, parents = [], [ancestor]
    while parents:
        below = [process for process in children.get(parents.pop(), ()) if process not in spared]
        parents += below
        found += below
    return found


def activity_of(process: int) -> tuple[str, float, int, int]:
    """Returns the state of a process, such as R, S or T (stopped), its CPU seconds, the bytes that
    it has read and written, and the number of times that its threads have woken up.

    The numbers include descendants of the process. Without /proc, or after the end of the process,
    the result is ("?", 0.0, 0, 0).

    Example:
        >>> state, seconds, n_bytes, n_wakes = activity_of(os.getpid())
        >>> state, seconds >= 0, n_bytes >= 0, n_wakes >= 0
        ('R', True, True, True)
    """
    family = process, *descendants(process)
    fields = [_status(each) for each in family]
    if not fields[0]:
        return "?", 0.0, 0, 0
    ticks = sum(sum(map(int, each[11:15])) for each in fields if each)
    seconds = ticks / os.sysconf("SC_CLK_TCK")
    return fields[0][0], seconds, sum(map(_bytes_moved, family)), sum(map(_n_wakes, family))


def oom_kills() -> int:
    """Returns the number of processes that the kernel has ended for lack of memory; -1 if unknown.

    Example:
        >>> oom_kills() >= -1
        True
    """
    counts = dict(line.split() for line in read("/proc/vmstat").splitlines())
    return int(counts.get("oom_kill", -1))


def _processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()] if _libc else []


def _parent(process):
    status = _status(process)
    return int(status[1]) if status else 0


def _status(process):
    """Returns the fields of /proc/<process>/stat from the state on; an empty list for a process
    that has ended."""
    return read(f"/proc/{process}/stat").rpartition(")")[2].split()


def _bytes_moved(process):
    """Returns the bytes that a process has read and written; 0 if it has ended or is another
    user's."""
    return sum(int(line.split()[1]) for line in read(f"/proc/{process}/io").splitlines()[:2])


def _n_wakes(process):
    """Returns how often the threads of a process were scheduled on a processor."""
    n, folder = 0, f"/proc/{process}/task"
    with contextlib.suppress(OSError, IndexError):  # the process, or one of its threads, has ended
        for thread in os.listdir(folder):
            n += int(read(f"{folder}/{thread}/schedstat").split()[2])
    return n


def _prctl(option, value):
    if _libc:
        _libc.prctl(option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3)


SHARED_MEMORY = "/dev/shm/"
# The shared memory segments of MPICH, and of Open MPI 5 and 4, have these prefixes.
SEGMENTS = tuple(SHARED_MEMORY + name for name in ("mpich_shm_", "sm_segment.", "vader_segment."))

AGE_OF_ABANDONED = 3600.0


def segments_of(process: int) -> set[str]:
    """Returns the paths of the shared memory segments that MPI made for a process.

    Example:
        >>> segments_of(os.getpid()) <= set(map(os.path.abspath, segments_of(os.getpid())))
        True
    """
    # Processes of other users cannot be read, and some systems have no /proc.
    with contextlib.suppress(OSError), open(f"/proc/{process}/maps", "rb") as file:
        lines = [os.fsdecode(line.rstrip(b"\n")) for line in file]
        words = [line.split(maxsplit=5) for line in lines if SHARED_MEMORY in line]
        return {each[5] for each in words if len(each) == 6 and each[5].startswith(SEGMENTS)}
    return set()


def remove_segments(paths: set[str]) -> None:
    """Removes the segments that no process maps.

    Example:
        >>> remove_segments({"/dev/shm/sm_segment.no_such_segment"})
    """
    # MPI_Finalize has usually removed all segments.
    if paths := set(filter(os.path.exists, paths)):
        for path in paths.difference(*map(segments_of, _processes())):
            # Another rank may have deleted the segment, or another user may own it.
            with contextlib.suppress(OSError):
                os.remove(path)


def remove_abandoned_segments() -> None:
    """Removes old segments of this user that no process has mapped.

    Such segments remain from jobs that were killed with all their supervisors. A process needs the
    name of a segment only during its start, even a process in another container, which cannot be
    seen from here. Therefore nobody needs the name of a segment that is an hour old.

    Example:
        >>> remove_abandoned_segments()  # doctest: +SKIP
    """
    now, old = time.time(), set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(SHARED_MEMORY):
            if entry.path.startswith(SEGMENTS):
                state = entry.stat(follow_symlinks=False)
                if state.st_uid == os.getuid() and now - state.st_mtime > AGE_OF_ABANDONED:
                    old.add(entry.path)
        remove_segments(old)


def remove_session(process: int) -> None:
    """Removes the files of an mpirun of Open MPI 5, or of its daemon, that has been killed.

    Because of these files, a later mpirun with the same process id would fail.

    Example:
        >>> remove_session(1234567)  # doctest: +SKIP
    """
    import shutil  # it is seldom needed, and slow to import

    for name in ("ompi", "prted"):
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"{name}.{process}")
        shutil.rmtree(path, ignore_errors=True)

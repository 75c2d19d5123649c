"""Reports lost ranks to the Open MPI of this process; start_program.py runs it under --elastic.

mpirun notices a process that ended, but not a host that was cut off. The launcher notices that a
host is cut off, and sends the numbers of its ranks to the supervisors. For each of these ranks, the
thread of this module raises the PMIx event by which Open MPI learns of a failed process, only in
this process.
"""

import contextlib
import ctypes
import os
import sys
import threading

# These constants are from pmix_common.h.
PMIX_ERR_PROC_TERM_WO_SYNC = -200
PMIX_RANGE_PROC_LOCAL = 7
PMIX_PROC = 22
PMIX_EVENT_AFFECTED_PROC = b"pmix.evproc"
# This exit code makes the launcher restart the job (EX_TEMPFAIL); mpchain uses the same code.
RESTART = 75


class _Process(ctypes.Structure):
    _fields_ = (("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class _Value(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint16), ("data", ctypes.c_void_p * 3))


class _Info(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value))


def listen(pipe: int) -> None:
    """Starts a thread that reads numbers of ranks from a pipe, one per line, and reports them.

    Example:
        >>> reader, writer = os.pipe()
        >>> listen(reader), os.close(writer)
        (None, None)
    """
    os.set_inheritable(pipe, False)
    threading.Thread(target=_report_all, args=(pipe,), name="lost ranks", daemon=True).start()


def _report_all(pipe):
    with open(pipe, encoding="ascii") as lines:
        for line in lines:
            if not report(int(line), os.environ):
                text = f"rank {line.strip()} was lost before MPI was ready in this process"
                print(text, file=sys.stderr)
                os._exit(RESTART)


def report(rank: int, variables: "os._Environ[str] | dict[str, str]") -> bool:
    """Marks a rank as failed in this process; returns whether MPI was ready for the event.

    Args:
        rank: The rank in MPI_COMM_WORLD.
        variables: The environment variables, by which PMIx passes the names of the job and of this
            process.

    Example:
        >>> report(1, {})  # mpirun has not started this process
        False
    """
    library = _library()
    if "PMIX_NAMESPACE" not in variables or not library or not library.PMIx_Initialized():
        return False
    job = variables["PMIX_NAMESPACE"].encode()
    own, other = _Process(job, int(variables["PMIX_RANK"])), _Process(job, rank)
    info = _Info(PMIX_EVENT_AFFECTED_PROC, 0, _Value(PMIX_PROC))
    info.value.data[0] = ctypes.addressof(other)
    place = ctypes.byref(own), ctypes.c_uint8(PMIX_RANGE_PROC_LOCAL)
    which = ctypes.byref(info), ctypes.c_size_t(1)
    library.PMIx_Notify_event(PMIX_ERR_PROC_TERM_WO_SYNC, *place, *which, None, None)
    return True


def _library():
    """Returns the PMIx library that MPI has loaded into this process; None if there is none."""
    with contextlib.suppress(OSError), open("/proc/self/maps", "rb") as file:
        for line in file:
            if b"/libpmix.so" in line:
                return ctypes.CDLL(os.fsdecode(line.split(maxsplit=5)[5].rstrip(b"\n")))
    return None

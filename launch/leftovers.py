"""Removes files that a killed MPI leaves behind, which would fill the host in time."""

import contextlib
import os
import time

SHARED_MEMORY = "/dev/shm/"
# Segments of MPICH, and of Open MPI 5 and 4.
SEGMENTS = tuple(SHARED_MEMORY + name for name in ("mpich_shm_", "sm_segment.", "vader_segment."))

AGE_OF_ABANDONED = 3600.0


def segments_of(process: int) -> set[str]:
    """Returns the paths of the shared memory segments that MPI made for a process.

    Example:
        >>> segments_of(os.getpid()) <= set(map(os.path.abspath, segments_of(os.getpid())))
        True
    """
    # The processes of other users cannot be read; there are none where there is no /proc.
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
    # After MPI_Finalize there are none.
    if paths := set(filter(os.path.exists, paths)):
        processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        for path in paths.difference(*map(segments_of, processes)):
            with contextlib.suppress(OSError):  # another rank did, or it is another user's
                os.remove(path)


def remove_abandoned_segments() -> None:
    """Removes old segments of this user that no process has mapped.

    Their jobs were killed with all their supervisors. A process that is only about to map one, or
    that another container hides from us, is no older than a start: names in use for an hour are not
    needed any more.

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

    A later one with the same process number would fail because of them.

    Example:
        >>> remove_session(1234567)  # doctest: +SKIP
    """
    import shutil  # seldom needed, and slow to import

    for name in ("ompi", "prted"):
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"{name}.{process}")
        shutil.rmtree(path, ignore_errors=True)

import importlib.util
import mmap
import os
import signal

import pytest

from launch import mpirun, processes

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs Linux")


@pytest.fixture
def segment(tmp_path, monkeypatch):
    """Returns a function that makes a file of shared memory, in a folder and with names of this
    test."""
    monkeypatch.setattr(processes, "SHARED_MEMORY", f"{tmp_path}/")
    monkeypatch.setattr(processes, "SEGMENTS", (f"{tmp_path}/sm_segment.",))

    def segment(name):
        path = tmp_path / name
        path.write_bytes(bytes(mmap.PAGESIZE))
        return str(path)

    return segment


def test_segments_of_a_process(segment):
    path, other = segment("sm_segment.a b"), segment("mine \udcff")  # one name is not UTF-8
    assert processes.segments_of(os.getpid()) == set()
    with open(path, "r+b") as file, open(other, "r+b") as other_file:
        with mmap.mmap(file.fileno(), 0), mmap.mmap(other_file.fileno(), 0):
            assert processes.segments_of(os.getpid()) == {path}
            # The segment is in use, so it stays.
            processes.remove_segments({path})
            assert os.path.exists(path)
    processes.remove_segments({path})
    assert not os.path.exists(path)
    processes.remove_segments({path})


def test_abandoned_segments(segment):
    """Abandoned segments are old, belong to this user and to MPI, and no process has mapped
    them."""
    old, mapped, young = (segment(f"sm_segment.{i}") for i in range(3))
    other = segment("other")
    for path in (old, mapped, other):
        os.utime(path, (1e9, 1e9))
    with open(mapped, "r+b") as file, mmap.mmap(file.fileno(), 0):
        processes.remove_abandoned_segments()
    assert [os.path.exists(path) for path in (old, mapped, young, other)] == [False, *[True] * 3]


def test_segments_of_other_users_stay(segment, monkeypatch):
    path = segment("sm_segment.a")
    os.utime(path, (1e9, 1e9))
    monkeypatch.setattr(os, "getuid", lambda: os.stat(path).st_uid + 1)
    processes.remove_abandoned_segments()
    assert os.path.exists(path)


def test_process_that_is_gone():
    assert processes.segments_of(2**30) == set()


def test_session(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name in ("ompi.12", "prted.12", "ompi.123", "other.12"):
        (tmp_path / name / "1").mkdir(parents=True)
    processes.remove_session(12)
    assert sorted(os.listdir(tmp_path)) == ["ompi.123", "other.12"]
    processes.remove_session(12)


@pytest.mark.skipif(
    mpirun.find() is None or importlib.util.find_spec("mpi4py") is None,
    reason="needs mpchain[mpi]",
)
@pytest.mark.parametrize("victim", ["launcher", "mpirun"])
def test_killed_jobs_leave_no_files(start, script, tmp_path, has_ended, victim):
    """Neither files of mpirun's session nor MPI's shared memory remain."""
    path = script("""
        import os, time
        from mpi4py import MPI

        MPI.COMM_WORLD.Barrier()
        words = open("/proc/self/maps").read().split()
        print(os.getppid(), *{word for word in words if word.startswith("/dev/shm/")}, flush=True)
        MPI.COMM_WORLD.Barrier()
        time.sleep(60)  # hangs until it is killed
    """)
    folder = tmp_path / "tmp"
    folder.mkdir()
    launched = start("-n", 2, path, env={"TMPDIR": str(folder)})
    lines = [line.split()[1:] for line in launched.read_lines(2)]
    assert any(os.path.exists(segment) for _, *segments in lines for segment in segments)
    os.kill(launched.process.pid if victim == "launcher" else launched.mpirun(), signal.SIGKILL)
    assert launched.finish()[0] in (-signal.SIGKILL, 137)
    assert all(has_ended(int(supervisor)) for supervisor, *_ in lines)
    assert not any(os.path.exists(segment) for _, *segments in lines for segment in segments)
    assert os.listdir(folder) == []

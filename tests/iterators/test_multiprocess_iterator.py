"""Tests MultiprocessIterator, mostly when processes or shared memory fail."""

import gc
import math
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import types
import warnings

import numpy as np
import pytest

from mpchain.dataset import concat_examples
from mpchain.datasets import TransformDataset, TupleDataset
from mpchain.iterators import MultiprocessIterator, shared_memory, worker
from mpchain.iterators.worker import WorkerError, get_context
from tests.iterators.example_datasets import (
    CountsReads,
    DieOnce,
    Numbers,
    Raises,
    Unpicklable,
    Waits,
    array_of_length,
    die_at_5,
    environment_of_mpi,
    exit_at_5,
    large_array,
    lock,
    process_id,
    random_numbers,
)

pytestmark = [pytest.mark.usefixtures("quick_processes"), pytest.mark.slow]


def is_alive(pid):
    """Returns whether a process is running; a process whose status nobody has collected has
    ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(autouse=True)
def segments(monkeypatch):
    """Returns the shared-memory segments of this process, of at most ``largest`` bytes; after the
    test, none may remain."""
    names = []
    segments = types.SimpleNamespace(names=names, largest=math.inf)
    initialize = shared_memory.Segment.__init__

    def noting(self, size=0, name=None):
        if size > segments.largest:
            raise OSError(28, "No space left on device")
        initialize(self, size, name)
        names.append(self.name)

    monkeypatch.setattr(shared_memory.Segment, "__init__", noting)
    yield segments
    gc.collect()
    assert [name for name in names if os.path.exists(f"/dev/shm/{name}")] == []


def make(dataset, batch_size=3, n_processes=2, **options):
    return MultiprocessIterator(
        dataset, batch_size, shuffle=False, n_processes=n_processes, **options
    )


def pids():
    return sorted(process.pid for process in multiprocessing.active_children())


@pytest.mark.parametrize(
    ("function", "ending"),
    [
        (die_at_5, r"was ended by SIGKILL \(memory may have run out\)"),
        (exit_at_5, "ended with exit code 3"),
    ],
)
def test_a_process_that_dies_is_reported(function, ending):
    with make(Numbers(9, function)) as iterator:
        assert next(iterator) == [0, 1, 2]
        workers = pids()
        for _ in range(2):  # new processes try the batch again
            with pytest.raises(WorkerError, match=f"^MultiprocessIterator: process 1 {ending}"):
                next(iterator)
            assert not any(map(is_alive, workers))
            assert iterator.current_position == 3


def test_after_a_death_the_batch_that_was_lost_comes(tmp_path):
    with make(Numbers(9, DieOnce(str(tmp_path / "died"))), n_prefetch=3) as iterator:
        assert next(iterator) == [0, 1, 2]
        with pytest.raises(WorkerError):
            next(iterator)
        assert [next(iterator) for _ in range(3)] == [[3, 4, 5], [6, 7, 8], [0, 1, 2]]
        assert (iterator.epoch, iterator.current_position) == (1, 3)


def test_a_process_that_is_killed_while_nobody_waits_for_it():
    with make(Numbers(9)) as iterator:
        next(iterator)
        for pid in pids():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match="was ended by SIGKILL"):
            for _ in range(3):  # batches that had been read still arrive
                next(iterator)


@pytest.mark.parametrize("kind", [ValueError, Unpicklable])
def test_a_process_that_raises_tells_example_and_traceback(kind):
    with make(Numbers(9, Raises(kind))) as iterator:
        next(iterator)
        workers = pids()
        expected = RuntimeError if kind is Unpicklable else kind
        with pytest.raises(expected, match="five") as caught:
            next(iterator)
        notes = "\n".join(caught.value.__notes__)
        assert "example_datasets.py" in notes
        assert f"in process {workers[1]}" in notes or f"in process {workers[0]}" in notes
        if kind is ValueError:
            assert "while reading example 5 of the dataset" in notes
        assert next(iterator) == [6, 7, 8]
        assert pids() == workers


def test_examples_that_cannot_be_sent():
    with make(Numbers(3, lock)) as iterator:
        with pytest.raises(TypeError, match="cannot pickle") as caught:
            next(iterator)
        assert "while examples were sent from another process: they must be picklable" in (
            caught.value.__notes__
        )


def test_examples_of_different_shapes():
    with make(Numbers(50, array_of_length), 8) as iterator:
        for step in range(30):
            for k, (x, text) in enumerate(next(iterator)):
                i = (8 * step + k) % 50
                np.testing.assert_array_equal(x, array_of_length(i)[0])
                assert text == str(i)


def test_examples_that_grow():
    for options in ({}, {"shared_mem": 0}, {"shared_mem": 100_000}):
        with make(Numbers(100, large_array), 7, **options) as iterator:
            for step in range(30):
                for k, x in enumerate(next(iterator)):
                    np.testing.assert_array_equal(x, large_array((7 * step + k) % 100))


@pytest.mark.long
def test_a_hundred_times_start_and_stop(segments):
    x = np.random.rand(20, 4).astype(np.float32)
    dataset = TupleDataset(x, np.arange(20))
    seen = set()
    for i in range(100):
        iterator = make(dataset, 5, repeat=False)
        batches = []
        for batch in iterator:
            batches.append(concat_examples(batch)[0])
            if i % 3 == 0:
                break  # some batches are pending
        np.testing.assert_array_equal(np.concatenate(batches), x[: 5 if i % 3 == 0 else 20])
        seen.update(pids())
        if i % 2:
            iterator.finalize()
        del iterator  # an iterator that is not finalized ends by itself
    gc.collect()
    assert len(seen) > 100
    assert not any(map(is_alive, seen))
    assert len(segments.names) >= 500


def test_arrays_are_views_that_stay_valid():
    with make(TupleDataset(np.arange(1000.0).reshape(50, 20)), 5) as iterator:
        batches = [next(iterator) for _ in range(10)]
    np.testing.assert_array_equal(
        [x for batch in batches for (x,) in batch], np.arange(1000.0).reshape(50, 20)
    )


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_start_methods(start_method):
    with make(Numbers(9), start_method=start_method) as iterator:
        assert [next(iterator) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_a_slow_batch_is_warned_of_and_comes(tmp_path):
    path = tmp_path / "go"
    with make(Numbers(9, Waits(str(path))), n_prefetch=0, dataset_timeout=0.01) as iterator:
        with warnings.catch_warnings():
            warnings.simplefilter("error", MultiprocessIterator.TimeoutWarning)
            for _ in range(2):
                with pytest.raises(
                    MultiprocessIterator.TimeoutWarning, match=r"takes longer than 0\.01 s"
                ):
                    next(iterator)
        path.touch()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MultiprocessIterator.TimeoutWarning)
            assert next(iterator) == [0, 1, 2]


def test_a_busy_process_is_ended(tmp_path):
    iterator = make(Numbers(9, Waits(str(tmp_path / "never"))), n_prefetch=3, dataset_timeout=0.01)
    with pytest.raises(MultiprocessIterator.TimeoutWarning):
        next(iterator)
    workers = pids()
    iterator.finalize()
    assert not any(map(is_alive, workers))


def test_processes_are_replaced():
    with make(Numbers(100, process_id), 6, maxtasksperchild=3, n_prefetch=2) as iterator:
        lives = {}
        for step in range(12):
            for pid in set(next(iterator)):
                lives.setdefault(pid, []).append(step)
    assert [len(steps) for steps in lives.values()] == [3] * 8


def test_random_numbers_follow_from_the_seed_and_differ():
    def draw():
        np.random.seed(5)
        with make(Numbers(8, random_numbers), 8, maxtasksperchild=1) as iterator:
            first, second = next(iterator), next(iterator)
        return [x for example in first + second for x in example], np.random.rand()

    numbers, here = draw()
    assert (numbers, here) == draw()
    assert len(set(numbers)) == 32
    np.random.seed(5)
    assert here == np.random.rand()


def test_processes_write_into_arrays_of_their_own():
    dataset = CountsReads(4)
    with make(dataset, 4) as iterator:
        for step in range(1, 4):
            counts = np.array(next(iterator))
            np.testing.assert_array_equal(counts[1], [step, step, 0, 0])
            np.testing.assert_array_equal(counts[3], [0, 0, step, step])
    assert not dataset.reads.any()


def test_without_dev_shm(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(shared_memory, "_path", lambda name: "/nonexistent/" + name)
    shared = shared_memory.Shared({"x": np.arange(5)})
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(shared)).load()["x"], np.arange(5))
    shared.unlink()


def test_too_little_shared_memory(segments):
    segments.largest = 1000
    with make(Numbers(30, large_array), 5) as iterator:
        message = "cannot allocate .* bytes of shared memory .*are sent through pipes"
        with pytest.warns(RuntimeWarning, match=message):
            for _ in range(3):
                next(iterator)
        for _ in range(9):
            x = next(iterator)[-1]
            assert x.shape == (1000 * (1 + x[0] // 10),)


def test_no_shared_memory_at_all(segments):
    """A container may have only 4 kB of shared memory."""
    segments.largest = 0
    iterator = make(Numbers(30), 5)
    message = (
        r"MultiprocessIterator: cannot allocate 24 bytes .*: enlarge /dev/shm .*, or use Multit"
    )
    with iterator, pytest.raises(OSError, match=message) as raised:
        next(iterator)
    assert raised.value.errno == 28


def test_a_segment_larger_than_there_is_memory():
    with pytest.raises(OSError, match="No space left"):
        shared_memory.Segment(shutil.disk_usage("/dev/shm").total + (1 << 20))


def test_a_dataset_larger_than_dev_shm(segments):
    segments.largest = 1 << 16
    x = np.random.RandomState(0).randint(256, size=(100, 3, 32, 32)).astype(np.uint8)
    before = len(os.listdir("/proc/self/fd"))
    with make(TupleDataset(x, np.arange(100)), 10, shared_mem=3072, maxtasksperchild=2) as iterator:
        for i in range(0, 100, 10):
            batch_x, batch_t = concat_examples(next(iterator))
            np.testing.assert_array_equal(batch_x, x[i : i + 10])
            np.testing.assert_array_equal(batch_t, np.arange(i, i + 10))
    # One new descriptor may belong to the forkserver.
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_dataset_that_cannot_be_pickled():
    dataset = TransformDataset(Numbers(3), lambda x: x)
    for start_method in ("spawn", "forkserver"):
        with pytest.raises(
            TypeError, match=r"^MultiprocessIterator: the dataset must be picklable.*<lambda>"
        ):
            next(make(dataset, start_method=start_method))


def test_a_dataset_that_cannot_be_pickled_is_read_by_threads():
    function = Raises(ValueError)
    dataset = TransformDataset(Numbers(9), lambda i: function(i) + 0)
    n_threads = threading.active_count()
    with make(dataset, dataset_timeout=None) as iterator:
        with pytest.warns(RuntimeWarning, match=r"must be picklable.*; threads read the") as caught:
            assert next(iterator) == [0, 1, 2]
        assert len(caught) == 1 and caught[0].filename == __file__
        with pytest.raises(ValueError, match="five") as raised:
            next(iterator)
        assert "while reading example 5 of the dataset" in raised.value.__notes__
        assert next(iterator) == [6, 7, 8]
    assert threading.active_count() == n_threads


def test_a_forked_dataset_need_not_be_pickled(monkeypatch):
    monkeypatch.setattr(worker, "openmp_with_threads", lambda: None)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    dataset = TransformDataset(Numbers(3), lambda x: 2 * x)
    with warnings.catch_warnings():
        # Python 3.12 warns about a fork with threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        with make(dataset, start_method="fork") as iterator:
            assert next(iterator) == [0, 2, 4]


_FORKING = """
import sys
import numpy as np
import torch
from mpchain.iterators import MultiprocessIterator

if __name__ == "__main__":
    np.ones((500, 500)) @ np.ones((500, 500))  # NumPy's own threads do not mind
    if sys.argv[1] == "pool":
        torch.ones(1 << 22).exp().sum()
    with MultiprocessIterator([1], 1, n_processes=1, start_method="fork") as iterator:
        print(next(iterator))
"""


@pytest.mark.parametrize(("pool", "n_threads"), [("pool", 2), ("none", 2)])
def test_no_fork_after_openmp_has_started_threads(tmp_path, pool, n_threads):
    pytest.importorskip("torch", reason="needs PyTorch, whose threads the program starts")
    program = tmp_path / "program.py"
    program.write_text(_FORKING)
    environment = {**os.environ, "OMP_NUM_THREADS": str(n_threads)}
    environment.pop("OPENBLAS_NUM_THREADS", None)
    result = subprocess.run(
        [sys.executable, program, pool],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    if (pool, n_threads) == ("pool", 2):
        assert result.returncode == 1
        assert re.search(r"must not be forked after OpenMP \(lib.omp.*\) has", result.stderr)
    else:
        assert result.stdout == "[1]\n", result.stderr


def test_processes_do_not_take_themselves_for_ranks(monkeypatch):
    for start_method in ("spawn", "forkserver"):
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
        monkeypatch.setenv("PMIX_RANK", "1")
        with make(Numbers(3, environment_of_mpi), start_method=start_method) as iterator:
            assert next(iterator) == [[], [], []]
        assert os.environ["PMIX_RANK"] == "1"


def test_no_fork_after_mpi_was_initialized(monkeypatch):
    mpi = types.SimpleNamespace(Is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi)
    with pytest.raises(RuntimeError, match="must not be forked after MPI was initialized"):
        next(make(Numbers(3), start_method="fork"))
    assert get_context(None, "test").get_start_method() == "forkserver"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_processes": 0}, "n_processes must be at least 1, not 0"),
        ({"n_prefetch": -1}, "n_prefetch must be at least 0, not -1"),
        ({"shared_mem": -1}, "shared_mem must be at least 0, not -1"),
        ({"maxtasksperchild": 0}, "maxtasksperchild must be at least 1, not 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=f"MultiprocessIterator: {message}"):
        make(Numbers(3), **options)


def test_unknown_start_method():
    with pytest.raises(ValueError, match="MultiprocessIterator: start_method must be one of"):
        next(make(Numbers(3), start_method="thread"))


def test_number_of_processes_by_default():
    assert make(Numbers(3), n_processes=None).n_processes >= 1


# Whole programs

PROGRAM = """
import os, signal, sys
from mpchain.iterators import MultiprocessIterator, shared_memory
from tests.iterators.example_datasets import Numbers, Waits, process_id

def names():
    readers = iterator._readers
    shared = [reader._dataset._name for reader in readers]
    return shared + [s.name for reader in readers for s in reader._segments if s is not None]

if __name__ == "__main__":
    iterator = MultiprocessIterator(Numbers(100, process_id), 4, n_processes=2)
    print(*{*next(iterator), *next(iterator), *next(iterator)})
    print(*names(), flush=True)
    END
"""


def run(tmp_path, end, program=PROGRAM):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program).replace("END", end))
    process = subprocess.Popen(
        [sys.executable, "-W", "error", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return process


def check_that_nothing_is_left(process, lines):
    workers = [int(pid) for pid in lines[0].split()]
    assert len(workers) == 2
    names = lines[1].split()
    assert len(names) > 2
    # The pipes end when the last process that inherited them has ended.
    stderr = process.stderr.read()
    assert not any(map(is_alive, workers))
    assert [name for name in names if os.path.exists(f"/dev/shm/{name}")] == []
    return stderr


@pytest.mark.parametrize(
    ("end", "code", "error"),
    [("", 0, ""), ("raise ValueError", 1, "ValueError")],
)
def test_a_program_that_ends_without_finalize(tmp_path, end, code, error):
    with run(tmp_path, end) as process:
        stdout = process.stdout.read()
        stderr = check_that_nothing_is_left(process, stdout.splitlines())
        assert process.wait() == code
    assert stderr.strip().endswith(error)
    assert error or stderr == ""


@pytest.mark.parametrize(
    ("number", "to_group"),
    # SIGKILL to the group would also end the process that cleans up.
    [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGKILL, False)],
)
def test_a_program_that_is_interrupted(tmp_path, number, to_group):
    # A single long call would not receive a signal that arrives just before it.
    with run(tmp_path, "while True: pass") as process:
        lines = [process.stdout.readline() for _ in range(2)]
        (os.killpg if to_group else os.kill)(process.pid, number)
        stderr = check_that_nothing_is_left(process, lines)
        assert process.wait() == -number
    if number == signal.SIGINT:
        assert stderr.count("Traceback") == 1
        assert stderr.strip().endswith("KeyboardInterrupt")


_UNGUARDED = """
    import warnings
    from mpchain.iterators import MultiprocessIterator
    warnings.simplefilter("always")
    print("once")
    with warnings.catch_warnings(record=True) as caught, MultiprocessIterator(
        range(5), 2, shuffle=False, n_processes=1, start_method=METHOD
    ) as iterator:
        print(next(iterator), next(iterator))
    print(*[w.message for w in caught])
"""


def test_a_program_without_main_guard_has_threads(tmp_path):
    with run(tmp_path, "", _UNGUARDED.replace("METHOD", "None")) as process:
        stdout, stderr = process.communicate()
    assert process.returncode == 0 and stderr == ""
    once, batches, message = stdout.splitlines()
    assert (once, batches) == ("once", "[0, 1] [2, 3]")
    assert re.search("outside of `if __name__ == '__main__':`, .*; threads read", message)


def test_a_program_without_main_guard_that_asks_for_processes_is_told_so(tmp_path):
    with run(tmp_path, "", _UNGUARDED.replace("METHOD", "'spawn'")) as process:
        _, stderr = process.communicate()
    assert process.returncode == 1
    assert "A script that starts processes must do so below" in stderr.splitlines()[-1]

"""Datasets that the processes of tests can import."""

import os
import random
import signal
import threading

import numpy as np


class Numbers:
    """The numbers 0 to n - 1, or what a function returns for them."""

    def __init__(self, n, function=int):
        self.n, self.function = n, function

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.function(i)


def die_at_5(i):
    if i == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return i


def die_once_at_5(path):
    return DieOnce(path)


class DieOnce:
    def __init__(self, path):
        self.path = path

    def __call__(self, i):
        if i == 5 and not os.path.exists(self.path):
            open(self.path, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return i


def exit_at_5(i):
    if i == 5:
        os._exit(3)
    return i


class Unpicklable(Exception):
    def __init__(self, first, second):
        super().__init__(first)


class Raises:
    """Raises an exception of the given class at 5."""

    def __init__(self, kind):
        self.kind = kind

    def __call__(self, i):
        if i == 5:
            raise Unpicklable("five", 5) if self.kind is Unpicklable else self.kind("five")
        return i


def process_id(i):
    return os.getpid()


def random_numbers(i):
    return float(np.random.rand()), random.random()


def array_of_length(i):
    return np.full((i % 7, 3), i, np.float32), str(i)


def large_array(i):
    return np.full(1000 * (1 + i // 10), i)


def environment_of_mpi(i):
    return sorted(name for name in os.environ if name.startswith(("OMPI_", "PMIX_")))


class Waits:
    """Waits at 2 until a file exists."""

    def __init__(self, path):
        self.path = path

    def __call__(self, i):
        while i == 2 and not os.path.exists(self.path):
            os.sched_yield()
        return i


class CountsReads:
    """Counts its reads in its own array."""

    def __init__(self, n):
        self.reads = np.zeros(n, np.int64)

    def __len__(self):
        return len(self.reads)

    def __getitem__(self, i):
        self.reads[i] += 1
        return self.reads.copy()


def many_kinds(i):
    return [
        (np.float32(i), i, {"x": np.arange(i)}),
        {"x": np.full((2, 2), i), "t": np.int32(i)},
        np.full(3, i).astype(">i4"),
        "text",
        None,
        (),
        (np.array(i), np.array([None, i], object)),
    ][i % 7]


def lock(i):
    return threading.Lock()

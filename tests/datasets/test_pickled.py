"""Tests PickleDataset and its writer."""

import io
import multiprocessing
import pickle
import sys

import numpy as np
import pytest

from mpchain.datasets import (
    PickleDataset,
    PickleDatasetWriter,
    open_pickle_dataset,
    open_pickle_dataset_writer,
)

OBJECTS = [(1, 2.0, "hello"), {"a": [1]}, None, np.arange(5.0), b"x" * 100_000]


@pytest.fixture
def path(tmp_path):
    with open_pickle_dataset_writer(tmp_path / "data") as writer:
        for x in OBJECTS:
            writer.write(x)
    return tmp_path / "data"


def equal(actual, expected):
    assert len(actual) == len(expected)
    for x, y in zip(actual, expected):
        assert type(x) is type(y)
        np.testing.assert_equal(x, y)


def test_round_trip(path):
    with open_pickle_dataset(path) as dataset:
        equal(dataset[:], OBJECTS)
        equal([dataset[i] for i in (3, 0, -1)], [OBJECTS[i] for i in (3, 0, -1)])


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_protocols(tmp_path, protocol):
    with open_pickle_dataset_writer(tmp_path / "data", protocol) as writer:
        for x in OBJECTS:
            writer.write(x)
    with open_pickle_dataset(tmp_path / "data") as dataset:
        equal(dataset[:], OBJECTS)


def test_file_objects():
    file = io.BytesIO()
    writer = PickleDatasetWriter(file)
    writer.write(5)
    writer.flush()
    writer.write("six")
    dataset = PickleDataset(file)
    assert dataset[:] == [5, "six"]
    with pytest.raises(TypeError, match="only the dataset of a named file can be sent"):
        pickle.dumps(dataset)
    dataset.close()
    assert file.closed


def test_flush_and_close(tmp_path):
    writer = open_pickle_dataset_writer(tmp_path / "data")
    writer.write(1)
    writer.flush()
    with open_pickle_dataset(tmp_path / "data") as dataset:
        assert dataset[:] == [1]
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(2)


def test_an_empty_file(tmp_path):
    open_pickle_dataset_writer(tmp_path / "data").close()
    with open_pickle_dataset(tmp_path / "data") as dataset:
        assert len(dataset) == 0


class Bomb:
    exploded = False

    def __reduce__(self):
        return (setattr, (Bomb, "exploded", True))


def test_opening_executes_nothing(tmp_path):
    """Only reading an example executes its code, because the user requested this example."""
    with open_pickle_dataset_writer(tmp_path / "data") as writer:
        writer.write(1)
        writer.write(Bomb())
    with open_pickle_dataset(tmp_path / "data") as dataset:
        assert len(dataset) == 2
        assert dataset[0] == 1
    assert not Bomb.exploded


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-3], lambda c: c + b"garbage", lambda c: b"\xff" + c]
)
def test_what_is_no_pickle(path, damage):
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"there is no pickle at byte \d+ of "):
        open_pickle_dataset(path)


def test_copies_that_were_pickled(path):
    with open_pickle_dataset(path) as dataset, pickle.loads(pickle.dumps(dataset)) as copy:
        equal(copy[:], OBJECTS)


def _read(dataset, connection):
    for _ in range(50):
        if dataset[0] != OBJECTS[0] or dataset[4] != OBJECTS[4]:
            connection.send(False)
    connection.send(True)


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_processes_that_were_forked_read_at_once(path):
    context = multiprocessing.get_context("fork")
    with open_pickle_dataset(path) as dataset:
        pairs = [context.Pipe(duplex=False) for _ in range(3)]
        processes = [context.Process(target=_read, args=(dataset, send)) for _, send in pairs]
        for process in processes:
            process.start()
        for _ in range(50):
            assert dataset[0] == OBJECTS[0]
        for process, (receive, _) in zip(processes, pairs):
            assert receive.recv()
            process.join()

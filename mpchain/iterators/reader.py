"""A process that reads examples of a dataset, and the object that controls it."""

import collections
import concurrent.futures
import random
import warnings
from typing import Any

import numpy as np

from mpchain.iterators.shared_memory import Pickled, Segment, unpickle_copy
from mpchain.iterators.worker import Worker, portable
from mpchain.typing import Array, Dataset

_MARGIN = 1.25  # later examples may be larger than the first examples


class Reader:
    """A process that reads examples; a new process replaces it after ``max_tasks`` requests.

    Each pending request has a segment of shared memory, which holds first the indices and then the
    arrays of the examples. The requests are so short that they always fit into the pipe, so sending
    a request never waits.

    Args:
        context: a result of :func:`mpchain.iterators.worker.get_context`.
        dataset: object whose ``load()`` returns the dataset in the process.
        seed: the seed of the random generators in the process.
        n_segments: the greatest number of pending requests.
        n_indices: the greatest number of indices in a request.
        shared_mem: bytes of shared memory for each example; None adapts the size to the examples.
        max_tasks: number of requests after which the process is replaced; None means never.

    Example:
        >>> reader = Reader(context, shared_dataset, (0,), 2, 32, None, None)  # doctest: +SKIP
        >>> reader.request(np.array([2, 0]))  # doctest: +SKIP
        >>> examples = reader.receive()  # doctest: +SKIP
    """

    def __init__(
        self,
        context: object,
        dataset: object,
        seed: tuple[int, ...],
        n_segments: int,
        n_indices: int,
        shared_mem: int | None,
        max_tasks: int | None,
    ):
        self._context, self._dataset = context, dataset
        self._seed = seed
        self._max_tasks = max_tasks
        self._worker: Worker | None = None
        self._n_workers = self._n_tasks = 0
        self._pending = collections.deque()  # (worker, segment, whether it is the last)
        self._segments: list[Any] = [None] * n_segments
        self._n_requests = 0
        self._least_size = 8 * n_indices
        self._size = max(self._least_size, n_indices * (shared_mem or 0))
        self._adapts = shared_mem is None

    def request(self, indices: Array) -> None:
        """Requests the examples with the given indices."""
        worker = self._worker
        if worker is None or self._n_tasks == self._max_tasks:
            worker = self._start_worker()
        slot = self._n_requests % len(self._segments)
        segment = self._segment(slot)
        np.frombuffer(segment.buf, np.int64, len(indices))[:] = indices
        worker.send((slot, segment.name, len(indices)))
        self._n_requests += 1
        self._n_tasks += 1
        self._pending.append((worker, segment, self._n_tasks == self._max_tasks))

    def _start_worker(self):
        name = f"MultiprocessIterator: process {self._seed[-1]}"
        seed = (*self._seed, self._n_workers)
        worker = Worker(self._context, name, _read, self._dataset, seed, self._max_tasks)
        self._worker = worker
        self._n_workers += 1
        self._n_tasks = 0
        return worker

    def _segment(self, slot):
        """Returns the segment of a slot; first replaces a segment that is smaller than the present
        size, if memory allows."""
        segment = self._segments[slot]
        if segment is None or segment.size < self._size:
            larger = self._make_segment(needed=segment is None)
            if larger is not None:
                _free(segment)
                self._segments[slot] = larger
        return self._segments[slot]

    def _make_segment(self, needed):
        try:
            return Segment(self._size)
        except OSError as error:
            if self._size == self._least_size:
                raise OSError(
                    error.errno,
                    f"MultiprocessIterator: cannot allocate {self._size} bytes of shared memory "
                    f"({error.strerror}): enlarge /dev/shm (docker run --shm-size), or use "
                    "MultithreadIterator",
                ) from error
            warnings.warn(
                f"MultiprocessIterator: cannot allocate {self._size} bytes of shared memory "
                f"({error}); examples are sent through pipes, which is slower",
                RuntimeWarning,
            )
            self._adapts, self._size = False, self._least_size
            return Segment(self._size) if needed else None

    def poll(self, timeout: float | None) -> bool:
        """Returns whether within ``timeout`` the oldest request was answered, or its process
        ended."""
        return self._pending[0][0].poll(timeout)

    def receive(self) -> list | BaseException:
        """Returns the examples of the oldest request, or the exception that the dataset raised.

        Raises:
            WorkerError: the process has ended.
        """
        worker, segment, is_last = self._pending[0]
        answer = worker.receive()
        self._pending.popleft()
        if is_last:
            worker.close()
            if worker is self._worker:
                self._worker = None
        if isinstance(answer, BaseException):
            return answer
        text, places, nbytes, by_pipe = answer
        if by_pipe is None:
            return from_columns(unpickle_copy(text, places, nbytes, segment.buf))
        if self._adapts:
            self._size = max(self._size, int(nbytes * _MARGIN))
        return from_columns(unpickle_copy(text, places, nbytes, by_pipe))

    def _workers(self):
        """Returns the worker, and earlier workers whose last answers have not been received."""
        workers = [worker for worker, _, _ in self._pending]
        if self._worker is not None:
            workers.append(self._worker)
        return dict.fromkeys(workers)

    def hang_up(self) -> None:
        """Makes the process end as soon as it is idle."""
        for worker in self._workers():
            worker.hang_up()

    def close(self) -> None:
        """Ends the process and frees its shared memory."""
        for worker in self._workers():
            worker.close()
        for segment in self._segments:
            _free(segment)
        self._worker, self._segments = None, []
        self._pending.clear()


class ThreadReader:
    """A thread with the interface of :class:`Reader`.

    Args:
        dataset: the dataset.

    Example:
        >>> reader = ThreadReader("abc")
        >>> reader.request(np.array([2, 0]))
        >>> reader.receive()
        ['c', 'a']
        >>> reader.close()
    """

    def __init__(self, dataset: Dataset):
        self._dataset = dataset
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "read_examples")
        self._pending = collections.deque()

    def request(self, indices: Array) -> None:
        """Requests the examples with the given indices."""
        self._pending.append(self._thread.submit(self._read, indices.tolist()))

    def _read(self, indices):
        examples = []
        try:
            for i in indices:
                examples.append(self._dataset[i])
        except Exception as error:
            error.add_note(f"while reading example {indices[len(examples)]} of the dataset")
            return error
        return examples

    def poll(self, timeout: float | None) -> bool:
        """Returns whether the oldest request was answered within the timeout."""
        return bool(concurrent.futures.wait([self._pending[0]], timeout).done)

    def receive(self) -> list | BaseException:
        """Returns the examples of the oldest request, or the exception that the dataset raised."""
        answer = self._pending[0].result()
        self._pending.popleft()
        return answer

    def hang_up(self) -> None:
        """Makes the thread end as soon as it is idle."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Waits for the end of the thread."""
        self._thread.shutdown()
        self._pending.clear()


def _free(segment):
    if segment is not None:
        segment.close()
        segment.unlink()


def _read(pipe, dataset, seed, max_tasks):
    """Answers at most ``max_tasks`` requests, until the pipe is closed; the process runs this
    function."""
    np.random.seed(seed)
    random.seed(np.random.bytes(8))
    dataset = dataset.load()
    segments = {}
    n_tasks = 0
    while n_tasks != max_tasks:
        slot, name, n = pipe.recv()
        if slot not in segments or segments[slot].name != name:
            if slot in segments:
                segments[slot].close()
            segments[slot] = Segment(name=name)
        pipe.send(_answer(dataset, n, segments[slot].buf))
        n_tasks += 1


def _answer(dataset, n, memory):
    indices = np.frombuffer(memory, np.int64, n).tolist()
    examples = []
    try:
        for i in indices:
            examples.append(dataset[i])
        pickled = Pickled(to_columns(examples))
    except Exception as error:
        if len(examples) < n:
            error.add_note(f"while reading example {indices[len(examples)]} of the dataset")
        else:
            error.add_note("while examples were sent from another process: they must be picklable")
        return portable(error)
    if pickled.nbytes <= len(memory):
        return *pickled.lay_into(memory), None
    by_pipe = bytearray(pickled.nbytes)
    return *pickled.lay_into(by_pipe), by_pipe


class Columns:
    """Examples of one kind, stored by columns: all first elements, all second elements, ...

    Attributes:
        kind (type): tuple, dict, or None for examples with a single, bare element.
        keys (tuple): the keys of the dicts; None for other kinds.
        columns (list): for each element, an array of shape (n, ...) or a list of length n.

    Example:
        >>> Columns(tuple, None, [np.zeros((2, 3)), ["a", "b"]]).columns[1]
        ['a', 'b']
    """

    def __init__(self, kind: type | None, keys: tuple | None, columns: list):
        self.kind, self.keys, self.columns = kind, keys, columns


def to_columns(examples: list) -> Columns | list:
    """Returns the :class:`Columns` of a list of examples, or the list if their kinds, lengths
    or keys differ.

    Example:
        >>> to_columns([(np.zeros(3), "a"), (np.ones(3), "b")]).columns[0].shape
        (2, 3)
    """
    first = examples[0]
    kind = type(first)
    if any(type(example) is not kind for example in examples):
        return examples
    if kind is tuple and first:
        if any(len(example) != len(first) for example in examples):
            return examples
        return Columns(tuple, None, [_column(column) for column in zip(*examples)])
    if kind is dict and first:
        if any(example.keys() != first.keys() for example in examples):
            return examples
        columns = [_column([example[key] for example in examples]) for key in first]
        return Columns(dict, tuple(first), columns)
    return Columns(None, None, [_column(examples)])


def from_columns(columns: Columns | list) -> list:
    """Returns the list of examples from which :func:`to_columns` made ``columns``.

    Example:
        >>> from_columns(to_columns([{"x": 1}, {"x": 2}]))
        [{'x': 1}, {'x': 2}]
    """
    if not isinstance(columns, Columns):
        return columns
    if columns.kind is tuple:
        return list(zip(*columns.columns))
    if columns.keys is not None:
        return [dict(zip(columns.keys, row)) for row in zip(*columns.columns)]
    return list(columns.columns[0])


def _column(values):
    """Returns values as one array if the array can represent them exactly, otherwise as a list."""
    first = values[0]
    kind = type(first)
    if kind is np.ndarray and first.ndim > 0 and not first.dtype.hasobject:
        shape, dtype = first.shape, first.dtype
        if all(type(x) is kind and x.shape == shape and x.dtype == dtype for x in values):
            return np.concatenate(values, dtype=dtype).reshape(len(values), *shape)
    elif issubclass(kind, (np.number, np.bool_)) and all(type(x) is kind for x in values):
        return np.array(values, first.dtype)
    return list(values)

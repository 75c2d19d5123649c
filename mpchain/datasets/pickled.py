"""Datasets of arbitrary objects, stored with pickle; no other dataset unpickles a file."""

import os
import pickle
import pickletools
import threading
from typing import Any, BinaryIO, Self

from mpchain.dataset import DatasetMixin


class PickleDataset(DatasetMixin):
    """The objects in a file of :class:`PickleDatasetWriter`, each of which is read when needed.

    Never open a file from an untrusted source, because reading a pickle can run any code.

    Args:
        reader: file object opened for reading bytes, which must be able to seek.

    Raises:
        ValueError: the file does not consist of pickles; the check does not execute them.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> PickleDatasetWriter(file).write({"name": "a"})
        >>> PickleDataset(file)[0]
        {'name': 'a'}
    """

    def __init__(self, reader: BinaryIO):
        self._reader = reader
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._starts = _find_pickles(reader)

    def __len__(self) -> int:
        return len(self._starts)

    def get_example(self, i: int) -> Any:
        with self._lock:
            if self._process != os.getpid():
                self._open_again()
            self._reader.seek(self._starts[i])
            return pickle.load(self._reader)

    def _open_again(self):
        """Opens the file again in another process, because processes share the position in an
        inherited file."""
        name = self._reader.name
        self._reader.close()
        self._reader = open(name, "rb")
        self._process = os.getpid()

    def __getstate__(self) -> Any:
        name = getattr(self._reader, "name", None)
        if not isinstance(name, str):
            raise TypeError(
                "PickleDataset: only the dataset of a named file can be sent to other processes"
            )
        return {"_name": os.path.abspath(name), "_starts": self._starts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._starts = state["_starts"]
        self._reader = open(state["_name"], "rb")
        self._lock = threading.Lock()
        self._process = os.getpid()

    def close(self) -> None:
        """Closes the file object."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()


def _find_pickles(reader):
    """Returns the positions of the pickles in a file, from their operation codes, without
    executing."""
    starts = []
    reader.seek(0)
    while True:
        start = reader.tell()
        if not reader.read(1):
            return starts
        reader.seek(start)
        try:
            for _ in pickletools.genops(reader):
                pass
        except Exception as error:
            raise ValueError(
                f"PickleDataset: there is no pickle at byte {start} of {reader}: {error}"
            ) from error
        starts.append(start)


class PickleDatasetWriter:
    """Writes objects for a :class:`PickleDataset`.

    Args:
        writer: file object opened for writing bytes.
        protocol: version of pickle's format.

    Example:
        >>> with mpchain.utils.tempdir() as folder, open(f"{folder}/data", "wb") as file:
        ...     writer = PickleDatasetWriter(file)
        ...     writer.write({"name": "a"})
    """

    def __init__(self, writer: BinaryIO, protocol: int = pickle.HIGHEST_PROTOCOL):
        self._writer = writer
        self._protocol = protocol

    def write(self, x: object) -> None:
        """Appends an object to the file."""
        pickle.dump(x, self._writer, self._protocol)

    def flush(self) -> None:
        """Flushes the buffer to the file."""
        self._writer.flush()

    def close(self) -> None:
        """Closes the file object."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()


def open_pickle_dataset(path: str | os.PathLike) -> PickleDataset:
    """Opens a :class:`PickleDataset`; never open a file from an untrusted source.

    Args:
        path: path of a file that :func:`open_pickle_dataset_writer` made.

    Returns:
        The dataset, which must be closed, or used in a ``with`` block.

    Example:
        >>> with open_pickle_dataset("data.pkl") as dataset:  # doctest: +SKIP
        ...     first = dataset[0]
    """
    reader = open(path, "rb")
    try:
        return PickleDataset(reader)
    except BaseException:
        reader.close()
        raise


def open_pickle_dataset_writer(
    path: str | os.PathLike, protocol: int = pickle.HIGHEST_PROTOCOL
) -> PickleDatasetWriter:
    """Opens a :class:`PickleDatasetWriter`.

    Args:
        path: path of the file, which is overwritten.
        protocol: version of pickle's format.

    Returns:
        The writer, which must be closed, or used in a ``with`` block.

    Example:
        >>> with mpchain.utils.tempdir() as folder:
        ...     with open_pickle_dataset_writer(f"{folder}/data.pkl") as writer:
        ...         writer.write((1, "one"))
        ...     with open_pickle_dataset(f"{folder}/data.pkl") as dataset:
        ...         dataset[:]
        [(1, 'one')]
    """
    return PickleDatasetWriter(open(path, "wb"), protocol)

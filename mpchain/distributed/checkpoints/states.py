"""The state of an object on one rank, copied to host memory."""

import dataclasses
import hashlib

import numpy as np

from mpchain.backends import cuda
from mpchain.serializer import Serializer
from mpchain.serializers.values import to_array


@dataclasses.dataclass
class Value:
    """One value, or a part of it that this rank holds.

    Attributes:
        array (numpy.ndarray): the value, or the elements of its part.
        start (int): of the flattened whole, the first element of the part; None for the whole.
        shape: of the whole.
        is_persistent (bool): whether it is a persistent value of a link.
    """

    array: np.ndarray
    start: int | None
    shape: tuple
    is_persistent: bool = False

    def digest(self):
        """A text that is the same only for the same value."""
        head = repr((self.array.dtype.descr, self.array.shape, self.start, self.shape))
        digest = hashlib.blake2b(head.encode(), digest_size=16)
        digest.update(np.ascontiguousarray(self.array).reshape(-1).view(np.uint8))
        return digest.hexdigest()


class StateSerializer(Serializer):
    """Copies what an object saves; of what is divided among the ranks, this rank's part.

    An object whose arrays are divided calls :meth:`part` with its part, a link :meth:`persistent`
    for what may differ between ranks that train alike, such as statistics of their samples.

    Args:
        values (dict): filled with a :class:`Value` for each name.
        path (str): prefix of the names.
    """

    def __init__(self, values=None, path=""):
        self.values = {} if values is None else values
        self._path = path

    def __getitem__(self, key):
        return StateSerializer(self.values, f"{self._path}{key.strip('/')}/")

    def __call__(self, key, value):
        array = _copy(key, value)
        self.values[self._path + key.lstrip("/")] = Value(array, None, array.shape)
        return value

    def persistent(self, key, value):
        """Saves a persistent value of a link."""
        self(key, value)
        self.values[self._path + key.lstrip("/")].is_persistent = True
        return value

    def part(self, key, part, start, shape):
        """Saves a part of an array.

        Args:
            key (str): name of the array.
            part: flat array of the elements that this rank holds.
            start (int): the first of them, of the flattened whole in C order.
            shape: of the whole.
        """
        array = _copy(key, part)
        self.values[self._path + key.lstrip("/")] = Value(array, start, tuple(shape))


def _copy(key, value):
    array = to_array(key, value)
    is_copy = cuda.is_gpu_array(getattr(value, "array", value))
    return array if is_copy else array.copy()

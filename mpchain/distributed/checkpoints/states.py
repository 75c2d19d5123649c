"""The state of an object on one rank, copied to host memory."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpchain.backends import cuda
from mpchain.serializers import DictionarySerializer
from mpchain.serializers.values import to_array
from mpchain.typing import Array


@dataclasses.dataclass
class Value:
    """One value of an object, or the part of the value that this rank holds.

    Attributes:
        array: the value, or the elements of its part.
        start: index of the part's first element in the flattened value; None if it is the whole
            value.
        shape: the shape of the whole value.
        is_persistent: whether the value is a persistent value of a link.

    Example:
        >>> Value(np.zeros(3), 0, (2, 3)).digest()
        '4cac7724ae038c9ca76df446fc6ea533'
    """

    array: np.ndarray
    start: int | None
    shape: tuple[int, ...]
    is_persistent: bool = False

    def digest(self) -> str:
        """Returns a checksum of the dtype, shape, position and bytes of the value."""
        head = repr((self.array.dtype.descr, self.array.shape, self.start, self.shape))
        digest = hashlib.blake2b(head.encode(), digest_size=16)
        digest.update(np.ascontiguousarray(self.array).reshape(-1).view(np.uint8))
        return digest.hexdigest()

    def index_entry(self) -> dict[str, Any]:
        """Returns the facts about the value that other ranks need."""
        index = {"digest": self.digest(), "bytes": self.array.nbytes, "start": self.start}
        return index | {"shape": self.shape, "is_persistent": self.is_persistent}


class StateSerializer(DictionarySerializer):
    """Copies the values that an object saves, or this rank's parts of divided values.

    An object whose arrays are divided calls :meth:`part` with its part. A link calls
    :meth:`persistent` for values that may differ between ranks that train alike, such as statistics
    of their samples.

    Args:
        target: filled with a :class:`Value` for each name.
        path: prefix of the names.

    Example:
        >>> serializer = StateSerializer()
        >>> serializer.save(L.Linear(3, 2))
        >>> {name: value.shape for name, value in serializer.target.items()}
        {'W': (2, 3), 'b': (2,)}
    """

    takes_parts = True

    def __call__(self, key: str, value: object) -> Any:
        array = _copy(key, value)
        self.target[self.path + key.lstrip("/")] = Value(array, None, array.shape)
        return value

    def persistent(self, key: str, value: object) -> Any:
        self(key, value)
        self.target[self.path + key.lstrip("/")].is_persistent = True
        return value

    def part(self, key: str, part: Array, start: int, shape: Sequence[int]) -> None:
        """Saves a part of an array.

        Args:
            key: name of the array.
            part: flat array of the elements that this rank holds.
            start: index of the part's first element in the flattened whole array, in C order.
            shape: the shape of the whole array.
        """
        array = _copy(key, part)
        self.target[self.path + key.lstrip("/")] = Value(array, start, tuple(shape))


def _copy(key, value):
    array = to_array(key, value)
    is_copy = cuda.is_gpu_array(getattr(value, "array", value))
    return array if is_copy else array.copy()

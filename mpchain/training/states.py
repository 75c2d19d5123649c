"""Optional entries of files, and states of objects that are kept in memory."""

import contextlib
import json
from typing import Any

from mpchain.serializer import AbstractSerializer, MissingKeyError, Serializable, Serializer
from mpchain.serializers import DictionarySerializer, NpzDeserializer
from mpchain.serializers.values import is_none, to_array


def is_loading(serializer: AbstractSerializer) -> bool:
    """Returns whether the serializer restores values, rather than saves them."""
    return not isinstance(serializer, Serializer)


def serialize_optional(serializer: AbstractSerializer, key: str, value: Any) -> Any:
    """Saves or restores a value that files of older versions, or of Chainer, may lack.

    Returns:
        The stored value, or ``value`` if the file has no such entry.

    Example:
        >>> from mpchain.serializers import NpzDeserializer
        >>> serialize_optional(NpzDeserializer({}), "count", 5)
        5
    """
    try:
        return serializer(key, value)
    except MissingKeyError:
        return value


def parse_json(text: str, kind: type) -> Any:
    """Returns the value of a JSON text from a file.

    Raises:
        ValueError: the text is not JSON, or its value is not a ``kind``.

    Example:
        >>> parse_json("[1, 2]", list)
        [1, 2]
    """
    value = json.loads(text)
    if not isinstance(value, kind):
        raise ValueError(f"the JSON text must be a {kind.__name__}, not a {type(value).__name__}")
    return value


def serialize_part(part: Serializable, serializer: AbstractSerializer) -> None:
    """Saves or restores a part if it has ``serialize``; a trigger may be a plain function."""
    if hasattr(part, "serialize"):
        part.serialize(serializer)


def serialize_part_if_stored(part: object, serializer: AbstractSerializer) -> None:
    """Does the same as :func:`serialize_part`, unless the file lacks the part."""
    with contextlib.suppress(MissingKeyError):
        serialize_part(part, serializer)


class FrozenState:
    """An in-memory copy of the values that an object saves; the object may change afterwards.

    The copy can be saved later instead of the object, or be restored into the object.

    Args:
        target: the object, which has ``serialize``; None makes an empty state, into which a file
            can be loaded.

    Example:
        >>> link = L.Scale(W_shape=(2,), bias_term=False)
        >>> state = FrozenState(link)
        >>> link.W.array[...] = 5
        >>> state.restore(link)
        >>> link.W.array
        array([1., 1.], dtype=float32)
    """

    def __init__(self, target: object = None) -> None:
        recorder = DictionarySerializer()
        if target is not None:
            recorder.save(target)
        arrays = recorder.target.items()
        self._values = {key: None if is_none(array) else array.copy() for key, array in arrays}

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves the state as the object itself would be saved."""
        for key, value in self._values.items():
            serializer(key, value)

    def serialize_with_names(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the state with the names of its values, so that an empty state can load
        a file of any object."""
        names = serialize_optional(serializer, "names", json.dumps(list(self._values)))
        self._values = {name: self._values.get(name) for name in json.loads(names)}
        for name, value in self._values.items():
            present = None if is_loading(serializer) else value
            self._values[name] = serializer(f"values/{name}", present)

    def __bool__(self) -> bool:
        return bool(self._values)

    def restore(self, target: object) -> None:
        """Restores the state into the object, or into a similar object."""
        arrays = {key: to_array(key, value) for key, value in self._values.items()}
        NpzDeserializer(arrays).load(target)

"""Optional entries of files, and states that are kept in memory."""

import contextlib
import json

import numpy as np

from mpchain.serializer import MissingKeyError, Serializer
from mpchain.serializers import NpzDeserializer
from mpchain.serializers.values import to_array


def is_loading(serializer) -> bool:
    """Returns whether the serializer restores, rather than saves."""
    return not isinstance(serializer, Serializer)


def serialize_optional(serializer, key, value):
    """Saves or restores a value that files of older versions, or of Chainer, do not hold.

    Returns:
        What was stored; ``value`` if there is nothing.
    """
    try:
        return serializer(key, value)
    except MissingKeyError:
        return value


def serialize_part_if_stored(part, serializer):
    """Saves or restores a part that has ``serialize``, and that a file may lack as a whole."""
    if hasattr(part, "serialize"):
        with contextlib.suppress(MissingKeyError):
            part.serialize(serializer)


class FrozenState:
    """What an object saves, kept in memory as it is now while the object goes on changing.

    It can be saved later in place of the object, or be put back into it.

    Args:
        target: the object, which has ``serialize``; None makes an empty state, to be loaded.
    """

    def __init__(self, target=None):
        self._values = {}
        if target is not None:
            _Recorder(self._values).save(target)

    def serialize(self, serializer):
        """Saves the state as the object would have been saved."""
        for key, value in self._values.items():
            serializer(key, value)

    def serialize_with_names(self, serializer):
        """Saves the state, or restores it, whatever object it is of."""
        names = serialize_optional(serializer, "names", json.dumps(list(self._values)))
        self._values = {name: self._values.get(name) for name in json.loads(names)}
        for name, value in self._values.items():
            present = None if is_loading(serializer) else value
            self._values[name] = serializer(f"values/{name}", present)

    def __bool__(self):
        return bool(self._values)

    def restore(self, target):
        """Puts the state back into the object, or into another one like it."""
        arrays = {key: to_array(key, value) for key, value in self._values.items()}
        NpzDeserializer(arrays).load(target)


class _Recorder(Serializer):
    """Keeps copies on the host."""

    def __init__(self, values, path=""):
        self._values = values
        self._path = path

    def __getitem__(self, key):
        return _Recorder(self._values, f"{self._path}{key.strip('/')}/")

    def __call__(self, key, value):
        key = self._path + key.lstrip("/")
        self._values[key] = None if value is None else np.array(to_array(key, value))
        return value

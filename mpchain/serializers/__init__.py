"""Saving objects to files and restoring them."""

from mpchain.serializer import MissingKeyError, SerializationError
from mpchain.serializers.files import open_atomic
from mpchain.serializers.npz import DictionarySerializer, NpzDeserializer, load_npz, save_npz

__all__ = [
    "DictionarySerializer",
    "MissingKeyError",
    "NpzDeserializer",
    "SerializationError",
    "load_npz",
    "open_atomic",
    "save_npz",
]

"""Saving objects to files and restoring them."""

from mpchain.serializer import DamagedFileError, MissingKeyError, SerializationError
from mpchain.serializers.files import open_atomic
from mpchain.serializers.hdf5 import HDF5Deserializer, HDF5Serializer, load_hdf5, save_hdf5
from mpchain.serializers.npz import DictionarySerializer, NpzDeserializer, load_npz, save_npz
from mpchain.serializers.safetensors import load_safetensors, save_safetensors

__all__ = [
    "DamagedFileError",
    "DictionarySerializer",
    "HDF5Deserializer",
    "HDF5Serializer",
    "MissingKeyError",
    "NpzDeserializer",
    "SerializationError",
    "load_hdf5",
    "load_npz",
    "load_safetensors",
    "open_atomic",
    "save_hdf5",
    "save_npz",
    "save_safetensors",
]

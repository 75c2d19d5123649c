"""Saving objects to files and restoring them."""

from mpchain.serializer import DamagedFileError as DamagedFileError
from mpchain.serializer import MissingKeyError as MissingKeyError
from mpchain.serializer import SerializationError as SerializationError
from mpchain.serializers.files import open_atomic as open_atomic
from mpchain.serializers.hdf5 import HDF5Deserializer as HDF5Deserializer
from mpchain.serializers.hdf5 import HDF5Serializer as HDF5Serializer
from mpchain.serializers.hdf5 import load_hdf5 as load_hdf5
from mpchain.serializers.hdf5 import save_hdf5 as save_hdf5
from mpchain.serializers.npz import DictionarySerializer as DictionarySerializer
from mpchain.serializers.npz import NpzDeserializer as NpzDeserializer
from mpchain.serializers.npz import load_npz as load_npz
from mpchain.serializers.npz import save_npz as save_npz
from mpchain.serializers.safetensors import load_safetensors as load_safetensors
from mpchain.serializers.safetensors import save_safetensors as save_safetensors

"""Tests that a damaged snapshot of any format loads the saved values or raises mpchain's error."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

from mpchain.serializers import (
    HDF5Deserializer,
    HDF5Serializer,
    SerializationError,
    load_hdf5,
    load_safetensors,
    save_hdf5,
    save_safetensors,
)
from tests.serializers.corruption import KINDS, Model, corrupt

pytestmark = pytest.mark.slow

h5py = pytest.importorskip("h5py")
ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("times", [50, pytest.param(500, marks=pytest.mark.long)])
def test_random_corruptions(tmp_path, times):
    """The loads run in a separate process, which must neither crash nor hang."""
    command = [sys.executable, "-m", "tests.serializers.corruption", str(tmp_path), str(times)]
    done = subprocess.run(
        [*command, *KINDS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    errors = dict(line.split() for line in done.stdout.splitlines())
    assert set(errors) == set(KINDS)
    assert min(map(int, errors.values())) > 0.8 * times


def damage(path, found, at=0):
    content = bytearray(path.read_bytes())
    content[content.index(found) + at] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("save", "load"),
    [
        (lambda path, obj: save_hdf5(path, obj, compression=None), load_hdf5),
        (save_safetensors, load_safetensors),
    ],
)
@pytest.mark.parametrize("name", ["predictor/l2/W", "updater/model:main/predictor/l1/W"])
def test_the_message_names_file_and_array(tmp_path, save, load, name):
    path = tmp_path / "snapshot"
    save(path, Model(1))
    damage(path, Model(1).values[name].tobytes(), 100)
    message = (
        rf"^load_\w+: {path}: array '{name}' cannot be read: .*checksum|^{path}: array '{name}"
    )
    with pytest.raises(SerializationError, match=message):
        load(path, Model(2))


def test_the_message_names_a_compressed_array(tmp_path):
    path = tmp_path / "snapshot"
    save_hdf5(path, Model(1))
    damage(path, b"\x78\x5e")  # this is zlib's header for level 4, at the first chunk of the file
    with pytest.raises(SerializationError, match=f"{path}: array '.*/?W' cannot be read"):
        load_hdf5(path, Model(2))


def test_hdf5_metadata_and_table_are_verified(tmp_path):
    path = tmp_path / "snapshot"
    for found, message in (
        (b"HDF\r\n", "the metadata of its arrays fails its checksum"),
        (b"mpchain sealed", "its first and last block differ"),
        (b'"arrays": {', "the table of its checksums fails its own checksum"),
    ):
        save_hdf5(path, Model(1))
        damage(path, found)
        with pytest.raises(SerializationError, match=f"{path} is damaged: {message}"):
            load_hdf5(path, Model(2))


def test_safetensors_header_is_verified(tmp_path):
    path = tmp_path / "snapshot"
    save_safetensors(path, Model(1))
    damage(path, b'"predictor/l2/W"', 1)
    with pytest.raises(
        SerializationError, match=f"{path} is not a .*: the header fails its checksum"
    ):
        load_safetensors(path, Model(2))


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
def test_truncated_files(tmp_path, keep):
    path = tmp_path / "snapshot"
    for save, load in ((save_hdf5, load_hdf5), (save_safetensors, load_safetensors)):
        save(path, Model(1))
        content = path.read_bytes()
        path.write_bytes(content[: int(keep * len(content))])
        with pytest.raises(SerializationError, match=str(path)):
            load(path, Model(2))


def test_hdf5_datasets_have_checksums_of_their_own(tmp_path):
    """If the file is not sealed, because a user made the group, each array is still verified."""
    with h5py.File(tmp_path / "file", "w") as file:
        HDF5Serializer(file.create_group("a"), compression=None).save(Model(1))
    saved, target = Model(1), Model(2)
    with h5py.File(tmp_path / "file") as file:
        HDF5Deserializer(file["a"]).load(target)
    assert target.state() == saved.state()
    damage(tmp_path / "file", saved.values["predictor/l2/W"].tobytes(), 100)
    message = "array 'a/predictor/l2/W' cannot be read: the content fails its checksum"
    with (
        h5py.File(tmp_path / "file") as file,
        pytest.raises(SerializationError, match=message),
    ):
        HDF5Deserializer(file["a"]).load(Model(2))


def test_a_number_of_seeds_damage_nothing():
    """Random faults that change no bytes would test nothing."""
    content = np.random.RandomState(0).bytes(5000)
    changed = [corrupt(content, np.random.RandomState(seed)) != content for seed in range(500)]
    assert sum(changed) > 480

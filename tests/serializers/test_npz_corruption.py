"""Tests .npz files that are damaged at particular positions (test_corruption.py damages random
positions)."""

import pytest

from mpchain.serializers import SerializationError, load_npz, save_npz
from tests.serializers.corruption import Model

pytestmark = pytest.mark.slow


def test_each_bit_of_the_directory(tmp_path):
    """Flips a bit of each byte of the archive's list of members, and loads without the strict
    check."""
    path = tmp_path / "snapshot"
    saved = Model(1)
    save_npz(path, saved)
    content = path.read_bytes()
    directory = content.index(b"PK\1\2")
    for at in range(directory, len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        target = Model(2)
        try:
            load_npz(path, target, strict=False)
        except SerializationError:
            continue
        assert target.state() == saved.state(), at


def test_the_message_names_file_and_array(tmp_path):
    path = tmp_path / "snapshot"
    save_npz(path, Model(1))
    content = bytearray(path.read_bytes())
    content[content.index(Model(1).values["predictor/l2/W"].tobytes()) + 1000] ^= 4
    path.write_bytes(content)
    message = f"{path}: array 'predictor/l2/W' cannot be read: Bad CRC-32"
    with pytest.raises(SerializationError, match=message):
        load_npz(path, Model(2))


@pytest.mark.parametrize("field", [4, 8, 12, 16, 20])
def test_an_end_of_zeros_is_noticed_without_strict(tmp_path, field):
    """A crash of the machine can leave such a block: a directory that says that it is empty."""
    path = tmp_path / "snapshot"
    save_npz(path, Model(1))
    content = path.read_bytes()
    end = content.rindex(b"PK\5\6") + field
    path.write_bytes(content[:end] + bytes(len(content) - end))
    with pytest.raises(SerializationError, match="snapshot"):
        load_npz(path, Model(2), strict=False)


def test_an_array_that_vanished_is_noticed_without_strict(tmp_path):
    path = tmp_path / "snapshot"
    save_npz(path, Model(1))
    content = bytearray(path.read_bytes())
    # The comment length of the first directory entry covers the next entry.
    start = content.index(b"PK\1\2")
    following = content.index(b"PK\1\2", start + 4)
    length = content.index(b"PK\1\2", following + 4) - following
    content[start + 32 : start + 34] = length.to_bytes(2, "little")
    path.write_bytes(content)
    with pytest.raises(SerializationError, match="its list of arrays fails its checksum"):
        load_npz(path, Model(2), strict=False)

"""A damaged .npz file loads what was saved, or gives the project's error."""

import numpy as np
import pytest

from mpchain.serializers import DictionarySerializer, SerializationError, load_npz, save_npz


class Model:
    """Two layers, a few scalars, strings and None; names of several lengths."""

    def __init__(self, seed):
        random = np.random.RandomState(seed)
        self.values = {
            "updater/model:main/predictor/l1/W": random.normal(size=(5, 7)).astype(np.float32),
            "updater/model:main/predictor/l1/b": random.normal(size=5),
            "predictor/l2/W": random.normal(size=(300,)),
            "n": int(random.randint(1000)),
            "t": random.rand(),
            "name": f"model {seed}",
            "nothing": None,
            "empty": np.zeros((0, 3)),
        }

    def serialize(self, serializer):
        for key, value in self.values.items():
            self.values[key] = serializer(key, value)

    def state(self):
        serializer = DictionarySerializer()
        serializer.save(self)
        return {key: (a.dtype, a.shape, a.tobytes()) for key, a in serializer.target.items()}


def corrupt(content, random):
    """One of the accidents that happen to files."""
    n = len(content)
    at = random.randint(n)
    length = random.randint(1, 200)
    kind = random.randint(6)
    damaged = bytearray(content)
    if kind == 0:
        damaged[at] ^= 1 << random.randint(8)
    elif kind == 1:
        damaged[at : at + length] = random.bytes(len(damaged[at : at + length]))
    elif kind == 2:
        damaged[at : at + length] = bytes(len(damaged[at : at + length]))
    elif kind == 3:
        del damaged[at:]
    elif kind == 4:
        del damaged[at : at + length]
    else:
        damaged[at:at] = random.bytes(length)
    return bytes(damaged)


@pytest.mark.parametrize("compression", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_random_corruption(tmp_path, compression, strict):
    path = tmp_path / "snapshot"
    saved = Model(1)
    save_npz(path, saved, compression)
    content = path.read_bytes()
    errors = 0
    for seed in range(100):
        path.write_bytes(corrupt(content, np.random.RandomState(seed)))
        target = Model(2)
        before = target.state()
        try:
            load_npz(path, target, strict=strict)
        except SerializationError as error:
            assert str(path) in str(error), seed
            assert target.state() == before, seed
            errors += 1
        else:
            assert target.state() == saved.state(), seed
    assert errors > 50


def test_each_bit_of_the_directory(tmp_path):
    """Single bits where the archive's list of members is, without the strict check's help."""
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
    """What a crash of the machine leaves of a block: here a directory that says it is empty."""
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
    # The first directory entry's comment length swallows the next entry.
    start = content.index(b"PK\1\2")
    following = content.index(b"PK\1\2", start + 4)
    length = content.index(b"PK\1\2", following + 4) - following
    content[start + 32 : start + 34] = length.to_bytes(2, "little")
    path.write_bytes(content)
    with pytest.raises(SerializationError, match="its list of arrays fails its checksum"):
        load_npz(path, Model(2), strict=False)

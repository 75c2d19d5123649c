"""Damages snapshot files at random and loads them. This is a separate program, because a library
that reads a damaged file might crash or hang.

    python -m tests.serializers.corruption FOLDER N_SEEDS KIND...
"""

import sys

import numpy as np

from mpchain import serializers
from mpchain.serializers import DictionarySerializer, SerializationError


def _save_compressed(file, obj):
    serializers.save_npz(file, obj, compression=True)


def _save_plain_hdf5(file, obj):
    serializers.save_hdf5(file, obj, compression=None)


def _load_leniently(file, obj):
    serializers.load_npz(file, obj, strict=False)


KINDS = {
    "npz": (serializers.save_npz, serializers.load_npz),
    "npz-lenient": (serializers.save_npz, _load_leniently),
    "npz-compressed": (_save_compressed, serializers.load_npz),
    "npz-compressed-lenient": (_save_compressed, _load_leniently),
    "hdf5": (_save_plain_hdf5, serializers.load_hdf5),
    "hdf5-compressed": (serializers.save_hdf5, serializers.load_hdf5),
    "safetensors": (serializers.save_safetensors, serializers.load_safetensors),
    "safetensors-lenient": (
        serializers.save_safetensors,
        lambda file, obj: serializers.load_safetensors(file, obj, strict=False),
    ),
}


class Model:
    """A model with two layers, two numbers, a string, None, an empty array, and names of several
    lengths."""

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
    """Returns the content with one random fault of a kind that occurs in practice."""
    n = len(content)
    at = random.randint(n)
    length = random.randint(1, 200)
    kind = random.randint(7)
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
    elif kind == 5:
        damaged[at:at] = random.bytes(length)
    else:  # a crash of the machine leaves blocks that were never written
        damaged[at:] = bytes(n - at)
    return bytes(damaged)


def run(kind, folder, seeds):
    """Loads a file damaged with each seed; returns how many loads raised an error.

    Raises:
        AssertionError: one loaded something else than what was saved, changed the object although
            it gave an error, gave an error without the file's name, or made Python unpickle or
            execute anything.
    """
    save, load = KINDS[kind]
    path = f"{folder}/snapshot"
    saved = Model(1)
    save(path, saved)
    with open(path, "rb") as file:
        content = file.read()
    load(path, Model(2))  # modules that are imported at first use are imported now
    forbidden = []

    def audit(event, args):
        if event in ("pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "exec"):
            forbidden.append((event, args))

    sys.addaudithook(audit)
    errors = 0
    for seed in seeds:
        with open(path, "wb") as file:
            file.write(corrupt(content, np.random.RandomState(seed)))
        target = Model(2)
        before = target.state()
        try:
            load(path, target)
        except SerializationError as error:
            assert path in str(error), (seed, error)
            assert target.state() == before, seed
            errors += 1
        else:
            assert target.state() == saved.state(), seed
        assert not forbidden, (seed, forbidden)
    return errors


if __name__ == "__main__":
    for kind in sys.argv[3:]:
        print(kind, run(kind, sys.argv[1], range(int(sys.argv[2]))))

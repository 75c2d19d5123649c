"""Saves parameters as HDF5 and npz files."""

import chainer.links as L
import numpy as np
from chainer import serializers

link = L.Linear(2, 3, initialW=np.arange(6).reshape(3, 2).astype("f"))
serializers.save_hdf5("link.h5", link)
serializers.save_npz("link.npz", link)
with np.load("link.npz") as file:
    assert sorted(file.files) == ["W", "b"]
first, second = L.Linear(2, 3), L.Linear(2, 3)
serializers.load_hdf5("link.h5", first)
serializers.load_npz("link.npz", second)
print(first.W.data.sum(), second.W.data.sum())

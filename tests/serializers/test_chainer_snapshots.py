"""Tests snapshots that Chainer 7.8.1 wrote (the files in ``data``, made by
``chainer_snapshots.py``)."""

import pathlib

import numpy as np
import pytest

import mpchain
from mpchain.serializers import load_hdf5, load_npz
from tests.serializers.chainer_snapshots import make

DATA = pathlib.Path(__file__).parent / "data"


@pytest.mark.parametrize(("load", "extension"), [(load_npz, "npz"), (load_hdf5, "h5")])
def test_model_and_optimizer(load, extension):
    if extension == "h5":
        pytest.importorskip("h5py")
    model, optimizer, arrays = make(mpchain, False)
    load(DATA / f"model.{extension}", model)
    load(DATA / f"optimizer.{extension}", optimizer)
    expected = make(mpchain, True)[2]
    assert len(arrays) == 13
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    assert (model.count, model.nothing, optimizer.t) == (7, None, 5)
    assert model.lazy.W.array is None
    assert model.l1.W.update_rule.t == 5

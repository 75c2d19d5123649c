"""Tests that mpchain loads files of Chainer 7.8.1, and Chainer files of mpchain, and that training
continues with the same numbers."""

import os
import pathlib
import subprocess

import numpy as np
import pytest

from mpchain import links as L
from mpchain.link import Chain
from mpchain.serializer import MissingKeyError, SerializationError
from mpchain.serializers import load_npz
from tests.chainer_files import make

HERE = pathlib.Path(make.__file__).parent
PYTHON = os.environ.get("MPCHAIN_TEST_CHAINER_PYTHON")
# Two libraries compute six steps, and sum in different orders.
TOLERANCE = {"rtol": 3e-6, "atol": 1e-6}


def assert_same(actual, expected):
    assert set(actual) == set(expected)
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], **TOLERANCE, err_msg=name)


def test_files_of_chainer_load_here():
    with np.load(HERE / "expected.npz") as expected:
        assert_same(make.go_on("mpchain", HERE), expected)


@pytest.mark.skipif(
    not PYTHON, reason="MPCHAIN_TEST_CHAINER_PYTHON names no interpreter that has Chainer 7.8.1"
)
def test_our_files_load_in_chainer(tmp_path):
    make.write("mpchain", tmp_path)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [PYTHON, "-W", "error::UserWarning", make.__file__, "continue", "chainer", tmp_path]
    subprocess.run(command, env=environment, check=True)
    with np.load(tmp_path / "continued.npz") as actual, np.load(tmp_path / "expected.npz") as ours:
        assert_same(actual, ours)


def test_the_files_are_small():
    assert max(path.stat().st_size for path in HERE.glob("*.npz")) < 100_000


# Files that do not fit


def trainer_of(name, tmp_path):
    return make.make_trainer("mpchain", name, str(tmp_path), make.END)[0]


def changed(path, tmp_path, without=(), **more):
    """Writes a copy of an .npz file without some of its arrays, and with additional arrays."""
    with np.load(path) as arrays:
        kept = {name: arrays[name] for name in arrays if name not in without}
    np.savez(tmp_path / "changed.npz", **kept, **more)
    return tmp_path / "changed.npz"


MISSING = [
    "updater/model:main/predictor/l1/W",
    "updater/optimizer:main/predictor/l1/W/v",
    "updater/iterator:main/order",
    "extensions/LogReport/_log",
    "stop_trigger/previous_iteration",
]


@pytest.mark.parametrize("missing", MISSING)
def test_a_snapshot_that_lacks_something(missing, tmp_path):
    path = changed(HERE / "MomentumSGD_snapshot.npz", tmp_path, [missing], more=np.zeros(1))
    with pytest.raises(MissingKeyError, match=r"changed\.npz") as raised:
        load_npz(path, trainer_of("MomentumSGD", tmp_path))
    assert missing in str(raised.value)


def test_missing_and_unknown_arrays_are_listed(tmp_path):
    without = ["predictor/l1/W", "predictor/bn/beta"]
    path = changed(HERE / "Adam_model.npz", tmp_path, without, stranger=np.zeros(3))
    model = trainer_of("Adam", tmp_path).updater.get_optimizer("main").target
    with pytest.raises(
        MissingKeyError,
        match="missing: predictor/bn/beta, predictor/l1/W; arrays that are not requested: stranger",
    ):
        load_npz(path, model)


def test_what_a_file_lacks_stays_as_it_is_unless_strict(tmp_path):
    path = changed(HERE / "Adam_model.npz", tmp_path, ["predictor/l1/W"], stranger=np.zeros(3))
    model = trainer_of("Adam", tmp_path).updater.get_optimizer("main").target
    W = model.predictor.l1.W.array.copy()
    load_npz(path, model, strict=False)
    np.testing.assert_array_equal(model.predictor.l1.W.array, W)
    with np.load(path) as arrays:
        np.testing.assert_array_equal(model.predictor.l2[0].W.array, arrays["predictor/l2/0/W"])


def test_what_nothing_asks_for_does_no_harm(tmp_path):
    path = changed(HERE / "Adam_snapshot.npz", tmp_path, stranger=np.zeros(3))
    trainer = trainer_of("Adam", tmp_path)
    load_npz(path, trainer)
    assert trainer.updater.iteration == make.HALF_WAY


def test_a_dataset_of_another_size(tmp_path):
    path = changed(
        HERE / "Adam_snapshot.npz", tmp_path, **{"updater/iterator:main/dataset_size": np.array(7)}
    )
    with pytest.raises(SerializationError, match="had 7 examples, but this dataset has 40"):
        load_npz(path, trainer_of("Adam", tmp_path))


def test_a_shape_that_does_not_fit():
    model = Chain(predictor=Chain(l1=L.Linear(5, 9)))
    with pytest.raises(SerializationError, match=r"'predictor/l1/W' has shape \(8, 5\)"):
        load_npz(HERE / "Adam_model.npz", model)


@pytest.mark.parametrize("strict", [True, False])
def test_pickled_objects_are_refused(strict, tmp_path):
    path = changed(
        HERE / "Adam_model.npz", tmp_path, ["predictor/l1/W"], evil=np.array([{}], object)
    )
    model = trainer_of("Adam", tmp_path).updater.get_optimizer("main").target
    before = model.predictor.l2[0].W.array.copy()
    with pytest.raises(SerializationError, match=r"'evil'.*pickled Python objects.*never loaded"):
        load_npz(path, model, strict=strict)
    np.testing.assert_array_equal(model.predictor.l2[0].W.array, before)

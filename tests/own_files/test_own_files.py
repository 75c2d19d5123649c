"""Tests that files of an earlier version of mpchain load with the same bits."""

import pathlib
import shutil
import sys

import numpy as np
import pytest

import mpchain
from mpchain import links as L
from mpchain import serializers
from tests.distributed import ranks
from tests.own_files import make

HERE = pathlib.Path(make.__file__).parent


@pytest.fixture(scope="module")
def expected():
    with np.load(HERE / "expected.npz") as values:
        return dict(values)


def assert_same(found, expected, prefix):
    of_prefix = {k: v for k, v in expected.items() if k.startswith(prefix + "/")}
    assert of_prefix
    assert set(of_prefix) == set(found)
    for name, value in of_prefix.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name, strict=True)


@pytest.mark.parametrize("file", ["model.npz", "model.h5", "model.safetensors"])
def test_models(file, expected):
    model = L.Classifier(make.Network())
    for parameter in model.params():
        parameter.array[...] = np.nan
    kind = file.partition(".")[2].replace("h5", "hdf5")
    if kind == "hdf5":
        pytest.importorskip("h5py")
    getattr(serializers, f"load_{kind}")(HERE / file, model)
    assert_same({f"model/{k}": v for k, v in make.state_of(model).items()}, expected, "model")


@pytest.mark.parametrize("name", make.OPTIMIZERS)
def test_optimizers(name, expected):
    optimizer = make.OPTIMIZERS[name]().setup(L.Classifier(make.Network()))
    serializers.load_npz(HERE / f"{name}.npz", optimizer)
    assert_same({f"{name}/{k}": v for k, v in make.state_of(optimizer).items()}, expected, name)


@pytest.mark.parametrize("file", make.TRAINERS)
def test_trainers(file, expected, tmp_path):
    trainer = make.make_trainer(tmp_path, make.TRAINERS[file], end=make.STEPS + 1)
    serializers.load_npz(HERE / file, trainer)
    assert trainer.updater.iteration == make.STEPS
    for part in ("model", "optimizer"):
        assert_same(make.part_of(trainer, file, part), expected, f"{file}/{part}")
    trainer.run()
    assert trainer.updater.iteration == make.STEPS + 1


def resume(kind, folder, expected):
    comm = mpchain.create_communicator("naive")
    if comm.rank == 0:
        shutil.copytree(HERE / kind, folder / kind)
    comm.barrier()
    trainer = make.train_on_ranks(folder, kind, comm)  # the trainer is already at its last step
    assert trainer.updater.iteration == make.STEPS
    if comm.size == 1:  # one rank gets the mean of the two ranks' statistics
        of_ranks = [f"{kind}/{rank}/model/" for rank in range(2)]
        for name in [k for k in expected if k.startswith(of_ranks[0])]:
            other = expected[name.replace(*of_ranks)]
            mean = (expected[name].astype(np.float64) + other) / 2
            expected[name] = mean.astype(other.dtype)
    prefix = f"{kind}/{comm.rank}"
    assert_same(make.part_of(trainer, prefix, "model"), expected, f"{prefix}/model")


@pytest.mark.parametrize("kind", ["checkpoint", "sharded"])
def test_checkpoints_of_two_ranks_load_in_one_process(kind, expected, tmp_path):
    resume(kind, tmp_path, dict(expected))


@pytest.mark.slow
@pytest.mark.skipif(bool(ranks.why_not()), reason=ranks.why_not())
def test_files_of_two_ranks_load_on_two_ranks(tmp_path):
    status, outputs, own = ranks.run(2, ["-m", __name__, str(tmp_path)])
    assert status == 0, "\n".join([*outputs, own])


if __name__ == "__main__":
    with np.load(HERE / "expected.npz") as values:
        for each in make.OF_RANKS:
            resume(each, pathlib.Path(sys.argv[1]), dict(values))

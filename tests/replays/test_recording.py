"""Tests the content of records, and the warnings when recording stops."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import optimizers
from mpchain.replays.history import History
from mpchain.replays.recording import Recorder
from mpchain.replays.records import FORMAT, RecordError
from tests.replays import programs

ABOUT = {"format": FORMAT}


def _train(folder, n_steps, n_units=3, **options):
    model = L.Linear(4, n_units)
    comm = mpchain.create_communicator()
    optimizer = mpchain.create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
    with Recorder(str(folder), ABOUT) as recorder:
        for _ in range(n_steps):
            optimizer.update(lambda x: F.sum(model(x) ** 2), np.ones((2, 4), np.float32))
    return recorder


def test_another_run_in_the_same_folder_replaces_the_first(tmp_path):
    _train(tmp_path, 5)
    assert [*History(tmp_path).main.updates] == [1, 2, 3, 4, 5]
    _train(tmp_path, 3, n_units=7)
    assert [*History(tmp_path).main.updates] == [1, 2, 3]
    assert History(tmp_path).main.shape[0][1] == [7, 4]
    _train(tmp_path, 0)
    assert [*History(tmp_path).main.updates] == [1, 2, 3]


def test_a_disk_that_fails_ends_the_record_not_the_training(tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(RuntimeWarning, match="--record: nothing is recorded any more in .*file"):
        _train(tmp_path / "file", 3)


def test_optimizers_of_a_part_of_the_ranks_are_not_recorded(tmp_path):
    comm = mpchain.create_communicator()
    recorder = Recorder(str(tmp_path), ABOUT)
    all_ranks = type("All", (), {"size": 2, "rank": 0})()
    recorder.communicator(all_ranks)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.SGD(), comm).setup(L.Linear(2, 1))
    with pytest.warns(RuntimeWarning, match="averages over only some ranks"), recorder:
        optimizer.update(lambda: F.sum(optimizer.target(np.ones((1, 2), np.float32))))
    with pytest.raises(RecordError, match="there is no record in"):
        History(tmp_path)


def test_gradients_that_are_only_added_up_are_no_update(tmp_path):
    model = L.Linear(4, 1)
    comm = mpchain.create_communicator()
    optimizer = mpchain.create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
    x = np.ones((2, 4), np.float32)
    with Recorder(str(tmp_path), ABOUT):
        for _ in range(2):
            with optimizer.no_sync():
                optimizer.update(lambda x: F.sum(model(x)), x)
            optimizer.update(lambda x: F.sum(model(x)), x)
    assert [*History(tmp_path).main.updates] == [1, 2]


@pytest.mark.annex("launcher")
@pytest.mark.slow
@pytest.mark.parametrize("option, folder", [("--record", "record"), ("--record=a/b", "a/b")])
def test_the_option_of_the_launcher(tmp_path, option, folder):
    """A folder follows an equals sign, so that the script's name is not mistaken for a folder;
    programs may have an option with the same name."""
    (tmp_path / "train.py").touch()
    printed = programs.launch(tmp_path, "-n", 1, "--dry-run", option, "train.py", "--record", "x")
    assert f"MPCHAIN_RECORD={tmp_path}/{folder}\n" in printed
    assert printed.rstrip().endswith("train.py --record x")
    assert "MPCHAIN_RECORD" not in programs.launch(tmp_path, "-n", 1, "--dry-run", "train.py")

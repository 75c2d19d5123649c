import os

import pytest

from launch.checkpoints import Checkpoints


@pytest.fixture
def write(tmp_path):
    """Function that writes a file of some name, a second after the one before."""
    times = iter(range(1_000_000_000, 2_000_000_000))

    def write(name, text="x", same_time=False):
        path = tmp_path / name
        path.write_text(text)
        if not same_time:
            write.time = next(times)
        os.utime(path, (write.time, write.time))
        return str(path)

    return write


def test_newest(tmp_path, write):
    checkpoints = Checkpoints(str(tmp_path))
    assert checkpoints.newest() is None
    write("snapshot_iter_20")
    path = write("snapshot_iter_10")
    write("log")
    write(".1234abcd.tmp.snapshot_iter_30")
    assert checkpoints.newest() == path


def test_of_the_same_time_the_highest_number(tmp_path, write):
    checkpoints = Checkpoints(str(tmp_path))
    write("snapshot_iter_1000")
    write("snapshot_iter_900", same_time=True)
    assert checkpoints.newest() == str(tmp_path / "snapshot_iter_1000")


def test_what_was_there_before_does_not_count(tmp_path, write):
    old = write("snapshot_iter_20")
    assert Checkpoints(str(tmp_path), all_count=True).newest() == old
    checkpoints = Checkpoints(str(tmp_path))
    assert checkpoints.newest() is None
    again = write("snapshot_iter_20", "written again")
    assert checkpoints.newest() == again


def test_folders_are_checkpoints_too(tmp_path):
    checkpoints = Checkpoints(str(tmp_path))
    (tmp_path / "checkpoint_10").mkdir()
    assert checkpoints.newest() == str(tmp_path / "checkpoint_10")


def test_pattern(tmp_path, write):
    checkpoints = Checkpoints(str(tmp_path), "model*.h5")
    path = write("model_3.h5")
    write("snapshot_iter_20")
    assert checkpoints.newest() == path


def test_folder_that_comes_later(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoints = Checkpoints("later")
    assert checkpoints.newest() is None
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "snapshot_1").touch()
    assert checkpoints.newest() == str(tmp_path / "later" / "snapshot_1")

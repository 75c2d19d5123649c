import os

import pytest

from launch.checkpoints import Checkpoints


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes a file, dated one second after the previous file or at the
    same time."""
    times = iter(range(1_000_000_000, 2_000_000_000))

    def write(name, text="x", same_time=False):
        path = tmp_path / name
        path.write_text(text)
        if not same_time:
            write.time = next(times)
        os.utime(path, (write.time, write.time))
        return str(path)

    return write


@pytest.mark.parametrize("same_time", [True, False])
def test_newest_is_the_highest_number_at_any_time_of_the_clock(tmp_path, write, same_time):
    checkpoints = Checkpoints(str(tmp_path))
    assert checkpoints.newest() is None
    path = write("snapshot_iter_1000")
    write("snapshot_iter_900", same_time=same_time)
    write("log")
    write(".1234abcd.tmp.snapshot_iter_3000")
    assert checkpoints.newest() == path
    assert checkpoints.newest() != write("iteration_999", same_time=same_time)


def test_newest_of_equal_numbers_is_the_last_one_written(tmp_path, write):
    checkpoints = Checkpoints(str(tmp_path))
    write("snapshot_b")
    path = write("snapshot_a")
    assert checkpoints.newest() == path


@pytest.fixture
def iteration(tmp_path):
    """Returns a function that makes a folder like that of a checkpoint."""

    def iteration(name, *files):
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()
        return str(tmp_path / name)

    return iteration


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("iteration_7.damaged", ["manifest.json"]),
        ("iteration_7.damaged_1", ["manifest.json"]),
        (".iteration_7.12ab34cd.tmp", ["manifest.json"]),
        ("iteration_7.tmp", ["manifest.json"]),
        ("iteration_7", ["part_0.npz"]),
        ("snapshot_iter_7.tmp", []),
        ("snapshot_iter_7.damaged", []),
        ("snapshot_iter_7.old1", []),
        ("snapshot_iter_7.old12.npz", []),
    ],
)
def test_damaged_and_incomplete_ones_do_not_count(tmp_path, iteration, name, files):
    checkpoints = Checkpoints(str(tmp_path))
    path = iteration("iteration_5", "manifest.json", "part_0.npz")
    iteration(name, *files)
    assert checkpoints.newest() == path


def test_folder_of_the_extension_in_the_folder_of_the_results(tmp_path, write, iteration):
    checkpoints = Checkpoints(str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    path = iteration("checkpoints/iteration_9", "manifest.json")
    assert checkpoints.newest() == path
    # A script may save both kinds.
    assert checkpoints.newest() != write("snapshot_iter_1")
    assert checkpoints.newest() == str(tmp_path / "snapshot_iter_1")


def test_checkpoint_that_mpchain_writes(tmp_path):
    pytest.importorskip("numpy")
    from mpchain.distributed import create_communicator
    from mpchain.distributed.checkpoints import layout
    from mpchain.distributed.checkpoints.writing import save_checkpoint
    from mpchain.links import Linear

    checkpoints = Checkpoints(str(tmp_path))
    model, comm = Linear(2, 3), create_communicator("naive")
    for number in (2, 10):
        save_checkpoint(str(tmp_path), model, comm, number)
        assert checkpoints.newest() == str(tmp_path / f"iteration_{number}")
    layout.set_aside(str(tmp_path), "iteration_10")
    assert checkpoints.newest() == str(tmp_path / "iteration_2")


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

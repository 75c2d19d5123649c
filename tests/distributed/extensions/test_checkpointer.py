"""Tests ChainerMN's checkpointer, and snapshots of sets of ranks."""

import errno
import os
import pathlib

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import iterators, optimizers, training
from mpchain.distributed import (
    MultiNodeUpdater,
    create_multi_node_checkpointer,
    create_multi_node_optimizer,
    create_sharded_iterator,
)
from mpchain.distributed.extensions import checkpointer as checkpointing
from mpchain.distributed.extensions import multi_node_snapshot
from mpchain.serializer import SerializationError
from mpchain.training import extensions
from tests.distributed.checkpoints.checkpointing import damage

N = 12


def make_trainer(comm, out, n=N, *more):
    np.random.seed(3)
    random = np.random.RandomState(1)
    data = list(zip(*random.randn(2, 20, 3).astype("f4"), strict=True))
    model = L.Classifier(L.Linear(3, 3), F.mean_squared_error)
    model.compute_accuracy = False
    optimizer = create_multi_node_optimizer(optimizers.Adam(0.01), comm).setup(model)
    iterator = create_sharded_iterator(iterators.SerialIterator(data, 6), comm)
    updater = MultiNodeUpdater(iterator, optimizer, comm)
    trainer = training.Trainer(updater, (n, "iteration"), out=str(out))
    trainer.losses = {}
    trainer.extend(
        lambda t: t.losses.update({t.updater.iteration: float(t.observation["main/loss"])}),
        name="note",
    )
    for extension in more:
        trainer.extend(extension, trigger=(2, "iteration"))
    return trainer


def fail_at(iteration):
    def fail(trainer):
        if trainer.updater.iteration == iteration:
            raise ZeroDivisionError

    fail.trigger = (1, "iteration")
    return fail


def files_of(folder, rank, name="job"):
    return sorted(
        (f.name for f in pathlib.Path(folder).glob(f"{name}.{rank}.*")),
        key=lambda file: int(file.rpartition(".")[2]),
    )


@pytest.mark.parametrize("path", [None, "elsewhere"])
def test_checkpointer(comm, folder, path):
    expected = make_trainer(comm, folder / "a")
    expected.run()
    path = path and str(folder / path)
    place = path or folder
    checkpointer = create_multi_node_checkpointer("job", comm, 2, 2, path)
    trainer = make_trainer(comm, folder, N, checkpointer)
    trainer.extend(fail_at(9), priority=1)
    with pytest.raises(ZeroDivisionError):
        trainer.run(show_loop_exception_msg=False)
    assert files_of(place, comm.rank) == [f"job.{comm.rank}.{i}" for i in (6, 8)]
    stats = checkpointer.get_stats()
    assert (stats["saved"], stats["deleted"]) == (4, 2)
    assert stats["bytes"] > 0
    assert stats["seconds"] > 0

    comm.barrier()
    checkpointer = create_multi_node_checkpointer("job", comm, path=path)
    resumed = make_trainer(comm, folder, N, checkpointer)
    optimizer = resumed.updater.get_optimizer("main")
    assert checkpointer.maybe_load(resumed, optimizer) == 8
    resumed.run()
    assert resumed.losses == {i: expected.losses[i] for i in range(9, N + 1)}
    assert files_of(place, comm.rank) == []  # the training has not failed, so no file remains


def test_the_latest_iteration_that_all_ranks_have_whole(comm, folder):
    checkpointer = create_multi_node_checkpointer("job", comm, path=str(folder))
    trainer = make_trainer(comm, folder)
    for iteration in (1, 2, 3, 20):
        checkpointer.save(trainer, iteration)
    last = comm.size - 1
    if comm.rank == last:
        os.unlink(folder / f"job.{last}.20")
        damage(folder / f"job.{last}.3")
    comm.barrier()
    assert checkpointer.maybe_load(trainer) == 2
    assert create_multi_node_checkpointer("job", comm).maybe_load(trainer, path=str(folder)) == 2
    assert create_multi_node_checkpointer("other", comm).maybe_load(trainer) is None


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE])
def test_files_that_cannot_be_read_are_not_passed_over(comm, folder, monkeypatch, number):
    checkpointer = create_multi_node_checkpointer("job", comm, path=str(folder))
    trainer = make_trainer(comm, folder)
    for iteration in (1, 2):
        checkpointer.save(trainer, iteration)
    last = comm.size - 1

    def read(path):
        if comm.rank == last:
            raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(checkpointing, "read_npz", read)
    message = rf"maybe_load: {os.strerror(number)} on rank {last}: '.*job.{last}.2'"
    with pytest.raises(OSError, match=message) as caught:
        checkpointer.maybe_load(trainer)
    assert caught.value.errno == number


@pytest.mark.parametrize("harm", ["all damaged", "none in common"])
def test_training_does_not_begin_anew_where_files_are_lost(comm, folder, harm):
    if harm == "none in common" and comm.size == 1:
        pytest.skip("needs two ranks with different files")
    checkpointer = create_multi_node_checkpointer("job", comm, path=str(folder))
    trainer = make_trainer(comm, folder)
    for iteration in (1, 2):
        checkpointer.save(trainer, iteration)
        if comm.rank == comm.size - 1 and harm == "all damaged":
            damage(folder / f"job.{comm.rank}.{iteration}")
        elif comm.rank == comm.size - 1:
            os.unlink(folder / f"job.{comm.rank}.{iteration}")
    comm.barrier()
    held = r"\[1, 2\]" if harm == "all damaged" else "none"
    skipped = "; skipping checkpoint 2: .*; skipping checkpoint 1: "
    damaged = skipped if harm == "all damaged" else ""
    message = rf"no iteration .*rank {comm.size - 1} has {held}{damaged}.*restore the missing"
    with pytest.raises(SerializationError, match=message):
        checkpointer.maybe_load(trainer)
    comm.barrier()
    assert files_of(folder, 0) == (["job.0.1", "job.0.2"])


def test_the_first_checkpoint_was_not_complete(comm, folder):
    checkpointer = create_multi_node_checkpointer("job", comm, path=str(folder))
    trainer = make_trainer(comm, folder)
    if comm.rank > 0:
        checkpointer.save(trainer, 1)
    comm.barrier()
    assert checkpointer.maybe_load(trainer) is None


def test_names_of_files_are_taken_literally(comm, folder):
    checkpointer = create_multi_node_checkpointer("a.b", comm, path=str(folder))
    trainer = make_trainer(comm, folder)
    checkpointer.save(trainer, 1)
    (folder / f"axb.{comm.rank}.7").touch()
    comm.barrier()
    assert checkpointer.maybe_load(trainer) == 1


@pytest.mark.parametrize("options", [{"cp_interval": 0}, {"gc_interval": -1}])
def test_wrong_intervals(comm, options):
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not {value}"):
        create_multi_node_checkpointer("job", comm, **options)


# Snapshots

SETS = {
    "all": lambda size: [range(size)],
    "implicit": lambda size: [],
    "rank 0 apart": lambda size: [0],
    "each": lambda size: list(range(size)),
    "last apart": lambda size: [[size - 1]],
}


def leaders(sets, size):
    known = [[s] if isinstance(s, int) else list(s) for s in sets]
    rest = [r for r in range(size) if not any(r in s for s in known)]
    return {r: min(s) for s in [*known, rest] for r in s}


@pytest.mark.parametrize("sets", SETS)
def test_snapshot_of_sets(comm, folder, sets):
    expected = make_trainer(comm, folder / "a")
    expected.run()
    replica_sets = SETS[sets](comm.size)
    leader = leaders(replica_sets, comm.size)

    def make(n):
        snapshot = extensions.snapshot(n_retains=2, autoload=True)
        extension = multi_node_snapshot(comm, snapshot, replica_sets)
        return make_trainer(comm, folder / "b", n, extension)

    make(7).run()
    comm.barrier()
    assert sorted(name for name in os.listdir(folder / "b") if name[0] != ".") == sorted(
        f"snapshot_iter_{i}.{r}" for i in (4, 6) for r in set(leader.values())
    )
    comm.barrier()
    resumed = make(N)
    resumed.run()
    assert resumed.losses == {i: expected.losses[i] for i in range(7, N + 1)}


def test_each_set_has_its_own_state(comm, folder):
    """Each set saves and loads its own values; members of a set get the values of its leader."""
    sets = SETS["last apart"](comm.size)
    leader = leaders(sets, comm.size)[comm.rank]

    def make(value):
        target = mpchain.Link()
        target.add_persistent("x", np.full(3, value))
        snapshot = extensions.snapshot(target=target, autoload=True)
        return target, make_trainer(comm, folder, 2, multi_node_snapshot(comm, snapshot, sets))

    make(comm.rank)[1].run()
    comm.barrier()
    target, trainer = make(-1)
    trainer.run()
    assert target.x.tolist() == [leader] * 3


def test_filename_that_is_a_function(comm, folder):
    snapshot = extensions.snapshot(filename=lambda trainer: f"at_{trainer.updater.iteration}")
    make_trainer(comm, folder, 2, multi_node_snapshot(comm, snapshot, [])).run()
    comm.barrier()
    assert os.listdir(folder) == ["at_2.0"]


def test_wrong_arguments(comm):
    with pytest.raises(
        TypeError, match=r"must come from training\.extensions\.snapshot, but is int"
    ):
        multi_node_snapshot(comm, 3, [])
    snapshot = extensions.snapshot()
    with pytest.raises(ValueError, match=f"ranks from 0 to {comm.size - 1}, not 99"):
        multi_node_snapshot(comm, snapshot, [[0, 99]])
    with pytest.raises(ValueError, match="contains rank 0 2 times"):
        multi_node_snapshot(comm, snapshot, [0, [0]])

"""Tests that checkpoints are complete or absent, for any number of ranks, and that the previous one
is loaded instead of a damaged one."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import iterators, optimizers, training
from mpchain.distributed import (
    MultiNodeUpdater,
    create_multi_node_optimizer,
    create_sharded_iterator,
    create_sharded_optimizer,
    load_checkpoint,
    save_checkpoint,
)
from mpchain.distributed.checkpoints import layout, states, writing
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.extensions import checkpoint
from mpchain.serializer import SerializationError
from mpchain.serializers import DictionarySerializer
from mpchain.training.extensions import LogReport
from tests.distributed import ranks
from tests.distributed.checkpoints.checkpointing import Numbers, Rank, alone, damage, load_as
from tests.tools import faults

pytestmark = pytest.mark.slow

N = 14


@pytest.fixture(autouse=True)
def _double():
    with mpchain.using_config("dtype", np.dtype(np.float64)):
        yield


def make_trainer(comm, out, n=N, create=create_sharded_optimizer, before=(), last=(), **options):
    np.random.seed(3)
    random = np.random.RandomState(1)
    data = list(zip(random.randn(20, 4), random.randn(20, 2), strict=True))
    net = mpchain.Sequential(L.Linear(None, 6), F.tanh, *last, L.Linear(6, 2))
    model = L.Classifier(net, F.mean_squared_error)
    model.compute_accuracy = False
    optimizer = create(optimizers.Adam(0.01), comm).setup(model)
    iterator = create_sharded_iterator(iterators.SerialIterator(data, 6), comm)
    updater = MultiNodeUpdater(iterator, optimizer, comm)
    trainer = training.Trainer(updater, (n, "iteration"), out=str(out))
    trainer.losses = {}
    trainer.extend(
        lambda t: t.losses.update({t.updater.iteration: float(t.observation["main/loss"])}),
        name="note",
    )
    for extension in before:
        trainer.extend(extension)
    if comm.rank == 0:
        trainer.extend(LogReport(trigger=(2, "iteration")))
    trainer.extend(checkpoint(comm, **options), trigger=(4, "iteration"))
    return trainer


def state_of(trainer):
    serializer = DictionarySerializer()
    serializer.save(trainer.updater.get_optimizer("main").target)
    return serializer.target


@pytest.mark.filterwarnings("ignore:.*batch_normalization takes the statistics")
@pytest.mark.parametrize(
    ("n", "create"),
    [
        (4, create_sharded_optimizer),
        (6, create_sharded_optimizer),
        (6, create_multi_node_optimizer),
    ],
)
def test_training_goes_on_as_if_it_had_not_ended(comm, folder, n, create):
    trainers = []
    for name, length in (("a", N), ("b", n), ("b", N)):
        last = [L.BatchNormalization(6)]
        trainers.append(make_trainer(comm, folder / name, length, create, last=last))
        trainers[-1].run()
    undisturbed, _, resumed = trainers
    begun = n // 4 * 4
    assert list(resumed.losses) == list(range(begun + 1, N + 1))
    for i, loss in resumed.losses.items():
        assert loss == undisturbed.losses[i]
    # Each rank has its own statistics of batch normalization.
    expected, model = state_of(undisturbed), state_of(resumed)
    assert any("avg_mean" in key for key in model)
    assert expected.keys() == model.keys()
    assert all(np.array_equal(model[key], expected[key]) for key in model)
    comm.barrier()  # rank 0 has deleted older checkpoints
    assert sorted(os.listdir(folder / "b" / "checkpoints")) == ["iteration_12", "iteration_8"]
    if comm.rank == 0:
        logs = [json.loads((folder / name / "log").read_text()) for name in "ab"]
        one, other = ([entry["main/loss"] for entry in log] for log in logs)
        assert one == other


def test_what_is_on_the_disk(comm, folder):
    make_trainer(comm, folder, n_retains=-1).run()
    comm.barrier()
    checkpoints = folder / "checkpoints"
    assert layout.find(checkpoints) == ["iteration_4", "iteration_8", "iteration_12"]
    parts = {f"part_{rank}.npz" for rank in range(comm.size)}
    for name in layout.find(checkpoints):
        assert set(os.listdir(checkpoints / name)) == {"manifest.json"} | parts
    held = [set(np.load(checkpoints / name / part)) for part in sorted(parts)]
    model = [key for part in held for key in part if key.startswith("updater/model:main/")]
    assert sorted(model) == [
        f"updater/model:main/predictor/{i}/{name}" for i in (0, 1) for name in "Wb"
    ]


@pytest.mark.parametrize("harm", ["flip", "truncate", "manifest", "format"])
def test_a_damaged_checkpoint_is_passed_over(comm, folder, harm):
    if comm.size > 1 and harm in ("truncate", "format"):
        pytest.skip("runs on one rank only; several ranks do the same")
    trainer = make_trainer(comm, folder)
    trainer.run()
    latest = folder / "checkpoints" / "iteration_12"
    part = latest / f"part_{comm.size - 1}.npz"
    manifest = latest / "manifest.json"

    def do_harm():
        if harm == "flip":
            damage(part)
        elif harm == "truncate":
            os.truncate(part, part.stat().st_size - 1)
        elif harm == "manifest":
            damage(manifest)
        else:
            layout.write_json(manifest, {"format": "of the future"})

    alone(comm, do_harm)
    resumed = make_trainer(comm, folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resumed.run()
    assert list(resumed.losses) == list(range(9, N + 1))
    assert all(resumed.losses[i] == trainer.losses[i] for i in resumed.losses)
    messages = [str(w.message) for w in caught if "is damaged" in str(w.message)]
    assert len(messages) == (comm.rank == 0)
    if messages:
        assert str(latest) in messages[0]
        assert "renamed to iteration_12.damaged" in messages[0]
        file = {
            "flip": f"{part.name} is damaged: checksum mismatch",
            "truncate": f"{part.name} is damaged: it has ",
            "manifest": "manifest.json is damaged",
            "format": "manifest.json: format must be 'mpchain checkpoint 1', not 'of the future'",
        }[harm]
        assert file in messages[0]
    comm.barrier()
    assert (folder / "checkpoints" / "iteration_12.damaged").exists()
    assert layout.find(folder / "checkpoints") == ["iteration_8", "iteration_12"]


def test_nothing_to_load(comm, folder):
    assert load_checkpoint(folder / "none", Numbers(), comm) is None


def test_a_checkpoint_without_a_trainer(comm, folder):
    state = dict(x=np.arange(5), pi=3.14, name="ü", none=None, own=comm.rank)
    for iteration in (1, 10, 9):
        save_checkpoint(folder, Numbers(**state, i=iteration), comm, iteration, n_retains=2)
    comm.barrier()
    assert layout.find(folder) == ["iteration_9", "iteration_10"]
    loaded = Numbers(x=np.zeros(5, int), pi=0.0, name="", none=None, own=-1, i=0)
    assert load_checkpoint(str(folder), loaded, comm) == 10
    assert loaded.values.pop("x").tolist() == [0, 1, 2, 3, 4]
    assert loaded.values == {"pi": 3.14, "name": "ü", "none": None, "own": comm.rank, "i": 10}


def test_the_same_iteration_again(comm, folder):
    for i in (1, 2):
        save_checkpoint(folder, Numbers(i=i), comm, 7)
    comm.barrier()
    loaded = Numbers(i=0)
    assert load_checkpoint(folder, loaded, comm) == 7
    assert loaded.values["i"] == 2
    assert os.listdir(folder) == ["iteration_7"]


def test_an_object_of_another_form(comm, folder):
    save_checkpoint(folder, Numbers(x=1), comm, 1)
    with pytest.raises(SerializationError, match=r"load_checkpoint: .*iteration_1.*missing: y"):
        load_checkpoint(folder, Numbers(y=1), comm)


def test_only_rank_0_reads_what_the_others_have(comm, folder, calls_of):
    read = calls_of(layout, "read_json")
    save_checkpoint(folder, L.Linear(3, 2), comm, iteration=7)
    assert len(read) == (2 * comm.size + 1 if comm.rank == 0 else 1)


def test_each_value_is_written_once_and_evenly():
    entry = lambda digest, n: {"digest": digest, "bytes": n, "start": None, "shape": ()}
    shared = {f"x{i}": entry(f"d{i}", 100 + i) for i in range(12)}
    indexes = [shared | {"own": entry(f"own{r}", 50)} for r in range(4)]
    writers = writing.assign(indexes)
    assert [writers["own", f"own{r}"] for r in range(4)] == [0, 1, 2, 3]
    loads = [0] * 4
    for (key, _), writer in writers.items():
        loads[writer] += indexes[0][key]["bytes"]
    assert max(loads) - min(loads) <= 111
    table = writing.list_values(indexes, writers)
    assert [e["ranks"] for e in table["x3"]] == [[0, 1, 2, 3]]
    assert [e["ranks"] for e in table["own"]] == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros(3), np.zeros(3, np.float32)),
        (np.zeros(3), np.zeros((3, 1))),
        (np.zeros(3), np.array([0, 0, 1.0])),
        (np.array("a"), np.array("b")),
    ],
)
def test_digests_of_different_values(one, other):
    digest = lambda x, start=None: states.Value(x, start, x.shape).digest()
    assert digest(one) == digest(one.copy())
    assert digest(one) != digest(other)
    assert digest(one) != digest(one, 0) != digest(one, 1)


# Errors during writing


def test_the_state_is_that_of_the_call(tmp_path, monkeypatch):
    """Training continues while the state is written."""
    x = np.zeros(3)
    held = writing.threading.Event()
    digest = states.Value.digest
    monkeypatch.setattr(states.Value, "digest", lambda value: held.wait() and digest(value))
    each = writing.Saving(str(tmp_path), "iteration_1", "run", Communicator(), Numbers(x=x), -1)
    x += 1
    assert layout.find(tmp_path) == []
    held.set()
    each.wait()
    assert load_as(tmp_path, [Numbers(x=x)])[0].values["x"].tolist() == [0, 0, 0]


@pytest.fixture
def fill_disk(monkeypatch):
    """Returns a function that sets, for the path of each file, whether the disk is full."""
    write = writing.write_npz

    def fill_disk(is_full):
        def write_until_full(path, arrays):
            if is_full(path):
                raise OSError(errno.ENOSPC, "No space left on device", path)
            write(path, arrays)

        monkeypatch.setattr(writing, "write_npz", write_until_full)

    return fill_disk


def test_a_disk_that_is_full(comm, folder, fill_disk):
    if comm.size > 1:
        pytest.skip("runs on one rank only, because a failure ends the other ranks")
    trainer = make_trainer(comm, folder)
    fill_disk(lambda path: "iteration_8" in path)
    with pytest.raises(OSError, match="No space left") as caught:
        trainer.run(show_loop_exception_msg=False)
    assert trainer.updater.iteration == 12  # the error appears at the next checkpoint
    assert caught.value.__notes__ == ["raised while the checkpoint iteration_8 was written"]
    assert layout.find(folder / "checkpoints") == ["iteration_4"]
    fill_disk(lambda path: False)
    resumed = make_trainer(comm, folder)
    resumed.run()
    assert list(resumed.losses) == list(range(5, N + 1))
    assert sorted(os.listdir(folder / "checkpoints")) == ["iteration_12", "iteration_8"]


def test_what_fails_last_is_raised_at_the_end(comm, folder, fill_disk):
    if comm.size > 1:
        pytest.skip("runs on one rank only, because a failure ends the other ranks")
    trainer = make_trainer(comm, folder, 13)
    fill_disk(lambda path: trainer.updater.iteration >= 12)
    with pytest.raises(OSError, match="No space left"):
        trainer.run(show_loop_exception_msg=False)


def test_a_training_that_fails_does_not_wait_for_other_ranks(tmp_path, monkeypatch):
    fail = training.make_extension(trigger=(5, "iteration"))(lambda trainer: 1 / 0)
    comm = Communicator()
    trainer = make_trainer(comm, tmp_path, before=[fail], create=create_multi_node_optimizer)
    extension = trainer.get_extension("_Checkpoint")
    # The other of two ranks never writes its part.
    extension.comm = Rank(0, 2)
    with pytest.raises(ZeroDivisionError):
        trainer.run(show_loop_exception_msg=False)
    assert layout.find(tmp_path / "checkpoints") == []


def test_an_interrupt_saves_on_all_ranks(comm, folder):
    def interrupt(trainer):
        if trainer.updater.iteration == 6 and comm.rank == comm.size - 1:
            os.kill(os.getpid(), signal.SIGINT)

    undisturbed = make_trainer(comm, folder / "a")
    undisturbed.run()
    trainer = make_trainer(comm, folder / "b", before=[interrupt])
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    comm.barrier()
    last = 6 if comm.size == 1 else 7  # the signal reaches the other ranks in the next iteration
    assert layout.find(folder / "b" / "checkpoints") == ["iteration_4", f"iteration_{last}"]
    resumed = make_trainer(comm, folder / "b")
    resumed.run()
    assert list(resumed.losses) == list(range(last + 1, N + 1))
    assert all(resumed.losses[i] == undisturbed.losses[i] for i in resumed.losses)


def test_an_interrupt_just_after_a_checkpoint(comm, folder):
    def interrupt(trainer):
        if trainer.updater.iteration == (8 if comm.size == 1 else 7):
            os.kill(os.getpid(), signal.SIGTERM)

    trainer = make_trainer(comm, folder, before=[interrupt])
    with pytest.raises(SystemExit):
        trainer.run()
    comm.barrier()
    assert layout.find(folder / "checkpoints") == ["iteration_4", "iteration_8"]


def test_leftovers_are_removed(comm, folder):
    def leave():
        (folder / "checkpoints" / ".iteration_3.0123abcd.tmp").mkdir(parents=True)
        (folder / "checkpoints" / ".iteration_3.0123abcd.tmp" / "part_0.npz").touch()
        (folder / "checkpoints" / "notes.txt").touch()

    alone(comm, leave)
    make_trainer(comm, folder, wait=True).run()
    comm.barrier()
    expected = ["iteration_12", "iteration_8", "notes.txt"]
    assert sorted(os.listdir(folder / "checkpoints")) == expected


def test_a_folder_that_not_all_ranks_see(comm, folder):
    if comm.size == 1:
        pytest.skip("needs two ranks that see different files")
    own = folder / str(comm.rank)
    own.mkdir()
    blind = ", ".join(map(str, range(1, comm.size)))
    with pytest.raises(FileNotFoundError, match=f"is not seen by rank {blind}$"):
        save_checkpoint(own, Numbers(x=1), comm, 1)


OTHER_JOB = """
import sys
from mpchain.distributed import save_checkpoint
from mpchain.distributed.communicators import Communicator
from tests.distributed.checkpoints.checkpointing import Numbers
save_checkpoint(sys.argv[1], Numbers(x=1), Communicator(), 3)
"""


@pytest.mark.long
def test_another_job_that_writes_to_the_same_folder_is_refused(comm, folder):
    def start_other_job(trainer):
        done = subprocess.run(
            [sys.executable, "-c", OTHER_JOB, folder / "checkpoints"],
            capture_output=True,
            text=True,
            cwd=ranks.ROOT,
            env=ranks.environment(),
            check=False,
        )
        if trainer.updater.iteration == 5:
            message = (
                rf"RuntimeError: checkpoint: another job \(host .* process {os.getpid()}, since"
            )
            assert re.search(message, done.stderr), done.stderr
        else:
            assert done.returncode == 0, done.stderr

    trainer = make_trainer(comm, folder, 6)
    if comm.rank == 0:
        trainer.extend(start_other_job, trigger=(5, "iteration"))
    trainer.run()
    comm.barrier()
    assert sorted(os.listdir(folder / "checkpoints")) == ["iteration_4"]
    if comm.rank == 0:  # the folder is free now
        start_other_job(trainer)
    comm.barrier()
    assert sorted(os.listdir(folder / "checkpoints")) == ["iteration_3", "iteration_4"]


def test_damaged_names_are_not_used_twice(tmp_path):
    for expected in ("iteration_1.damaged", "iteration_1.damaged_1", "iteration_1.damaged_2"):
        (tmp_path / "iteration_1").mkdir()
        assert layout.set_aside(tmp_path, "iteration_1") == expected


def test_a_training_that_is_done_is_not_trained_again(comm, folder, capsys):
    make_trainer(comm, folder, 8).run()
    capsys.readouterr()
    again = make_trainer(comm, folder, 8)
    again.run()
    assert again.losses == {}
    comm.barrier()
    lines = capsys.readouterr().out.splitlines()
    done = [line for line in lines if line.startswith("8 of 8 iterations are done")]
    assert len(done) == (comm.rank == 0)
    assert layout.find(folder / "checkpoints") == ["iteration_4", "iteration_8"]


def test_not_autoload(comm, folder):
    make_trainer(comm, folder, 5).run()
    again = make_trainer(comm, folder, 5, autoload=False)
    again.run()
    assert list(again.losses) == [1, 2, 3, 4, 5]


@pytest.mark.long
def test_four_ranks_then_fewer(needs_mpirun, tmp_path):
    """The job stops in mid-epoch, with a sharded optimizer; the latest checkpoint is complete or
    damaged."""
    expected = faults.losses_of(faults.run(1, tmp_path / "a"))
    plan = {"fault": "raise", "rank": 3, "iteration": 14, "delay": 0}
    status, outputs, own_output = faults.run(4, tmp_path / "b", plan)
    assert status not in (0, None), ranks.report(status, outputs, own_output)
    *_, before, latest = layout.find(tmp_path / "b" / "checkpoints")
    for n, damaged in ((1, None), (2, "part_3.npz")):
        shutil.copytree(tmp_path / "b", tmp_path / str(n))
        folder = tmp_path / str(n) / "checkpoints"
        if damaged:
            damage(folder / latest / damaged)
        outcome = faults.run(n, tmp_path / str(n))
        losses = faults.losses_of(outcome)
        assert layout.name_of(min(losses) - 1) == (before if damaged else latest)
        for iteration, loss in losses.items():
            assert abs(loss / expected[iteration] - 1) < 1e-12
        if damaged:
            warning = f"the checkpoint {folder / latest} is damaged"
            assert f"RuntimeWarning: load_checkpoint: {warning}" in outcome[1][0]
            assert f"{damaged} " in outcome[1][0]

"""Tests the return to a copy of the state, on one rank that imitates the loss of other ranks, and
copies on ranks that threads imitate."""

import concurrent.futures
import contextlib
import itertools
import threading

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers, training
from mpchain.distributed import InMemoryCheckpoint, RanksLost, run_elastic
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.optimizers import create_multi_node_optimizer
from mpchain.distributed.recovery.copies import Copy, mirrors
from mpchain.distributed.updaters import MultiNodeUpdater
from mpchain.iterators import SerialIterator
from mpchain.training import extensions


class Shrinking(Communicator):
    """A communicator of one rank, which seems to have had more ranks."""

    is_elastic = True
    n_shrunk = 0
    all_go_back = True

    def shrink(self, *, goes_back=True):
        self.n_shrunk += 1
        self.lost_ranks[self.n_shrunk] = "imitated"
        for dependent in list(self.dependents):
            dependent.fit_to_ranks()
        return self.all_go_back and goes_back


class Counter:
    n = 0

    def serialize(self, serializer):
        self.n = int(serializer("n", self.n))


@pytest.fixture
def comm():
    return Shrinking()


def lose(rank=1):
    raise RanksLost([rank], {rank: "imitated"})


def test_a_loop_of_a_program_goes_back(comm, capsys):
    counter, reached = Counter(), []
    state = InMemoryCheckpoint(comm, {"counter": counter})
    losses = {3, 8}
    while state.is_before(10):
        with state.step():
            reached.append(state.iteration)
            counter.n += 1
            if state.iteration in losses:
                losses.remove(state.iteration)
                lose()
    assert counter.n == state.iteration == 10
    assert sorted(set(reached)) == list(range(10))
    assert comm.n_shrunk == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("mpchain: lost rank 1 (imitated); 1 left; went back ")
    assert "lost rank 2" in second and "rank 1 " not in second


def test_another_exception_leaves_the_loop(comm):
    state = InMemoryCheckpoint(comm, {"counter": Counter()})
    with pytest.raises(ZeroDivisionError), state.step():
        state.iteration // 0
    assert comm.n_shrunk == 0


def test_copies_become_rare(comm):
    """Two copies exist while some ranks may not have the second one; later, there is one."""
    state = InMemoryCheckpoint(comm, {"counter": Counter()}, share=1e-9)
    held, taken = [], set()
    for _ in range(40):
        with state.step():
            held.append(len(state._copies))
            taken.add(state.latest)
    assert taken == {0, 1, 3, 7, 15, 31}  # each interval is at most twice the previous interval
    assert held[:8] == [1, 2, 1, 2, 1, 1, 1, 2]


def test_settings_return_and_parameters_lose_their_values(comm):
    model = L.Linear(None, 2)
    optimizer = create_multi_node_optimizer(optimizers.SGD(lr=0.5), comm).setup(model)
    state = InMemoryCheckpoint(comm, {"model": model, "optimizer": optimizer})
    np.random.seed(0)
    for attempt in range(2):
        with state.step():
            np.random.seed(0)
            optimizer.update(lambda x: mpchain.functions.sum(model(x)), np.ones((1, 3), "f"))
            if attempt == 0:
                before, optimizer.lr = model.W.array.copy(), 5.0
                model.W.update_rule.hyperparam.lr = 7.0
                lose()
    assert optimizer.lr == model.W.update_rule.hyperparam.lr == 0.5
    np.testing.assert_array_equal(model.W.array, before)


def test_without_a_copy_there_is_nothing_to_go_back_to(comm):
    state = InMemoryCheckpoint(comm, {"counter": Counter()})
    with pytest.raises(RanksLost) as caught:
        state.go_back(RanksLost([1], {1: "imitated"}))
    assert "run_elastic" in caught.value.__notes__[0]


def test_a_program_starts_anew(monkeypatch, capsys):
    made = []
    monkeypatch.setattr(
        "mpchain.distributed.recovery.in_memory.create_communicator",
        lambda **options: made.append(options) or Shrinking(),
    )
    calls = []

    def main(comm):
        calls.append(comm)
        if len(calls) < 3:
            lose()
        return "done"

    assert run_elastic(main, timeout=5) == "done"
    assert "lost rank 1 (imitated); 1 left; started anew" in capsys.readouterr().err
    assert made == [{"elastic": True, "timeout": 5}]
    assert len(set(map(id, calls))) == 3


def _train(comm, folder, loses_at=()):
    np.random.seed(0)
    model = L.Classifier(L.Linear(None, 2))
    optimizer = create_multi_node_optimizer(optimizers.Adam(), comm).setup(model)
    data = [(np.random.rand(3).astype("f"), np.int32(i % 2)) for i in range(10)]
    updater = MultiNodeUpdater(SerialIterator(data, 4), optimizer, comm)
    trainer = training.Trainer(updater, (12, "iteration"), out=folder)
    losses = set(loses_at)

    @trainer.extend
    def lose_ranks(trainer):
        with contextlib.suppress(KeyError):
            losses.remove(trainer.updater.iteration)
            lose()

    trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
    trainer.extend(extensions.ExponentialShift("alpha", 0.5), trigger=(5, "iteration"))
    trainer.run()
    log = trainer.get_extension("LogReport").log
    return model.predictor.W.array, [entry["main/loss"] for entry in log]


def test_a_trainer_goes_back(tmp_path):
    array, losses = _train(Communicator(), tmp_path / "undisturbed")
    comm = Shrinking()
    again, losses_again = _train(comm, tmp_path / "disturbed", loses_at={1, 6, 12})
    assert comm.n_shrunk == 3
    np.testing.assert_array_equal(again, array)
    assert losses_again == losses
    assert sorted(path.name for path in (tmp_path / "disturbed").iterdir()) == ["log"]


def test_mirrors_are_on_other_hosts():
    class OnHosts(Communicator):
        size = 5
        hosts = [[0, 1, 2], [3, 4]]

    assert mirrors(OnHosts()) == [[3, 1], [4, 2], [3, 0], [0, 4], [1, 3]]
    OnHosts.hosts = [[0, 1, 2, 3, 4]]
    assert mirrors(OnHosts()) == [[1, 2], [2, 3], [3, 4], [4, 0], [0, 1]]
    OnHosts.hosts = [[0, 1], [2], [3, 4]]
    assert mirrors(OnHosts()) == [[2, 3], [2, 4], [3, 0], [0, 2], [1, 2]]


class Room:
    """The meeting point of the threads that imitate ranks."""

    def __init__(self, size):
        self.barrier, self.table = threading.Barrier(size, timeout=10), [None] * size


class Thread(Communicator):
    """A rank that a thread imitates."""

    def __init__(self, rank, room):
        super().__init__()
        self.rank, self.size, self._room = rank, len(room.table), room
        self.hosts = [list(range(self.size))]

    def allgather_obj(self, obj):
        self._room.table[self.rank] = obj
        self._room.barrier.wait()
        result = list(self._room.table)
        self._room.barrier.wait()
        return result

    def bcast_obj(self, obj, max_buf_len=0, root=0):
        return self.allgather_obj(obj)[root]

    def alltoall_obj(self, objs):
        return [row[self.rank] for row in self.allgather_obj(objs)]


def on_ranks(size, function):
    """Runs a function of a communicator on each rank; returns the results."""
    room = Room(size)
    with concurrent.futures.ThreadPoolExecutor(size) as executor:
        comms = [Thread(rank, room) for rank in range(size)]
        return list(executor.map(function, comms))


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("n_full", [1, 2, 5])
def test_any_two_ranks_can_be_lost(size, n_full):
    """Lost ranks may have a part without elements, or may alone have the same value."""
    whole = np.arange(36.0).reshape(3, 12)

    class Divided:
        def __init__(self, rank):
            self.rank, n = rank, min(n_full, size)
            self.place = slice(36 * min(rank, n) // n, 36 * min(rank + 1, n) // n)

        def serialize(self, serializer):
            serializer.part("x", whole.reshape(-1)[self.place], self.place.start, whole.shape)
            serializer("alike", np.array(self.rank in (1, 2)))

    copies = on_ranks(size, lambda comm: Copy.take(Divided(comm.rank), comm, 0))
    for lost in itertools.combinations(range(size), min(2, size - 1)):
        left = [copy for copy in copies if copy.rank not in lost]
        found = on_ranks(len(left), lambda comm, left=left: left[comm.rank].values_for(comm))
        for values in found:
            np.testing.assert_array_equal(values["x"], whole)
        of_ranks_1_and_2 = [copy.arrays.get(("alike", 1)) for copy in left]
        assert any(x is not None and x.item() for x in of_ranks_1_and_2)


def test_an_array_without_elements_is_kept():
    class Empty:
        def serialize(self, serializer):
            serializer.part("x", np.zeros(0), 0, (0, 3))

    copies = on_ranks(3, lambda comm: Copy.take(Empty(), comm, 0))
    for values in on_ranks(2, lambda comm: copies[comm.rank].values_for(comm)):
        assert values["x"].shape == (0, 3)


def _minimized(comm, losses):
    link = mpchain.Link()
    with link.init_scope():
        link.x = mpchain.Parameter(np.array([-1.2, 1.0] * 2))
    optimizer = optimizers.LBFGS(memory=3).setup(link)

    def loss():
        x = link.x
        return F.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    state = InMemoryCheckpoint(comm, {"link": link, "optimizer": optimizer})
    while state.is_before(9):
        with state.step():
            optimizer.update(loss)
            if state.iteration in losses:
                losses.remove(state.iteration)
                lose()
    return link.x.array


def test_what_lbfgs_knows_of_the_curvature_goes_back(comm, capsys):
    np.testing.assert_array_equal(_minimized(comm, {0, 3, 7}), _minimized(comm, set()))
    assert comm.n_shrunk == 3

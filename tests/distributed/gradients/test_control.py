"""Tests the control message, which ranks send in every step besides gradients."""

import signal
import sys
import types
import warnings

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizer_hooks, optimizers, reporter
from mpchain.backends import cuda
from mpchain.distributed import (
    MultiNodeUpdater,
    create_multi_node_optimizer,
    create_sharded_optimizer,
)
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.requests import Request
from mpchain.distributed.gradients import control
from mpchain.distributed.gradients.control import COPY_STATE, Control, ControlMessage
from mpchain.iterators import SerialIterator
from mpchain.reporter import DictSummary, Reporter
from mpchain.training import Trainer
from mpchain.training.extensions import LogReport
from mpchain.utils import work_clock
from tests.distributed.devices import on_device, on_gpus
from tests.models import MLP

ON_GPUS = True


@pytest.fixture
def own_control(comm, monkeypatch):
    """Returns a new control of the communicator, without the state that other tests have left."""
    made = Control(comm)
    monkeypatch.setitem(vars(comm), "_control", made)
    return made


def sums_of(values):
    summary = DictSummary()
    summary.add(values)
    return summary.sums()


def means_of(message, *sums):
    message.put(sums)
    message.begin()
    return {name: float(mean) for name, mean in message.means().items()}


@pytest.mark.parametrize("rank", [0, -1])
def test_a_flag_travels_with_a_step(comm, own_control, rank):
    message = ControlMessage(comm)
    own_control.agree()
    if comm.rank == rank % comm.size:
        own_control.ask(COPY_STATE)
        own_control.ask(signal.SIGINT)
    assert not own_control.take(COPY_STATE)
    message.begin()
    message.wait()
    own_control.agree()  # there is nothing to agree on
    assert own_control.take(COPY_STATE)
    assert not own_control.take(COPY_STATE)
    message.begin()
    message.wait()
    assert own_control.take(signal.SIGINT)
    assert not own_control.take(signal.SIGTERM)


def test_flags_travel_without_a_step(comm, own_control):
    message = ControlMessage(comm)
    message.begin()
    message.wait()
    own_control.agree()
    if comm.rank == comm.size - 1:
        own_control.ask(signal.SIGTERM)
    own_control.agree()
    assert own_control.take(signal.SIGTERM)
    with pytest.raises(ValueError):
        own_control.ask("tea")


def test_control_of_other_ranks_is_another(comm, own_control, monkeypatch):
    assert Control.of(comm) is own_control
    monkeypatch.setattr(comm, "mpi_comm", "of other ranks")
    assert Control.of(comm) is not own_control


def test_compare(comm, own_control):
    assert own_control.compare(3) == (True, 0)
    assert own_control.compare(0) == (True, comm.size)
    assert own_control.compare(comm.rank) == (comm.size == 1, 1)


def test_equal_sums_of_unequal_numbers():
    for numbers in ([1, 2, 3], [0, 0, 3], [2, 2, 2]):
        sums = sum(numbers), sum(n * n for n in numbers)
        assert control._are_equal(3, *sums) == (len(set(numbers)) == 1)


def test_means_of_values_that_come_and_go(comm, note_calls):
    comm.allreduce(on_device(np.zeros(1)))  # the first call connects GPUs
    message, sent = ControlMessage(comm), note_calls(comm, "allgather_obj", "bcast_obj")
    total = sum(range(1, comm.size + 1))
    for step in range(9):
        weight = comm.rank + 1
        values = {"loss": (on_device(np.float64(step)), weight), "rank": (comm.rank, weight)}
        if step >= 3 and comm.rank == comm.size - 1:
            values["late"] = 2.5
        n_before = len(sent)
        means = means_of(message, sums_of(values if step % 4 else {"loss": 2.0}))
        assert (len(sent) > n_before) == (step in (0, 1, 3)), step
        if step % 4:
            expected = sum(r * (r + 1) for r in range(comm.size)) / total
            assert means["loss"] == step
            np.testing.assert_allclose(means["rank"], expected, rtol=1e-15)
            assert list(means) == ["loss", "rank", *(["late"] if step >= 3 else [])]
            stays = on_gpus() and step not in (1, 3)
            assert cuda.is_gpu_array(message.means()["loss"]) == stays
            assert means.get("late", 2.5) == 2.5
        else:
            assert means == {"loss": 2.0}


def test_a_rank_without_samples_reports_nothing(comm):
    message = ControlMessage(comm)
    for _ in range(2):
        own = sums_of({"x": (7.0, 3)} if comm.rank == 0 else {})
        assert means_of(message, own) == {"x": 7.0}
        assert means_of(message) == {}


def test_names_that_never_return_are_forgotten(comm, set_limits):
    set_limits(names=10)
    message = ControlMessage(comm)
    for step in range(40):
        assert means_of(message, sums_of({f"loss_{step}": 1.0})) == {f"loss_{step}": 1.0}
    assert len(message._values.numbers()) <= 1 + 2 * 12


def test_nan_and_infinity(comm):
    message = ControlMessage(comm)
    for _ in range(2):
        means = means_of(message, sums_of({"a": np.inf, "b": np.nan, "c": 1.0}))
        np.testing.assert_equal(means, {"a": np.inf, "b": np.nan, "c": 1.0})


@pytest.mark.parametrize("n_per_rank", [1, 4])
def test_micro_shards_are_added_in_their_order(comm, n_per_rank):
    """Sums of the same number of micro-shards have the same bits on any number of ranks."""
    n = comm.size * n_per_rank
    values = np.random.RandomState(0).uniform(-1, 1, n) * 10.0 ** np.arange(n)
    expected = sum(values.tolist()) / n
    first = comm.rank * n_per_rank
    with comm.split(0, comm.rank) as part:
        part.micro_shards = n
        message = ControlMessage(part)
        for _ in range(3):
            own = [sums_of({"x": v}) for v in values[first : first + n_per_rank].tolist()]
            assert means_of(message, *own) == {"x": expected}


def test_random_states(comm):
    message = ControlMessage(comm)
    for are_equal in (True, comm.size == 1):
        np.random.seed(3 if are_equal else comm.rank)
        message.put(draws=True)
        message.begin()
        assert message.have_equal_random_states() == are_equal


@pytest.fixture
def pass_time(monkeypatch):
    """Returns a function that lets time pass, and lets this rank wait for other ranks for part of
    the time."""
    now = [0.0]
    monkeypatch.setattr(work_clock, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))

    def pass_time(passed, waited=0.0):
        now[0] += passed - waited
        with work_clock.waiting():
            now[0] += waited

    return pass_time


def test_times(comm, own_control, pass_time):
    message = ControlMessage(comm)
    for step in range(10 * comm.size):
        pass_time(2.0, comm.rank / 10 if step < 5 * comm.size else 0.5)
        message.begin()
        message.wait()
        if step == 5 * comm.size - 1:
            before = own_control.times.copy()
    waited = np.arange(comm.size) / 10
    np.testing.assert_allclose(before[1] / before.sum(0), waited / 2, atol=1e-15)
    passed = (own_control.times - before)[:, 1:]  # rank 0 also reports the times of its last step
    assert passed.sum() == pytest.approx(2.0 * 5 * comm.size * (comm.size - 1))
    np.testing.assert_array_equal(comm.allgather_obj(own_control.times)[0], own_control.times)


@pytest.mark.parametrize(
    ("slower", "step", "named"),
    [
        (1.1, 1.0, False),
        (1.3, 0.2, True),  # in 400 steps, the other ranks lose 24 s
        (1.4, 5.4e-4, False),  # these waits cost the other ranks less than a tenth of a second
    ],
)
def test_a_slow_rank_is_named_once(comm, own_control, pass_time, capsys, slower, step, named):
    message = ControlMessage(comm)
    slow = comm.rank == comm.size - 1
    for _ in range(400):
        pass_time(step * slower, 0 if slow else step * (slower - 1))
        message.begin()
        message.wait()
    err = capsys.readouterr().err
    is_named = named and comm.size > 1 and comm.rank == 0
    assert err.count(f"rank {comm.size - 1} is a straggler") == err.count("\n") == is_named
    assert "260 ms of work per step against 200 ms on the other ranks" in err or not is_named


def test_extensions_are_no_work_of_steps(comm, own_control, pass_time, tmp_path):
    """Plots and files that only rank 0 makes between iterations do not make it a slow rank."""
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(on_device(MLP()))
    batches = SerialIterator([np.ones(3, "f")] * 100, 2, shuffle=False)

    def loss(x):
        pass_time(1.0)
        return F.mean(optimizer.target(x))

    updater = MultiNodeUpdater(
        batches, optimizer, comm, loss_func=loss, device=optimizer.target.device
    )
    trainer = Trainer(updater, (10 * comm.size, "iteration"), out=tmp_path)
    trainer.extend(lambda trainer: pass_time(100.0 * (comm.rank == 0)), name="draw")
    trainer.run()
    work, waited = own_control.times
    assert work[0] > 1
    np.testing.assert_allclose(work, work[0], atol=1e-6)  # times of the clock are rounded
    np.testing.assert_allclose(waited, 0, atol=1e-6)


def test_a_log_says_which_rank_is_slow(comm, own_control, pass_time):
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(on_device(MLP()))
    batches = SerialIterator([np.ones(3, "f")] * 100, 2, shuffle=False)

    def loss(x):
        slow = comm.size - 1 if trainer.updater.iteration < 60 else 0
        pass_time(1.0, 0.0 if comm.rank == slow else 0.5)
        return F.mean(optimizer.target(x))

    updater = MultiNodeUpdater(
        batches, optimizer, comm, loss_func=loss, device=optimizer.target.device
    )
    trainer = Trainer(updater, (120, "iteration"))
    log, named = (
        LogReport(keys, trigger=(60, "iteration"), filename=None)
        for keys in (None, ["ranks/slowest"])
    )
    for extension in (log, named):
        trainer.extend(extension)
    trainer.run()
    if comm.size == 1:
        assert not any("ranks/slowest" in entry for entry in log.log)
        return
    assert [entry["ranks/slowest"] for entry in log.log] == [comm.size - 1, 0]
    for entry in log.log:
        share = 0.5 * (comm.size - 1) / comm.size
        assert entry["ranks/waiting"] == pytest.approx(share, rel=0.1)
    assert ["ranks/waiting" in entry for entry in named.log] == [False, False]


class Many(Communicator):
    """Imitates one of very many ranks that all do the same."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def allgather_obj(self, obj):
        return [obj] * self.size

    def begin_sum(self, x, wire_dtype=None):
        x *= self.size
        return Request(x)


def lines_of_an_iteration(n_ranks):
    """Returns the least number of Python lines of an iteration on one of ``n_ranks`` ranks."""
    np.random.seed(0)
    comm, model = Many(n_ranks), MLP()

    def loss(x):
        loss = F.mean(model(x) ** 2)
        reporter.report({"loss": loss})
        return loss

    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
    optimizer.add_hook(optimizer_hooks.GradientClipping(1.0))
    batches = SerialIterator([np.ones(3, "f")] * 100, 2, shuffle=False)
    updater = MultiNodeUpdater(batches, optimizer, comm, loss_func=loss)
    n_lines = []

    def count(frame, event, arg):
        n_lines[-1] += event == "line"
        return count

    with Reporter() as observed:
        for _ in range(8):
            n_lines.append(0)
            before = sys.gettrace()
            sys.settrace(count)
            try:
                assert updater.agree_on_signal(None) is None
                updater.update()
            finally:
                sys.settrace(before)
    assert "loss" in observed.observation
    return min(n_lines)


def test_nothing_in_python_grows_with_the_number_of_ranks():
    assert lines_of_an_iteration(1024) <= lines_of_an_iteration(8)


@pytest.mark.parametrize(
    ("hook", "compares"),
    [
        (optimizer_hooks.GradientClipping(1.0), False),
        (optimizer_hooks.GradientNoise(0.1), True),
        (type("Own", (optimizer_hooks.WeightDecay,), {})(0.1), True),
        (lambda optimizer: None, True),
    ],
    ids=["clipping", "noise", "own", "function"],
)
@pytest.mark.parametrize("create", [create_multi_node_optimizer, create_sharded_optimizer])
def test_random_states_are_compared_if_a_hook_may_draw(comm, hook, compares, create, monkeypatch):
    asked = []
    put = control.ControlMessage.put
    monkeypatch.setattr(
        control.ControlMessage,
        "put",
        lambda self, *args, draws: asked.append(draws) or put(self, *args, draws=draws),
    )
    model = on_device(L.Linear(2, 1))
    optimizer = create(optimizers.SGD(), comm).setup(model)
    optimizer.add_hook(hook, "hook")
    optimizer.update(lambda x: F.mean(model(x)), on_device(np.ones((1, 2), "f")))
    assert asked == [compares]


def test_all_reasons_to_warn_at_a_place_are_told(comm, own_control):
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(L.Linear(2, 1))
    own_control.tell("line 3", "of all ranks")
    own_control.tell("line 3", f"of rank {comm.rank}")
    own_control.tell("line 3", "of all ranks")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            optimizer.update(lambda: F.sum(optimizer.target(np.ones((1, 2), "f"))))
            own_control.warn()
            own_control.tell("line 3", "too late")
    reasons = "; ".join(["of all ranks", *(f"of rank {rank}" for rank in range(comm.size))])
    expected = [f"line 3: {reasons}"] if comm.rank == 0 else []
    assert [str(warning.message) for warning in caught] == expected

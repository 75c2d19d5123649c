"""Tests that replays of captured steps on several ranks average gradients like eager steps."""

import contextlib
import gc
import warnings

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import observers, optimizer_hooks, optimizers
from mpchain.distributed import (
    MultiNodeUpdater,
    create_multi_node_optimizer,
    create_sharded_iterator,
)
from mpchain.distributed.communicators import NcclCommunicator
from mpchain.distributed.gradients import compression
from mpchain.function_hooks import TimerHook
from mpchain.iterators import SerialIterator
from mpchain.training.updaters import StandardUpdater
from tests.distributed.devices import host, on_device, on_gpus

ON_GPUS = True


def perceptron():
    np.random.seed(0)
    return on_device(mpchain.Sequential(L.Linear(5, 7), F.relu, L.Linear(7, 3)))


def batch_of(i, rank, n=4):
    random = np.random.RandomState(10 * i + rank)
    return random.randn(n, 5).astype("f"), random.randint(0, 3, n).astype("i")


def nothing(optimizer, i):
    pass


def trained(
    comm, captured, prepare=nothing, n_steps=7, ratio=None, make=optimizers.MomentumSGD, **options
):
    """Trains a model; returns its parameters and gradients, and the reason after each step."""
    model = perceptron()
    optimizer = create_multi_node_optimizer(make(0.1), comm, **options).setup(model)

    def step(x, t):
        def loss():
            y = model(x)
            return F.softmax_cross_entropy(y if ratio is None else F.dropout(y, ratio), t)

        optimizer.update(loss)

    step = mpchain.capture(step) if captured else step
    reasons = []
    for i in range(n_steps):
        prepare(optimizer, i)
        step(*on_device(batch_of(i, comm.rank)))
        reasons.append(getattr(step, "reason", None))
    return [host(x.copy()) for p in model.params() for x in (p.array, p.grad)], reasons


def assert_equal(expected, found):
    for x, y in zip(expected, found, strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-7)


def test_replays_average_gradients(comm):
    expected, _ = trained(comm, False)
    found, reasons = trained(comm, True)
    assert reasons[3:] == [None] * 4
    assert_equal(expected, found)
    assert len({str(x) for x in comm.allgather_obj([x.tolist() for x in found[::2]])}) == 1


def test_clipping_and_rates_that_change(comm):
    def prepare(optimizer, i):
        if i == 0:
            optimizer.add_hook(optimizer_hooks.GradientClipping(0.05))
        optimizer.alpha = 0.1 / (i + 1)

    expected, _ = trained(comm, False, prepare, 9, make=optimizers.Adam)
    found, reasons = trained(comm, True, prepare, 9, make=optimizers.Adam)
    assert reasons[3:] == [None] * 6
    assert_equal(expected, found)


def test_gradients_in_half_precision(comm):
    options = {"compression": compression.float16}
    expected, _ = trained(comm, False, **options)
    found, reasons = trained(comm, True, **options)
    assert reasons[3:] == [None] * 4
    assert_equal(expected, found)


def test_weights_of_ranks_may_change(comm):
    def prepare(optimizer, i):
        optimizer.n_samples = 4 + i * comm.rank

    expected, _ = trained(comm, False, prepare)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # steps whose weight differs each time give warnings
        found, reasons = trained(comm, True, prepare)
    assert_equal(expected, found)
    assert (comm.size > 1 and not on_gpus()) or reasons[-1] is None


def test_weights_that_change_after_the_recording(comm):
    def prepare(optimizer, i):
        optimizer.n_samples = 4 + (comm.rank if i > 4 else 0)

    expected, _ = trained(comm, False, prepare)
    found, reasons = trained(comm, True, prepare)
    assert reasons[3:] == [None] * 4
    assert_equal(expected, found)


@pytest.mark.parametrize("by_batch", [False, True])
def test_the_batch_of_one_rank_may_count_for_nothing(comm, by_batch):
    with contextlib.ExitStack() as stack:

        def prepare(optimizer, i):
            weight = 0 if i in (4, 6) and comm.rank == 0 and comm.size > 1 else 4
            if by_batch:
                stack.close()
                stack.enter_context(comm.batch(4 * comm.size, weight=weight))
            else:
                optimizer.n_samples = weight

        expected, _ = trained(comm, False, prepare)
        found, reasons = trained(comm, True, prepare)
    assert_equal(expected, found)
    if not on_gpus():
        nothing = "this rank's batch has no weight in this step"
        n = nothing if comm.rank == 0 and comm.size > 1 else None
        assert reasons[3:] == [None, n, None, n]


def test_a_rank_may_count_for_nothing_while_others_record(comm):
    def prepare(optimizer, i):
        optimizer.n_samples = 0 if i in (1, 6) and comm.rank == 0 and comm.size > 1 else 4

    expected, _ = trained(comm, False, prepare, 8)
    found, reasons = trained(comm, True, prepare, 8)
    assert_equal(expected, found)
    assert on_gpus() or reasons[-1] is None


@pytest.mark.parametrize("captured", [False, True])
def test_weights_that_are_zero_on_all_ranks(comm, captured):
    def prepare(optimizer, i):
        stack.enter_context(comm.batch(4 * comm.size, weight=0 if i == 5 else 4))

    with contextlib.ExitStack() as stack, pytest.raises(ValueError, match="0 on all ranks"):
        trained(comm, captured, prepare)


def test_indices_that_the_loss_computes_are_checked_before_messages(comm):
    def train(captured):
        np.random.seed(0)
        model = on_device(mpchain.Sequential(L.EmbedID(6, 5), L.Linear(5, 3)))
        optimizer = create_multi_node_optimizer(optimizers.SGD(0.1), comm).setup(model)

        def step(x, t):
            optimizer.update(lambda: F.softmax_cross_entropy(model(abs(t) % 3 + t), t))

        step = mpchain.capture(step) if captured else step
        for i in range(6):
            step(*on_device(batch_of(i, comm.rank)))
        return [host(param.array) for param in model.params()], getattr(step, "reason", None)

    (expected, _), (found, reason) = train(False), train(True)
    assert_equal(expected, found)
    assert reason is None


def test_one_rank_may_run_as_always(comm):
    with contextlib.ExitStack() as stack:

        def prepare(optimizer, i):
            if i == 5 and comm.rank == comm.size - 1:
                stack.enter_context(TimerHook())
            if i == 6:
                stack.close()

        expected, _ = trained(comm, False)
        found, reasons = trained(comm, True, prepare)
    assert reasons[3:5] == [None] * 2
    # On GPUs, either all ranks launch their graphs together, or no rank does.
    assert (reasons[5] is None) == (comm.rank < comm.size - 1 and not on_gpus())
    assert reasons[6] is None
    assert_equal(expected, found)


def test_one_rank_may_have_a_shape_for_the_first_time(comm):
    model = perceptron()
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.1), comm).setup(model)

    @mpchain.capture
    def step(x, t):
        optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))

    for i in range(8):
        n = 3 if i == 5 and comm.rank == comm.size - 1 else 4
        optimizer.n_samples = n
        step(*on_device(batch_of(i, comm.rank, n)))
    assert step.reason is None
    values = [host(p.array).tolist() for p in model.params()]
    assert comm.allgather_obj(values) == [values] * comm.size


def test_loss_scales(comm):
    def prepare(optimizer, i):
        optimizer.set_loss_scale(8.0)

    expected, _ = trained(comm, False)
    found, reasons = trained(comm, True, prepare)
    assert reasons[3:] == [None] * 4
    assert_equal(expected, found)


@pytest.mark.filterwarnings("ignore:.*the samples of this rank are unknown")
def test_draws_by_sample(comm):
    def prepare(optimizer, i):
        optimizer.current_step.draws._key = 1, 2  # each setup has a different key

    expected, _ = trained(comm, False, prepare, ratio=0.5)
    with contextlib.ExitStack() as stack:
        if not on_gpus():
            reason = "several ranks draw random numbers by sample"
            stack.enter_context(pytest.warns(UserWarning, match=reason))
        found, reasons = trained(comm, True, prepare, ratio=0.5)
    assert reasons[3:] == [None] * 4 if on_gpus() else None not in reasons
    assert_equal(expected, found)


def check_refusal(comm, step, reason, n=5):
    """Checks that a step runs eagerly with a warning, and that another step can follow."""
    step = mpchain.capture(step)
    with pytest.warns(UserWarning, match=reason):
        for i in range(n):
            step(*on_device(batch_of(i, comm.rank)))
    assert observers.current.recorder is None
    assert step.reason is not None
    _, reasons = trained(comm, True, n_steps=4)
    assert reasons[-1] is None


def test_accumulation_is_not_replayed(comm):
    model = perceptron()
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.1), comm).setup(model)

    def step(x, t):
        with optimizer.no_sync():
            optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))
        optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))

    check_refusal(comm, step, "gradients are not summed in the step", 3)


@pytest.mark.gpu
class TestGraphsOfGpus:
    """Graphs of GPUs contain the whole step."""

    @pytest.fixture(autouse=True)
    def _only_on_gpus(self, comm):
        if not on_gpus() or comm.size == 1:
            pytest.skip("needs several ranks with a GPU each")

    def optimizer_of(self, comm, **options):
        model = perceptron()
        return create_multi_node_optimizer(optimizers.SGD(0.1), comm, **options).setup(model)

    def check(self, comm, optimizer, reason, loss=F.softmax_cross_entropy, n_updates=5):
        model = optimizer.target
        check_refusal(comm, lambda x, t: optimizer.update(lambda: loss(model(x), t)), reason)
        assert optimizer.t == n_updates

    def test_what_a_replay_launches(self, comm, double):
        optimizer = self.optimizer_of(comm)
        model = optimizer.target
        step = mpchain.capture(
            lambda x, t: optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))
        )
        batch = on_device(batch_of(0, comm.rank))
        for _ in range(4):
            step(*batch)
        double.reset()
        step(*batch)
        assert step.reason is None
        # There are copies of the arguments, and of the numbers of optimizer and weight; NCCL and
        # all kernels are in the graph.
        names = [name for name, _ in double.launches.elements()]
        assert sorted(names) == ["copyto", "copyto", "graph", "mpchain_store_numbers"]
        assert not double.synchronizations

    def test_what_one_rank_cannot_capture(self, comm):
        own = NcclCommunicator(comm.mpi_comm, binding=comm._binding)

        def loss(y, t):
            value = F.softmax_cross_entropy(y, t)
            if comm.rank == 0:
                float(value.array)
            return value

        def check(loss, reason):
            optimizer = self.optimizer_of(own)
            step = mpchain.capture(
                lambda x, t: optimizer.update(lambda: loss(optimizer.target(x), t))
            )
            with pytest.warns(UserWarning, match=reason):
                for i in range(5):
                    step(*on_device(batch_of(i, comm.rank)))
            assert optimizer.t == 5

        check(loss, "not replayed: on rank 0, it reads the values")
        # NCCL requires the same captures on all ranks.
        check(F.softmax_cross_entropy, "not replayed: only some ranks could capture a step before")
        own._disconnect()

    def test_gradients_of_different_parameters(self, comm):
        model = perceptron()
        optimizer = create_multi_node_optimizer(optimizers.SGD(0.1), comm).setup(model)

        def step(x, t):
            h = F.relu(model[0](x))
            if comm.rank == 0:
                h = h.array
            optimizer.update(lambda: F.softmax_cross_entropy(model[2](h), t))

        check_refusal(comm, step, "ranks have gradients of different parameters")

    def test_other_exchanges(self, comm):
        def loss(y, t):
            comm.allreduce(y.array)
            return F.softmax_cross_entropy(y, t)

        self.check(comm, self.optimizer_of(comm), "ranks exchange more than gradients", loss)

    def test_compressions_with_a_state(self, comm):
        optimizer = self.optimizer_of(comm, compression=compression.TopK(0.5))
        self.check(comm, optimizer, "compressed by code whose state may change")

    def test_hooks_that_may_draw(self, comm):
        optimizer = self.optimizer_of(comm)
        optimizer.add_hook(lambda optimizer: None, name="own")
        self.check(comm, optimizer, "hooks may draw random numbers")

    def test_double_buffering(self, comm):
        optimizer = self.optimizer_of(comm, double_buffering=True)
        self.check(comm, optimizer, "gradients are not summed in the step", n_updates=4)

    def test_a_communicator_may_end_before_its_graphs(self, comm):
        other = NcclCommunicator(comm.mpi_comm, binding=comm._binding)
        optimizer = self.optimizer_of(other)
        model = optimizer.target
        step = mpchain.capture(
            lambda x, t: optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))
        )
        for i in range(5):
            step(*on_device(batch_of(i, comm.rank)))
        assert step.reason is None
        other._disconnect()  # NCCL would wait for the graph, so it is released first
        reasons = []
        for i in range(4):
            step(*on_device(batch_of(i, comm.rank)))
            reasons.append(step.reason)
        assert reasons[1:] == ["it is being recorded"] + [None] * 2
        del step
        gc.collect()
        other._disconnect()


def updater_of(kind, comm, *args, graph=True, n=24, n_batch=6, **options):
    """Returns an updater, and its model; four ranks cannot divide a batch evenly."""
    np.random.seed(0)
    model = L.Classifier(perceptron())
    optimizer = create_multi_node_optimizer(optimizers.Adam(0.1), comm).setup(model)
    batches = SerialIterator([*zip(*batch_of(0, 0, n))], n_batch, shuffle=False)
    batches = create_sharded_iterator(batches, comm)
    device = model.device if on_gpus() else None
    return kind(batches, optimizer, *args, device=device, graph=graph, **options), model


def results_of(updater, model, n_steps):
    """Returns the reports and parameters of each step."""
    reporter, found = mpchain.Reporter(), []
    reporter.add_observer("main", model)
    with reporter:
        for _ in range(n_steps):
            observation = {}
            with mpchain.report_scope(observation):
                updater.update()
            reports = {k: float(getattr(v, "array", v)) for k, v in observation.items()}
            found.append((reports, [host(p.array.copy()) for p in model.params()]))
    return found


def test_standard_updaters_replay(comm):
    updater, model = updater_of(StandardUpdater, comm)
    results_of(updater, model, 6)  # with few samples, labels may be equal at first
    assert updater.captured.reason is None


def test_multi_node_updaters_replay(comm):
    expected = results_of(*updater_of(MultiNodeUpdater, comm, comm, graph=False), 9)
    updater, model = updater_of(MultiNodeUpdater, comm, comm)
    found = results_of(updater, model, 9)
    assert updater.captured.reason is None
    for (reports, params), (other_reports, other_params) in zip(expected, found, strict=True):
        assert set(other_reports) == {"main/loss", "main/accuracy"}
        assert other_reports == pytest.approx(reports, rel=1e-5)
        assert_equal(params, other_params)
    assert comm.allgather_obj([r for r, _ in found]) == [[r for r, _ in found]] * comm.size


@pytest.mark.parametrize("n_batch", [6, 2])  # with 2 samples, the third rank has none
def test_batches_that_go_on_in_the_next_epoch(comm, n_batch):
    options = {"n": 7, "n_batch": n_batch}
    expected = results_of(*updater_of(MultiNodeUpdater, comm, comm, graph=False, **options), 24)
    found = results_of(*updater_of(MultiNodeUpdater, comm, comm, **options), 24)
    for (reports, params), (other_reports, other_params) in zip(expected, found, strict=True):
        assert other_reports == pytest.approx(reports, rel=1e-5)
        assert_equal(params, other_params)


def test_accumulation_of_updaters_is_not_replayed(comm):
    with pytest.warns(UserWarning, match="graph=True has no effect with accumulation"):
        updater, model = updater_of(MultiNodeUpdater, comm, comm, accumulation=2)
    results_of(updater, model, 2)

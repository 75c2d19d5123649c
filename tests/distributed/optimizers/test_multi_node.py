"""Tests that multi-node optimizers on N ranks with parts of a batch do the same as one process with
the whole batch."""

import functools
import itertools
import warnings

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizer_hooks, optimizers
from mpchain.configuration import mixed_bf16, using_config
from mpchain.distributed import create_multi_node_optimizer, create_sharded_optimizer
from mpchain.distributed.communicators.arrays import partition
from mpchain.link import Chain
from tests.distributed.devices import address, assert_allclose, assert_array_equal, on_device, xp
from tests.models import MLP

ON_GPUS = True

OPTIMIZERS = {
    "SGD": lambda: optimizers.SGD(lr=0.1),
    "MomentumSGD": lambda: optimizers.MomentumSGD(lr=0.1),
    "Adam": lambda: optimizers.Adam(alpha=0.01),
}


@pytest.fixture(autouse=True)
def _in_float64():
    with using_config("dtype", np.dtype("float64")):
        yield


def batch(n=7, seed=5):
    random = np.random.RandomState(seed)
    return on_device((random.uniform(-1, 1, (n, 3)), random.uniform(-1, 1, (n, 2))))


def part(arrays, comm):
    begin, end = partition(len(arrays[0]), comm.rank, comm.size)
    return [array[begin:end] for array in arrays]


def update(optimizer, comm, arrays, model):
    """Makes an update with this rank's part of a batch."""
    x, t = part(arrays, comm)
    optimizer.n_samples = len(x)
    optimizer.update(model.loss, x, t)


def assert_close(model, expected, tolerance=1e-12):
    expected = dict(expected.namedparams())
    for name, param in model.namedparams():
        reference = expected[name].array
        atol = tolerance * xp.abs(reference).max()
        assert_allclose(param.array, reference, rtol=0, atol=atol, err_msg=name)


def assert_alike(comm, model):
    """Checks that the parameters have the same bits on all ranks."""
    for name, param in sorted(model.namedparams()):
        assert len({y.tobytes() for y in comm.allgather(param.array)}) == 1, name


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("n", [1, 6, 7])
@pytest.mark.parametrize("n_in", [3, None], ids=["initialized", "lazy"])
def test_n_ranks_are_one_process(comm, make, n, n_in):
    np.random.seed(1)
    expected = on_device(MLP(n_in))
    plain = make().setup(expected)
    plain.add_hook(optimizer_hooks.WeightDecay(0.01))
    plain.add_hook(optimizer_hooks.GradientClipping(0.1))
    for step in range(5):
        plain.update(expected.loss, *batch(n, step))
    after = np.random.uniform()

    np.random.seed(1 if comm.rank == 0 else 100 + comm.rank)  # all ranks get rank 0's parameters
    model = on_device(MLP(n_in))
    optimizer = create_multi_node_optimizer(make(), comm).setup(model)
    optimizer.add_hook(optimizer_hooks.WeightDecay(0.01))
    optimizer.add_hook(optimizer_hooks.GradientClipping(0.1))
    for step in range(5):
        update(optimizer, comm, batch(n, step), model)
    assert_close(model, expected)
    assert_alike(comm, model)
    assert optimizer.t == plain.t == 5
    if comm.rank == 0:
        assert np.random.uniform() == after


def test_hyperparameters_are_those_of_the_wrapped_optimizer(comm):
    sgd, lbfgs = optimizers.SGD(0.5), optimizers.LBFGS()
    assert mpchain.create_multi_node_optimizer(sgd, comm).hyperparam is sgd.hyperparam
    assert mpchain.create_multi_node_optimizer(lbfgs, comm).hyperparam is lbfgs.hyperparam is None


def test_initial_values_do_not_depend_on_what_else_is_random(comm):
    np.random.seed(2)
    expected = on_device(MLP(None))
    expected(batch()[0])
    np.random.seed(2)
    model = on_device(MLP(None, ratio=0.5))  # the draws of dropout depend on a rank's samples
    optimizer = create_multi_node_optimizer(optimizers.SGD(lr=0), comm).setup(model)
    update(optimizer, comm, batch(), model)
    assert_close(model, expected, 0)


def test_a_generator_for_initial_values_is_used(comm):
    expected = on_device(MLP(None))
    with using_config("rng", np.random.default_rng(3)):
        expected(batch()[0])
    before = np.random.get_state()[2]
    model = on_device(MLP(None))
    optimizer = create_multi_node_optimizer(optimizers.SGD(lr=0), comm).setup(model)
    with using_config("rng", np.random.default_rng(3)):
        update(optimizer, comm, batch(), model)
    assert_close(model, expected, 0)
    assert np.random.get_state()[2] == before


class Stateful(Chain):
    """A model that counts its calls in a persistent array and in a persistent number, and stores
    its latest output in an attribute."""

    def __init__(self, log):
        super().__init__()
        self.log = log
        with self.init_scope():
            self.l1 = L.Linear(None, 2)
        self.add_persistent("seen", xp.zeros(()))
        self.add_persistent("n_calls", 0)
        self.h = None

    def loss(self, x, t):
        self.log.append(self.h is None)
        self.seen += 1
        self.n_calls += 1
        self.h = self.l1(x)
        return F.mean_squared_error(self.h, t)


@pytest.mark.parametrize("alike", [True, False])
def test_the_first_pass_leaves_no_traces(comm, alike):
    """The first pass counts if all ranks have initialized equally; otherwise, it is repeated."""
    log = []
    model = on_device(Stateful(log))
    seen = model.seen
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
    np.random.seed(comm.rank)
    with using_config("rng", None if alike else np.random.RandomState(comm.rank)):
        update(optimizer, comm, batch(comm.size), model)
    n_passes = 1 if alike or comm.size == 1 else 2
    assert log == n_passes * [True]
    assert model.seen is seen
    assert (seen, model.n_calls) == (1, 1)
    assert_alike(comm, model)
    update(optimizer, comm, batch(comm.size), model)
    assert log == [*(n_passes * [True]), False]


class TwoBranches(Chain):
    """A model in which the data decides which parameters are used."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.a = L.Linear(None, 2)
            self.b = L.Linear(None, 2)

    def loss(self, x, t):
        return F.mean_squared_error((self.a if x[0, 0] > 0 else self.b)(x), t)


def test_parameters_that_only_some_ranks_use(comm):
    np.random.seed(comm.rank)
    model = on_device(TwoBranches())
    optimizer = create_multi_node_optimizer(optimizers.SGD(lr=0.1), comm).setup(model)
    for step in range(4):
        x, t = batch(4, step)
        # Only the last rank uses branch b, from the second step on.
        x[0, 0] = -1 if step > 0 and comm.rank == comm.size - 1 else 1
        optimizer.update(model.loss, x, t)
        assert model.b.W.is_initialized == (step > 0)
        assert_alike(comm, model.a)
        if step > 0:
            assert_alike(comm, model.b)


def test_without_zero_fill(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks that use different branches")
    np.random.seed(0)
    model = on_device(TwoBranches())
    model.a(xp.ones((1, 3))), model.b(xp.ones((1, 3)))
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm, zero_fill=False).setup(model)
    x, t = batch(4)
    x[0, 0] = -1 if comm.rank == 0 else 1
    with pytest.raises(ValueError, match=r"gradients are None on some ranks only.* /a/W on rank 0"):
        optimizer.update(model.loss, x, t)


def test_ranks_without_samples(comm):
    np.random.seed(1)
    expected = on_device(MLP())
    plain = optimizers.MomentumSGD(lr=0.1).setup(expected)
    np.random.seed(1)
    model = on_device(MLP())
    optimizer = create_multi_node_optimizer(optimizers.MomentumSGD(lr=0.1), comm).setup(model)
    last = comm.size - 1
    for step in range(3):
        arrays = batch(4, step)
        plain.update(expected.loss, *arrays)
        optimizer.n_samples = 4 if comm.rank == last else 0
        optimizer.update(model.loss if comm.rank == last else must_not_be_called, *arrays)
    assert_close(model, expected)
    optimizer.n_samples = 0  # no rank has samples, so nothing happens
    optimizer.update(must_not_be_called)
    assert optimizer.t == 3
    assert_close(model, expected)


def must_not_be_called(*args):
    raise AssertionError("a rank without samples computes nothing")


@pytest.mark.parametrize("n_parts", [2, 3, 5])
@pytest.mark.parametrize("n_in", [3, None], ids=["initialized", "lazy"])
def test_in_parts(comm, n_parts, n_in):
    np.random.seed(1)
    expected = on_device(MLP(n_in))
    plain = optimizers.SGD(lr=0.1).setup(expected)
    for step in range(3):
        plain.update(expected.loss, *batch(7, step))
    np.random.seed(1)
    model = on_device(MLP(n_in))
    optimizer = create_multi_node_optimizer(optimizers.SGD(lr=0.1), comm).setup(model)
    for step in range(3):
        x, t = part(batch(7, step), comm)
        parts = []
        for i in range(n_parts):
            begin, end = partition(len(x), i, n_parts)
            # Micro-batches without samples, whose mean loss would be NaN, are not computed.
            parts.append((end - begin, functools.partial(model.loss, x[begin:end], t[begin:end])))
        optimizer.update_in_parts(parts)
    assert_close(model, expected)


def test_with_loss_scale(comm):
    np.random.seed(1)
    expected = on_device(MLP())
    plain = optimizers.SGD(lr=0.1).setup(expected)
    np.random.seed(1)
    model = on_device(MLP())
    optimizer = create_multi_node_optimizer(optimizers.SGD(lr=0.1), comm).setup(model)
    optimizer.loss_scaling(scale=1024.0)
    for step in range(3):
        plain.update(expected.loss, *batch(7, step))
        x, t = part(batch(7, step), comm)
        optimizer.n_samples = len(x)
        half = len(x) // 2
        if half:  # the shares of micro-batches are scaled, too
            optimizer.update_in_parts(
                [
                    (half, functools.partial(model.loss, x[:half], t[:half])),
                    (len(x) - half, functools.partial(model.loss, x[half:], t[half:])),
                ]
            )
        else:
            optimizer.update(model.loss, x, t)
    assert_close(model, expected)


def test_bfloat16(comm):
    """Gradients are rounded on each rank, and results stay close to those of one process."""
    models = []
    for _ in range(2):
        np.random.seed(1)
        with using_config("dtype", mixed_bf16):
            models.append(on_device(MLP()))
    expected, model = models
    plain = optimizers.SGD(lr=0.1).setup(expected)
    optimizer = create_multi_node_optimizer(optimizers.SGD(lr=0.1), comm).setup(model)
    for each in (plain, optimizer):
        each.use_fp32_update()
    for step in range(3):
        x, t = (array.astype(mixed_bf16.dtype) for array in batch(7, step))
        plain.update(expected.loss, x, t)
        x, t = part((x, t), comm)
        optimizer.n_samples = len(x)
        optimizer.update(model.loss, x, t)
    assert {p.dtype for p in model.params()} == {mixed_bf16.dtype}
    assert_close(model, expected, 2.0**-6)
    assert_alike(comm, model)


@pytest.mark.parametrize("counts", [(4, 1, 2), (3, 4), (0, 7), (7, 0)], ids=str)
@pytest.mark.parametrize("n_in", [3, None], ids=["initialized", "lazy"])
def test_no_sync(comm, counts, n_in):
    """Rank 0 makes several updates with its samples, all but the last within no_sync."""
    np.random.seed(1)
    expected = on_device(MLP(n_in))
    plain = optimizers.SGD(lr=0.1).setup(expected)
    np.random.seed(1)
    model = on_device(MLP(n_in))
    optimizer = create_multi_node_optimizer(optimizers.SGD(lr=0.1), comm).setup(model)
    for step in range(3):
        x, t = batch(7 + 2 * (comm.size - 1), step)
        np.random.seed(step)
        plain.update(expected.loss, x, t)
        np.random.seed(step)
        if comm.rank > 0:
            begin = 7 + 2 * (comm.rank - 1)
            mine = [(x[begin : begin + 2], t[begin : begin + 2])]
            if step == 0:  # all ranks take part in the update that initializes parameters
                mine.insert(0, (x[:0], t[:0]))
        else:
            ends = np.cumsum((0, *counts))
            mine = [(x[i:j], t[i:j]) for i, j in itertools.pairwise(ends)]
            if n_in is None and step == 0:
                mine = [(x[:0], t[:0]), (x[:7], t[:7])]
        with optimizer.no_sync():
            for arrays in mine[:-1]:
                before = optimizer.t
                optimizer.n_samples = len(arrays[0])
                optimizer.update(model.loss, *arrays)
                assert optimizer.t == before
        optimizer.n_samples = len(mine[-1][0])
        optimizer.update(model.loss, *mine[-1])
    assert optimizer.t == 3
    assert_close(model, expected)
    assert_alike(comm, model)


def test_no_sync_then_an_update_without_loss(comm):
    np.random.seed(1)
    expected = on_device(MLP())
    plain = optimizers.SGD(lr=0.1).setup(expected)
    np.random.seed(1)
    model = on_device(MLP())
    optimizer = create_multi_node_optimizer(optimizers.SGD(lr=0.1), comm).setup(model)
    for step in range(2):
        arrays = batch(5 * comm.size, step)
        plain.update(expected.loss, *arrays)
        x, t = part(arrays, comm)
        with optimizer.no_sync():
            for begin, end in [(0, 2), (2, 5)]:
                optimizer.n_samples = end - begin
                optimizer.update(model.loss, x[begin:end], t[begin:end])
            with pytest.raises(RuntimeError, match="within no_sync it needs a loss function"):
                optimizer.update()
        optimizer.update()
    assert_close(model, expected)


def test_no_sync_without_numbers_of_samples(comm):
    """Micro-batches have equal weights, and ranks have the same number of micro-batches."""
    np.random.seed(1)
    expected = on_device(MLP())
    plain = optimizers.SGD(lr=0.1).setup(expected)
    np.random.seed(1)
    model = on_device(MLP())
    optimizer = create_multi_node_optimizer(optimizers.SGD(lr=0.1), comm).setup(model)
    x, t = batch(6 * comm.size)
    plain.update(expected.loss, x, t)
    x, t = part((x, t), comm)
    with optimizer.no_sync():
        optimizer.update(model.loss, x[:3], t[:3])
    optimizer.update(model.loss, x[3:], t[3:])
    assert_close(model, expected)


def test_the_norm_for_clipping_is_that_of_the_mean_gradient(comm):
    norms = []

    def watch(optimizer):
        norms.append(np.sqrt(sum(float((p.grad**2).sum()) for p in optimizer.target.params())))

    np.random.seed(1)
    expected = on_device(MLP())
    x, t = batch(7)
    loss = expected.loss(x, t)
    expected.cleargrads()
    loss.backward()
    norm = np.sqrt(sum(float((p.grad**2).sum()) for p in expected.params()))
    np.random.seed(1)
    model = on_device(MLP())
    optimizer = create_multi_node_optimizer(optimizers.SGD(lr=0), comm).setup(model)
    optimizer.add_hook(watch, "before")
    optimizer.add_hook(optimizer_hooks.GradientClipping(norm / 2))
    optimizer.add_hook(watch, "after")
    update(optimizer, comm, (x, t), model)
    assert_allclose(norms, [norm, norm / 2], rtol=1e-13)


def test_an_overflow_on_one_rank_is_everybodys(comm):
    np.random.seed(1)
    model = on_device(MLP())
    optimizer = create_multi_node_optimizer(optimizers.SGD(lr=0.1), comm).setup(model)
    optimizer.loss_scaling(interval=10)
    before = [param.array.copy() for param in model.params()]
    x, t = batch(3, comm.rank)
    if comm.rank == comm.size - 1:
        t[0, 0] = np.inf
    with (
        np.errstate(invalid="ignore"),
        pytest.warns(RuntimeWarning, match="step 1 is skipped, because with loss scale 1"),
    ):
        optimizer.update(model.loss, x, t)
        assert not optimizer.is_safe_to_update()  # reading the state on a GPU waits for the result
    for array, param in zip(before, model.params()):
        assert_array_equal(param.array, array)
    scales = []
    for step in range(3):
        optimizer.update(model.loss, *batch(3, step))
        scales.append(optimizer.loss_scale)
    assert scales == pytest.approx([2 ** (i / 10) for i in (1, 2, 3)])
    assert len(set(comm.allgather_obj((optimizer.t, *scales)))) == 1
    assert_alike(comm, model)


@pytest.mark.parametrize("double_buffering", [False, True])
def test_gradients_that_a_program_keeps(comm, double_buffering):
    """The program's references to gradients keep their values; ordinary training needs no memory
    for this."""
    model = on_device(MLP())
    optimizer = create_multi_node_optimizer(
        optimizers.Adam(), comm, double_buffering=double_buffering
    ).setup(model)

    def gradients():
        return [param.grad for _, param in sorted(model.namedparams())]

    def places():
        """Returns the addresses of the gradients in two steps, because double buffering alternates
        between two slots."""
        found = set()
        for step in range(2):
            update(optimizer, comm, batch(7, step), model)
            found |= {address(grad) for grad in gradients()}
        return found

    for _ in range(2):  # with double buffering, the first step has no gradients
        update(optimizer, comm, batch(), model)
    first = places()
    if comm.size > 1:
        assert places() == places() == first
    kept = []
    for step in range(4):
        update(optimizer, comm, batch(7, step), model)
        kept.append((gradients(), [grad.copy() for grad in gradients()]))
    for grads, copies in kept:
        for grad, copy in zip(grads, copies, strict=True):
            assert_array_equal(grad, copy)


@pytest.mark.parametrize("same_seed", [False, True])
@pytest.mark.parametrize("of_rule", [False, True])
def test_gradient_noise_is_rank_0s(comm, same_seed, of_rule):
    def add_hook(optimizer):
        owner = optimizer.target.l1.W.update_rule if of_rule else optimizer
        owner.add_hook(optimizer_hooks.GradientNoise(0.1))

    np.random.seed(1)
    expected = on_device(MLP())
    plain = optimizers.SGD(lr=0.1).setup(expected)
    add_hook(plain)
    for step in range(3):
        plain.update(expected.loss, *batch(7, step))
    after = np.random.uniform()

    np.random.seed(1)
    model = on_device(MLP())
    optimizer = create_multi_node_optimizer(optimizers.SGD(lr=0.1), comm).setup(model)
    add_hook(optimizer)
    if comm.rank > 0 and not same_seed:
        np.random.seed(comm.rank)
    state = np.random.get_state()
    for step in range(3):
        update(optimizer, comm, batch(7, step), model)
    assert_close(model, expected)
    assert_alike(comm, model)
    if comm.rank == 0 or same_seed:
        assert np.random.uniform() == after
    else:  # the rank's own random numbers are not used
        np.testing.assert_equal(np.random.get_state(), state)


def test_ranks_count_equally_unless_told_otherwise(comm):
    np.random.seed(1)
    model = on_device(MLP())
    optimizer = create_multi_node_optimizer(optimizers.SGD(lr=1), comm).setup(model)
    before = {name: param.array.copy() for name, param in model.namedparams()}
    gradients = {}
    x, t = batch(2 + comm.rank, comm.rank)
    loss = model.loss(x, t)
    model.cleargrads()
    loss.backward()
    for name, param in sorted(model.namedparams()):
        gradients[name] = comm.allreduce(param.grad) / comm.size
    optimizer.update(model.loss, x, t)
    for name, param in model.namedparams():
        assert_allclose(param.array, before[name] - gradients[name], atol=1e-14)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.update(model.loss, x, t)
    assert len(caught) == (comm.size > 1 and comm.rank == 0)
    assert all("Ranks have equal weights" in str(warning.message) for warning in caught)


def test_gradients_that_are_computed_outside(comm):
    np.random.seed(1)
    expected = on_device(MLP())
    plain = optimizers.Adam().setup(expected)
    np.random.seed(1)
    model = on_device(MLP())
    optimizer = create_multi_node_optimizer(optimizers.Adam(), comm).setup(model)
    for step in range(3):
        arrays = batch(7, step)
        plain.update(expected.loss, *arrays)
        x, t = part(arrays, comm)
        model.cleargrads()
        if len(x):
            model.loss(x, t).backward()
        optimizer.n_samples = len(x)
        optimizer.update()
    assert_close(model, expected)


@pytest.mark.parametrize("alike", [False, True])
def test_parameters_that_are_initialized_outside(comm, alike):
    """A step with gradients of parameters that differed between ranks is skipped, once."""
    np.random.seed(0 if alike else comm.rank)
    model = on_device(MLP(None))
    optimizer = create_multi_node_optimizer(optimizers.SGD(lr=0.1), comm).setup(model)
    leaves_out = not alike and comm.size > 1
    for step in range(3):
        model.cleargrads()
        model.loss(*part(batch(7, step), comm)).backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.update()
        messages = [str(warning.message) for warning in caught]
        if step == 0 and leaves_out and comm.rank == 0:
            (message,) = messages
            assert "this step is skipped" in message
        else:
            assert messages == []
        assert optimizer.t == step + (not leaves_out)
        assert_alike(comm, model)


def test_setup_makes_parameters_the_same(comm):
    np.random.seed(comm.rank)
    model = on_device(MLP())
    own = [param.array.copy() for _, param in sorted(model.namedparams())]
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm)
    assert optimizer.setup(model) is optimizer
    for array, (_, param) in zip(own, sorted(model.namedparams())):
        assert_array_equal(param.array, comm.bcast(array))


def test_setup_initializes_what_rank_0_has(comm):
    model = on_device(MLP(None))
    if comm.rank == 0:
        model(batch()[0])
    state = np.random.get_state()[1:3]
    create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
    assert_alike(comm, model)
    # Initial values that are replaced at once do not use the program's random numbers.
    if comm.rank > 0:
        np.testing.assert_equal(np.random.get_state()[1:3], state)


def test_bcast_data(comm):
    np.random.seed(comm.rank)
    model = on_device(MLP())
    comm.bcast_data(model)
    assert_alike(comm, model)
    assert comm.broadcast_data == comm.bcast_data


@pytest.mark.parametrize("zero_fill", [False, True])
def test_multi_node_mean_grad(comm, zero_fill):
    np.random.seed(0)
    model = on_device(MLP())
    for param in model.params():
        param.grad = xp.full(param.shape, float(comm.rank))
    model.l1.b.grad = None
    comm.multi_node_mean_grad(model, zero_fill)
    assert model.l1.b.grad is None
    mean = np.mean(range(comm.size))
    assert_array_equal(model.l1.W.grad, xp.full((4, 3), mean))
    comm.allreduce_grad(model, zero_fill)
    assert_array_equal(model.l1.W.grad, xp.full((4, 3), mean))


@pytest.mark.parametrize("n_out", [2, None], ids=["initialized", "lazy"])
def test_a_link_that_is_added_later_costs_no_step(comm, n_out):
    """Training continues as in one process, for all random states of the ranks."""

    def train(model, optimizer, update):
        update()
        with model.init_scope():
            model.l3 = on_device(L.Linear(n_out, 2))
            model.norm = on_device(L.BatchNormalization(2))
        optimizer.setup(model)  # setup creates the update rules of the new parameters
        update()
        update()

    def loss(model, x, t):
        y = model(x)
        return F.mean_squared_error(model.l3(y) if hasattr(model, "l3") else y, t)

    np.random.seed(1)
    expected = on_device(MLP())
    plain = optimizers.SGD(lr=0.1).setup(expected)
    train(expected, plain, lambda: plain.update(loss, expected, *batch()))

    np.random.seed(1 if comm.rank == 0 else 100 + comm.rank)
    model = on_device(MLP())
    optimizer = create_multi_node_optimizer(optimizers.SGD(lr=0.1), comm).setup(model)

    def update():
        x, t = part(batch(), comm)
        optimizer.n_samples = len(x)
        optimizer.update(loss, model, x, t)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer.actual_optimizer, update)
    assert optimizer.t == 2
    assert_alike(comm, model)
    assert_close(model, expected)


class Decaying(optimizers.MomentumSGD):
    """An optimizer with its own attributes."""

    def __init__(self, *args):
        super().__init__(*args)
        self.decay = 0.5

    def setup(self, link):
        self.n_layers = len([*link.children()])
        return super().setup(link)


def test_it_is_an_optimizer_with_the_attributes_of_the_wrapped_one(comm):
    actual = Decaying(0.5)
    optimizer = create_multi_node_optimizer(actual, comm)
    assert isinstance(optimizer, mpchain.Optimizer)
    assert optimizer.actual_optimizer is actual
    assert actual.actual_optimizer is actual
    optimizer.setup(MLP())
    assert optimizer.lr == 0.5
    optimizer.lr, optimizer.hyperparam.momentum, optimizer.decay = 0.25, 0.75, 0.125
    assert (actual.lr, actual.momentum, actual.decay, optimizer.n_layers) == (0.25, 0.75, 0.125, 2)
    optimizer.add_hook(optimizer_hooks.WeightDecay(0.1))
    actual.remove_hook("WeightDecay")
    assert optimizer.target is actual.target
    optimizer.t, optimizer.epoch = 3, 2
    optimizer.set_loss_scale(8.0)
    assert (actual.t, actual.epoch, actual.loss_scale, optimizer.loss_scale) == (3, 2, 8.0, 8.0)


def test_attributes_that_the_wrapped_optimizer_lacks(comm):
    create_multi_node_optimizer(Decaying(), comm)
    optimizer = create_multi_node_optimizer(optimizers.Adam(), comm)
    assert not hasattr(optimizer, "momentum")
    for name in ("momentum", "decay", "no_such_thing"):
        with pytest.raises(AttributeError, match=f"has no .*'{name}'") as raised:
            getattr(optimizer, name)
        assert "attribute actual_optimizer" in raised.value.__notes__[0]
    with pytest.raises(AttributeError, match="'step': "):  # the error says what to call instead
        _ = optimizer.step
    optimizer.actual_optimizer.later = 1
    assert not hasattr(optimizer, "later")


def test_one_process_has_what_several_ranks_override():
    optimizer = optimizers.SGD()
    assert (optimizer.communicator, optimizer.rank_times()) == (None, None)
    assert optimizer.agree_on_signal(15) == 15
    optimizer.connect_trainer(None)
    optimizer.gather_state()


def test_models_that_differ_between_ranks(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks that differ")
    model = on_device(MLP())
    if comm.rank == 1:
        with model.init_scope():
            model.l3 = L.Linear(2, 2)
    with pytest.raises(
        ValueError,
        match=r"same parameters .* on all ranks, but rank 1 has /l3/W and rank 0 does not",
    ):
        create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
    model = on_device(MLP(3 + comm.rank))
    with pytest.raises(
        ValueError,
        match=r"parameter /l1/W must have one shape .* rank 0: \(4, 3\) float64, rank 1: \(4, 4\)",
    ):
        create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)


@pytest.mark.parametrize("create", [create_multi_node_optimizer, create_sharded_optimizer])
def test_parameters_that_only_some_ranks_update(comm, create):
    if comm.size == 1:
        pytest.skip("needs two ranks that differ")
    model = on_device(MLP())
    optimizer = create(optimizers.SGD(), comm).setup(model)
    update(optimizer, comm, batch(), model)
    model.l1.disable_update()  # the layer is frozen on all ranks
    update(optimizer, comm, batch(), model)
    before = {name: param.array.copy() for name, param in model.namedparams()}
    if comm.rank == 1:
        model.l2.disable_update()
    with pytest.raises(
        ValueError,
        match=rf"parameter /l2/\w is not updated on rank 1 of {comm.size}, but is updated",
    ):
        update(optimizer, comm, batch(), model)
    for name, param in model.namedparams():  # no rank has made the step
        assert_array_equal(param.array, before[name])


def test_misuse(comm):
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm)
    with pytest.raises(
        RuntimeError, match=r"MultiNodeOptimizer.update: call setup with a link before"
    ):
        optimizer.update()
    optimizer.setup(MLP())
    with pytest.raises(TypeError, match="the loss function must return a Variable, not float"):
        optimizer.update(lambda: 1.0)

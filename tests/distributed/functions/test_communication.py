"""Tests collectives as differentiable functions, against one process that has the arrays of all
ranks.

The loss of several ranks is the sum of the ranks' losses. So one process that applies the plain
operation to the arrays of all ranks, and sums the losses, has the same derivatives of every order.
"""

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain.configuration import using_config
from mpchain.distributed import functions as D
from mpchain.distributed.functions.communication import Communication
from tests.distributed.devices import assert_allclose, assert_array_equal, host, on_device, xp

ON_GPUS = True

# Each operation is applied to the list of this rank's arrays, and returns a list. Its reference is
# applied to the lists of all ranks.


def _whole(rank, n):
    return [(3, 2)]


def _uneven(rank, n):
    return [(rank, 2)]  # rank 0 has no elements


def _one_each(rank, n):
    return [(2, to + 1) for to in range(n)]


def _uneven_each(rank, n):
    return [(rank + 1, to) for to in range(n)]


def _at_root(shapes):
    return lambda rank, n, root=0: shapes(rank, n) if rank == root else [(0,)]


def _all_sum(xs):
    return F.add(*(x for (x,) in xs)) if len(xs) > 1 else xs[0][0]


CASES = {
    "allreduce": (
        lambda comm, xs: [D.allreduce(comm, *xs)],
        lambda xs: [[_all_sum(xs)] for _ in xs],
        _whole,
    ),
    "bcast": (
        lambda comm, xs, root: [D.bcast(comm, *xs, root)],
        lambda xs, root: [xs[root] for _ in xs],
        _at_root(_whole),
    ),
    "reduce": (
        lambda comm, xs, root: [D.reduce(comm, *xs, root)],
        lambda xs, root: [[_all_sum(xs)] if r == root else [] for r in range(len(xs))],
        _whole,
    ),
    "gather": (
        lambda comm, xs, root: _listed(D.gather(comm, *xs, root)),
        lambda xs, root: [[x for (x,) in xs] if r == root else [] for r in range(len(xs))],
        _uneven,
    ),
    "scatter": (
        lambda comm, xs, root: [D.scatter(comm, xs if comm.rank == root else xs[0], root)],
        lambda xs, root: [[x] for x in xs[root]],
        _at_root(_one_each),
    ),
    "allgather": (
        lambda comm, xs: list(D.allgather(comm, *xs)),
        lambda xs: [[x for (x,) in xs] for _ in xs],
        _uneven,
    ),
    "reduce_scatter": (
        lambda comm, xs: [D.reduce_scatter(comm, xs)],
        lambda xs: [[_all_sum([[x[to]] for x in xs])] for to in range(len(xs))],
        _one_each,
    ),
    "alltoall": (
        lambda comm, xs: list(D.alltoall(comm, xs)),
        lambda xs: [[x[to] for x in xs] for to in range(len(xs))],
        _uneven_each,
    ),
    "sendrecv": (
        lambda comm, xs: [D.sendrecv(comm, *xs, _next(comm, 1), _next(comm, -1), tag=3)],
        lambda xs: [xs[i - 1] for i in range(len(xs))],
        _uneven,
    ),
    "shift": (
        lambda comm, xs: [D.shift(comm, *xs, -1)],
        lambda xs: [*xs[1:], [xs[-1][0] * 0]],
        _whole,
    ),
    "permute": (
        lambda comm, xs: [D.permute(comm, *xs, [(0, comm.size - 1)])],
        lambda xs: [[x * 0] for (x,) in xs[:-1]] + [xs[0]],
        _whole,
    ),
}


def _next(comm, offset):
    return (comm.rank + offset) % comm.size


ROOTED = ("bcast", "reduce", "gather", "scatter")


def _listed(ys):
    return list(ys) if isinstance(ys, tuple) else [ys]


@pytest.fixture(
    params=[(name, root) for name in CASES for root in ("first", "last")[: 1 + (name in ROOTED)]],
    ids=lambda param: "-".join(param) if param[0] in ROOTED else param[0],
)
def case(request, comm):
    """Returns the operation, its reference, and the arrays of all ranks."""
    name, root = request.param
    operation, reference, shapes = CASES[name]
    options = {}
    if name in ROOTED:
        options["root"] = 0 if root == "first" else comm.size - 1
    told = options if name in ("bcast", "scatter") else {}
    random = np.random.RandomState(1)
    arrays = [
        [on_device(random.uniform(0.5, 1.5, shape)) for shape in shapes(rank, comm.size, **told)]
        for rank in range(comm.size)
    ]
    return (
        lambda xs: operation(comm, xs, **options),
        lambda xs: reference(xs, **options),
        arrays,
    )


def _variables(arrays):
    return [mpchain.Variable(on_device(x)) for x in arrays]


def _loss(ys, rank):
    """Returns a loss that is not linear, and that differs between the ranks."""
    return sum((F.sum((i + rank + 1.5) * y**3) for i, y in enumerate(ys)), F.sum(ys[0][:0]))


def _orders(loss, xs, n_orders=3):
    """Yields the gradients of the loss, then of the squares of these gradients, and so on."""
    for _ in range(n_orders):
        gradients = mpchain.grad([loss], xs, enable_double_backprop=True)
        yield [g.array for g in gradients]
        loss = sum(F.sum(g * g) for g in gradients)


def test_values(comm, case):
    operation, reference, arrays = case
    with mpchain.no_backprop_mode():
        expected = reference([_variables(xs) for xs in arrays])[comm.rank]
        actual = operation(arrays[comm.rank])
    if not expected:
        assert actual[0].shape == (0,)
    else:
        for y, other in zip(actual, expected, strict=True):
            assert_allclose(y.array, other.array, rtol=1e-14)
            assert y.dtype == np.float64
            assert y.creator is None


def test_adjoint_identity(comm, case):
    operation, _, arrays = case
    xs = _variables(arrays[comm.rank])
    ys = operation(xs)
    random = np.random.RandomState(2 + comm.rank)
    gys = [mpchain.Variable(y.device.send(random.normal(size=y.shape))) for y in ys]
    gxs = mpchain.grad(ys, xs, gys)
    with_outputs = sum(float(np.vdot(host(gy.array), host(y.array))) for gy, y in zip(gys, ys))
    with_inputs = sum(float(np.vdot(host(gx.array), host(x.array))) for gx, x in zip(gxs, xs))
    assert with_outputs == pytest.approx(with_inputs) or comm.size > 1
    assert comm.allreduce_obj(with_outputs) == pytest.approx(
        comm.allreduce_obj(with_inputs), rel=1e-13
    )


def test_derivatives_to_third_order(comm, case):
    operation, reference, arrays = case
    everything = [_variables(xs) for xs in arrays]
    flat = [x for xs in everything for x in xs]
    start = sum(len(xs) for xs in arrays[: comm.rank])
    mine = slice(start, start + len(arrays[comm.rank]))
    outputs = reference([[F.sin(x) for x in xs] for xs in everything])
    # The empty arrays of ranks that give nothing do not count, but belong to the graph.
    nothing = sum(F.sum(x[:0] ** 3) for x in flat)
    expected = nothing + sum(_loss(ys, rank) for rank, ys in enumerate(outputs) if ys)
    xs = _variables(arrays[comm.rank])
    actual = _loss(operation([F.sin(x) for x in xs]), comm.rank)
    for ours, all_of_theirs in zip(_orders(actual, xs), _orders(expected, flat), strict=True):
        for gradient, other in zip(ours, all_of_theirs[mine], strict=True):
            assert_allclose(gradient, other, rtol=1e-12, atol=1e-12)


def test_backward_gives_what_grad_gives(comm, case):
    operation, _, arrays = case
    xs = _variables(arrays[comm.rank])
    (expected, *_) = _orders(_loss(operation(xs), comm.rank), xs, 1)
    _loss(operation(xs), comm.rank).backward()
    for x, gradient in zip(xs, expected, strict=True):
        assert_array_equal(x.grad, gradient)


def test_results_that_are_not_all_used(comm):
    x = mpchain.Variable(xp.full((2, 2), 3.0))
    first, *_ = D.allgather(comm, x)
    (F.sum(first) * 2).backward()
    assert_array_equal(x.grad, 2.0 * comm.size if comm.rank == 0 else 0.0)


def test_forgotten_and_computed_again(comm):
    """A function that backward computes again calls the other ranks again, in the same order."""
    array = xp.full(3, 0.1 * comm.rank + 0.2)

    def function(x):
        a, *others = D.allgather(comm, F.sin(x))
        return D.allreduce(comm, a * x) ** 2 + D.bcast(comm, x**3) + sum(others, a)

    gradients = []
    for forgets in (False, True):
        x = mpchain.Variable(array)
        y = F.forget(function, x) if forgets else function(x)
        gradients.append(list(_orders(F.sum(y), [x])))
    for (expected,), (actual,) in zip(*gradients, strict=True):
        assert_allclose(actual, expected, rtol=1e-12)


def test_in_debug_mode(comm, case):
    operation, _, arrays = case
    xs = _variables(arrays[comm.rank])
    with using_config("debug", True):
        assert len(list(_orders(_loss(operation(xs), comm.rank), xs, 2))) == 2


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_other_dtypes(comm, dtype):
    x = mpchain.Variable(xp.full(3, comm.rank + 1, dtype))
    y = D.allreduce(comm, x)
    F.sum(y * y).backward()
    total = comm.size * (comm.size + 1) / 2
    assert y.dtype == x.grad.dtype == dtype
    assert_array_equal(x.grad, 2 * total * comm.size)


def test_integers_pass_without_gradients(comm):
    y = D.bcast(comm, xp.arange(3) if comm.rank == 0 else None)
    assert_array_equal(y.array, xp.arange(3))
    W = mpchain.Parameter(xp.ones((3, 2)))
    F.sum(F.embed_id(y, W)).backward()
    assert_array_equal(W.grad, xp.ones((3, 2)))


def test_a_root_whose_array_needs_no_gradient(comm):
    """The root takes part in backward like the other ranks, which cannot know that its array needs
    no gradient."""
    W = mpchain.Parameter(xp.full(2, 2.0))
    for _ in range(2):
        x = xp.ones(2) if comm.rank == 0 else None
        F.sum(W * D.bcast(comm, x)).backward()
        y = D.scatter(comm, [xp.ones(2)] * comm.size if comm.rank == 0 else None)
        F.sum(W * y).backward()
    assert_array_equal(W.grad, 4)


def test_only_some_ranks_arrays_need_gradients(comm):
    x = mpchain.Variable(xp.ones(2), requires_grad=comm.rank == 0)
    F.sum(D.allreduce(comm, x) ** 2).backward()
    if comm.rank == 0:
        assert_array_equal(x.grad, 2.0 * comm.size**2)


def _bushy(comm, x, W, execution):
    """Returns a result of a graph with many independent collectives and shared results."""
    with Recorder(execution):
        a, b = D.allreduce(comm, x * W), D.allreduce(comm, F.tanh(W))
        c = D.allgather(comm, a + b)
        d = D.alltoall(comm, [b * (i + 1) for i in range(comm.size)])
        e = D.bcast(comm, W * W, 0)
        return sum(F.sum(F.sin(y)) for y in [*c, *d, e, D.allreduce(comm, a * b + e)])


class Recorder(mpchain.FunctionHook):
    """Records the collectives that are executed, in forward and in backward."""

    def __init__(self, execution):
        self.name = "recorder"
        self.execution = execution

    def forward_postprocess(self, function, in_data):
        if isinstance(function, Communication):
            self.execution.append(function.label)

    def backward_postprocess(self, function, in_data, out_grad):
        if isinstance(function, Communication):
            self.execution.append(function.label + " backward")


def test_equal_graphs_are_executed_in_the_same_order_on_all_ranks(comm):
    execution = []
    x = mpchain.Variable(xp.full(4, 0.1 * comm.rank))
    W = mpchain.Parameter(xp.linspace(0, 1, 4))
    for _ in range(comm.rank):  # other work of the program must not matter
        mpchain.Variable(xp.ones(3)) * 2
    loss = _bushy(comm, x, W, execution)
    with Recorder(execution):
        for _ in range(2):
            gW, gx = mpchain.grad([loss], [W, x], enable_double_backprop=True)
            loss = loss + F.sum(D.allreduce(comm, gW) ** 2) + F.sum(gx**2)
        loss.backward()
    assert execution.count("allreduce backward") > 20
    assert all(other == execution for other in comm.allgather_obj(execution))


def test_the_communicator_must_be_one(comm):
    x = xp.ones(2)
    with pytest.raises(TypeError, match="allreduce: comm must be a Communicator"):
        D.allreduce(x, comm)
    with pytest.raises(TypeError, match=r"bcast: comm must be .* not ndarray"):
        D.bcast(x, comm)
    with pytest.raises(TypeError, match=r"send: comm must be .* not int"):
        D.send(0, x, 0)
    with pytest.raises(TypeError, match=r"recv: comm must be .* not int"):
        D.recv(0, comm)


def test_errors_of_the_communicator_name_the_argument(comm):
    with pytest.raises(ValueError, match="alltoall: xs must hold"):
        D.alltoall(comm, [xp.ones(1)] * (comm.size + 1))
    with pytest.raises(ValueError, match="root must be a rank from 0 to"):
        D.gather(comm, xp.ones(1), comm.size)


# Values that are the same on all ranks and count once.


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("n", [1, 4, 7])
def test_divided_computation_to_third_order(comm, n, axis):
    """Each rank computes with its slice, or with its part of a sum."""
    random = np.random.RandomState(3)
    shape = (n, 2) if axis == 0 else (2, n)
    x_array, W_array, v_array = (random.uniform(0.5, 1.5, shape) for _ in range(3))

    def divided(x, W, v):
        # Each rank has its own v, like the parameters of divided layers.
        middle = D.join(comm, F.sin(D.split(comm, x, axis)) * D.split(comm, W, axis), axis)
        return D.sum_up(comm, D.distribute(comm, middle**2) * D.distribute(comm, x) * v) ** 2

    def whole(x, W, v):
        return ((F.sin(x) * W) ** 2 * x * v) ** 2

    arrays = [x_array, W_array, v_array / (comm.size * (comm.size + 1) / 2)]
    whole_xs = _variables([x_array, W_array, v_array])
    xs = _variables([*arrays[:2], arrays[2] * (comm.rank + 1)])
    actual, expected = F.sum(divided(*xs)), F.sum(whole(*whole_xs))
    # The gradient by a rank's own v equals the gradient by the sum of all ranks' v.
    for _ in range(3):
        assert_allclose(actual.array, expected.array, rtol=1e-12)
        ours = mpchain.grad([actual], xs, enable_double_backprop=True)
        theirs = mpchain.grad([expected], whole_xs, enable_double_backprop=True)
        for gradient, other in zip(ours, theirs, strict=True):
            assert_allclose(gradient.array, other.array, rtol=1e-11, atol=1e-12)
        actual, expected = (sum(F.sum(g * g) for g in gs[:2]) for gs in (ours, theirs))


def test_join_of_uneven_parts(comm):
    if comm.size == 1:
        assert_array_equal(D.join(comm, xp.ones((5, 1))).array, xp.ones((5, 1)))
        return
    with pytest.raises(
        ValueError, match=r"join: the ranks must pass parts of the sizes of split, not \[0, 1"
    ):
        D.join(comm, xp.ones((comm.rank, 1)))


def test_axes_that_are_not_there(comm):
    with pytest.raises(ValueError, match=r"split: x of shape \(2, 3\) has no axis 2"):
        D.split(comm, xp.ones((2, 3)), 2)
    with pytest.raises(ValueError, match=r"join: x of shape \(2, 3\) has no axis -3"):
        D.join(comm, xp.ones((2, 3)), -3)


# Programs.


def _regression(random, n):
    return random.normal(size=(n, 3)), random.normal(size=(n, 1)), random.normal(size=(4, 3)) * 0.5


def _mean_loss(x, t, W, V):
    return F.mean((F.matmul(F.tanh(F.matmul(x, W, transb=True)), V) - t) ** 2)


def _shard(comm, n):
    """Returns this rank's slice of n samples, which are divided unevenly, and its share of the
    samples."""
    bounds = [n * r * (r + 1) // (comm.size * (comm.size + 1)) for r in range(comm.size + 1)]
    begin, end = bounds[comm.rank : comm.rank + 2]
    return slice(begin, end), (end - begin) / n


def _penalized(comm, x, t, W, V):
    """Returns this rank's loss, the norm of the gradient of all samples' loss, and this rank's
    share."""
    mine, share = _shard(comm, len(x))
    loss = _mean_loss(x[mine], t[mine], W, V)
    gradients = mpchain.grad([loss * share], [W, V], enable_double_backprop=True)
    norm = F.sqrt(sum(F.sum(D.allreduce(comm, g) ** 2) for g in gradients))
    return loss, norm, share


def _adapted(comm, x, t, W, V, n_steps=2):
    """Returns the loss of MAML on the second half of the samples after gradient steps on the first
    half, and this rank's share.

    The steps use the gradient of all ranks' samples.
    """
    half = len(x) // 2
    mine, share = _shard(comm, half)
    for _ in range(n_steps):
        loss = _mean_loss(x[:half][mine], t[:half][mine], W, V)
        gW, gV = mpchain.grad([loss * share], [W, V], enable_double_backprop=True)
        W, V = W - 0.3 * D.allreduce(comm, gW), V - 0.3 * D.allreduce(comm, gV)
    return _mean_loss(x[half:][mine], t[half:][mine], W, V), share


def _program(comm, name, x, t, W, V):
    """Returns this rank's part of a loss; the sum of the parts over the ranks is the program's
    loss."""
    if name == "penalty":
        loss, norm, share = _penalized(comm, x, t, W, V)
        return share * (loss + 0.5 * norm + 0.1 * (norm - 1) ** 2)
    loss, share = _adapted(comm, x, t, W, V)
    return share * loss


@pytest.mark.parametrize("name", ["penalty", "maml"])
def test_programs_against_one_process_and_finite_differences(comm, name):
    random = np.random.RandomState(4)
    x, t, W_array = map(on_device, _regression(random, 12 * comm.size))
    V_array = on_device(random.normal(size=(4, 1)))

    def loss_of(ranks, *arrays):
        params = _variables(arrays)
        return _program(ranks, name, x, t, *params), params

    loss, params = loss_of(comm, W_array, V_array)
    loss.backward()
    gradients = [comm.allreduce(p.grad) for p in params]
    alone = mpchain.distributed.communicators.Communicator()
    expected, one_process = loss_of(alone, W_array, V_array)
    expected.backward()
    assert float(comm.allreduce(loss.array)) == pytest.approx(expected.item(), rel=1e-13)
    for gradient, param in zip(gradients, one_process, strict=True):
        assert_allclose(gradient, param.grad, rtol=1e-11, atol=1e-13)
    # Finite differences of the ranks' loss are taken in a random direction.
    step = [on_device(random.normal(size=a.shape)) for a in (W_array, V_array)]
    eps = 1e-5
    ends = []
    for sign in (1, -1):
        moved = [a + sign * eps * s for a, s in zip((W_array, V_array), step)]
        with using_config("enable_backprop", True):
            ends.append(comm.allreduce(loss_of(comm, *moved)[0].array))
    numeric = float(ends[0] - ends[1]) / (2 * eps)
    exact = sum(float(xp.vdot(g, s)) for g, s in zip(gradients, step))
    assert numeric == pytest.approx(exact, rel=1e-7)

"""Tests affine maps that are divided among the ranks against Linear in one process, to third
order."""

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizer_hooks, optimizers
from mpchain.configuration import using_config
from mpchain.distributed import create_multi_node_optimizer
from mpchain.distributed.communicators.arrays import partition
from mpchain.distributed.links import ColumnParallelLinear, RowParallelLinear
from tests.distributed import ranks
from tests.distributed.devices import assert_allclose, assert_array_equal, on_device, xp

ON_GPUS = True

KINDS = [ColumnParallelLinear, RowParallelLinear]


@pytest.fixture(autouse=True)
def _in_float64():
    with using_config("dtype", np.dtype("float64")):
        yield


class Network(mpchain.Chain):
    """A network with an affine map before and after the tested maps; both are the same on all
    ranks."""

    def __init__(self, first, second):
        super().__init__()
        random = np.random.RandomState(50)
        with self.init_scope():
            self.before = L.Linear(5, 6, initialW=random.normal(size=(6, 5)))
            self.first, self.second = first, second
            self.after = L.Linear(4, 2, initialW=random.normal(size=(2, 4)))

    def forward(self, x):
        h = F.tanh(self.second(F.sin(self.first(F.tanh(self.before(x))))))
        return F.sum(self.after(h) ** 2)


def _networks(comm, layout):
    """Returns a network in one process, and one that is divided among all ranks."""
    random = np.random.RandomState(51)
    sizes = (6, 7), (7, 4)
    arguments = [
        {"initialW": random.normal(size=(o, i)), "initial_bias": random.normal(size=o)}
        for i, o in sizes
    ]
    whole = Network(*(L.Linear(*pair, **a) for pair, a in zip(sizes, arguments)))
    kinds = {
        "column": [(ColumnParallelLinear, {})] * 2,
        "row": [(RowParallelLinear, {})] * 2,
        # Between the two maps, nothing is sent: each rank computes with its part.
        "column-row": [
            (ColumnParallelLinear, {"gather_output": False}),
            (RowParallelLinear, {"split_input": False}),
        ],
    }[layout]
    divided = Network(
        *(
            kind(comm, *pair, **a, **options)
            for (kind, options), pair, a in zip(kinds, sizes, arguments)
        )
    )
    return on_device(whole), on_device(divided)


def _mine(comm, link, name, array):
    """Returns this rank's part of an array of the whole parameter."""
    if not isinstance(link, tuple(KINDS)):
        return array
    if name == "b" and link.axis == 1:
        return array
    axis = link.axis if name == "W" else 0
    begin, end = partition(array.shape[axis], comm.rank, comm.size)
    return array[begin:end] if axis == 0 else array[:, begin:end]


@pytest.mark.parametrize("layout", ["column", "row", "column-row"])
def test_to_third_order(comm, layout):
    whole, divided = _networks(comm, layout)
    arrays = on_device(np.random.RandomState(52).normal(size=(3, 5)))
    x, whole_x = mpchain.Variable(arrays), mpchain.Variable(arrays)
    named = [
        (link, name, getattr(link, name)) for link in divided.children() for name in ("W", "b")
    ]
    whole_params = [getattr(link, n) for link in whole.children() for n in ("W", "b")]
    loss, expected = divided(x), whole(whole_x)
    for order in range(3):
        assert_allclose(loss.array, expected.array, rtol=1e-11)
        gx, *gradients = mpchain.grad(
            [loss], [x, *(p for *_, p in named)], enable_double_backprop=True
        )
        expected_gx, *others = mpchain.grad(
            [expected], [whole_x, *whole_params], enable_double_backprop=True
        )
        scale = float(xp.abs(expected_gx.array).max())
        assert_allclose(gx.array, expected_gx.array, rtol=1e-9, atol=1e-12 * scale)
        for (link, name, _), gradient, other in zip(named, gradients, others, strict=True):
            other = _mine(comm, link, name, other.array)
            assert_allclose(
                gradient.array,
                other,
                rtol=1e-9,
                atol=1e-12 * max(scale, 1),
                err_msg=f"{order}",
            )
        # All ranks know gx; a sum over divided parameters would need sum_up.
        loss, expected = F.sum(gx**2), F.sum(expected_gx**2)


@pytest.mark.parametrize("layout", ["column", "row", "column-row"])
def test_training(comm, layout):
    whole, divided = _networks(comm, layout)
    x = on_device(np.random.RandomState(53).normal(size=(8, 5)))
    plain, optimizer = (optimizers.Adam().setup(model) for model in (whole, divided))
    for _ in range(5):
        plain.update(whole, x)
        optimizer.update(divided, x)
    for link, other in zip(divided.children(), whole.children(), strict=True):
        for name in ("W", "b"):
            expected = _mine(comm, link, name, getattr(other, name).array)
            assert_allclose(getattr(link, name).array, expected, rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_size", [6, None])
def test_initial_values_are_those_of_one_process(comm, kind, in_size):
    x = xp.ones((2, 3, 6))
    np.random.seed(1)
    expected = on_device(L.Linear(in_size, 5))
    y = expected(x, n_batch_axes=2)
    np.random.seed(1 if comm.rank == 0 else 100 + comm.rank)
    link = on_device(kind(comm, in_size, 5))
    assert_allclose(link(x, n_batch_axes=2).array, y.array, rtol=1e-13)
    assert_array_equal(link.W.array, _mine(comm, link, "W", expected.W.array))


@pytest.mark.parametrize("kind", KINDS)
def test_axes_are_flattened(comm, kind):
    x = on_device(np.random.RandomState(54).normal(size=(2, 2, 3)))
    expected = on_device(L.Linear(6, 5, initialW=0.5))
    link = on_device(kind(comm, 5, nobias=True, initialW=0.5))
    assert link.b is None
    assert_allclose(link(x).array, expected(x).array, rtol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_data_is_not_differentiated(comm, kind):
    """The gradient of an input that requires none is neither computed nor summed over the ranks."""
    link = on_device(kind(comm, 6, 5))
    assert mpchain.distributed.functions.distribute(comm, xp.ones(2)).requires_grad is False
    F.sum(link(xp.ones((2, 6)))).backward()
    assert link.W.grad.shape == link.W.shape


def test_both_kinds_of_parallelism(comm):
    """The ranks form a grid: along one axis they have different samples, along the other axis
    different parts."""
    n_parts = 2 if comm.size % 2 == 0 else 1
    parts = comm.split(comm.rank // n_parts, comm.rank)
    data = comm.split(comm.rank % n_parts, comm.rank)
    whole, divided = _networks(parts, "column-row")
    x = on_device(np.random.RandomState(55).normal(size=(7, 5)))
    plain = optimizers.Adam().setup(whole)
    optimizer = create_multi_node_optimizer(optimizers.Adam(), data).setup(divided)
    begin, end = partition(len(x), data.rank, data.size)
    for _ in range(5):
        plain.update(lambda: whole(x) / len(x))
        optimizer.n_samples = end - begin
        optimizer.update(lambda: divided(x[begin:end]) / (end - begin))
    for link, other in zip(divided.children(), whole.children(), strict=True):
        expected = _mine(parts, link, "W", other.W.array)
        assert_allclose(link.W.array, expected, rtol=1e-10)
    data.finalize()
    parts.finalize()


@pytest.mark.parametrize("kind", KINDS)
def test_errors(comm, kind):
    name = kind.__name__
    with pytest.raises(TypeError, match=f"{name}: out_size must be an int, not 2.5"):
        kind(comm, 3, 2.5)
    sizes = (4, comm.size - 1) if kind is ColumnParallelLinear else (comm.size - 1, 4)
    if comm.size > 1:
        with pytest.raises(ValueError, match=rf"{name}: (in|out)_size must be at least the number"):
            kind(comm, *sizes)
        with pytest.raises(ValueError, match="the parameters of / are divided among these ranks"):
            create_multi_node_optimizer(optimizers.SGD(), comm).setup(kind(comm, 4, 4))


def test_a_part_of_an_input_of_unknown_size(comm):
    with pytest.raises(ValueError, match="in_size must be given with split_input=False"):
        RowParallelLinear(comm, None, 4, split_input=False)


class Grid:
    """The ranks form a grid: along one axis they have different samples, along the other axis
    different parts."""

    def __init__(self, comm):
        self.comm = comm
        self.n_parts = 2 if comm.size % 2 == 0 else comm.size
        self.parts = comm.split(comm.rank // self.n_parts, comm.rank)
        self.data = comm.split(comm.rank % self.n_parts, comm.rank)

    def train(self, make, add_hook=None, n_steps=6):
        """Trains the same network in one process and on the grid, and compares the two.

        Args:
            make: function that returns an optimizer.
            add_hook: function that adds the tested hook to an optimizer.
        """
        whole, divided = _networks(self.parts, "column-row")
        plain = make().setup(whole)
        optimizer = create_multi_node_optimizer(make(), self.data).setup(divided)
        for one in (plain, optimizer):
            if add_hook is not None:
                add_hook(one)
        x = on_device(np.random.RandomState(55).normal(size=(7, 5)))
        begin, end = partition(len(x), self.data.rank, self.data.size)
        for _ in range(n_steps):
            plain.update(lambda: whole(x) / len(x))
            optimizer.n_samples = end - begin
            optimizer.update(lambda: divided(x[begin:end]) / (end - begin))
        for link, other in zip(divided.children(), whole.children(), strict=True):
            for name in ("W", "b"):
                expected = _mine(self.parts, link, name, getattr(other, name).array)
                actual = getattr(link, name)
                atol = 1e-12 * xp.abs(expected).max()
                assert_allclose(actual.array, expected, rtol=0, atol=atol)
                if actual.divided_among is None:  # the parameter has replicas
                    held = {x.tobytes() for x in self.comm.allgather(actual.array)}
                    assert len(held) == 1, f"{name} of {link!r} differs between the ranks"


@pytest.fixture
def grid(comm):
    made = Grid(comm)
    yield made
    made.data.finalize()
    made.parts.finalize()


def _momentum():
    return optimizers.MomentumSGD(0.01)


@pytest.mark.parametrize(
    ("make", "hook"),
    [
        (_momentum, optimizer_hooks.GradientClipping(0.5)),
        (_momentum, optimizer_hooks.GradientLARS(weight_decay=0.01)),
        (lambda: optimizers.LAMB(0.01), None),
    ],
    ids=["GradientClipping", "GradientLARS", "LAMB"],
)
def test_norms_are_those_of_whole_parameters(grid, make, hook):
    grid.train(make, None if hook is None else lambda optimizer: optimizer.add_hook(hook))


def test_parts_leave_out_a_step_together(comm):
    """A gradient that is not finite on one rank affects all ranks with parts of the parameter."""
    link = on_device(ColumnParallelLinear(comm, 3, comm.size))
    optimizer = optimizers.SGD().setup(link)
    optimizer.loss_scaling()
    before = link.W.array.copy()
    for param in link.params():
        param.grad = xp.ones_like(param.array)
    if comm.rank == comm.size - 1:
        link.W.grad[...] = np.inf
    names = (
        "/W$"
        if comm.rank == comm.size - 1
        else f"some parameters on ranks other than rank {comm.rank} of"
    )
    with pytest.warns(RuntimeWarning, match=f"step 1 is skipped, .* are not finite: {names}"):
        optimizer.update()
    assert_array_equal(link.W.array, before)
    assert optimizer.loss_scale == 1
    for param in link.params():
        param.grad = xp.ones_like(param.array)
    optimizer.update()
    assert (link.W.array < before).all()


def test_float32_copies_are_divided_as_their_parameters_are(comm):
    with using_config("dtype", np.dtype("float16")):
        link = on_device(ColumnParallelLinear(comm, 3, comm.size))
    optimizer = optimizers.SGD(lr=1).setup(link)
    optimizer.use_fp32_update()
    optimizer.loss_scaling(scale=2.0)
    optimizer.add_hook(optimizer_hooks.GradientClipping(1))
    before = link.b.array.copy()
    for param in link.params():
        param.grad = xp.full_like(param.array, 2)
    optimizer.update()
    step = 1 / np.sqrt(4 * comm.size)
    assert_allclose(before - link.b.array, step, rtol=1e-3)


def test_means_over_rows_and_columns_need_whole_parameters(comm):
    link = mpchain.Chain(l1=ColumnParallelLinear(comm, 3, comm.size))
    with pytest.raises(
        ValueError, match=r"Adafactor.setup: parameter /l1/W is divided among ranks"
    ):
        optimizers.Adafactor().setup(link)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_grid_of_four_ranks(needs_mpirun):
    command = ["-m", "mpi4py", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", __file__]
    status, outputs, own_output = ranks.run(4, [*command, "-k", "norms or both"], timeout=200)
    assert status == 0, ranks.report(status, outputs, own_output)
    assert all("4 passed" in output for output in outputs)

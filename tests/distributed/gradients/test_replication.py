"""Tests that all ranks get the parameters and persistent values of rank 0."""

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.distributed import create_multi_node_optimizer
from mpchain.distributed.gradients.persistents import named_persistents
from mpchain.link import Chain, Link
from mpchain.link_hooks import SpectralNormalization
from mpchain.variable import Parameter
from tests.distributed.devices import assert_array_equal, host, on_device, xp

ON_GPUS = True

WAYS = {
    "setup": lambda comm, model: create_multi_node_optimizer(optimizers.SGD(), comm).setup(model),
    "bcast_data": lambda comm, model: comm.bcast_data(model),
}


def assert_alike(comm, model):
    """Checks that parameters and persistent values are the same on all ranks."""
    held = {name: param.array for name, param in model.namedparams()}
    held |= {path: persistent.value for path, persistent in named_persistents(model).items()}
    held = {name: host(value) for name, value in held.items()}
    for other in comm.allgather_obj(held):
        np.testing.assert_equal(held, other)


@pytest.fixture(params=WAYS)
def replicate(request):
    return WAYS[request.param]


def test_running_statistics_are_those_of_rank_0(comm, replicate):
    """A model that only rank 0 has loaded or trained evaluates equally on all ranks."""
    model = on_device(Chain(known=L.BatchNormalization(3), lazy=L.BatchNormalization()))
    if comm.rank == 0:
        x = on_device(np.random.RandomState(0).standard_normal((5, 3)).astype("float32"))
        for link in model.children():
            link(x, finetune=True)
    kept = model.known.avg_mean
    replicate(comm, model)
    assert model.known.avg_mean is kept
    assert abs(kept).max() > 0.1
    assert_array_equal(kept, model.lazy.avg_mean)
    assert model.known.N == model.lazy.N == 1
    assert_alike(comm, model)


VALUES = [
    True,
    7,
    -2.5,
    "text",
    None,
    np.float32(3),
    xp.array([True, False, True]),
    xp.arange(5, dtype="uint8"),
    xp.array(3.5, "float16"),
    xp.array([1 + 2j]),
    xp.zeros((0, 3)),
    xp.arange(12.0).reshape(3, 4).T,
]


def test_values_of_all_kinds(comm, replicate, set_limits):
    """The values are sent in several messages, ordered from wide to narrow elements."""
    set_limits(replicated_bytes=64)
    model = Link()
    for i, value in enumerate(VALUES):
        if comm.rank > 0 and value is not None:
            value = np.zeros_like(value) if isinstance(value, np.ndarray) else type(value)(0)
        model.add_persistent(f"value_{i}", value)
    replicate(comm, model)
    for i, value in enumerate(VALUES):
        np.testing.assert_equal(getattr(model, f"value_{i}"), value)
        assert type(getattr(model, f"value_{i}")) is type(value)


def test_what_rank_0_lacks_is_the_lowest_ranks_that_has_it(comm, replicate):
    model = on_device(Chain(l1=L.Linear(None, 2), norm=L.BatchNormalization()))
    if comm.rank > 0:
        x = xp.full((2, 3), comm.rank, "float32")
        model.norm(model.l1(x))
    replicate(comm, model)
    assert model.l1.W.is_initialized == (comm.size > 1)
    assert_alike(comm, model)


def test_a_link_with_two_paths_is_one(comm):
    link = L.BatchNormalization(2)
    model = on_device(Chain(a=link, b=Chain(c=link)))
    assert sorted(named_persistents(model)) == ["/a/N", "/a/avg_mean", "/a/avg_var"]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((xp.zeros(2), xp.zeros(3)), r"rank 0: \(2,\) float64, rank 1: \(3,\) float64"),
        ((xp.zeros(2), xp.zeros(2, "int64")), r"rank 0: \(2,\) float64, rank 1: \(2,\) int64"),
        ((5, xp.zeros(2)), r"rank 0: 5, rank 1: \(2,\) float64"),
    ],
)
def test_persistent_values_that_do_not_fit(comm, replicate, values, text):
    if comm.size == 1:
        pytest.skip("needs two ranks that differ")
    model = on_device(Chain(l1=Link(), l2=L.Linear(1, 1)))
    model.l1.add_persistent("seen", values[comm.rank > 0])
    with pytest.raises(ValueError, match=f"persistent value /l1/seen must have one shape .*{text}"):
        replicate(comm, model)


def test_persistent_values_that_only_some_ranks_have(comm, replicate):
    if comm.size == 1:
        pytest.skip("needs two ranks that differ")
    model = on_device(Chain(l1=Link(), l2=L.Linear(1, 1)))
    if comm.rank == 1:
        model.l1.add_persistent("seen", 0)
    with pytest.raises(ValueError, match="rank 1 has /l1/seen and rank 0 does not"):
        replicate(comm, model)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_parameters_of_all_sizes(comm, replicate, set_limits, dtype):
    set_limits(replicated_bytes=400)
    model = on_device(Link())
    random = np.random.RandomState(comm.rank)
    with model.init_scope():
        for i, shape in enumerate([(), (3,), (0, 2), (40,), (5, 7), (300,), (2, 2)]):
            setattr(
                model, f"p{i}", Parameter(on_device(random.uniform(-1, 1, shape).astype(dtype)))
            )
        model.strided = Parameter(xp.full((30, 20), comm.rank, dtype).T)
    replicate(comm, model)
    assert_alike(comm, model)
    expected = on_device(np.random.RandomState(0).uniform(-1, 1, ()).astype(dtype))
    assert_array_equal(model.p0.array, expected)


@pytest.mark.parametrize("n_in", [3, None], ids=["initialized", "lazy"])
def test_spectral_normalization_with_seeds_of_each_rank(comm, n_in):
    """The random vector of the normalization affects results from the first step on."""
    np.random.seed(comm.rank)
    model = on_device(Chain(l1=L.Linear(n_in, 4)))
    model.l1.add_hook(SpectralNormalization())
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.1), comm).setup(model)
    x = on_device(np.random.RandomState(3).standard_normal((2, 3)).astype("float32"))
    for _ in range(3):
        optimizer.update(lambda: F.sum(model.l1(x) ** 2))
        assert_alike(comm, model)

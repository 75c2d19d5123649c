"""Tests LoRA: values against PyTorch, frozen weights, merging, and whole models."""

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import links as L
from mpchain import using_config
from mpchain.gradient_check import check_order
from mpchain.link import Chain, ChainList, Sequential
from mpchain.optimizer_hooks import WeightDecay
from mpchain.optimizers import SGD, Adam
from mpchain.serializers import load_npz, save_npz
from tests.links.table import checks_of, row
from tests.reference import torch

pytestmark = pytest.mark.slow


def _reference(w, x):
    """Computes the reference; W and b are constants."""
    base = torch.nn.functional.linear(x, w["base/W"].detach(), w["base/b"].detach())
    return base + 1.5 * (x @ w["A"].T) @ w["B"].T


SHAPES = {"base/W": (4, 6), "base/b": (4,), "A": (2, 6), "B": (4, 2)}
TABLE = [
    row(
        "LoRA",
        lambda: L.LoRA(L.Linear(6, 4), 2, alpha=3),
        (5, 6),
        params=SHAPES,
        persistents={"is_merged": False},
        lazy=lambda: L.LoRA(L.Linear(4), 2, alpha=3),
        reference=_reference,
        without_gradient=("base/W", "base/b"),
        orders=0,  # the derivatives by W and b are zero on purpose
    ),
    row(
        "LoRA that trains all",
        lambda: L.LoRA(L.Linear(6, 4), 2, train_base=True),
        (5, 6),
        params=SHAPES,
        persistents={"is_merged": False},
        reference=lambda w, x: torch.nn.functional.linear(
            x, w["base/W"] + w["B"] @ w["A"], w["base/b"]
        ),
    ),
]
globals().update(checks_of(TABLE))

X = np.random.RandomState(0).randn(5, 6).astype(np.float32)


def _changed(link):
    """Gives an adapter a change that is not zero."""
    link.B.array[...] = np.random.randn(*link.B.shape)
    return link


def test_at_first_nothing_changes():
    base = L.Linear(6, 4)
    expected = base(X).array
    np.testing.assert_array_equal(L.LoRA(base, 2)(X).array, expected)


def test_derivatives_by_what_is_trained():
    with using_config("dtype", np.float64):
        link = _changed(L.LoRA(L.Linear(6, 4), 2, alpha=3))
    for order in (1, 2, 3):
        check_order(link, X.astype(np.float64), order, params=(link.A, link.B))


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adam(0.1)], ids=["SGD", "Adam"])
def test_the_weights_stay_even_under_weight_decay(optimizer):
    link = L.LoRA(L.Linear(6, 4), 2)
    W, b = link.base.W.array.copy(), link.base.b.array.copy()
    A = link.A.array.copy()
    optimizer.setup(link)
    optimizer.add_hook(WeightDecay(0.1))
    for _ in range(3):
        optimizer.update(lambda: F.mean((link(X) - 1) ** 2))
    np.testing.assert_array_equal(link.base.W.array, W)
    np.testing.assert_array_equal(link.base.b.array, b)
    assert abs(link.A.array - A).max() > 0 and link.B.array.any()


def test_an_adapter_learns_a_change_of_its_rank():
    np.random.seed(0)
    base = L.Linear(6, 4)
    change = np.outer(np.random.randn(4), np.random.randn(6)).astype(np.float32)
    x = np.random.randn(64, 6).astype(np.float32)
    target = x @ (base.W.array + change).T
    link = L.LoRA(base, 1)
    optimizer = Adam(0.05).setup(link)
    before = F.mean_squared_error(link(x), target).item()
    for _ in range(300):
        optimizer.update(lambda: F.mean_squared_error(link(x), target))
    assert F.mean_squared_error(link(x), target).item() < 1e-3 * before


def test_merging_and_taking_it_back():
    link = _changed(L.LoRA(L.Linear(6, 4), 2, alpha=3))
    W, expected = link.base.W.array.copy(), link(X).array
    tolerance = {"rtol": 1e-4, "atol": 1e-5}  # float32 sums have another order
    for _ in range(2):  # the second call does nothing
        link.merge()
    np.testing.assert_allclose(
        link.base.W.array, W + 1.5 * link.B.array @ link.A.array, **tolerance
    )
    np.testing.assert_allclose(link(X).array, expected, **tolerance)
    np.testing.assert_allclose(link.base(X).array, expected, **tolerance)
    for _ in range(2):
        link.unmerge()
    np.testing.assert_allclose(link.base.W.array, W, **tolerance)
    np.testing.assert_allclose(link(X).array, expected, **tolerance)


def test_a_merged_adapter_is_saved_as_such(tmp_path):
    link = _changed(L.LoRA(L.Linear(6, 4), 2))
    link.merge()
    save_npz(tmp_path / "link.npz", link)
    loaded = L.LoRA(L.Linear(4), 2)
    load_npz(tmp_path / "link.npz", loaded)
    assert loaded.is_merged
    np.testing.assert_array_equal(loaded(X).array, link(X).array)


def test_batch_axes_are_kept():
    link = _changed(L.LoRA(L.Linear(6, 4), 2))
    x = np.random.randn(2, 3, 6).astype(np.float32)
    y = link(x, n_batch_axes=2)
    np.testing.assert_allclose(y.array.reshape(6, 4), link(x.reshape(6, 6)).array, rtol=1e-5)


def test_dropout_is_of_the_adapter_alone():
    link = L.LoRA(L.Linear(6, 4), 2, dropout_ratio=0.5)
    np.testing.assert_array_equal(link(X).array, link.base(X).array)
    _changed(link)
    assert (link(X).array != link(X).array).any()


class Model(Chain):
    def __init__(self):
        super().__init__()
        shared = L.Linear(3, 3)
        with self.init_scope():
            self.first = L.Linear(6, 3)
            self.list = ChainList(shared, L.LayerNormalization(3))
            self.layers = Sequential(F.tanh, shared, F.tanh, L.Linear(3, 2))

    def forward(self, x):
        return self.layers(self.list[1](self.list[0](self.first(x))))


def test_adapters_of_a_whole_model():
    model = Model()
    expected, before = model(X).array, repr(model)
    adapters = L.LoRA.insert(model, 2, alpha=4)
    assert set(adapters) == {"/first", "/layers/0", "/layers/1", "/list/0"}
    assert adapters["/layers/0"] is adapters["/list/0"] is model.list[0] is model.layers[1]
    assert model.first is adapters["/first"] is model["first"]
    assert all(adapter.rank == 2 and adapter.alpha == 4 for adapter in adapters.values())
    np.testing.assert_array_equal(model(X).array, expected)
    optimizer = SGD(0.1).setup(model)
    for _ in range(3):
        optimizer.update(lambda: F.mean((model(X) - 1) ** 2))
    changed = model(X).array
    assert abs(changed - expected).max() > 0
    L.LoRA.merge_all(model)
    assert repr(model) == before
    np.testing.assert_allclose(model(X).array, changed, rtol=1e-4, atol=1e-5)
    assert model.first.update_enabled
    with pytest.raises(ValueError, match=r"LoRA\.insert: Sequential contains no Linear link"):
        L.LoRA.insert(Sequential(F.tanh), 2)


def test_some_links_of_a_model():
    model = Model()
    adapters = L.LoRA.insert(model, 1, where=lambda path, link: path.startswith("/layers"))
    assert set(adapters) == {"/layers/0", "/layers/1"}
    assert type(model.first) is L.Linear
    assert set(L.LoRA.insert(model, 1)) == {"/first", "/list/0"}
    with pytest.raises(ValueError, match="Model contains no Linear link to replace"):
        L.LoRA.insert(model, 1)


def test_repr():
    assert repr(L.LoRA(L.Linear(6, 4), 2)) == (
        "LoRA(rank=2, alpha=2, train_base=False, is_merged=False,\n"
        "  (base): Linear(in_size=6, out_size=4, nobias=False),\n)"
    )


@pytest.mark.parametrize(
    "error, message, call",
    [
        (TypeError, "LoRA: base must be a Linear, not EmbedID", lambda: L.LoRA(L.EmbedID(3, 2), 1)),
        (
            TypeError,
            "LoRA: base must be a Linear, not SimplifiedDropconnect",
            lambda: L.LoRA(L.SimplifiedDropconnect(3, 2), 1),
        ),
        (ValueError, "LoRA: rank must be positive, but is 0", lambda: L.LoRA(L.Linear(3, 2), 0)),
        (ValueError, "ratio must be", lambda: L.LoRA(L.Linear(3, 2), 1, dropout_ratio=1.0)),
    ],
)
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        call()

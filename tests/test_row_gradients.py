"""Tests gradients of tables by rows: updates have the same bits as updates by whole arrays."""

import copy
import pickle
import warnings

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizer_hooks, optimizers
from mpchain.row_gradients import row_gradient_of

N, WIDTH = 5000, 16


def _model(ignore_label=None, dtype=np.float32):
    model = mpchain.ChainList(L.EmbedID(N, WIDTH, ignore_label=ignore_label), L.Linear(WIDTH, 1))
    random = np.random.RandomState(0)
    for param in model.params():
        param.array = random.normal(size=param.shape or (1, WIDTH)).astype(dtype)
    model[0].W.array[::7] = -0.0  # a step by a whole array keeps the sign of this zero
    return model


def _loss(model, ids):
    return F.sum(F.tanh(model[1](model[0](ids))))


def _tied(model, ids):
    return _loss(model, ids) + F.sum(model[0](ids[::2]) ** 2)


def _with_zero_gradient(model, ids):
    return F.sum(model[0](ids) * np.float32(-0.0))


def _train(optimizer, loss_of=_loss, as_rows=True, n_ids=100, prepare=None, **options):
    """Trains for three updates; returns the parameters, the table's gradient and the states in one
    list, and which updates were by rows."""
    random, model = np.random.RandomState(1), _model(**options)
    optimizer.setup(model)
    if prepare is not None:
        prepare(optimizer, model)
    table, by_rows = model[0].W, []
    for _ in range(3):
        ids = random.randint(0, N, n_ids)
        ids[:3] = ids[0]
        loss = loss_of(model, ids)
        model.cleargrads()
        loss.backward()
        if not as_rows:
            assert table.grad.shape == (N, WIDTH)
            assert row_gradient_of(table) is None
        optimizer.update()
        by_rows.append(row_gradient_of(table) is not None)
    states = [x for p in model.params() for x in (p.update_rule.state or {}).values()]
    return [*(p.array for p in model.params()), table.grad, *states], by_rows


def _assert_same_bits(xs, ys):
    for x, y in zip(xs, ys, strict=True):
        np.testing.assert_array_equal(x, y)
        np.testing.assert_array_equal(np.signbit(x), np.signbit(y))


def _compare(make, **options):
    """Compares updates by rows with updates by arrays; returns whether rows were used."""
    by_rows, was = _train(make(), **options)
    by_arrays, was_not = _train(make(), as_rows=False, **options)
    _assert_same_bits(by_rows, by_arrays)
    assert not any(was_not)
    assert len(set(was)) == 1
    return was[0]


@pytest.mark.parametrize("make", [lambda: optimizers.SGD(0.1), lambda: optimizers.AdaGrad(0.1)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss_of": _tied},
        {"loss_of": _with_zero_gradient},
        {"ignore_label": 3},
        {"dtype": np.float64},
        {"n_ids": 4},
        {"n_ids": 400},
    ],
    ids=["plain", "tied", "zero gradient", "ignored", "float64", "four", "many"],
)
def test_updates_of_rows_have_the_bits_of_whole_updates(make, options):
    assert _compare(make, **options)


def _hook(rule, param):
    param.grad = param.grad * np.float32(0.5)


def _negative_rate(optimizer, model):
    model[0].W.update_rule.hyperparam.lr = -0.1


@pytest.mark.parametrize(
    "make, prepare",
    [
        (optimizers.Adam, None),
        (optimizers.MomentumSGD, None),
        (optimizers.RMSprop, None),
        (lambda: optimizers.AdaGrad(eps=0.0), None),
        (optimizers.SGD, _negative_rate),
        (optimizers.SGD, lambda o, _: o.add_hook(optimizer_hooks.WeightDecay(0.1))),
        (optimizers.SGD, lambda o, _: o.add_hook(optimizer_hooks.GradientClipping(0.1))),
        (optimizers.SGD, lambda o, model: model[0].W.update_rule.add_hook(_hook)),
        (optimizers.SGD, lambda o, _: o.set_loss_scale(8.0)),
    ],
)
def test_what_changes_other_rows_gets_the_whole_gradient(make, prepare):
    with np.errstate(invalid="ignore"):
        assert not _compare(make, prepare=prepare)


def test_a_small_table_or_many_rows_get_an_array():
    assert not _compare(lambda: optimizers.SGD(0.1), n_ids=N // 2)


def _backward(model, ids, **options):
    loss = _loss(model, ids)
    model.cleargrads()
    loss.backward(**options)
    return model[0].W


def _set_up():
    model = _model()
    optimizers.SGD(0.1).setup(model)
    return model, np.array([1, 5, 1])


def test_the_gradient_is_an_array_for_whoever_asks():
    model, ids = _set_up()
    expected = mpchain.grad([_loss(model, ids)], [model[0].W])[0].array
    table = _backward(model, ids)
    rows = row_gradient_of(table)
    assert rows is not None and sorted(rows.ids) == [1, 5]
    _assert_same_bits([table.grad], [expected])
    assert table.grad is table.grad and row_gradient_of(table) is None
    _backward(model, ids)
    _assert_same_bits([table.grad_var.array], [expected])


def test_gradients_accumulate():
    model, ids = _set_up()
    expected = mpchain.grad([_loss(model, ids)], [model[0].W])[0].array
    table = _backward(model, ids)
    _loss(model, ids).backward()
    assert row_gradient_of(table) is None
    _assert_same_bits([table.grad], [expected + expected])


def test_a_new_or_cleared_gradient_replaces_the_rows():
    model, ids = _set_up()
    table = _backward(model, ids)
    table.cleargrad()
    assert table.grad is None and row_gradient_of(table) is None
    table = _backward(model, ids)
    table.grad = np.ones_like(table.array)
    assert table.grad.sum() == table.size and row_gradient_of(table) is None


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_have_the_gradient(how):
    model, ids = _set_up()
    table = _backward(model, ids)
    other = how(table)
    _assert_same_bits([other.grad], [table.grad])


def test_double_backward_and_callbacks_get_arrays():
    model, ids = _set_up()
    assert row_gradient_of(_backward(model, ids, enable_double_backprop=True)) is None
    seen = []
    _backward(model, ids, on_leaf=lambda leaf: seen.append((leaf, leaf.grad.shape)))
    assert [shape for leaf, shape in seen if leaf is model[0].W] == [(N, WIDTH)]


def test_a_rule_that_overrides_the_step_gets_the_array():
    class Rule(optimizers.SGD.rule):
        @staticmethod
        def step(p, g, lr):
            return (p - lr * (g + 1),)

    class Shifted(optimizers.SGD):
        rule = Rule

    assert not _compare(lambda: Shifted(0.1))


@pytest.mark.annex("captured")
def test_captured_steps_train_alike():
    def run(capture):
        model = _model(dtype=np.float64)
        optimizer = optimizers.SGD(0.1).setup(model)

        def train(ids):
            loss = _loss(model, ids)
            model.cleargrads()
            loss.backward()
            optimizer.update()
            return loss

        step = capture(train)
        random = np.random.RandomState(1)
        losses = [step(random.randint(0, N, 50)).array.copy() for _ in range(5)]
        return [*losses, *(p.array for p in model.params())], step

    captured, step = run(mpchain.capture)
    plain, _ = run(lambda f: f)
    assert step.reason is None
    for x, y in zip(captured, plain, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)


@pytest.mark.annex("captured")
@pytest.mark.parametrize(
    "kind, is_replayed", [("SGD", False), ("clipped", True), ("Adam", True), ("small", True)]
)
def test_capture_says_that_it_leaves_steps_of_large_tables_alone(kind, is_replayed):
    n = 1000 if kind == "small" else 40000
    table = mpchain.links.EmbedID(n, 16)
    make = optimizers.Adam if kind == "Adam" else optimizers.SGD
    optimizer = make().setup(table)
    if kind == "clipped":
        optimizer.add_hook(mpchain.optimizer_hooks.GradientClipping(5))

    @mpchain.capture
    def step(ids):
        loss = F.sum(table(ids) ** 2)
        table.cleargrads()
        loss.backward()
        optimizer.update()
        return loss

    random = np.random.RandomState(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # capture warns about operations that it does not replay
        for _ in range(4):
            step(random.randint(0, n, 20))
    assert (step.reason is None) == is_replayed
    if not is_replayed:
        assert "the gradient of W, a table of shape (40000, 16), has few rows" in step.reason
        assert "run this step without capture" in step.reason
        assert not hasattr(table.W, "_has_few_rows")

"""Tests that updates of small parameters in groups have the same bits, and that nothing else
changes."""

import copy
import pickle

import numpy as np
import pytest

from mpchain import kernels, optimizer_hooks, optimizers, update_rule
from mpchain.link import Chain, Link
from mpchain.serializers import DictionarySerializer, NpzDeserializer
from mpchain.update_rule import UpdateRule, update_all
from mpchain.variable import Parameter
from tests.optimizers.names import OF_RULES

pytestmark = pytest.mark.slow

SHAPES = [(3, 4), (), (5,), (0, 2), (1000,), (7, 2), (2000,), (3,)]


def model_of(shapes=SHAPES, dtype=np.float32):
    rng = np.random.default_rng(1)
    link = Link()
    with link.init_scope():
        for i, shape in enumerate(shapes):
            setattr(link, f"p{i}", Parameter(np.asarray(rng.normal(size=shape), dtype)))
    return link


def steps(optimizer, n=1, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        for param in optimizer.target.params():
            param.grad = np.asarray(rng.normal(size=param.shape), param.dtype)
        optimizer.update()


def saved(*objects):
    serializer = DictionarySerializer()
    for i, each in enumerate(objects):
        serializer[str(i)].save(each)
    return {name: np.array(array) for name, array in serializer.target.items()}


def assert_same(actual, expected):
    a, b = (saved(o.target, o) for o in (actual, expected))
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].shape == b[name].shape and a[name].dtype == b[name].dtype
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.fixture
def gathered(calls_of):
    """Returns a list that collects the sizes of the groups that are updated together."""
    return calls_of(update_rule, "_update_group", len)


@pytest.fixture
def alone(monkeypatch):
    """Returns a function that calls a function while optimizers update each parameter
    separately."""

    def call(function, *args):
        with monkeypatch.context() as patch:
            patch.setattr(update_rule, "_group_of", lambda param: None)
            return function(*args)

    return call


@pytest.mark.filterwarnings("ignore:.*parameters are float16")
@pytest.mark.parametrize("name", OF_RULES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_same_to_the_bit(name, dtype, alone, gathered):
    together, apart = (getattr(optimizers, name)().setup(model_of(dtype=dtype)) for _ in range(2))
    together.add_hook(optimizer_hooks.WeightDecay(0.1))
    apart.add_hook(optimizer_hooks.WeightDecay(0.1))
    steps(together, 4)
    is_elementwise = together.target.p0.update_rule.is_elementwise
    assert (gathered == [8] * 4) == (is_elementwise and dtype != np.float16)
    alone(steps, apart, 4)
    assert_same(together, apart)


def test_gathered_in_portions_that_stay_in_the_cache(monkeypatch, alone):
    step_gathered, gathered = kernels.steps._step_gathered, []
    monkeypatch.setattr(
        kernels.steps,
        "_step_gathered",
        lambda step, rows, *args: gathered.append(len(rows)) or step_gathered(step, rows, *args),
    )
    together, apart = (optimizers.Adam().setup(model_of([(1000,)] * 40)) for _ in range(2))
    steps(together)
    assert gathered == [16, 16, 8]
    alone(steps, apart)
    assert_same(together, apart)


@pytest.mark.parametrize("n", [3, 40])
def test_steps_without_states_are_the_same_one_by_one_and_in_one_buffer(n, alone):
    together, apart = (optimizers.SGD().setup(model_of([(10,), (2, 2)] * n)) for _ in range(2))
    steps(together, 2)
    alone(steps, apart, 2)
    assert_same(together, apart)


def test_parameters_and_states_stay_the_arrays_that_they_are():
    link = model_of()
    optimizer = optimizers.MomentumSGD().setup(link)
    steps(optimizer)
    arrays = [param.array for param in link.params()]
    states = [param.update_rule.state["v"] for param in link.params()]
    steps(optimizer)
    assert all(p.array is a for p, a in zip(link.params(), arrays, strict=True))
    assert all(p.update_rule.state["v"] is v for p, v in zip(link.params(), states, strict=True))


def test_arrays_that_users_assign(alone):
    def assign(optimizer):
        link = optimizer.target
        steps(optimizer)
        link.p0.array = np.asfortranarray(np.ones((3, 4), np.float32))
        link.p2.data = np.arange(10, dtype=np.float32)[::2]
        link.p5.array[...] = 3
        link.p0.update_rule.state["v"] = np.full((3, 4), 2, np.float32)
        link.p7.update_rule.state = None
        steps(optimizer, 2)
        return optimizer

    together, apart = (optimizers.MomentumSGD().setup(model_of()) for _ in range(2))
    assign(together)
    alone(assign, apart)
    assert_same(together, apart)
    assert together.target.p0.array.flags.f_contiguous


def test_numbers_of_one_parameter(gathered, alone):
    def differ(optimizer):
        link = optimizer.target
        link.p0.update_rule.hyperparam.alpha = 0.5
        link.p2.update_rule.enabled = False
        link.p3.update_rule.add_hook(optimizer_hooks.WeightDecay(0.1))
        link.p4.update_rule = None
        link.p5.grad = np.ones((7, 2), np.float32)
        link.p5.update()  # so p5 is one step ahead
        steps(optimizer, 2)
        return optimizer

    together, apart = (optimizers.Adam().setup(model_of()) for _ in range(2))
    differ(together)
    # One group is p1, p6 and p7, the other is p5.
    assert gathered == [1, 3] * 2 or gathered == [3, 1] * 2
    alone(differ, apart)
    assert_same(together, apart)


def test_dtypes_are_not_mixed(gathered):
    link = Chain(a=model_of(), b=model_of(dtype=np.float64))
    steps(optimizers.SGD().setup(link))
    assert gathered == [8, 8]


def test_gradients_of_another_dtype_or_none_at_all(gathered):
    link = model_of([(2,), (2,), (2,)])
    optimizers.SGD(0.5).setup(link)
    expected = [param.array.copy() for param in link.params()]
    link.p0.grad = np.ones(2, np.float32)
    link.p1._grad = np.ones(2, np.float64)
    update_all(link.params())
    expected[0] -= np.float32(0.5)
    expected[1] -= np.float32(0.5)
    for param, array in zip(link.params(), expected, strict=True):
        np.testing.assert_array_equal(param.array, array)
    assert gathered == [1]


def test_copies_and_pickles_go_on_alike():
    optimizer = optimizers.Adam().setup(model_of())
    steps(optimizer, 2)
    others = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    steps(optimizer, 2)
    for other in others:
        steps(other, 2)
        assert_same(other, optimizer)


def test_saved_and_restored():
    optimizer = optimizers.Adam().setup(model_of())
    steps(optimizer, 2)
    restored = optimizers.Adam().setup(model_of())
    deserializer = NpzDeserializer(saved(optimizer.target, optimizer))
    deserializer["0"].load(restored.target)
    deserializer["1"].load(restored)
    for each in (optimizer, restored):
        steps(each, 2)
    assert_same(restored, optimizer)


def test_shared_parameters_are_updated_once():
    shared = model_of([(2,), (3,)])
    optimizer = optimizers.SGD(1.0).setup(Chain(a=shared, b=shared))
    before = shared.p0.array.copy()
    for param in shared.params():
        param.grad = np.ones_like(param.array)
    optimizer.update()
    np.testing.assert_array_equal(shared.p0.array, before - 1)


class ShiftRule(UpdateRule):
    """An update rule whose numbers depend on one of its own attributes."""

    hyperparameters = {"lr": 1.0}
    shift = 0.0

    def scalars(self):
        return {"shift": self.shift}

    @staticmethod
    def step(p, g, shift):
        return (p + shift,)


class DeclaredRule(ShiftRule):
    scalars_depend_on = ("shift",)

    def scalars(self):
        return {"shift": self.shift if isinstance(self.shift, float) else self.shift[0]}


class DerivedRule(DeclaredRule):
    """An update rule that declares nothing itself, so that it may depend on anything."""


@pytest.mark.parametrize(
    ("rule", "groups"), [(DeclaredRule, [2, 2]), (ShiftRule, []), (DerivedRule, [])]
)
@pytest.mark.parametrize("own", [1.0, [1.0]], ids=str)
def test_attributes_that_numbers_depend_on(rule, groups, own, gathered):
    if rule is ShiftRule:
        own = 1.0
    parent = optimizers.SGD().hyperparam
    link = model_of([(2,)] * 4)
    before = [param.array.copy() for param in link.params()]
    for i, param in enumerate(link.params()):
        param.grad = np.zeros(2, np.float32)
        param.update_rule = rule(parent)
        if i > 1:
            param.update_rule.shift = own
    update_all(link.params())
    for i, param in enumerate(link.params()):
        np.testing.assert_array_equal(param.array, before[i] + np.float32(i > 1))
    assert gathered == groups


def test_methods_of_one_rule_alone(gathered):
    """A program may replace a method of a single object."""
    link = model_of([(2,)] * 4)
    optimizer = optimizers.SGD(1.0).setup(link)
    link.p1.update_rule.scalars = lambda: {"lr": 3.0}
    before = [param.array.copy() for param in link.params()]
    for param in link.params():
        param.grad = np.ones(2, np.float32)
    optimizer.update()
    for i, param in enumerate(link.params()):
        np.testing.assert_array_equal(param.array, before[i] - np.float32([1, 3, 1, 1][i]))
    assert gathered == [3]


def test_rules_with_an_update_of_their_own(gathered):
    class Own(optimizers.SGDRule):
        def update_core_cpu(self, param):
            param.array[...] = 7

    link = model_of([(2,), (2,)])
    for param in link.params():
        param.grad = np.zeros(2, np.float32)
        param.update_rule = Own()
    update_all(link.params())
    assert gathered == [] and all((param.array == 7).all() for param in link.params())


def test_states_of_another_dtype_take_the_one_that_they_should_have():
    optimizer = optimizers.MomentumSGD().setup(model_of())
    steps(optimizer)
    arrays = saved(optimizer)
    arrays["0/p0/v"] = arrays["0/p0/v"].astype(np.float64)
    arrays["0/p2/v"] = arrays["0/p2/v"].astype(np.float16)
    restored = optimizers.MomentumSGD().setup(model_of())
    NpzDeserializer(arrays)["0"].load(restored)
    steps(restored)
    states = [param.update_rule.state["v"] for param in restored.target.params()]
    assert {state.dtype for state in states} == {np.dtype(np.float32)}


def test_a_state_that_does_not_fit():
    link = model_of([(2,), (2,)])
    optimizer = optimizers.MomentumSGD().setup(link)
    steps(optimizer)
    link.p1.update_rule.state["v"] = np.zeros(3, np.float32)
    link.p1.array = link.p1.array.copy()
    with pytest.raises(ValueError, match=r"MomentumSGDRule: state 'v' has shape \(3,\)"):
        steps(optimizer)

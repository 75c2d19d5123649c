"""Tests Optimizer, GradientMethod and UpdateRule: the step, hooks, loss scale, and saving."""

import copy
import pickle

import numpy as np
import pytest

import mpchain
from mpchain import backend, optimizers
from mpchain import functions as F
from mpchain import links as L
from mpchain.link import Chain, Link
from mpchain.optimizer import (
    GradientMethod,
    Hyperparameter,
    HyperparameterProxy,
    Optimizer,
    UpdateRule,
)
from mpchain.serializers import (
    DictionarySerializer,
    MissingKeyError,
    NpzDeserializer,
    load_npz,
    save_npz,
)
from mpchain.variable import Parameter, Variable
from tests.optimizers.names import OF_RULES as NAMES


def model_of(*shapes, dtype=np.float64):
    link = Link()
    with link.init_scope():
        for i, shape in enumerate(shapes):
            setattr(link, f"p{i}", Parameter(np.ones(shape, dtype)))
    return link


def set_grads(link, value=1.0):
    for param in link.params():
        param.grad = np.full(param.shape, value, param.dtype)


# Hyperparameters


def test_hyperparameter_falls_back_on_its_parent():
    parent = Hyperparameter()
    parent.lr, parent.momentum = 0.1, 0.9
    child = Hyperparameter(parent)
    child.lr = 0.5
    assert (child.lr, child.momentum, child.parent) == (0.5, 0.9, parent)
    assert child.get_dict() == {"lr": 0.5, "momentum": 0.9}
    assert repr(child) == "Hyperparameter(lr=0.5, momentum=0.9)"
    with pytest.raises(AttributeError, match="Hyperparameter has no hyperparameter 'x'"):
        child.x
    assert pickle.loads(pickle.dumps(child)).momentum == copy.deepcopy(child).momentum == 0.9


def test_proxy():
    optimizer = optimizers.MomentumSGD()
    optimizer.lr = 0.5
    assert optimizer.hyperparam.lr == optimizer.lr == 0.5
    assert isinstance(optimizers.MomentumSGD.lr, HyperparameterProxy)


def test_hyperparameters_are_no_strings():
    with pytest.raises(TypeError, match=r"'lr' must be a number, not the string '0\.1'"):
        optimizers.SGD("0.1")


def test_hyperparameters_of_one_parameter():
    link = model_of(1, 1)
    optimizer = optimizers.SGD(0.5).setup(link)
    link.p1.update_rule.hyperparam.lr = 0.25
    optimizer.lr = 0.125
    set_grads(link)
    optimizer.update()
    assert (link.p0.array[0], link.p1.array[0]) == (0.875, 0.75)


# The step


def test_update_with_a_loss_function():
    model = L.Linear(3, 1, initialW=1)
    optimizer = optimizers.SGD(0.5)
    assert optimizer.setup(model) is optimizer
    x = np.array([[1, 2, 3]], np.float32)
    set_grads(model, 100.0)
    optimizer.update(lambda x, factor: F.sum(model(x)) * factor, x, factor=2)
    np.testing.assert_allclose(model.W.array, [[0, -1, -2]])
    assert optimizer.t == 1 and model.W.update_rule.t == 1


def test_update_with_gradients_that_are_there():
    link = model_of(2)
    optimizer = optimizers.SGD(0.5).setup(link)
    set_grads(link)
    optimizer.update()
    assert link.p0.array.tolist() == [0.5, 0.5] and link.p0.grad.tolist() == [1, 1]


def test_gradients_that_are_missing_count_as_zeros():
    link = model_of(2)
    optimizer = optimizers.MomentumSGD(0.5).setup(link)
    set_grads(link)
    optimizer.update()
    link.cleargrads()
    optimizer.update()
    np.testing.assert_allclose(link.p0.array, 1 - 0.5 - 0.45)
    assert link.p0.update_rule.t == 2


def test_a_first_update_without_any_gradient_warns():
    link = model_of(2)
    with pytest.warns(UserWarning, match=r"^SGD.update: no parameter has a gradient") as seen:
        optimizer = optimizers.SGD().setup(link)
        optimizer.update()
        optimizer.update()
    assert len(seen) == 1 and seen[0].filename == __file__
    with pytest.warns(UserWarning, match="outside of no_backprop_mode; .*enable_double_backprop"):
        with mpchain.no_backprop_mode():
            optimizers.Adam().setup(link).update(lambda: F.sum(link.p0))


def test_updates_that_need_no_warning_of_missing_gradients():
    link = model_of(2, 3)
    link.p0.grad = np.ones(2)  # only one of two parameters has a gradient
    optimizer = optimizers.MomentumSGD().setup(link)
    optimizer.update()
    link.cleargrads()  # only momentum moves the parameter
    optimizer.update()
    link.disable_update()  # no parameter is updated
    link.cleargrads()
    optimizers.SGD().setup(link).update()
    link.p0.update_rule.enabled = True
    optimizer = optimizers.SGD().setup(link)
    optimizer.use_cleargrads(False)  # with use_cleargrads(False), gradients are set to zero
    optimizer.update(lambda: F.sum(Variable(np.ones(1, np.float32))))


def test_parameters_that_are_initialized_later():
    model = L.Linear(2)
    optimizer = optimizers.Adam().setup(model)
    set_grads_of_bias = np.ones(2, np.float32)
    model.b.grad = set_grads_of_bias
    optimizer.update()
    assert model.W.update_rule.t == 0 and model.b.update_rule.t == 1
    optimizer.update(lambda: F.sum(model(np.ones((1, 3), np.float32))))
    assert model.W.update_rule.t == 1 and model.W.update_rule.state["m"].shape == (2, 3)


def test_parameters_that_are_not_to_be_updated():
    model = Chain(a=L.Linear(1, 1, initialW=1), b=L.Linear(1, 1, initialW=1))
    optimizer = optimizers.SGD(0.5).setup(model)
    model.a.disable_update()
    model.b.b.update_rule = None
    set_grads(model)
    optimizer.update()
    assert model.a.W.array == 1 and model.b.W.array == 0.5 and model.b.b.array == 0
    assert model.a.W.update_rule.t == 0


def test_what_is_disabled_before_setup_stays_disabled():
    model = Chain(base=L.Linear(1, 1, initialW=1), head=L.Linear(None, 1, initialW=1))
    model.base.disable_update()
    model.head.disable_update()
    model.head.enable_update()
    optimizer = optimizers.SGD(0.5).setup(model)
    optimizer.update(lambda: F.sum(model.head(model.base(np.ones((1, 1), np.float32)))))
    assert model.base.W.array == 1 and model.head.W.array == 0.5
    assert not model.base.update_enabled and model.head.update_enabled
    model.base.enable_update()
    set_grads(model)
    optimizer.update()
    assert model.base.W.array == 0.5


@pytest.mark.parametrize("kind", [optimizers.Adam, optimizers.SGD])
def test_parameters_are_no_hyperparameters(kind):
    model = L.Linear(1, 1)
    name, first = kind.__name__, next(iter(kind.rule.hyperparameters))
    for wrong in (model.params(), list(model.params()), model):
        rule = rf"^{name}: {first} must be a number, not (generator|list|Linear); .*"
        with pytest.raises(TypeError, match=rule + rf"set by {name}\(\).setup\(model\)"):
            kind(wrong)


def test_layers_outside_init_scope_are_noticed():
    class Net(Chain):
        def __init__(self):
            super().__init__()
            self.hidden = L.Linear(2, 2)
            self.scale = Parameter(1.0, (2,))

    rule = r"^SGD.setup: Net has no parameters, .* assign hidden, scale within 'with self.init_sco"
    with pytest.warns(UserWarning, match=rule):
        optimizers.SGD().setup(Net())
    # This chain contains no parameter that could be meant.
    optimizers.SGD().setup(Chain(empty=Link()))


def test_a_shared_parameter_is_updated_once():
    shared = L.Linear(1, 1, initialW=1)
    model = Chain(a=shared, b=shared)
    optimizer = optimizers.SGD(0.5).setup(model)
    set_grads(model)
    optimizer.update()
    assert shared.W.array == 0.5


def test_hyperparameters_of_a_rule_by_position():
    rule = optimizers.sgd.MomentumSGDRule(None, 0.5, None)
    assert rule.hyperparam.get_dict() == {"lr": 0.5, "momentum": 0.9}
    assert optimizers.adam.AdamRule(None, 0.5, beta1=0.1).hyperparam.beta1 == 0.1
    with pytest.raises(TypeError, match="SGDRule has 1 hyperparameters, but got 2 values"):
        optimizers.sgd.SGDRule(None, 0.5, 0.5)


def test_adam_has_its_learning_rate_under_two_names():
    link = L.Linear(1, 1)
    optimizer = optimizers.Adam(alpha=0.5).setup(link)
    with pytest.raises(RuntimeError, match=r"Adam.lr: the learning rate is undefined"):
        optimizer.alpha_t
    optimizer.update(lambda: F.sum(link(np.ones((1, 1), "f"))))
    rule = link.W.update_rule
    assert optimizer.alpha_t == optimizer.lr == rule.alpha_t == rule.lr
    assert optimizer.alpha_t == pytest.approx(0.5 * 0.001**0.5 / 0.1)


def test_use_cleargrads():
    link = model_of(2)
    optimizer = optimizers.SGD().setup(link)
    optimizer.use_cleargrads(False)
    optimizer.update(lambda: F.sum(link.p0 * 2))
    assert link.p0.grad.tolist() == [2, 2]


def test_epochs():
    optimizer = optimizers.SGD().setup(model_of(1))
    optimizer.new_epoch()
    assert optimizer.epoch == 1
    with pytest.raises(RuntimeError, match=r"SGD.new_epoch: set use_auto_new_epoch"):
        optimizer.new_epoch(auto=True)
    optimizer.use_auto_new_epoch = True
    optimizer.new_epoch(auto=True)
    with pytest.raises(RuntimeError, match=r"SGD.new_epoch: an updater calls it"):
        optimizer.new_epoch()
    assert optimizer.epoch == 2


@pytest.mark.parametrize("name", NAMES)
def test_it_minimizes(name):
    link = Link()
    with link.init_scope():
        link.W = Parameter(np.array([2.0, -1.0]))
    optimizer = getattr(optimizers, name)().setup(link)

    def loss():
        return F.sum(link.W**2 * np.array([1.0, 3.0]))

    before = loss().item()
    for _ in range(100):
        optimizer.update(loss)
    assert loss().item() < before


@pytest.mark.parametrize("name", NAMES)
def test_on_each_device(name, device):
    link = model_of(3)
    optimizer = getattr(optimizers, name)().setup(link)
    for place in ("@numpy", device):  # the state of an update on the host moves to the device
        link.to_device(place)
        link.p0.grad = link.device.send(np.ones(3))
        optimizer.update()
    assert backend.get_device_from_array(link.p0.array) == backend.get_device(device)


# Hooks


class Hook:
    def __init__(self, name="Hook", timing="pre", for_each=False):
        self.name, self.timing, self.call_for_each_param = name, timing, for_each
        self.calls = []

    def __call__(self, *args):
        self.calls.append(args)


def test_hooks_of_an_optimizer():
    link = model_of(1, 1)
    optimizer = optimizers.SGD().setup(link)
    once, each, after = Hook("a"), Hook("b", for_each=True), Hook("c", "post")
    for hook in (once, each, after):
        optimizer.add_hook(hook)
    order = []
    optimizer.add_hook(lambda _: order.append((link.p0.array[0], optimizer.t)), "d", "pre")
    optimizer.add_hook(lambda _: order.append((link.p0.array[0], optimizer.t)), "e", "post")
    set_grads(link)
    optimizer.update()
    assert once.calls == [(optimizer,)] and after.calls == [(optimizer,)]
    assert [rule for rule, _ in each.calls] == [link.p0.update_rule, link.p1.update_rule]
    assert [param.name for _, param in each.calls] == ["p0", "p1"]
    assert order == [(1.0, 0), (0.99, 1)]
    optimizer.remove_hook("a")
    optimizer.update()
    assert len(once.calls) == 1 and len(each.calls) == 4
    optimizer.setup(link)
    optimizer.update()
    assert len(each.calls) == 4


def test_a_hook_that_is_called_directly():
    optimizer = optimizers.SGD().setup(model_of(1, 1))
    once, each = Hook(), Hook(for_each=True)
    optimizer.call_hook(once)
    optimizer.call_hook(each)
    assert once.calls == [(optimizer,)]
    assert each.calls == [(p.update_rule, p) for p in optimizer.target.params()]


def test_hooks_of_one_parameter():
    link = model_of(1, 1)
    optimizer = optimizers.SGD().setup(link)
    rule = link.p0.update_rule
    before, after = Hook("a"), Hook("b")
    rule.add_hook(before)
    rule.add_hook(after, name="x", timing="post")
    set_grads(link)
    optimizer.update()
    assert [len(hook.calls) for hook in (before, after)] == [1, 1]
    assert before.calls[0][0] is rule and before.calls[0][1] is link.p0
    rule.remove_hook("x")
    link.p0.update()
    assert [len(hook.calls) for hook in (before, after)] == [2, 1]


# Float16 and loss scale


@pytest.mark.filterwarnings("ignore:.*parameters are float16")
def test_float16_parameters_on_float32_copies():
    link, plain = model_of(1, dtype=np.float16), model_of(1, dtype=np.float16)
    optimizer = optimizers.SGD(1e-4)
    optimizer.use_fp32_update()
    optimizer.setup(link)
    seen = Hook(for_each=True)
    optimizer.add_hook(seen)
    other = optimizers.SGD(1e-4).setup(plain)
    for _ in range(20):
        for each in (link, plain):
            set_grads(each)
        optimizer.update()
        other.update()
    assert link.p0.dtype == np.float16
    assert link.p0.array[0] == np.float16(1 - 20e-4)
    assert plain.p0.array[0] == 1  # each single step is lost by rounding
    assert seen.calls[0][1].dtype == np.float32


_BOTH = r"use_fp32_update\(\): .* and loss_scaling\(\): "
_ADVICE = {
    "neither": (lambda optimizer: None, _BOTH),
    "no copies": (lambda optimizer: optimizer.set_loss_scale(8), r"use_fp32_update\(\): [a-z ]*$"),
    "no scale": (lambda optimizer: optimizer.use_fp32_update(), r"optimizer's loss_scaling\(\): "),
}


@pytest.mark.parametrize("prepare, advice", _ADVICE.values(), ids=_ADVICE)
def test_the_first_update_of_float16_parameters_suggests_what_is_missing(prepare, advice):
    link = model_of(1, 1, dtype=np.float16)
    optimizer = optimizers.SGD(0).setup(link)
    prepare(optimizer)
    with pytest.warns(
        UserWarning, match=f"^SGD.update: parameters are float16: .*{advice}"
    ) as seen:
        set_grads(link)
        optimizer.update()
        optimizer.update()
    assert len(seen) == 1 and seen[0].filename == __file__
    other = model_of(1)
    optimizer.setup(other)
    set_grads(other)
    optimizer.update()
    with pytest.warns(UserWarning, match="parameters are float16"):
        optimizer.setup(link).update()


@pytest.mark.parametrize("flag, scale", [(True, 8.0), (False, 1.0)])
def test_nothing_is_suggested_to_those_who_have_chosen(flag, scale):
    link = model_of(1, dtype=np.float16)
    optimizer = optimizers.SGD(0).setup(link)
    set_grads(link)
    optimizer.use_fp32_update(flag)
    optimizer.set_loss_scale(scale)
    optimizer.update()


@pytest.mark.filterwarnings("ignore:.*parameters are float16")
def test_float32_copies_follow_parameters_that_somebody_sets():
    link = model_of(2, dtype=np.float16)
    optimizer = optimizers.SGD(2.0**-13).setup(link)
    optimizer.use_fp32_update()
    set_grads(link)
    optimizer.update()
    link.p0.array[0] = 5
    for _ in range(3):
        optimizer.update()
    # The second element has moved by all four steps.
    assert link.p0.array.tolist() == [5, 1 - 2.0**-11]


def test_constant_loss_scale():
    link = model_of(2)
    optimizer = optimizers.SGD(0.5).setup(link)
    optimizer.set_loss_scale(64)
    seen = []
    optimizer.add_hook(lambda opt: seen.append(link.p0.grad.copy()), "look")
    optimizer.update(lambda: F.sum(link.p0 * 2))
    np.testing.assert_allclose(link.p0.array, 0)
    np.testing.assert_allclose(seen, [[2, 2]])
    optimizer.set_loss_scale(None)
    optimizer.update(lambda: F.sum(link.p0 * 2))
    np.testing.assert_allclose(link.p0.array, -1)


def test_loss_scale_saves_small_gradients_from_rounding_to_zero():
    link = model_of(1, dtype=np.float16)
    optimizer = optimizers.SGD(1e6).setup(link)
    optimizer.use_fp32_update()
    optimizer.loss_scaling(scale=2**14)
    tiny = np.float16(2**-12)
    optimizer.update(lambda: F.sum(link.p0 * tiny * tiny))
    assert link.p0.array[0] == pytest.approx(1 - 1e6 * 2**-24, abs=1e-3)


def test_dynamic_loss_scale():
    link = model_of(1)
    optimizer = optimizers.SGD(0.5).setup(link)
    optimizer.loss_scaling(interval=4)
    scales = []

    def step(gradient):
        scales.append(optimizer.loss_scale)
        optimizer.update(lambda: F.sum(link.p0 * np.array([gradient])))

    for _ in range(3):
        step(0.125)
    np.testing.assert_allclose(link.p0.array, 1 - 3 / 16)
    hook = Hook()
    optimizer.add_hook(hook)
    for gradient in (np.inf, np.nan):
        with pytest.warns(RuntimeWarning, match=r"SGD.update: step . is skipped.* finite: /p0"):
            step(gradient)
        assert not optimizer.is_safe_to_update()
    np.testing.assert_allclose(link.p0.array, 1 - 3 / 16)
    assert not hook.calls and optimizer.t == 5 and link.p0.update_rule.t == 3
    for _ in range(5):
        step(0.125)
    assert optimizer.is_safe_to_update()
    np.testing.assert_allclose(scales[:6], [1, 2, 4, 8, 4, 2])
    np.testing.assert_allclose(scales[6:], 2 * 2 ** (np.arange(1, 5) / 4))
    np.testing.assert_allclose(link.p0.array, 1 - 8 / 16)


def test_bounds_of_the_dynamic_loss_scale():
    link = model_of(1)
    optimizer = optimizers.SGD(0).setup(link)
    optimizer.loss_scaling()
    for _ in range(20):
        optimizer.update(lambda: F.sum(link.p0))
    assert optimizer.loss_scale == 65504
    with pytest.warns(RuntimeWarning):
        for _ in range(20):
            optimizer.update(lambda: F.sum(link.p0 * np.array([np.inf])))
    assert optimizer.loss_scale == 1


# Users' own rules


class HalvingRule(UpdateRule):
    """An update rule in the style of Chainer's programs, with its own init_state and
    update_core_cpu."""

    def init_state(self, param):
        self.state["n"] = np.zeros(2, int)
        self.state["last"] = np.zeros_like(param.array)

    def update_core_cpu(self, param):
        param.array *= self.hyperparam.factor
        self.state["n"] += 1
        self.state["last"][...] = param.grad


class Halving(GradientMethod):
    def __init__(self, factor=0.5):
        super().__init__()
        self.hyperparam.factor = factor

    factor = HyperparameterProxy("factor")

    def create_update_rule(self):
        return HalvingRule(self.hyperparam)


def test_own_rule():
    link = model_of(3)
    optimizer = Halving().setup(link)
    set_grads(link)
    optimizer.update()
    optimizer.factor = 0.25
    optimizer.update()
    assert link.p0.array.tolist() == [0.125] * 3
    saved = DictionarySerializer()
    saved.save(optimizer)
    restored = Halving().setup(model_of(3))
    NpzDeserializer(saved.target).load(restored)
    state = restored.target.p0.update_rule.state
    assert state["n"].tolist() == [2, 2] and state["last"].tolist() == [1, 1, 1]
    assert not HalvingRule().is_elementwise and optimizers.SGDRule().is_elementwise


# Saving


def steps(optimizer, n):
    for _ in range(n):
        for param in optimizer.target.params():
            param.grad = np.asarray(np.random.normal(size=param.shape))
        optimizer.update()


@pytest.mark.parametrize("name", NAMES)
def test_saving_and_loading(name, tmp_path):
    link = model_of((2, 3), ())
    optimizer = getattr(optimizers, name)().setup(link)
    steps(optimizer, 3)
    optimizer.new_epoch()
    save_npz(tmp_path / "link.npz", link)
    save_npz(tmp_path / "optimizer.npz", optimizer)
    other = model_of((2, 3), ())
    restored = getattr(optimizers, name)().setup(other)
    load_npz(tmp_path / "link.npz", other)
    load_npz(tmp_path / "optimizer.npz", restored)
    assert (restored.t, restored.epoch) == (3, 1)
    for each in (optimizer, restored):
        np.random.seed(1)
        steps(each, 2)
    np.testing.assert_array_equal(other.p0.array, link.p0.array)
    np.testing.assert_array_equal(other.p1.array, link.p1.array)


STATES = {
    "SGD": "",
    "MomentumSGD": "v",
    "CorrectedMomentumSGD": "v",
    "NesterovAG": "v",
    "AdaDelta": "msg msdx",
    "AdaGrad": "h",
    "SMORMS3": "mem g g2",
    "MSVAG": "m v",
    "RMSprop": "ms",
    "RMSpropGraves": "n g delta",
    "Adam": "m v",
    "AdamW": "m v",
    "AMSGrad": "m v vhat",
    "AdaBound": "m v",
    "AMSBound": "m v vhat",
    "SGDW": "v",
    "Lion": "m",
    "RAdam": "m v",
    "LAMB": "m v",
    "Adafactor": "row column",
}


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_those_of_chainer(name):
    assert name in STATES, f"add the names of the states of {name} to STATES"
    optimizer = getattr(optimizers, name)().setup(Chain(l=model_of(2)))
    for expected in ("t epoch l/p0/t", "t epoch l/p0/t " + STATES[name].replace(" ", " l/p0/")):
        saved = DictionarySerializer()
        saved.save(optimizer)
        wanted = expected.split()
        wanted = [key if "/" in key or key in ("t", "epoch") else f"l/p0/{key}" for key in wanted]
        assert set(saved.target) == set(wanted)
        set_grads(optimizer.target)
        optimizer.update()


def test_loading_what_was_saved_before_the_first_update():
    fresh, used = (optimizers.Adam().setup(model_of(2)) for _ in range(2))
    saved = DictionarySerializer()
    saved.save(fresh)
    steps(used, 2)
    NpzDeserializer(saved.target).load(used)
    assert used.t == 0 and used.target.p0.update_rule.state is None
    steps(used, 1)


def test_a_state_that_is_missing_or_does_not_fit():
    optimizer = optimizers.MomentumSGD().setup(model_of(2))
    steps(optimizer, 1)
    saved = DictionarySerializer()
    saved.save(optimizer)
    adam = optimizers.Adam().setup(model_of(2))
    with pytest.raises(MissingKeyError, match="p0/m"):
        NpzDeserializer(saved.target).load(adam)
    other = optimizers.MomentumSGD().setup(model_of(3))
    NpzDeserializer(saved.target).load(other)
    with pytest.raises(ValueError, match=r"MomentumSGDRule: state 'v' has shape \(2,\).* \(3,\)"):
        steps(other, 1)


def test_a_state_that_may_be_missing_starts_anew():
    optimizer = optimizers.MomentumSGD().setup(model_of(2))
    steps(optimizer, 1)
    saved = DictionarySerializer()
    saved.save(optimizer)
    adam = optimizers.Adam().setup(model_of(2))
    NpzDeserializer(saved.target, strict=False).load(adam)
    assert adam.target.p0.update_rule.t == 1 and adam.target.p0.update_rule.state is None
    steps(adam, 1)


def test_the_dynamic_loss_scale_is_saved():
    optimizer, restored, without = (optimizers.SGD().setup(model_of(2)) for _ in range(3))
    optimizer.loss_scaling()
    restored.loss_scaling()
    for _ in range(3):
        optimizer.update(lambda: F.sum(optimizer.target.p0))
    saved = DictionarySerializer()
    saved.save(optimizer)
    NpzDeserializer(saved.target).load(restored)
    NpzDeserializer(saved.target).load(without)
    assert restored.loss_scale == 8 and without.loss_scale is None
    saved = DictionarySerializer()
    saved.save(without)
    NpzDeserializer(saved.target).load(restored)
    assert restored.loss_scale == 8


# Errors


class Bare(GradientMethod):
    pass


@pytest.mark.parametrize(
    "error, message, call",
    [
        (RuntimeError, "SGD.update: call setup", lambda o: optimizers.SGD().update()),
        (RuntimeError, "SGD.add_hook: call setup", lambda o: optimizers.SGD().add_hook(print)),
        (RuntimeError, "SGD.remove_hook: call setup", lambda o: optimizers.SGD().remove_hook("x")),
        (
            RuntimeError,
            "SGD.serialize: call setup",
            lambda o: optimizers.SGD().serialize(DictionarySerializer()),
        ),
        (TypeError, "SGD.setup: link must be a Link, not int", lambda o: o.setup(3)),
        (TypeError, "lossfun must return a Variable, not float", lambda o: o.update(lambda: 0.5)),
        (TypeError, "SGD.add_hook: hook must be callable, not int", lambda o: o.add_hook(3)),
        (
            ValueError,
            "SGD.add_hook: timing must be one of auto, pre, post, not 'x'",
            lambda o: o.add_hook(print, timing="x"),
        ),
        (
            KeyError,
            "SGD.add_hook: hook 'h' exists already",
            lambda o: o.add_hook(print, "h", "post"),
        ),
        (KeyError, "SGD.remove_hook: there is no hook 'x'", lambda o: o.remove_hook("x")),
        (
            ValueError,
            "loss_scale must be a positive number, not -1",
            lambda o: o.set_loss_scale(-1),
        ),
        (
            ValueError,
            "loss_scale must be a positive number, not nan",
            lambda o: o.set_loss_scale(float("nan")),
        ),
        (
            ValueError,
            "loss_scale must be a positive number, not inf",
            lambda o: o.loss_scaling(scale=float("inf")),
        ),
        (ValueError, "interval must be at least 1, not 0", lambda o: o.loss_scaling(interval=0)),
        (
            NotImplementedError,
            "Optimizer does not implement update",
            lambda o: Optimizer().update(),
        ),
        (
            NotImplementedError,
            "Bare does not implement create_update_rule",
            lambda o: Bare().setup(model_of(1)),
        ),
    ],
)
def test_errors(error, message, call):
    optimizer = optimizers.SGD().setup(model_of(1))
    optimizer.add_hook(print, "h")
    with pytest.raises(error, match=message):
        call(optimizer)


def test_a_rule_without_a_step():
    param = Parameter(np.ones(1))
    param.grad = np.ones(1)
    with pytest.raises(NotImplementedError, match="UpdateRule does not implement update_core"):
        UpdateRule().update(param)

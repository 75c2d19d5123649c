"""Tests Link, Chain, ChainList, Sequential and link hooks."""

import copy
import pickle

import numpy as np
import pytest

from mpchain import backend
from mpchain import functions as F
from mpchain import links as L
from mpchain.configuration import config
from mpchain.device_resident import DeviceResidentsVisitor
from mpchain.link import Chain, ChainList, Link, Sequential
from mpchain.link_hook import LinkHook
from mpchain.optimizers import SGD
from mpchain.parameter_tree import TreeOutline
from mpchain.serializers import DictionarySerializer, NpzDeserializer
from mpchain.variable import Parameter


class Affine(Link):
    """A link with two initialized parameters and one without an array, and a persistent array and
    number."""

    def __init__(self, size=3):
        super().__init__()
        with self.init_scope():
            self.W = Parameter(np.arange(size, dtype=np.float32))
            self.b = Parameter(1, size)
            self.lazy = Parameter(2)
        self.add_persistent("mean", np.zeros(size, np.float32))
        self.add_persistent("count", 0)
        self.note = "plain"

    def forward(self, x, factor=1):
        return x * self.W * factor + self.b


class Model(Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.z = Affine()
            self.a = L.Linear(2, 3)
            self.list = ChainList(Affine(), L.Linear(1, 1))
            self.layers = Sequential(L.Linear(3, 3), F.relu, L.Linear(3, 3))
            self.own = Parameter(0, 2)


def names(pairs):
    return [name for name, _ in pairs]


def values(link):
    return {name: param.array.copy() for name, param in link.namedparams(False)}


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name])


# Registration


def test_what_is_registered():
    link = Affine()
    link.outside = Parameter(0, 1)
    assert names(link.namedparams()) == ["/W", "/b", "/lazy"]
    assert names(link.namedparams(include_uninit=False)) == ["/W", "/b"]
    assert [param.name for param in link.params()] == ["W", "b", "lazy"]
    assert not link.within_init_scope
    with link.init_scope():
        assert link.within_init_scope
        with link.init_scope():
            link.inner = Parameter(0, 1)
        link.outer = Parameter(0, 1)
    assert {"/inner", "/outer"} < set(names(link.namedparams()))


def test_init_scope_ends_with_an_exception():
    link = Link()
    with pytest.raises(ZeroDivisionError), link.init_scope():
        1 / 0
    assert not link.within_init_scope


def test_deletion_and_registration_as_persistent():
    link = Affine()
    del link.W, link.mean
    assert names(link.namedparams()) == ["/b", "/lazy"]
    link.register_persistent("note")
    saved = DictionarySerializer()
    saved.save(link)
    assert set(saved.target) == {"b", "lazy", "count", "note"}


def test_a_new_value_takes_the_place_of_a_registered_one():
    model = Model()
    new = L.Linear(5, 5)
    model.a = new
    assert model["a"] is new and new.name == "a"
    model.a = None
    assert "/a" not in names(model.namedlinks())
    link = Affine()
    link.W = Parameter(5, 2)
    assert dict(link.namedparams())["/W"] is link.W


def test_add_param():
    link = Link(W=(2, 3), b=((4,), np.float64), n=5)
    shapes = {name: (p.shape, p.dtype) for name, p in link.namedparams()}
    assert shapes == {
        "/W": ((2, 3), np.float32),
        "/b": ((4,), np.float64),
        "/n": ((5,), np.float32),
    }
    assert np.isnan(link.W.array).all()
    link.add_param("c", 3, np.float16, initializer=2)
    assert link.c.array.tolist() == [2, 2, 2] and link.c.dtype == np.float16
    link.add_param("d", initializer=np.ones(3))
    assert link.d.shape == (3,) and link.d.dtype == np.float64
    link.add_param("e")
    link.e.initialize((2, 2))
    assert link.e.dtype == np.float32


def test_traversal():
    model = Model()
    assert names(model.namedparams()) == [
        "/own",
        "/a/W",
        "/a/b",
        "/layers/0/W",
        "/layers/0/b",
        "/layers/1/W",
        "/layers/1/b",
        "/list/0/W",
        "/list/0/b",
        "/list/0/lazy",
        "/list/1/W",
        "/list/1/b",
        "/z/W",
        "/z/b",
        "/z/lazy",
    ]
    paths = ["/", "/a", "/layers", "/layers/0", "/layers/1", "/list", "/list/0", "/list/1", "/z"]
    assert names(model.namedlinks()) == paths
    assert names(model.namedlinks(skipself=True)) == paths[1:]
    assert list(model.links()) == [link for _, link in model.namedlinks()]
    assert list(model.links(skipself=True)) == list(model.links())[1:]
    assert [child.name for child in model.children()] == ["a", "layers", "list", "z"]
    assert list(model.z.children()) == []
    assert all(p is q for p, (_, q) in zip(model.params(), model.namedparams(), strict=True))


def test_a_shared_link_gives_its_parameters_once():
    shared = L.Linear(2, 2)
    model = Chain(b=shared, a=shared)
    assert names(model.namedparams()) == ["/a/W", "/a/b"]
    assert model.count_params() == 6


def test_count_params():
    assert L.Linear(3, 2).count_params() == 8
    with pytest.warns(
        UserWarning, match=r"Affine.count_params: parameter /lazy is not initialized"
    ):
        assert Affine().count_params() == 6


# Calls and hooks


class Recorder(LinkHook):
    name = "Recorder"

    def __init__(self):
        self.calls = []

    def added(self, link):
        self.calls.append(("added", link))

    def deleted(self, link):
        self.calls.append(("deleted", link))

    def forward_preprocess(self, args):
        self.calls.append(("before", args.link, args.forward_name, args.args, args.kwargs))

    def forward_postprocess(self, args):
        self.calls.append(("after", args.link, args.args, args.out))


def test_call():
    x = np.ones(3, np.float32)
    assert Affine()(x, factor=2).array.tolist() == [1, 3, 5]
    with pytest.raises(NotImplementedError, match="Link does not implement forward"):
        Link()(x)


def test_hook_of_a_thread():
    link, x, hook = Affine(), np.ones(3, np.float32), Recorder()
    with hook:
        y = link(x, factor=2)
    link(x)
    added, before, after, deleted = hook.calls
    assert added == ("added", None) and deleted == ("deleted", None)
    assert before[1] is link and before[2:] == ("forward", (x,), {"factor": 2})
    assert after[3] is y
    assert not config.link_hooks


def test_hook_of_a_link():
    link, x, hook = Affine(), np.ones(3, np.float32), Recorder()
    assert link.add_hook(hook) is link
    link.add_hook(hook, name="other")
    assert list(link.local_link_hooks) == ["Recorder", "other"]
    Affine()(x)
    link(x)
    assert [call[0] for call in hook.calls] == "added added before before after after".split()
    link.delete_hook("Recorder")
    link.delete_hook("other")
    link(x)
    assert [call[0] for call in hook.calls[6:]] == ["deleted", "deleted"]


def test_hooks_twice_or_not_there():
    link = Affine().add_hook(Recorder())
    with pytest.raises(KeyError, match=r"Affine.add_hook: the link already has a hook 'Recorder'"):
        link.add_hook(Recorder())
    with pytest.raises(TypeError, match=r"Affine.add_hook: hook must be a LinkHook, not int"):
        link.add_hook(3)
    with pytest.raises(KeyError, match=r"Affine.delete_hook: the link has no hook 'x'"):
        link.delete_hook("x")
    with Recorder():
        with pytest.raises(KeyError, match="link hook 'Recorder' is active already"):
            with Recorder():
                pass


def test_the_methods_of_a_plain_hook_do_nothing():
    with LinkHook():
        Affine()(np.ones(3, np.float32))


# Copies


@pytest.mark.parametrize("mode", ["share", "copy", "init"])
def test_copy(mode):
    np.random.seed(0)
    model = Model()
    model.list[0].lazy.initialize((2,))
    model.name = "root"
    SGD().setup(model)
    for param in model.params(include_uninit=False):
        param.grad = np.ones_like(param.array)
    copied = model.copy(mode)
    assert copied.name is None and copied.a.name == "a" and copied.list[1].name == "1"
    assert names(copied.namedparams()) == names(model.namedparams())
    assert not {id(link) for link in copied.links()} & {id(link) for link in model.links()}
    for param, original in zip(copied.params(), model.params(), strict=True):
        assert param is not original and param.update_rule is None
        if mode == "share":
            assert param.array is original.array and param.grad is None
        elif original.is_initialized:
            assert not np.shares_memory(param.array, original.array)
    same = np.array_equal(copied.a.W.array, model.a.W.array)
    assert same == (mode != "init")
    assert (copied.z.mean is model.z.mean) == (mode == "share")
    copied.list.append(Link())
    copied.layers.pop()
    copied.add_link("new", Link())
    assert len(model.list) == 2 and len(model.layers) == 3 and not hasattr(model, "new")


def test_pickle():
    model = Model()
    assert_same(values(pickle.loads(pickle.dumps(model))), values(model))


def test_copyparams():
    source, target = Model(), Model()
    source.z.mean += 3
    source.z.count = 7
    source.z.lazy.initialize(4)
    target.copyparams(source)
    assert_same(values(target), values(source))
    assert target.z.mean.tolist() == [3, 3, 3] and target.z.count == 7
    assert target.z.mean is not source.z.mean and target.a.W.array is not source.a.W.array
    target = Model()
    target.copyparams(source, copy_persistent=False)
    assert target.z.count == 0


def test_copyparams_of_links_that_differ():
    with pytest.raises(ValueError, match=r"Model.copyparams: link must .* at / it lacks own"):
        Model().copyparams(Chain())
    with pytest.raises(ValueError, match=r"Chain.addgrads: link must .* at /a it lacks Linear"):
        Chain(a=L.Linear(1)).addgrads(Chain())
    with pytest.raises(
        ValueError, match=r"parameter 'W' of shape \(3,\) cannot .* of shape \(1,\)"
    ):
        Affine().copyparams(Affine(1))
    with pytest.raises(ValueError, match=r"'W' of shape \(2, 2\) cannot .* shape unknown"):
        L.Linear(2, 2).copyparams(L.Linear(2))
    link = Affine()
    link.mean = np.zeros(1, np.float32)
    with pytest.raises(ValueError, match=r"persistent value 'mean' of shape \(3,\) .* \(1,\)"):
        Affine().copyparams(link)


def test_persistent_values_that_come_later_are_copied():
    source, target = Affine(), Affine()
    target.mean = None
    source.mean += 1
    target.copyparams(source)
    assert target.mean.tolist() == [1, 1, 1] and target.mean is not source.mean


def test_addgrads_and_cleargrads():
    link, other = Affine(), Affine()
    link.W.grad = np.ones(3, np.float32)
    other.W.grad = np.full(3, 2, np.float32)
    other.b.grad = np.full(3, 4, np.float32)
    link.addgrads(other)
    assert link.W.grad.tolist() == [3, 3, 3] and link.b.grad.tolist() == [4, 4, 4]
    link.cleargrads()
    assert link.W.grad is None and link.b.grad is None
    with pytest.warns(DeprecationWarning, match="use cleargrads"):
        L.Linear(1, 1).zerograds()


def test_repeat():
    np.random.seed(0)
    link = L.Linear(3, 3)
    fresh = link.repeat(3)
    assert type(fresh) is Sequential and len(fresh) == 3
    assert len({layer.W.array[0, 0] for layer in (*fresh, link)}) == 4
    assert all((layer.W.array == link.W.array).all() for layer in link.repeat(2, "copy"))
    assert all(layer.W.array is link.W.array for layer in link.repeat(2, "share"))
    assert len(link.repeat(0)) == 0


def test_enable_update():
    model = Model()
    assert not model.update_enabled
    SGD().setup(model)
    assert model.update_enabled
    model.disable_update()
    assert not model.update_enabled
    model.a.enable_update()
    assert model.update_enabled and not model.z.update_enabled


# Devices


def test_visitor():
    class Count(DeviceResidentsVisitor):
        def __init__(self):
            self.seen = {"links": 0, "params": 0, "arrays": 0}

        def visit_device_resident(self, device_resident):
            self.seen["links"] += 1

        def visit_variable(self, param):
            self.seen["params"] += 1

        def visit_array(self, array):
            self.seen["arrays"] += 1
            return array + 1

    model, count = Model(), Count()
    model.device_resident_accept(count)
    assert count.seen == {"links": 9, "params": 15, "arrays": 2}
    assert model.z.mean.tolist() == [1, 1, 1] and model.z.count == 0


def test_to_device(device):
    model = Model()
    expected = values(model)
    assert model.to_device(device) is model
    device = backend.get_device(device)
    assert all(link.device == device and link.xp is device.xp for link in model.links())
    model.z.lazy.initialize(2)
    assert all(param.device == device for param in model.params())
    assert device.is_array_supported(model.z.mean)
    with model.z.init_scope():
        model.z.late = Parameter(0, 2)
    assert model.z.late.device == device
    del model.z.late, model.z.lazy
    assert_same(values(model.to_cpu()), expected)


# Saving


def test_serialization_round_trip():
    model = Model()
    model.z.lazy.initialize(2)
    model.z.count = 5
    model.z.mean += 1
    saved = DictionarySerializer()
    saved.save(model)
    assert {"own", "a/W", "layers/1/b", "list/0/mean", "z/count"} < set(saved.target)
    loaded = Model()
    state = np.random.get_state()[1].tolist()
    NpzDeserializer(saved.target).load(loaded)
    assert np.random.get_state()[1].tolist() == state
    assert_same(values(loaded), values(model))
    assert loaded.z.count == 5 and loaded.z.mean.tolist() == [1, 1, 1]
    assert not loaded.list[0].lazy.is_initialized


def test_values_are_not_kept_where_the_file_has_none():
    saved = DictionarySerializer()
    saved.save(L.Linear(3))
    with pytest.raises(ValueError, match=r"Linear.serialize: parameter 'W' has values"):
        NpzDeserializer(saved.target).load(L.Linear(2, 3))


@pytest.mark.parametrize(
    "saved, lazy",
    [
        (L.Linear(3, 2, nobias=True), L.Linear(None, 5, nobias=True)),
        (L.Convolution2D(3, 2, 1, nobias=True), L.Convolution2D(None, 2, 3, nobias=True)),
        (L.Convolution1D(3, 2, 1), L.Convolution2D(None, 2, 1)),
        (L.Deconvolution2D(3, 2, 1), L.Deconvolution2D(None, 4, 1)),
        (L.DepthwiseConvolution2D(3, 2, 1), L.DepthwiseConvolution2D(None, 3, 1)),
        (L.LocalConvolution2D(3, 2, 4, 1), L.LocalConvolution2D(None, 2, 4, 2)),
    ],
)
def test_lazy_parameters_take_no_array_of_another_layer(saved, lazy):
    file = DictionarySerializer()
    file.save(saved)
    name = type(lazy).__name__
    with pytest.raises(ValueError, match=rf"{name}\.serialize: parameter .* does not fit {name}"):
        NpzDeserializer(file.target).load(lazy)


# Chain


def test_functions_that_are_attributes_of_a_chain_are_items():
    chain = Chain(conv1=L.Linear(1, 1))
    chain.pool1 = F.relu
    assert [chain[name] for name in ("conv1", "pool1")] == [chain.conv1, F.relu]


def test_chain_items():
    first = L.Linear(1, 1)
    chain = Chain(first=first)
    assert chain["first"] is chain.first is first and first.name == "first"
    with pytest.raises(KeyError, match=r"Chain has no link 'x'; it has \['first'\]"):
        chain["x"]
    with pytest.raises(KeyError, match=r"Chain has no link 0; it has \['first'\]"):
        chain[0]
    del chain.first
    assert not list(chain.children()) and not hasattr(chain, "first")


@pytest.mark.parametrize(
    "error, message, call",
    [
        (AttributeError, "Model: link 'a' cannot be added", lambda m: m.add_link("a", Link())),
        (AttributeError, "Model: link 'forward' cannot", lambda m: m.add_link("forward", Link())),
        (
            TypeError,
            "Model.add_link: link 'x' must be a Link, not int",
            lambda m: m.add_link("x", 3),
        ),
        (AttributeError, "Affine: parameter 'W' cannot be added", lambda m: m.z.add_param("W")),
        (AttributeError, "Model: parameter 'z' cannot be added", lambda m: m.add_param("z")),
        (
            AttributeError,
            "Affine: persistent value 'W' cannot be added",
            lambda m: m.z.add_persistent("W", 1),
        ),
        (
            AttributeError,
            "Model.register_persistent: there is no attribute 'x'",
            lambda m: m.register_persistent("x"),
        ),
        (
            ValueError,
            "Model.copy: mode must be one of share, copy, init, not 'x'",
            lambda m: m.copy("x"),
        ),
        (
            ValueError,
            r"Model\.repeat: n_repeat must not be negative, but is -1",
            lambda m: m.repeat(-1),
        ),
        (
            TypeError,
            r"Model\.copyparams: link must be a Link, not int",
            lambda m: m.copyparams(3),
        ),
        (
            TypeError,
            r"Model\.addgrads: link must be a Link, not NoneType",
            lambda m: m.addgrads(None),
        ),
        (NotImplementedError, "Link does not implement from_params", lambda m: Link.from_params(1)),
        (TypeError, "ChainList: elements must be links, not int", lambda m: m.list.append(3)),
        (TypeError, "ChainList: elements must be links", lambda m: m.list.__setitem__(0, F.relu)),
        (
            ValueError,
            r"Sequential: elements must be callable, but 3 \(int\) is not",
            lambda m: m.layers.append(3),
        ),
        (RuntimeError, "Sequential: the Sequential is empty", lambda m: Sequential()(1)),
        (ValueError, "Sequential: there is no layer tanh", lambda m: m.layers.remove(F.tanh)),
        (
            ValueError,
            "Sequential.copyparams: link must be a Sequential, not Link",
            lambda m: m.layers.copyparams(Link()),
        ),
        (TypeError, "unsupported operand", lambda m: m.layers + 3),
    ],
)
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        call(Model())


def test_a_link_is_assigned_once_in_init_scope():
    model = Model()
    with pytest.raises(AttributeError, match="link 'a' cannot be added"), model.init_scope():
        model.a = Link()
    with pytest.raises(TypeError, match="link 'x' cannot be assigned"), model.list.init_scope():
        model.list.x = Link()


def test_init_scope_needs_the_constructor_of_link():
    class Forgetful(Chain):
        def __init__(self):
            with self.init_scope():
                self.l = Link()

    with pytest.raises(RuntimeError, match=r"Forgetful: call super\(\).__init__\(\)"):
        Forgetful()


# ChainList and Sequential


def test_chain_list_is_a_mutable_sequence():
    a, b, c, d = (L.Linear(i, i) for i in range(1, 5))
    links = ChainList(a, b)
    links.append(c)
    links.insert(0, d)
    links.add_link(Link())
    assert links[:4] == [d, a, b, c] and len(links) == 5 and a in links
    assert [link.name for link in links] == ["0", "1", "2", "3", "4"]
    assert links.pop() not in links
    links[1] = Link()
    links[2:] = (a, c)
    del links[0]
    assert links.index(c) == 2 and [link.name for link in links] == ["0", "1", "2"]
    links += [b]
    links.reverse()
    assert links[0] is b and b.name == "0"
    links.remove(b)
    assert names(links.namedparams()) == ["/0/W", "/0/b", "/1/W", "/1/b"]


def test_sequential_applies_its_layers():
    x = np.ones((2, 3), np.float32)
    first, second = L.Linear(3, 4), L.Linear(4, 2)
    model = Sequential(first, F.relu, second)
    np.testing.assert_array_equal(model(x).array, second(F.relu(first(x))).array)
    swap = Sequential(lambda a, b: (b, a), lambda b, a: {"a": a, "b": b}, lambda a, b: [a, b])
    assert swap(1, 2) == [1, 2]


def test_sequential_operations():
    l1, l2 = L.Linear(3, 3), L.Linear(3, 3)
    model = Sequential(l1, F.relu, l2, F.relu)
    assert names(model.namedparams()) == ["/0/W", "/0/b", "/1/W", "/1/b"]
    assert (l1.name, l2.name) == ("0", "1")
    assert model[1] is F.relu and model[2:] == [l2, F.relu]
    assert model.index(F.relu) == 1 and model.index(F.relu, 2) == 3
    with pytest.raises(ValueError):
        model.index(F.relu, 2, 3)
    assert model.count(F.relu) == 2
    assert model.count_by_layer_type("relu") == model.count_by_layer_type("Linear") == 2
    model.insert(0, F.tanh)
    model.remove(F.relu)
    assert list(model) == [F.tanh, l1, l2, F.relu]
    model.remove_by_layer_type("Linear")
    assert list(model) == [F.tanh, F.relu]
    model.extend(Sequential(l2))
    assert model.pop() is l2 and model.pop(0) is F.tanh
    joined = Sequential(l1) + Sequential(F.relu, l2)
    assert type(joined) is Sequential and list(joined) == [l1, F.relu, l2]
    joined += joined
    assert len(joined) == 6
    joined.clear()
    assert len(joined) == 0


@pytest.mark.parametrize(
    ("layers", "sizes"),
    [
        ("l1 l2 l3", [1, 3, 2]),
        ("l1 l2 l3 l4 l5", [1, 5, 4, 3, 2]),
        ("l1 f l2 f l3", [1, 3, 2]),
        ("f l1 l2 f l3 l4", [1, 2, 4, 3]),
        ("f f l1 l2 f l3 l4", [1, 2, 3, 4]),
    ],
)
def test_names_in_a_sequential_are_those_that_chainer_has(layers, sizes):
    layers = [F.relu if word == "f" else L.Linear(1, int(word[1])) for word in layers.split()]
    model = Sequential(*layers)
    assert [link.out_size for link in model.children()] == sizes
    assert {name: link.out_size for name, link in model.namedlinks(skipself=True)} == {
        f"/{i}": size for i, size in enumerate(sizes)
    }
    by_hand = Sequential()
    for layer in layers:
        by_hand.append(layer)
    assert [link.name for link in by_hand.children()] == [str(i) for i in range(len(sizes))]


def test_sequential_flatten():
    inner = Sequential(L.Linear(1, 1), F.relu)
    rest = ChainList(L.Linear(1, 1))
    flat = Sequential(inner, Sequential(inner, F.tanh), rest).flatten()
    assert list(flat) == [*inner, *inner, F.tanh, rest]


def test_sequential_repeat_and_copyparams():
    model = Sequential(L.Linear(3, 3), F.relu)
    repeated = model.repeat(2)
    assert [type(layer) for layer in repeated] == [Sequential, Sequential]
    assert names(repeated.namedparams()) == ["/0/0/W", "/0/0/b", "/1/0/W", "/1/0/b"]
    repeated[0].copyparams(model)
    assert_same(values(repeated[0]), values(model))


# Display


def test_repr():
    model = Chain(
        b=ChainList(L.Linear(2, 2)), a=Sequential(L.Linear(1), F.relu, Sequential()), c=Link()
    )
    assert repr(model) == str(model)
    assert (
        repr(model)
        == """Chain(
  (a): Sequential(
    (0): Linear(in_size=None, out_size=1, nobias=False),
    (1): relu,
    (2): Sequential(),
  ),
  (b): ChainList(
    (0): Linear(in_size=2, out_size=2, nobias=False),
  ),
  (c): Link(),
)"""
    )


def test_repr_of_a_chain_with_specs():
    class Block(Chain):
        @property
        def printable_specs(self):
            yield from (("size", 3), ("name", "x"))

    assert repr(Block()) == "Block(size=3, name='x')"
    link = Block(a=Link())
    assert repr(link) == "Block(size=3, name='x',\n  (a): Link(),\n)"


def _add_parameter(model):
    with model.l1.init_scope():
        model.l1.W2 = Parameter(1, 2)


@pytest.mark.parametrize(
    "change",
    [
        _add_parameter,
        lambda model: setattr(model.l1, "W", Parameter(1, 3)),
        lambda model: delattr(model.l1, "b"),
        lambda model: model.l1.register_persistent("b"),
        lambda model: model.add_link("l3", Affine()),
        lambda model: setattr(model, "l1", Affine()),
        lambda model: delattr(model, "l1"),
        lambda model: model.layers.append(Affine()),
        lambda model: model.layers.__setitem__(0, Affine()),
        lambda model: model.layers.reverse(),
        lambda model: model.layers.__delitem__(0),
        lambda model: model.layers[0].add_param("more", 1),
    ],
)
def test_an_outline_notices_what_changes_parameters_or_their_names(change):
    model = Chain(l1=Affine(), l2=Affine(), layers=Sequential(L.Linear(2, 1), F.relu, Affine()))
    outline = TreeOutline(model)
    model.cleargrads()
    model.l1.W.array += 1
    model.l1.note = "another"
    model.layers[0].W = model.layers[0].W
    copied_model, copied_outline = copy.deepcopy((model, outline))
    assert outline.describes(model)
    assert not outline.describes(copied_model)
    assert copied_outline.describes(copied_model)
    for tree, its_outline in [(model, outline), (copied_model, copied_outline)]:
        before = [(name, id(param)) for name, param in tree.namedparams()]
        change(tree)
        assert [(name, id(param)) for name, param in tree.namedparams()] != before
        assert not its_outline.describes(tree)


@pytest.mark.parametrize("kind", [list, tuple, lambda pair: dict(enumerate(pair)), lambda x: [x]])
@pytest.mark.parametrize("make", [lambda: L.Linear(2, 2), lambda: Parameter(0.0, 2)])
def test_links_in_a_container_are_no_part_of_the_link(kind, make):
    """The warning comes even if the model has other parameters, and even if the name was used
    before."""
    chain = Chain(out=L.Linear(2, 2))
    chain.layers = None
    with pytest.warns(UserWarning, match=r"'layers' are not registered.*ChainList or .*Sequential"):
        with chain.init_scope():
            chain.layers = kind([make(), make()])
    assert [path for path, _ in chain.namedparams()] == ["/out/W", "/out/b"]


def test_containers_that_need_no_warning():
    chain = Chain()
    # Outside of init_scope, the user chooses that the list is not part of the chain.
    chain.others = [L.Linear(2, 2)]
    with chain.init_scope():
        chain.first = L.Linear(2, 2)
        chain.ksize, chain.scale = (3, 3), Parameter(1.0, 2)
        chain.layers = [chain.first, L.Linear(2, 2), chain.scale]
        chain.add_link("second", chain.layers[1])
    with chain.init_scope():
        chain.third = L.Linear(2, 2)
    assert chain.count_params() == 20

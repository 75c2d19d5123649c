"""Tests that a name of PyTorch raises an error that names the replacement, and that nothing else
changes."""

import copy
import importlib
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, from_pytorch, optimizers

pytestmark = pytest.mark.slow

CLASSES = {"Variable": Variable, "Link": mpchain.Link, "Optimizer": mpchain.Optimizer}
ENTRIES = [(owner, name) for owner, names in from_pytorch.NAMES.items() for name in names]
ROOTS = {
    "mpchain": mpchain,
    "F": F,
    "L": L,
    "optimizers": optimizers,
    "x": Variable(np.ones(2)),
    "y": Variable(np.ones(2)),
    "model": mpchain.Chain(),
    "self": mpchain.Chain(),
    "optimizer": optimizers.SGD(),
}


def _owner(name):
    return CLASSES.get(name) or importlib.import_module(name)


@pytest.mark.parametrize(("owner", "name"), ENTRIES)
def test_a_name_of_pytorch_is_absent_and_explained(owner, name):
    hint = from_pytorch.NAMES[owner][name]
    assert not hasattr(_owner(owner), name)
    with pytest.raises(AttributeError, match=re.escape(f"attribute {name!r}: use {hint}")):
        getattr(_owner(owner), name)


@pytest.mark.parametrize(("owner", "name"), ENTRIES)
def test_what_to_use_instead_exists(owner, name):
    hint = from_pytorch.NAMES[owner][name]
    for dotted in re.findall(r"[A-Za-z_]\w*(?:\.\w+)+", hint):
        first, *rest = dotted.split(".")
        if first in ROOTS and dotted != "self.name":
            value = ROOTS[first]
            for each in rest:
                value = getattr(value, each)


class Net(mpchain.Chain):
    """A user's class that has its own attributes with names of PyTorch."""

    def train(self):
        return "its own"


class Mixin:
    def state_dict(self):
        return "of the mixin"


class Mixed(mpchain.Chain, Mixin):
    def __getattr__(self, name):
        if name == "parameters":
            return "by its __getattr__"
        raise AttributeError(name)


def test_names_of_users_come_first():
    net = Net()
    net.to = "an attribute"
    with net.init_scope():
        net.cpu = L.Linear(2, 2)
    assert (net.train(), net.to, net.cpu.out_size) == ("its own", "an attribute", 2)
    assert {"train", "to", "cpu"} <= set(dir(net)) and "eval" not in dir(net)
    assert Mixed().state_dict() == "of the mixin" and Mixed.state_dict(None) == "of the mixin"
    assert Mixed().parameters == "by its __getattr__"


def test_other_missing_names_are_not_explained():
    for owner in (F, Variable(np.ones(1))):
        with pytest.raises(AttributeError, match=r"has no attribute 'no_such_name'$"):
            owner.no_such_name


@pytest.mark.parametrize("cls", [Variable, mpchain.Link, mpchain.Optimizer])
def test_attributes_are_as_fast_as_before(cls):
    """Python looks up attributes in a slower way if a class has a method ``__getattr__``."""
    assert not any("__getattr__" in base.__dict__ for base in cls.__mro__)


def test_a_multi_node_optimizer_explains_too():
    comm = mpchain.create_communicator()
    optimizer = mpchain.create_multi_node_optimizer(optimizers.SGD(), comm)
    with pytest.raises(AttributeError, match=r"'step': use optimizer\.update\(\)"):
        optimizer.step()


def test_the_names_in_a_forward_are_explained():
    class Wrong(mpchain.Chain):
        def forward(self, x):
            return x.detach()

    with pytest.raises(AttributeError, match=r"'detach': use x\.array"):
        Wrong()(Variable(np.ones(2)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L.Linear(3, 4, bias=False), "Linear: .* 'bias'; use nobias, the opposite"),
        (lambda: L.Linear(in_features=3, out_features=4), "Linear: .* 'in_features'; use in_size"),
        (lambda: L.Convolution2D(3, 8, 3, padding=1), "Convolution2D: .* 'padding'; use pad"),
        (lambda: L.EmbedID(num_embeddings=3, embedding_dim=2), "'embedding_dim'; use out_size"),
        (lambda: optimizers.Adam(L.Linear(1, 1).params()), r"Adam\(\)\.setup\(model\)"),
        (lambda: optimizers.SGD(L.Linear(1, 1).params(), lr=1), r"SGD\(\)\.setup\(model\)"),
        (lambda: optimizers.Adam([]), "Adam: alpha must be a number, not list"),
        (lambda: optimizers.Adam(lr=0.1), r"'lr'; the arguments .*\); instead of lr use alpha$"),
        (
            lambda: optimizers.SGD(momentum=0.9),
            r"instead of momentum use MomentumSGD\(lr, momentum",
        ),
        (lambda: optimizers.AdaDelta(lr=0.1), r"'lr'; the arguments are \([^)]*\)$"),
        (lambda: F.relu([1.0]), "relu: x must be a Variable or an array, not list"),
    ],
)
def test_arguments_of_pytorch(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_arguments_of_users_links_are_theirs():
    class Layer(mpchain.Link):
        def __init__(self, bias, **options):
            super().__init__()
            self.seen = bias, options

    assert Layer(bias=False, padding=1).seen == (False, {"padding": 1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'bias'"):
        L.Dropout(bias=1)  # mpchain has no argument that bias could mean here


def test_numbers_and_arrays_of_variables():
    x = Variable(np.array(1.5, np.float32))
    assert (float(x), int(x)) == (1.5, 1)
    W = L.Linear(2, 3).W
    assert np.asarray(W).dtype == np.float32 and np.asarray(W).shape == (3, 2)


def test_links_are_copied_and_pickled_as_before():
    linear = L.Linear(2, nobias=True)
    for other in (copy.deepcopy(linear), pickle.loads(pickle.dumps(linear)), linear.copy()):
        assert other.b is None and sys.getsizeof(other)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: F.argmax(x, dim=1), "argmax: there is no argument 'dim'; use axis"),
        (lambda x: F.mean(x, axis=1, keepdim=True), "'keepdim'; use keepdims"),
        (lambda x: F.sum(F.sum(x), dim=None), "sum: there is no argument 'dim'; use axis"),
        (lambda x: F.sum(x, axis=1, keepdim=True), "'keepdim'; use keepdims"),
        (
            lambda x: F.concat([F.concat([x])], dim=1),
            "concat: there is no argument 'dim'; use axis",
        ),
        (lambda x: optimizers.AdamW(lr=0.1), "AdamW: there is no argument 'lr'; use alpha"),
        (lambda x: optimizers.AMSGrad(betas=(0.9, 0.9)), "'betas'; use beta1 and beta2"),
        (
            lambda x: mpchain.training.Trainer(None, max_epochs=3),
            "Trainer: there is no argument 'max_epochs'; use stop_trigger=(n, \"epoch\")",
        ),
    ],
)
def test_arguments_of_functions_optimizers_and_trainers_are_explained(call, message):
    with pytest.raises(TypeError, match=re.escape(message) + "$"):
        call(np.ones((2, 3), np.float32))


@pytest.mark.parametrize("before", ["", "F.softmax(numpy.ones((2, 3), 'f'))\n"])
def test_the_first_and_later_calls_of_a_declared_function_are_explained(before):
    code = "import numpy, mpchain.functions as F\n" + before
    code += "F.softmax(numpy.ones((2, 3), 'f'), dim=1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.endswith("TypeError: softmax: there is no argument 'dim'; use axis\n")


def test_adamw_with_numbers_of_pytorch():
    """In PyTorch, 100 steps of zero gradients multiply a weight by (1 - 1e-3 * 0.01)**100."""

    def train(**options):
        link = L.Parameter(np.array([1.0]))
        optimizer = optimizers.AdamW(weight_decay_rate=0.01, **options).setup(link)
        for _ in range(100):
            optimizer.update(lambda: F.sum(0 * link()))
        return link.W.array[0]

    assert train(decay_times_alpha=True) == pytest.approx((1 - 1e-5) ** 100, rel=1e-12)
    with pytest.warns(UserWarning, match=r"by 1\.0%, .*, or weight_decay_rate=1e-05") as seen:
        assert train() == pytest.approx(0.99**100, rel=1e-12)
    assert len(seen) == 1 and seen[0].filename == __file__
    # The user has chosen this alpha, so there is no warning.
    optimizers.AdamW(alpha=0.1, weight_decay_rate=0.01)

"""Tables of cases of links, and the checks of their rows.

A row makes the link and lists what Chainer's users rely on: the names and shapes of its parameters
and the initial persistent values. A file of parameters consists of both. A row may have a
reference that computes the outputs with PyTorch.

    TABLE = [
        row(
            "Linear",
            lambda: L.Linear(6, 4),
            (5, 6),
            params={"W": (4, 6), "b": (4,)},
            lazy=lambda: L.Linear(None, 4),
            reference=lambda w, x: torch.nn.functional.linear(x, w["W"], w["b"]),
        ),
    ]
    globals().update(checks_of(TABLE))
"""

import contextlib
import copy
import pickle
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

import mpchain
from mpchain import Variable
from mpchain import functions as F
from mpchain.distributed.gradients.persistents import named_persistents
from mpchain.gradient_check import check_order
from mpchain.link import Link
from mpchain.optimizers import SGD
from mpchain.serializers import load_npz, save_npz
from tests.reference import torch

_TOLERANCES = {np.float32: 2e-5, np.float64: 1e-11}


def _mean_square(*ys):
    """Returns the default loss: the mean square distance of an output from 1, summed over the
    outputs of floating-point numbers."""
    terms = [F.mean((y - 1) ** 2) for y in ys if y.dtype.kind == "f"]
    return F.add(*terms) if len(terms) > 1 else terms[0]


class Row(NamedTuple):
    """A case of a link.

    Attributes:
        name: the id of the tests, unique in the table.
        make: a function that makes the link with all sizes given. Its parameters must have the
            dtype ``mpchain.config.dtype``.
        inputs: the inputs of a call: shapes of floating-point inputs that are drawn, or arrays.
            Arrays of floating-point numbers are cast to the dtype of the test.
        params: the shapes of the parameters by path, without the first slash: ``"W"``,
            ``"conv/W"``.
        persistents: the initial persistent values by path.
        lazy: a function that makes the same link with sizes left to the first call, or None.
        reference: ``reference(w, *inputs)`` computes the outputs with PyTorch in float64; ``w``
            has the parameters and persistent arrays by path. None skips this check.
        call: ``call(link, *inputs)`` returns the outputs, perhaps nested in tuples and lists. It
            must reset the link's state, if there is one.
        loss: a function of the outputs that returns the loss.
        config: entries of the configuration for the calls, for example ``{"train": False}``.
        low, high: the range of drawn inputs.
        spread: the bound of the noise that is added to the parameters.
        orders: the number of orders of derivatives to check.
        eps: the step of the finite differences.
        lr: the learning rate of the step that must lower the loss.
        without_gradient: the paths of parameters that get no gradient.
        tolerance: relative tolerances by dtype, where they differ from the default.
    """

    name: str
    make: Callable
    inputs: tuple
    params: dict
    persistents: dict
    lazy: Callable | None = None
    reference: Callable | None = None
    call: Callable = lambda link, *xs: link(*xs)
    loss: Callable = _mean_square
    config: dict = {}
    low: float = -2.0
    high: float = 2.0
    spread: float = 0.5
    orders: int = 2
    eps: float = 1e-3
    lr: float = 1e-3
    without_gradient: tuple = ()
    tolerance: dict | None = None


def row(name, make, *inputs, params=None, persistents=None, **options):
    """Makes a row; the inputs are positional."""
    return Row(name, make, inputs, params or {}, persistents or {}, **options)


def flatten(result):
    """Returns the outputs in nested tuples and lists."""
    if isinstance(result, (tuple, list)):
        return [y for item in result for y in flatten(item)]
    return [] if result is None else [result]


def _inputs(case, dtype=np.float64):
    random = np.random.RandomState(3)
    arrays = [
        random.uniform(case.low, case.high, x) if isinstance(x, tuple) else np.asarray(x)
        for x in case.inputs
    ]
    return [x.astype(dtype) if x.dtype.kind == "f" else x for x in arrays]


def _made(case, dtype=np.float64, device="@numpy", make=None):
    np.random.seed(5)
    with mpchain.using_config("dtype", dtype):
        link = (make or case.make)()
    return link.to_device(device)


def _with_noise(case, dtype=np.float64, device="@numpy"):
    link = _made(case, dtype, device)
    random = np.random.RandomState(4)
    for param in link.params():
        noise = random.uniform(-case.spread, case.spread, param.shape)
        param.array += link.device.send(noise.astype(param.dtype))
    return link


def _call(case, link, *xs):
    """Returns the outputs of a call; all calls draw the same random numbers."""
    link.xp.random.seed(7)
    np.random.seed(7)
    with contextlib.ExitStack() as stack:
        for name, value in case.config.items():
            stack.enter_context(mpchain.using_config(name, value))
        return flatten(case.call(link, *xs))


def _values(case, link, dtype=np.float64):
    """Returns the arrays of a call's outputs, on the host."""
    xs = [link.device.send(x) for x in _inputs(case, dtype)]
    return [mpchain.cuda.to_cpu(y.array) for y in _call(case, link, *xs)]


def _shapes(link):
    return {path[1:]: p.shape for path, p in link.namedparams()}


def persistents(link):
    """Returns the persistent values of a link by path."""
    return {path.lstrip("/"): each.value for path, each in named_persistents(link).items()}


@contextlib.contextmanager
def _keeping_persistents(link):
    """Yields a function that restores the link's current persistent values; they are also restored
    on exit."""
    kept = [(each, copy.deepcopy(each.value)) for each in named_persistents(link).values()]

    def restore():
        for each, value in kept:
            each.value = copy.deepcopy(value)

    restore()  # the values are updated in place, and may be shared with a copy
    yield restore
    restore()


def _check_parameters(case, dtype, device):
    link = _made(case, dtype, device)
    assert isinstance(link, Link)
    assert _shapes(link) == case.params
    assert {p.dtype for p in link.params()} <= {np.dtype(dtype)}
    assert all(p.device == mpchain.get_device(device) for p in link.params())
    actual = persistents(link)
    assert actual.keys() == case.persistents.keys()
    for path, value in case.persistents.items():
        actual_value = mpchain.cuda.to_cpu(actual[path])
        assert np.shape(actual_value) == np.shape(value), path
        np.testing.assert_array_equal(actual_value, value, err_msg=path)


def _check_gradients_reach_parameters(case, device):
    link = _with_noise(case, device=device)
    ys = _call(case, link, *(link.device.send(x) for x in _inputs(case)))
    case.loss(*ys).backward()
    without = {path[1:] for path, p in link.namedparams() if p.grad is None}
    assert without == set(case.without_gradient)


def _check_lazy(case, device, tmp_path):
    lazy = _made(case, device=device, make=case.lazy)
    assert _shapes_of_initialized(lazy).keys() < case.params.keys()
    assert {path[1:] for path, _ in lazy.namedparams()} == case.params.keys()
    unused = copy.deepcopy(lazy), lazy.copy("init"), lazy.copy("share")
    save_npz(tmp_path / "unused.npz", lazy)
    load_npz(tmp_path / "unused.npz", lazy)
    _values(case, lazy)
    assert _shapes(lazy) == case.params
    assert {p.dtype for p in lazy.params()} <= {np.dtype(np.float64)}
    link = _with_noise(case, device=device)
    _values(case, link)
    shapes = {path: np.shape(value) for path, value in persistents(link).items()}
    assert {path: np.shape(value) for path, value in persistents(lazy).items()} == shapes
    save_npz(tmp_path / "link.npz", link)
    for other in unused:
        load_npz(tmp_path / "link.npz", other)
        _assert_equal(case, link, other)
        assert _shapes(other) == case.params


def _shapes_of_initialized(link):
    return {path[1:]: p.shape for path, p in link.namedparams(include_uninit=False)}


def _assert_equal(case, link, other):
    """Checks that both links have equal parameters and persistent values, and equal outputs."""
    for (path, p), (other_path, q) in zip(link.namedparams(), other.namedparams(), strict=True):
        assert path == other_path
        np.testing.assert_array_equal(_host(p.array), _host(q.array), err_msg=path)
    mine, others = persistents(link), persistents(other)
    assert mine.keys() == others.keys()
    for path, value in mine.items():
        np.testing.assert_array_equal(_host(value), _host(others[path]), err_msg=path)
    with _keeping_persistents(link), _keeping_persistents(other):
        for y, z in zip(_values(case, link), _values(case, other), strict=True):
            np.testing.assert_array_equal(y, z)


def _host(value):
    return mpchain.cuda.to_cpu(value) if hasattr(value, "dtype") else value


def _check_saving(case, device, tmp_path):
    link = _with_noise(case, device=device)
    _values(case, link)  # the call changes the persistent values
    save_npz(tmp_path / "link.npz", link)
    with np.load(tmp_path / "link.npz") as file:
        assert set(file.files) == case.params.keys() | case.persistents.keys()
    other = _made(case, device=device)
    load_npz(tmp_path / "link.npz", other)
    _assert_equal(case, link, other)


def _check_copies(case, mode, device):
    link = _with_noise(case, device=device)
    copied = link.copy(mode)
    assert copied.name is None and type(copied) is type(link)
    for p, q in zip(link.params(), copied.params(), strict=True):
        assert p is not q
        assert (p.array is q.array) == (mode == "share")
        q.grad = q.array
        assert p.grad is None
    if mode == "init":
        assert _shapes(copied) == case.params
        copied.copyparams(link)
    _assert_equal(case, link, copied)


def _check_pickles(case, device):
    link = _with_noise(case, device=device)
    _values(case, link)
    for other in (pickle.loads(pickle.dumps(link)), copy.deepcopy(link)):
        assert not {id(p) for p in link.params()} & {id(p) for p in other.params()}
        _assert_equal(case, link, other)


def _check_step(case, device):
    link = _with_noise(case, device=device)
    optimizer = SGD(case.lr).setup(link)
    xs = [link.device.send(x) for x in _inputs(case)]
    with _keeping_persistents(link) as restore:

        def loss():
            restore()
            return case.loss(*_call(case, link, *xs))

        before = float(loss().array)
        optimizer.update(loss)
        assert float(loss().array) < before


def _check_derivatives(case, device):
    link = _with_noise(case, device=device)
    arrays = tuple(link.device.send(x) for x in _inputs(case))
    params = tuple(link.params())
    with _keeping_persistents(link) as restore:

        def function(*xs):
            restore()
            xs = (x if x.dtype.kind == "f" else x.array for x in xs)
            return tuple(y for y in _call(case, link, *xs) if y.dtype.kind == "f")

        for order in range(1, case.orders + 1):
            check_order(function, arrays, order, params=params, eps=case.eps)


def _check_reference(case, dtype, device):
    link = _with_noise(case, dtype, device)
    arrays = _inputs(case, dtype)
    weights = {path[1:]: _tensor(p.array, True) for path, p in link.namedparams()}
    buffers = {k: _tensor(v) for k, v in persistents(link).items() if hasattr(v, "dtype")}
    tensors = [_tensor(x, True) for x in arrays]
    xs = [link.device.send(x) for x in arrays]
    xs = [Variable(x) if x.dtype.kind == "f" else x for x in xs]
    ys = _call(case, link, *xs)
    expected = flatten(case.reference(weights | buffers, *tensors))
    random = np.random.RandomState(6)
    loss, torch_loss = 0, 0
    for y, torch_y in zip(ys, expected, strict=True):
        if y.dtype.kind == "f":
            assert y.dtype == dtype
            weight = random.uniform(0.5, 1.5, y.shape)
            loss += F.sum(y * link.device.send(weight.astype(dtype)))
            torch_loss += (torch_y * torch.tensor(weight)).sum()
        _assert_close(case, dtype, y.array, torch_y.detach(), "output")
    loss.backward()
    torch_loss.backward()
    found = {f"input {i}": x for i, x in enumerate(xs) if isinstance(x, Variable)}
    found |= {path[1:]: p for path, p in link.namedparams()}
    leaves = {f"input {i}": x for i, x in enumerate(tensors)} | weights
    for name, x in found.items():
        if x.grad is not None or leaves[name].grad is not None:
            _assert_close(case, dtype, x.grad, leaves[name].grad, f"gradient of {name}")


def _tensor(array, needs_grad=False):
    array = np.asarray(_host(array))
    if array.dtype.kind != "f":
        return torch.tensor(array.astype(np.int64))
    return torch.tensor(array, dtype=torch.float64, requires_grad=needs_grad)


def _assert_close(case, dtype, actual, expected, what):
    tolerance = {**_TOLERANCES, **(case.tolerance or {})}[dtype]
    scale = tolerance * max(1.0, abs(expected).max().item() if expected.numel() else 0)
    np.testing.assert_allclose(_host(actual), expected, tolerance, scale, err_msg=what)


def _check_repr(case):
    link = _made(case)
    text = repr(link)
    assert text.startswith(type(link).__name__) and " at 0x" not in text


def checks_of(table):
    """Makes the tests of a table, by name: ``globals().update(checks_of(TABLE))`` in a test file.

    They are test_parameters, test_gradients_reach_parameters, test_lazy, test_saving, test_copies,
    test_pickles, test_step, test_derivatives, test_reference and test_repr. Each tests the rows
    that it applies to.
    """
    assert len({case.name for case in table}) == len(table), "names of rows are unique"

    def of(cases):
        return pytest.mark.parametrize(
            "case", [pytest.param(case, id=case.name.replace(" ", "_")) for case in cases]
        )

    referenced = [case for case in table if case.reference]
    trained = [case for case in table if case.params]

    @of(table)
    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_parameters(case, dtype, device):
        _check_parameters(case, dtype, device)

    @of(trained)
    def test_gradients_reach_parameters(case, device):
        _check_gradients_reach_parameters(case, device)

    @of([case for case in table if case.lazy])
    def test_lazy(case, device, tmp_path):
        # Parameters that are created later get this dtype.
        with mpchain.using_config("dtype", np.float64):
            _check_lazy(case, device, tmp_path)

    @of(table)
    def test_saving(case, device, tmp_path):
        _check_saving(case, device, tmp_path)

    @of(table)
    @pytest.mark.parametrize("mode", ["share", "copy", "init"])
    def test_copies(case, mode, device):
        _check_copies(case, mode, device)

    @of(table)
    def test_pickles(case, device):
        _check_pickles(case, device)

    @of(trained)
    def test_step(case, device):
        _check_step(case, device)

    @of([case for case in table if case.orders])
    def test_derivatives(case, device):
        _check_derivatives(case, device)

    @of(referenced)
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_reference(case, dtype, device):
        _check_reference(case, dtype, device)

    @of(table)
    def test_repr(case):
        _check_repr(case)

    return {name: test for name, test in locals().items() if name.startswith("test_")}

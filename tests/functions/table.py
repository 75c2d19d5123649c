"""Tables of test cases of functions; all rows get the same checks.

A row names the function, its inputs and an independent reference written with PyTorch. Derivatives
of higher order than one are compared with finite differences of the previous order.
"""

import functools
import types
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

import mpchain
from mpchain import Variable
from mpchain.functions.declaring.declaration import registry
from tests.functions.harness import check_orders, weighted_sum
from tests.reference import torch

_TOLERANCES = {np.float16: 2e-2, np.float32: 2e-5, np.float64: 1e-11}


class Row(NamedTuple):
    """A test case of a function.

    Attributes:
        name: a unique name in the table, which is the id of the tests.
        function: a function of Variables or arrays that returns a Variable or a tuple of them.
        reference: the same function of float64 tensors of PyTorch.
        shapes: the shapes of the inputs.
        low, high: the bounds of the inputs; without ``smooth``, they are not used.
        orders: the number of orders of derivatives to check.
        smooth: whether to draw inputs uniformly; otherwise they keep a distance from each other and
            from zero, where kinks are.
        tolerance: the relative tolerance by dtype; None uses the default.
        dtypes: the dtypes to check.
    """

    name: str
    function: Callable
    reference: Callable
    shapes: tuple
    low: float = -2.0
    high: float = 2.0
    orders: int = 3
    smooth: bool = True
    tolerance: dict | None = None
    dtypes: tuple = (np.float16, np.float32, np.float64)


def row(name, function, reference, *shapes, **options):
    """Makes a row; the shapes of the inputs are positional arguments."""
    return Row(name, function, reference, shapes, **options)


def inputs_of(case, dtype=np.float64, seed=3):
    """Returns the arrays with which a row is checked; another seed gives other arrays in its
    domain."""
    random = np.random.RandomState(seed)
    arrays = [random.uniform(case.low, case.high, shape) for shape in case.shapes]
    if not case.smooth:
        arrays = [
            (random.permutation(x.size).reshape(x.shape) - x.size / 2 + 0.4 + 0.05 * i) * 0.3
            for i, x in enumerate(arrays)
        ]
    return [np.asarray(x, dtype) for x in arrays]


def _as_tuple(ys):
    return tuple(ys) if isinstance(ys, (tuple, list)) else (ys,)


def on(device, function):
    """Returns the function with its host arrays, such as labels, moved to the device."""
    if device == "@numpy":
        return function
    send = mpchain.get_device(device).send

    def sent(value):
        return send(value) if isinstance(value, np.ndarray) else value

    if isinstance(function, functools.partial):
        keywords = {key: sent(value) for key, value in function.keywords.items()}
        return functools.partial(function.func, *map(sent, function.args), **keywords)
    if not function.__module__.startswith("tests."):
        return function
    names = function.__globals__
    moved = {name: sent(names[name]) for name in function.__code__.co_names if name in names}
    closure = tuple(types.CellType(sent(c.cell_contents)) for c in function.__closure__ or ())
    code, defaults = function.__code__, function.__defaults__
    on_device = types.FunctionType(code, {**names, **moved}, None, defaults, closure)
    on_device.__kwdefaults__ = function.__kwdefaults__
    return on_device


def _run(case, arrays, device):
    xs = [Variable(mpchain.get_device(device).send(x)) for x in arrays]
    return xs, _as_tuple(on(device, case.function)(*xs))


def _host(array):
    return mpchain.cuda.to_cpu(array)


def _check_value_and_gradient(case, dtype, device):
    arrays = inputs_of(case, dtype)
    xs, ys = _run(case, arrays, device)
    txs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in arrays]
    tys = _as_tuple(case.reference(*txs))
    tolerance = {**_TOLERANCES, **(case.tolerance or {})}[dtype]
    for y, ty in zip(ys, tys, strict=True):
        # A function that converts its input has another dtype in the reference.
        kept = ty.dtype == torch.float64
        assert y.dtype == (dtype if kept else np.dtype(str(ty.dtype).removeprefix("torch.")))
        expected = ty.detach().double()
        scale = tolerance * max([1.0, *expected.abs().ravel().tolist()])
        np.testing.assert_allclose(_host(y.array), expected, tolerance, scale)
    if case.orders == 0:
        return
    weights = [np.random.uniform(0.5, 1.5, y.shape).astype(y.dtype) for y in ys]
    for y, w in zip(ys, weights):
        y.grad = mpchain.get_device(device).send(w)
    mpchain.backward(ys)
    torch.autograd.backward(tys, [torch.tensor(w).to(ty.dtype) for w, ty in zip(weights, tys)])
    for x, tx in zip(xs, txs, strict=True):
        assert x.grad.dtype == dtype and x.grad.shape == x.shape
        scale = tolerance * max([1.0, *tx.grad.abs().ravel().tolist()])
        np.testing.assert_allclose(_host(x.grad), tx.grad, tolerance, scale)


def _check_non_contiguous(case, device):
    arrays = inputs_of(case)
    strided = [
        np.asfortranarray(np.repeat(x, 2, axis=-1))[..., ::2] if x.ndim else x for x in arrays
    ]
    _, ys = _run(case, arrays, device)
    _, strided_ys = _run(case, strided, device)
    for y, z in zip(ys, strided_ys, strict=True):
        np.testing.assert_allclose(_host(z.array), _host(y.array), 1e-12, 1e-12)


def checks_of(table):
    """Makes the tests of a table; a test file assigns the result.

    test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)
    """
    by_name = pytest.mark.parametrize("case", table, ids=lambda case: case.name.replace(" ", "_"))

    @pytest.mark.parametrize(
        "case, dtype",
        [
            pytest.param(case, dtype, id=f"{case.name}-{dtype.__name__}".replace(" ", "_"))
            for case in table
            for dtype in case.dtypes
        ],
    )
    def test_value_and_gradient(case, dtype, device):
        _check_value_and_gradient(case, dtype, device)

    @by_name
    def test_derivatives(case, device):
        arrays = inputs_of(case)
        function = on(device, case.function)
        check_orders(weighted_sum(function, arrays), arrays, case.orders, device)

    @by_name
    def test_non_contiguous(case, device):
        _check_non_contiguous(case, device)

    return test_value_and_gradient, test_derivatives, test_non_contiguous


def uncovered(table, *families):
    """Returns the names of declarations in files of functions/ that no row of the table uses.

    Args:
        table: the rows.
        families: names of files, without ending.
    """
    used = set()
    for case in table:
        used |= _labels(_run(case, inputs_of(case), "@numpy")[1])
    declared = {
        name
        for name, declaration in registry.items()
        if declaration.body.__module__.removeprefix("mpchain.functions.") in families
    }
    return declared - used


def _labels(ys):
    """Returns the labels of all functions that computed the variables."""
    stack, labels = [y.creator_node for y in ys if y.creator_node is not None], set()
    while stack:
        function = stack.pop()
        labels.add(function.label)
        stack.extend(n.creator_node for n in function.inputs if n.creator_node is not None)
    return labels

"""Tests Parameter: late initialization of its array, and its initializers."""

import copy
import math
import pickle

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Parameter


class Counting:
    """An initializer that records how often and for which arrays it was called."""

    dtype = None

    def __init__(self):
        self.arrays = []

    def __call__(self, array):
        array[...] = np.arange(array.size).reshape(array.shape)
        self.arrays.append(array)


def test_an_array_is_the_parameters_own():
    array = np.arange(3.0)
    p = Parameter(array, name="b")
    assert p.array is array and p.is_initialized and p.name == "b" and p.dtype == np.float64
    assert Parameter(array, (3,)).array is array and Parameter(array, 3).array is array
    with pytest.raises(ValueError, match=r"^Parameter: shape \(2,\) differs from .* \(3,\)"):
        Parameter(array, (2,))


@pytest.mark.parametrize("number", [2, 2.0, np.int64(2), np.float64(2), np.float16(2)])
def test_a_number_fills_in_the_dtype_of_the_configuration(number):
    assert Parameter(number, (2, 3)).dtype == np.float32
    with mpchain.using_config("dtype", np.float64):
        p = Parameter(number, 3)
    assert p.dtype == np.float64 and p.array.tolist() == [2, 2, 2]
    with mpchain.using_config("dtype", mpchain.mixed16):
        assert Parameter(number, ()).dtype == np.float16


def test_nothing_fills_with_nan():
    assert np.isnan(Parameter(shape=(2,)).array).all()
    assert math.isnan(Parameter(None, ()).array)


@pytest.mark.parametrize("initializer", ["a", [1.0], {}])
def test_refuses_what_cannot_fill(initializer):
    with pytest.raises(
        TypeError, match=r"^Parameter: initializer must be an Initializer, a scalar"
    ):
        Parameter(initializer, (1,))


def test_an_initializer_is_called_once_the_shape_is_known():
    initializer = Counting()
    p = Parameter(initializer, name="W")
    assert not p.is_initialized and p.array is None and p.grad is None
    assert p.label == "uninitialized" and repr(p) == "variable W(None)"
    with pytest.raises(RuntimeError, match=r"^Parameter 'W' has no array yet, so it has no shape"):
        p.shape
    assert initializer.arrays == []
    p.initialize((2, 3))
    assert p.is_initialized and p.shape == p.node.shape == (2, 3) and p.dtype == np.float32
    assert len(initializer.arrays) == 1 and p.label == "(2, 3), float32"
    np.testing.assert_array_equal(p.array, [[0, 1, 2], [3, 4, 5]])
    assert Parameter(initializer, 3).shape == (3,)


def test_the_initializers_dtype_is_known_before_the_array():
    initializer = Counting()
    initializer.dtype = np.float16
    p = Parameter(initializer)
    assert p.dtype == np.float16
    p.initialize(2)
    assert p.array.dtype == np.float16


def test_a_graph_from_before_does_not_keep_the_uninitialized_node():
    p = Parameter(1.0)
    node = p.node
    p.initialize((2,))
    assert p.node is not node
    F.sum(p * 3).backward()
    np.testing.assert_array_equal(p.grad, [3, 3])


def test_use_before_initialization_is_an_error():
    with pytest.raises(RuntimeError, match=r"input 0, Parameter 'W', has no array yet"):
        Parameter(1.0, name="W") * 2


def test_nan_from_an_initializer_is_found_in_debug_mode():
    def fill(array):
        array[...] = np.nan

    Parameter(fill, (2,))
    with mpchain.using_config("debug", True):
        with pytest.raises(RuntimeError, match=r"^Parameter 'W': NaN in the initial values"):
            Parameter(fill, (2,), name="W")
        Parameter(shape=(2,))


def test_gradients_of_an_uninitialized_parameter():
    p = Parameter(1.0)
    p.cleargrad()
    p.zerograd()
    assert p.grad is None


def test_update_asks_the_rule():
    seen = []

    class Rule:
        def update(self, param):
            seen.append(param)

    p = Parameter(1.0, (1,))
    p.update()
    p.update_rule = Rule()
    p.update()
    assert len(seen) == 1 and seen[0] is p


def test_moves_before_and_after_initialization():
    p = Parameter(1.0)
    p.to_device("@numpy")
    assert p.device == mpchain.get_device("@numpy") and p.array is None
    p.initialize((1,))
    p.to_cpu()
    assert p.xp is np


@pytest.mark.gpu
def test_is_initialized_where_it_will_be():
    p = Parameter(1.0)
    p.to_gpu()
    assert p.device.name == "@cupy:0"
    p.initialize((2,))
    assert mpchain.cuda.is_gpu_array(p.array)


def test_copies_share_the_array_and_nothing_else():
    p = Parameter(np.ones(2), name="W")
    q = copy.copy(p)
    assert isinstance(q, Parameter) and q.array is p.array
    F.sum(q * 2).backward()
    assert p.grad is None and q.grad.tolist() == [2, 2]
    r = copy.deepcopy(p)
    assert r.array is not p.array


@pytest.mark.parametrize("shape", [None, (2,)])
def test_pickle(shape):
    p = Parameter(3.0, shape, name="W")
    q = pickle.loads(pickle.dumps(p))
    assert isinstance(q, Parameter) and q.name == "W" and q.is_initialized == p.is_initialized
    if shape is None:
        q.initialize(2)
    assert q.array.tolist() == [3, 3]


def test_enabled_is_a_switch_of_the_update_rule():
    p = Parameter(1, (2,), name="W")
    assert not hasattr(p, "enabled")
    with pytest.raises(
        AttributeError, match=r"^Parameter 'W'.enabled cannot be set: use link\.dis"
    ):
        p.enabled = False

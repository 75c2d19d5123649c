"""Tests Variable: its array, printing, gradient, copies, graph, operators and moves between
devices."""

import copy
import pickle
import weakref

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def test_holds_the_very_array():
    array = ones(2, 3)
    x = Variable(array)
    assert x.array is array and x.data is array and x.raw_array is array
    assert (x.shape, x.ndim, x.size, x.dtype, len(x)) == ((2, 3), 2, 6, np.float32, 2)
    assert x.xp is np and x.device == mpchain.get_device("@numpy")
    assert x.grad is None and x.grad_var is None and x.requires_grad
    assert x.creator is None and x.creator_node is None and x.rank == 0
    assert x.label == "(2, 3), float32" and x.layout is None and x.as_layout(None) is x


@pytest.mark.parametrize("data", [1.0, [1.0], (1.0,), np.float32(1), "a"])
def test_refuses_what_is_no_array(data):
    with pytest.raises(TypeError, match=r"^Variable: data must be a numpy.ndarray or cupy.ndarray"):
        Variable(data)


def test_without_array():
    x = Variable(name="x")
    assert x.array is None and x.label == "uninitialized" and repr(x) == "variable x(None)"
    for name in ("shape", "ndim", "size", "dtype"):
        with pytest.raises(RuntimeError, match=f"^Variable 'x' has no array yet, so .* {name}"):
            getattr(x, name)
    with pytest.raises(RuntimeError, match=r"^Variable 'x' has no array yet, so it has no length"):
        len(x)
    with pytest.raises(RuntimeError, match="input 0, Variable 'x', has no array yet"):
        x + 1


def test_array_can_be_replaced():
    x = Variable(ones(2))
    y = F.sum(x * x)
    x.array = ones(2) * 3
    y.backward()
    np.testing.assert_array_equal(x.grad, [2, 2])
    x.data = ones(3)
    assert x.shape == x.node.shape == (3,)


def test_repr_and_str():
    x = Variable(np.array([[0, 12], [48, 75]], np.float32))
    assert repr(x) == "variable([[ 0., 12.],\n          [48., 75.]])"
    assert str(x) == "variable([[ 0. 12.]\n          [48. 75.]])"
    x.name = "weight"
    assert repr(x).startswith("variable weight([[ 0., 12.],\n")
    assert repr(Variable(np.array(1.0))) == "variable(1.)"
    assert repr(Variable(ones(0))) == "variable([])"


def test_summary_and_debug_print():
    x = Variable(np.array([1.0, 3.0]), name="x")
    assert x.summary() == "<variable x (2), float64>"
    assert Variable(ones(1)).summary() == "<variable (1), float32>"
    assert Variable(np.zeros(())).label == "float64"
    lines = x.debug_print().splitlines()
    assert "- device: @numpy" in lines and "- shape: (2,)" in lines and "- dtype: float64" in lines
    assert "- statistics: mean=2, std=1, min=1, max=3" in lines and lines[-1] == "- grad: None"
    x.grad = np.array([2.0, 2.0])
    assert x.debug_print().splitlines()[-1] == "- grad: mean=2, std=0, min=2, max=2"
    assert "- statistics: empty" in Variable(ones(0)).debug_print()


def test_name_reaches_the_node():
    x = Variable(ones(1), name="a")
    assert x.name == x.node.name == "a"
    x.name = "b"
    assert x.name == x.node.name == "b"


def test_truth_order_and_hash_are_refused():
    x = Variable(ones(1))
    with pytest.raises(TypeError, match="truth value of a Variable"):
        bool(x)
    for compare in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
        with pytest.raises(TypeError, match=r"compare their arrays \(x.array > y.array\)"):
            getattr(x, compare)(x)
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)


def test_length_item_and_iteration():
    x = Variable(np.arange(3.0))
    assert [float(v.array) for v in x] == [0, 1, 2]
    assert F.sum(x).item() == 3.0 and isinstance(F.sum(x).item(), float)
    with pytest.raises(TypeError, match="unsized"):
        len(Variable(np.array(1.0)))
    with pytest.raises(ValueError, match="size 1"):
        x.item()
    with pytest.raises(IndexError, match="out of bounds"):
        x[3]


def test_layout_is_always_the_plain_one():
    with pytest.raises(ValueError, match=r"^Variable.as_layout: layout must be None, not 1"):
        Variable(ones(1)).as_layout(1)


# The gradient, set by hand.


def test_grad_and_grad_var_are_one():
    x = Variable(ones(2))
    g = ones(2) * 3
    x.grad = g
    assert x.grad is g and x.grad_var.array is g and x.grad is g
    v = Variable(ones(2))
    x.grad_var = v
    assert x.grad_var is v and x.grad is v.array
    x.grad_var = None
    assert x.grad is None and x.grad_var is None
    x.grad = g
    x.cleargrad()
    assert x.grad is None


def test_a_scalar_gradient_becomes_an_array():
    x = Variable(np.array(1.0))
    x.grad = np.float64(2)
    assert isinstance(x.grad, np.ndarray) and x.grad.shape == ()


@pytest.mark.parametrize(
    "grad, error, message",
    [
        (ones(3), ValueError, r"Variable 'x'.grad must have the shape .*grad \(3,\), array \(2,\)"),
        (ones(2, dtype="d"), TypeError, "must have the dtype .*: grad float64, array float32"),
        ([1, 1], TypeError, "must be a numpy.ndarray or cupy.ndarray, not list"),
    ],
)
def test_a_gradient_that_does_not_fit_is_refused(grad, error, message):
    x = Variable(ones(2), name="x")
    with pytest.raises(error, match=message):
        x.grad = grad
    with pytest.raises(error, match=message):
        Variable(ones(2), name="x", grad=grad)
    assert x.grad is None


def test_initial_gradient():
    x = Variable(ones(2), grad=ones(2) * 4)
    F.sum(x).backward()
    np.testing.assert_array_equal(x.grad, [5, 5])


def test_zerograd_and_addgrad_and_copydata():
    x, y = Variable(ones(2)), Variable(ones(2) * 2, grad=ones(2) * 3)
    x.zerograd()
    np.testing.assert_array_equal(x.grad, [0, 0])
    x.cleargrad()
    x.addgrad(Variable(ones(2)))
    assert x.grad is None
    x.addgrad(y)
    x.addgrad(y)
    np.testing.assert_array_equal(x.grad, [6, 6])
    np.testing.assert_array_equal(y.grad, [3, 3])
    array = x.array
    x.copydata(y)
    assert x.array is array
    np.testing.assert_array_equal(x.array, [2, 2])
    with pytest.raises(ValueError, match=r"^Variable.copydata: both variables must have an array"):
        x.copydata(Variable())


def test_copydata_initializes_parameters():
    left, right = mpchain.Parameter(), mpchain.Parameter(2)
    left.copydata(right)
    assert left.array is right.array is None
    left.copydata(mpchain.Parameter(3, (2, 1)))
    np.testing.assert_array_equal(left.array, [[3], [3]])
    left.copydata(right)
    np.testing.assert_array_equal(left.array, [[2], [2]])


def test_addgrad_of_its_only_source_can_be_changed_later():
    x, y = Variable(ones(2)), Variable(ones(2), grad=ones(2))
    x.addgrad(y)
    x.addgrad(y)
    x.grad[...] = 7
    np.testing.assert_array_equal(y.grad, [1, 1])


# Copies and files.


def test_pickle_keeps_everything_but_the_graph():
    x = Variable(ones(2), name="x", grad=ones(2) * 2)
    y = x * 2
    restored = pickle.loads(pickle.dumps(x))
    assert restored.name == "x" and restored.requires_grad
    np.testing.assert_array_equal(restored.array, x.array)
    np.testing.assert_array_equal(restored.grad, x.grad)
    assert pickle.loads(pickle.dumps(y)).creator is None
    assert not pickle.loads(pickle.dumps(Variable(ones(1), requires_grad=False))).requires_grad


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_is_a_leaf_of_its_own(copied):
    x = Variable(ones(2), name="x")
    y = x * 2
    assert copied(y).creator is None
    z = copied(x)
    F.sum(z * 3).backward()
    assert x.grad is None and z.name == "x"
    np.testing.assert_array_equal(z.grad, [3, 3])
    assert (z.array is x.array) == (copied is copy.copy)


# The graph as a variable sees it.


def test_creator_rank_and_unchain():
    x = Variable(ones(2))
    y = x * 2
    z = y + x
    assert (x.rank, y.rank, z.rank) == (0, 1, 2)
    assert y.creator is y.creator_node and y.creator.label == "multiply_by_constant"
    assert z.node.creator is z.creator and z.node.creator_node is z.creator_node
    y.unchain()
    assert y.creator is None
    z.grad = ones(2)
    z.backward()
    np.testing.assert_array_equal(x.grad, [1, 1])
    np.testing.assert_array_equal(y.grad, [1, 1])
    Variable(ones(1)).unchain()


def test_unchain_backward_cuts_everything_below():
    x = Variable(ones(2))
    h = x * 2
    y = h * h + h
    function = weakref.ref(h.creator)
    z = y * 3
    y.unchain_backward()
    assert y.creator is None and h.creator is None and z.creator is not None
    assert function() is None
    z.grad = ones(2)
    z.backward()
    assert x.grad is None and h.grad is None
    np.testing.assert_array_equal(y.grad, [3, 3])


def test_set_creator():
    x, y = Variable(ones(1)), Variable(ones(1))
    function = (x * 2).creator
    y.creator = function
    assert y.creator is function and y.creator_node is function
    y.set_creator_node(None)
    assert y.creator is None
    y.creator_node = function
    assert y.node.creator_node is function


def test_node_without_its_variable():
    x = Variable(ones(2))
    h = x * 2
    node = h.node
    assert node.get_variable() is h and node.get_variable_or_none() is h and node.data is h.array
    assert node.label == h.label and node.rank == 1
    del h
    assert node.get_variable_or_none() is None and node.data is None
    assert node.grad is None and node.grad_var is None
    with pytest.raises(RuntimeError, match=r"^VariableNode.retain_data: .* was freed"):
        node.retain_data()
    again = node.get_variable()
    assert again.array is None and again.node is node and again.creator is not None
    assert node.get_variable() is again


def test_retained_data_outlives_the_variable():
    x = Variable(ones(2))
    h = x * 2
    h.retain_data()
    y = h * 3
    array = h.array
    del h
    node = y.creator.inputs[0]
    assert node.data is array and node.get_variable().array is array


def test_no_gradient_where_none_is_required():
    x = Variable(ones(1), requires_grad=False)
    y = x * 2
    assert not y.requires_grad and y.creator is None
    y.backward()
    assert x.grad is None
    z = Variable(ones(1)) * x
    assert z.requires_grad and z.node.requires_grad


def test_as_variable_and_as_array():
    x = Variable(ones(2))
    assert mpchain.as_variable(x) is x
    y = mpchain.as_variable(ones(2))
    assert not y.requires_grad
    assert mpchain.as_array(x) is x.array
    array = ones(2)
    assert mpchain.as_array(array) is array
    np.testing.assert_array_equal(mpchain.as_array([1, 2]), [1, 2])


def test_array_types():
    assert np.ndarray in mpchain.get_array_types()
    assert mpchain.get_cpu_array_types() == (np.ndarray,)
    assert mpchain.is_arrays_compatible([ones(1), None, ones(2, dtype="d")])


# Operators.


@pytest.mark.parametrize(
    "operate",
    [
        lambda x, y: x + y,
        lambda x, y: x - y,
        lambda x, y: x * y,
        lambda x, y: x / y,
        lambda x, y: x // y,
        lambda x, y: x**y,
    ],
    ids=["add", "sub", "mul", "div", "floordiv", "pow"],
)
def test_operators_take_variables_arrays_and_numbers_on_both_sides(operate):
    a, b = np.array([1.5, 2.5], np.float32), np.array([2.0, 0.5], np.float32)
    for left, right, wrapped in [
        (Variable(a), Variable(b), (a, b)),
        (Variable(a), b, (a, b)),
        (a, Variable(b), (a, b)),
        (Variable(a), 2, (a, 2)),
        (3, Variable(b), (3, b)),
        (Variable(a), 1.5, (a, 1.5)),
        (2.5, Variable(b), (2.5, b)),
        (Variable(a), np.float64(1.5), (a, 1.5)),
        (np.float64(2.5), Variable(b), (2.5, b)),
    ]:
        result = operate(left, right)
        assert isinstance(result, Variable) and result.dtype == np.float32
        np.testing.assert_allclose(result.array, operate(*wrapped), rtol=1e-6)


def test_unary_operators():
    x = Variable(np.array([-1.0, 2.0]))
    assert (+x) is x
    np.testing.assert_array_equal((-x).array, [1, -2])
    np.testing.assert_array_equal(abs(x).array, [1, 2])


def test_matrix_product_on_both_sides():
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    for left, right in [(Variable(a), Variable(b)), (a, Variable(b)), (Variable(a), b)]:
        np.testing.assert_array_equal((left @ right).array, a @ b)


def test_an_operand_of_another_kind_is_a_type_error():
    x = Variable(ones(1))
    for operate in (lambda: x + "a", lambda: None * x, lambda: x ** [1]):
        with pytest.raises(TypeError, match="unsupported operand"):
            operate()


def test_floor_division_has_no_gradient():
    x = Variable(np.array([7.0, 3.0]))
    assert not (x // 2).requires_grad
    assert mpchain.grad([F.sum((x // 2) * x)], [x])[0].array.tolist() == [3.0, 1.0]


def test_methods_that_are_functions():
    x = Variable(np.arange(6.0).reshape(2, 3))
    assert x.T.shape == x.transpose().shape == x.transpose(1, 0).shape == (3, 2)
    assert x.transpose((1, 0)).shape == x.transpose([1, 0]).shape == x.transpose(None).shape
    assert x.reshape(3, 2).shape == x.reshape((3, 2)).shape == x.reshape([3, -1]).shape == (3, 2)
    assert x.mean().item() == 2.5
    assert x.mean(axis=1, keepdims=True).shape == (2, 1)
    np.testing.assert_array_equal(x[1, ::2].array, [3, 5])


def test_numpy_functions_accept_variables():
    a = np.array([[0.5, 1.5], [2.5, 3.5]])
    x = Variable(a)
    for function in (np.exp, np.log, np.sqrt, np.tanh, np.square, np.absolute, np.negative):
        np.testing.assert_allclose(function(x).array, function(a), rtol=1e-14)
    for function in (np.add, np.subtract, np.multiply, np.divide, np.power, np.maximum, np.matmul):
        for left, right in [(x, a), (a, x), (x, x)]:
            result = function(left, right)
            assert isinstance(result, Variable)
            np.testing.assert_allclose(result.array, function(a, a), rtol=1e-14)
    np.testing.assert_array_equal(np.sum(x, axis=0).array, a.sum(0))
    np.testing.assert_array_equal(np.mean(x, axis=1, keepdims=True).array, a.mean(1, keepdims=True))
    np.testing.assert_array_equal(np.where(a > 1, x, 0).array, np.where(a > 1, a, 0))
    with pytest.raises(TypeError, match="where: x must be a Variable or an array, not int: 1"):
        np.where(x, 1, 0)
    np.testing.assert_array_equal(np.transpose(x).array, a.T)
    np.testing.assert_array_equal(np.concatenate([x, a], axis=1).array, np.hstack([a, a]))
    greater = np.greater(x, 1)
    assert isinstance(greater, np.ndarray) and greater.dtype == bool


def test_numpy_functions_that_are_not_known_refuse_variables():
    x = Variable(ones(2))
    with pytest.raises(TypeError):
        np.nextafter(x, x)
    with pytest.raises(TypeError):
        np.add(x, x, out=ones(2))
    with pytest.raises(TypeError):
        np.add.reduce(x)
    with pytest.raises(TypeError):
        np.linalg.norm(x)


# Devices.


def test_a_leaf_moves_and_a_computed_variable_does_not():
    x = Variable(ones(2), grad=ones(2))
    array, grad = x.array, x.grad
    x.to_cpu()
    x.to_intel64()
    x.to_device("@numpy")
    assert x.array is array and x.grad is grad
    with pytest.raises(RuntimeError, match=r"^Variable.to_device: only a leaf can be moved"):
        (x * 2).to_cpu()


def test_there_is_no_chainerx():
    for move in (Variable(ones(1)).to_chx, Variable(ones(1)).from_chx):
        with pytest.raises(RuntimeError, match=r"mpchain has no ChainerX; use '@numpy'"):
            move()


def test_to_gpu_without_a_gpu_says_what_is_missing():
    if mpchain.cuda.available:
        pytest.skip("needs a host without a GPU")
    with pytest.raises(RuntimeError, match=r"^a GPU is needed here, but CuPy"):
        Variable(ones(1)).to_gpu()
    with pytest.raises(RuntimeError, match=r"^a GPU is needed here, but CuPy"):
        Variable(ones(1)).to_gpu(0)


@pytest.mark.gpu
def test_there_and_back():
    x = Variable(ones(2), grad=ones(2) * 2)
    x.to_gpu()
    assert x.xp is mpchain.cuda.cupy and mpchain.cuda.is_gpu_array(x.grad)
    F.sum(x * 3).backward()
    x.to_cpu()
    np.testing.assert_array_equal(x.grad, [5, 5])


def test_numpy_takes_a_leaf_as_its_array():
    for x in (Variable(np.arange(3.0)), Variable(np.arange(3.0), requires_grad=False)):
        assert np.asarray(x) is x.array
        assert np.array(x) is not x.array
        np.testing.assert_array_equal(np.asarray(x, np.float32), np.arange(3, dtype=np.float32))
    with mpchain.no_backprop_mode():
        y = 2 * Variable(np.arange(3.0))
    assert np.asarray(y) is y.array
    assert np.asarray([Variable(np.ones(2)), np.zeros(2)]).tolist() == [[1, 1], [0, 0]]


def test_numpy_does_not_take_the_history_of_a_computed_variable():
    y = 2 * Variable(np.arange(3.0))
    for convert in (np.asarray, np.array, lambda y: np.asarray([y, y])):
        with pytest.raises(TypeError, match=r"^Variable was computed by .* attribute array"):
            convert(y)
    assert isinstance(np.ones(3) * y, Variable) and isinstance(np.exp(y), Variable)
    with pytest.raises(TypeError):
        np.sort(Variable(np.arange(3.0)))  # mpchain does not support this NumPy function


def test_one_element_as_a_number():
    for shape in ((), (1,), (1, 1)):
        loss = Variable(np.full(shape, 2.5, np.float32)) * 1
        assert (float(loss), int(loss)) == (2.5, 2)
        assert type(float(loss)) is float
        assert f"{loss:.3f}" == "2.500" and f"{loss}" == str(loss)
    with pytest.raises(
        TypeError, match=r"^float: Variable must have one element, but has shape \(2,\)"
    ):
        float(Variable(np.ones(2)))
    with pytest.raises(RuntimeError, match="has no array yet"):
        float(Variable())


def test_requires_grad_says_what_to_do_instead_of_setting_it():
    x = Variable(np.ones(2), name="x")
    with pytest.raises(AttributeError, match=r"^Variable 'x'.requires_grad cannot be set: to keep"):
        x.requires_grad = False
    assert x.requires_grad

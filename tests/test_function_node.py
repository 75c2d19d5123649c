"""Tests FunctionNode: functions as users write them, and the errors of wrong functions."""

import copy
import pickle

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import FunctionNode, Variable, backend
from mpchain.backends import cuda
from tests.functions.harness import check_orders, weighted_sum
from tests.probes import Doubled, doubled, full

# These functions are like those of Chainer's guide to defining functions.


class MulAdd(FunctionNode):
    def forward_cpu(self, inputs):
        # Unpack input arrays (``numpy.ndarray``).
        x, y, z = inputs

        # Mark inputs (``x`` and ``y``) as retained so that they can be
        # accessed during the backward process.
        self.retain_inputs((0, 1))

        # Compute results.
        w = x * y + z

        # Return the result as a tuple.
        return (w,)

    def backward(self, target_input_indexes, grad_outputs):
        # Unpack inputs retained in the forward process (``Variable``).
        x, y = self.get_retained_inputs()

        # Get gradients w.r.t. the output (Variable).
        (gw,) = grad_outputs

        # Compute gradients w.r.t the inputs.
        gx = y * gw
        gy = x * gw
        gz = gw

        # Return the result as a tuple.
        return gx, gy, gz


class MulAddWithGrad(MulAdd):
    def backward(self, target_input_indexes, grad_outputs):
        x, y = self.get_retained_inputs()
        (gw,) = grad_outputs
        z = Variable(np.zeros_like(gw.array))
        return MulAddGrad().apply((x, y, z, gw))


class MulAddGrad(FunctionNode):
    def forward_cpu(self, inputs):
        x, y, _, gw = inputs
        gx = y * gw
        gy = x * gw
        gz = gw
        return gx, gy, gz

    def backward(self, target_input_indexes, grad_outputs):
        # You can leave this unimplemented unless you need to compute
        # higher-order derivatives using this function.
        raise NotImplementedError()


class ExpAdd(FunctionNode):
    def forward_cpu(self, inputs):
        self.retain_inputs((0, 1))
        x, y = inputs
        z = np.exp(x) + np.exp(y)
        return (z,)

    def forward_gpu(self, inputs):
        self.retain_inputs((0, 1))
        cupy = cuda.cupy
        x, y = inputs
        z = cupy.exp(x) + cupy.exp(y)
        return (z,)

    def backward(self, target_input_indexes, grad_outputs):
        x, y = self.get_retained_inputs()
        (gz,) = grad_outputs
        gx = gz * F.exp(x)
        gy = gz * F.exp(y)
        return gx, gy


class UnifiedExpAdd(ExpAdd):
    def forward(self, inputs):
        self.retain_inputs((0, 1))
        xp = backend.get_array_module(*inputs)
        x, y = inputs
        z = xp.exp(x) + xp.exp(y)
        return (z,)


class LinearFunction(FunctionNode):
    def forward(self, inputs):
        x, W, b = inputs
        self.retain_inputs((0, 1))
        return (x.dot(W.T) + b,)

    def backward(self, target_input_indexes, grad_outputs):
        x, W = self.get_retained_inputs()
        (gy,) = grad_outputs
        gradients = []
        if 0 in target_input_indexes:
            gradients.append(F.matmul(gy, W))
        if 1 in target_input_indexes:
            gradients.append(F.matmul(gy, x, transa=True))
        if 2 in target_input_indexes:
            gradients.append(F.sum(gy, axis=0))
        return tuple(gradients)


def muladd(x, y, z):
    return MulAdd().apply((x, y, z))


def expadd(x, y):
    (z,) = ExpAdd().apply((x, y))
    return z


def linear(x, W, b):
    (y,) = LinearFunction().apply((x, W, b))
    return y


def _uniform(*shapes, dtype=np.float32):
    return [np.random.uniform(-1, 1, shape).astype(dtype) for shape in shapes]


def test_the_guides_muladd():
    x, y, z = (Variable(a) for a in _uniform((3, 2), (3, 2), (3, 2)))
    (w,) = muladd(x, y, z)
    np.testing.assert_array_equal(w.array, x.array * y.array + z.array)
    assert w.creator.label == "MulAdd"
    w.grad = np.ones((3, 2), np.float32)
    w.backward()
    np.testing.assert_array_equal(x.grad, y.array)
    np.testing.assert_array_equal(y.grad, x.array)
    np.testing.assert_array_equal(z.grad, np.ones((3, 2)))


@pytest.mark.parametrize(
    "function, shapes",
    [
        (muladd, [(3, 2)] * 3),
        (expadd, [(3,), (3,)]),
        (lambda x, y: UnifiedExpAdd().apply((x, y)), [(3,), (3,)]),
        (linear, [(4, 3), (2, 3), (2,)]),
    ],
    ids=["MulAdd", "ExpAdd", "UnifiedExpAdd", "LinearFunction"],
)
def test_the_guides_functions_to_third_order(function, shapes):
    arrays = _uniform(*shapes, dtype=np.float64)
    check_orders(weighted_sum(function, arrays), arrays)


def test_the_guides_muladdgrad_is_of_first_order():
    x, y, z = (Variable(a) for a in _uniform((3, 2), (3, 2), (3, 2)))
    (w,) = MulAddWithGrad().apply((x, y, z))
    (gx,) = mpchain.grad([F.sum(w)], [x], enable_double_backprop=True)
    np.testing.assert_array_equal(gx.array, y.array)
    with pytest.raises(NotImplementedError) as caught:
        mpchain.grad([F.sum(gx)], [y])
    assert "in the backward of MulAddGrad" in caught.value.__notes__[0]


def test_only_wanted_gradients_need_to_be_computed():
    x, W, b = (Variable(a) for a in _uniform((4, 3), (2, 3), (2,)))
    seen = []

    class Noting(LinearFunction):
        def backward(self, target_input_indexes, grad_outputs):
            seen.append(target_input_indexes)
            return super().backward(target_input_indexes, grad_outputs)

    (y,) = Noting().apply((x.array, W, b))
    y.grad = np.ones((4, 2), np.float32)
    y.backward()
    (y,) = Noting().apply((x, W, b))
    mpchain.grad([y], [b])
    assert seen == [(1, 2), (2,)]
    np.testing.assert_array_equal(b.grad, [4, 4])


@pytest.mark.gpu
def test_the_guides_kernels_on_a_gpu():
    cupy = cuda.cupy
    x, y = (Variable(cupy.asarray(a)) for a in _uniform((3, 2), (3, 2)))
    z = expadd(x, y)
    z.grad = cupy.ones((3, 2), np.float32)
    z.backward()
    cupy.testing.assert_allclose(x.grad, cupy.exp(x.array), rtol=1e-6)
    kernel = cuda.elementwise("T x, T y, T z", "T w", "w = x * y + z", "muladd_fwd")
    cupy.testing.assert_allclose(kernel(x.array, y.array, y.array), x.array * y.array + y.array)


# One application of a function.


def test_inputs_may_be_arrays():
    (y,) = Doubled().apply((full(3),))
    assert isinstance(y, Variable) and not y.requires_grad and y.creator is None


def test_outputs_are_a_tuple_of_variables_with_their_places():
    x = Variable(full(3))
    a, b = F.split_axis(x, 2, 0)
    assert a.creator is b.creator
    assert (a.node.output_index, b.node.output_index) == (0, 1)
    assert [reference() for reference in a.creator.outputs] == [a.node, b.node]
    assert list(a.creator.inputs) == [x.node]
    array = a.array
    del b
    data = a.creator.output_data
    assert data[0] is array and data[1] is None


def test_before_it_is_applied():
    function = Doubled()
    assert function.label == "Doubled" and function.inputs is None and function.outputs is None
    with pytest.raises(RuntimeError, match=r"^Doubled.output_data: .* has no outputs before"):
        function.output_data


def test_an_instance_is_applied_once():
    function, _ = doubled(Variable(full(3)))
    with pytest.raises(
        RuntimeError, match=r"^Doubled: this node was applied before; make a new node"
    ):
        function.apply((Variable(full(3)),))


def test_a_node_is_not_called_but_applied():
    with pytest.raises(RuntimeError, match=r"^Doubled: .*apply"):
        Doubled()(Variable(full(3)))


def test_unchain_of_a_function():
    x = Variable(full(3))
    function, y = doubled(x)
    z = y * 2
    function.unchain()
    assert y.creator is None and function.inputs is None
    z.grad = full(1)
    z.backward()
    assert x.grad is None


def test_the_stack_is_recorded_in_debug_mode_only():
    function, _ = doubled(Variable(full(3)))
    assert function.stack is None
    with mpchain.using_config("debug", True):
        function, _ = doubled(Variable(full(3)))
    assert any(frame.name == "doubled" for frame in function.stack)


def test_functions_for_the_cpu_alone():
    with pytest.raises(
        NotImplementedError, match=r"^FunctionNode defines neither forward nor forward_cpu"
    ):
        FunctionNode().apply((Variable(full(3)),))
    with pytest.raises(
        NotImplementedError, match=r"^MulAdd defines neither forward nor forward_gpu"
    ):
        MulAdd().forward_gpu((full(3),))


def test_a_function_without_backward():
    class Forward(FunctionNode):
        def forward(self, inputs):
            return (inputs[0] * 2,)

    (y,) = Forward().apply((Variable(full(3)),))
    np.testing.assert_array_equal(y.array, full(6))
    with pytest.raises(NotImplementedError, match=r"^Forward does not implement backward"):
        F.sum(y).backward()


# Retaining.


class Product(FunctionNode):
    """Computes x0 * x1, retains the inputs and outputs of the given indices, and records the
    Variables of them that it gets back."""

    def __init__(self, inputs=(), outputs=()):
        self.to_retain = inputs, outputs

    def forward(self, inputs):
        self.retain_inputs(self.to_retain[0])
        self.retain_outputs(self.to_retain[1])
        return (inputs[0] * inputs[1],)

    def backward(self, target_input_indexes, grad_outputs):
        self.seen = self.get_retained_inputs(), self.get_retained_outputs()
        return None, None


@pytest.mark.parametrize("inputs", [(), (0,), (1,), (1, 0)])
def test_retained_inputs(inputs):
    xs = Variable(full(3)), Variable(full(4))
    function = Product(inputs)
    (y,) = function.apply(xs)
    F.sum(y).backward()
    seen, outputs = function.seen
    assert outputs == () and len(seen) == len(inputs)
    assert all(v is xs[i] for v, i in zip(seen, inputs))


def test_retained_inputs_outlive_their_variables():
    x = Variable(full(3))
    h = x * 2
    node = h.node
    function = Product((0,))
    (y,) = function.apply((h, x))
    del h
    F.sum(y).backward()
    (retained,), _ = function.seen
    assert retained.node is node
    np.testing.assert_array_equal(retained.array, full(6))


@pytest.mark.parametrize("alive", [True, False])
def test_retained_outputs_are_part_of_the_graph(alive):
    x = Variable(full(3))

    class Squared(FunctionNode):
        def forward(self, inputs):
            self.retain_outputs((0,))
            return (inputs[0] ** 2,)

        def backward(self, target_input_indexes, grad_outputs):
            (y,) = self.get_retained_outputs()
            assert y.creator_node is self
            return (grad_outputs[0] * 2 * F.sqrt(y),)

    (y,) = Squared().apply((x,))
    z = F.sum(y)
    if not alive:
        del y
    (g,) = mpchain.grad([z], [x], enable_double_backprop=True)
    np.testing.assert_allclose(g.array, full(6))
    np.testing.assert_allclose(mpchain.grad([g], [x])[0].array, full(2), rtol=1e-6)


def test_what_is_retained_is_the_array_of_the_call():
    x = Variable(full(3))
    y = x * x
    x.array = full(100)
    F.sum(y).backward()
    np.testing.assert_array_equal(x.grad, full(6))


def test_nothing_is_retained_without_a_graph():
    for x in (Variable(full(3), requires_grad=False), full(3)):
        function = Product((0,), (0,))
        function.apply((x, full(4)))
        assert function.get_retained_inputs() == () == function.get_retained_outputs()
    with mpchain.no_backprop_mode():
        function = Product((0,), (0,))
        function.apply((Variable(full(3)), full(4)))
    assert function.get_retained_inputs() == ()


# Wrong returns.


@pytest.mark.parametrize("returned", [full(1), [full(1)], None], ids=["array", "list", "None"])
def test_forward_must_return_a_tuple(returned):
    class Wrong(FunctionNode):
        def forward(self, inputs):
            return returned

    kind = type(returned).__name__
    with pytest.raises(TypeError, match=f"^Wrong.forward must return a tuple, not {kind}"):
        Wrong().apply((Variable(full(1)),))


def test_forward_may_return_scalars():
    class Total(Doubled):
        def forward(self, inputs):
            return (inputs[0].sum(),)

    (y,) = Total().apply((Variable(full(1)),))
    assert isinstance(y.array, np.ndarray) and y.shape == () and y.dtype == np.float32


@pytest.mark.parametrize("double", [False, True])
def test_backward_may_return_a_list(double):
    class Tripled(FunctionNode):
        def forward(self, inputs):
            return (inputs[0] * 3,)

        def backward(self, target_input_indexes, grad_outputs):
            return [grad_outputs[0] * 3]

    x = Variable(full(1))
    F.sum(Tripled().apply((x,))[0]).backward(enable_double_backprop=double)
    np.testing.assert_array_equal(x.grad, full(3))


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize(
    "wrong, error, message",
    [
        (lambda g: g, TypeError, r"^Wrong.backward must return a tuple, not Variable"),
        (
            lambda g: (g, g, g),
            ValueError,
            r"a gradient for each of its 2 inputs or of the 1 wanted ones, but returned 3",
        ),
        (lambda g: (), ValueError, r"^Wrong.backward must return .* but returned 0"),
        (
            lambda g: (g.array,),
            TypeError,
            r"must return Variables, but the gradient of input 0 is a ndarray",
        ),
        (
            lambda g: (F.reshape(g, (1, 2)), None),
            ValueError,
            r"^Wrong.backward: the gradient of input 0 .*gradient \(1, 2\), input \(2,\)",
        ),
    ],
)
def test_wrong_returns_of_backward(wrong, error, message, double):
    class Wrong(FunctionNode):
        def forward(self, inputs):
            return (inputs[0] * 2,)

        def backward(self, target_input_indexes, grad_outputs):
            return wrong(grad_outputs[0])

    x = Variable(full(1))
    (y,) = Wrong().apply((x, full(1)))
    with pytest.raises(error, match=message):
        F.sum(y).backward(enable_double_backprop=double)
    assert x.grad is None


def test_backward_may_return_none():
    class Stopped(Doubled):
        def backward(self, target_input_indexes, grad_outputs):
            return (None,)

    x, w = Variable(full(1)), Variable(full(2))
    (y,) = Stopped().apply((x * w,))
    F.sum(y + w).backward()
    assert x.grad is None
    np.testing.assert_array_equal(w.grad, full(1))


def test_a_gradient_of_another_dtype_is_an_error():
    class Wide(Doubled):
        def backward(self, target_input_indexes, grad_outputs):
            return (F.cast(grad_outputs[0], np.float64),)

    x = Variable(full(1), name="x")
    (y,) = Wide().apply((x,))
    with pytest.raises(TypeError, match=r"Variable 'x'.grad must have the dtype .*grad float64"):
        F.sum(y).backward()


def test_an_error_in_forward_is_the_functions_own():
    class Failing(FunctionNode):
        def forward(self, inputs):
            raise ZeroDivisionError("by intent")

    with pytest.raises(ZeroDivisionError, match="by intent"):
        Failing().apply((Variable(full(1)),))
    with pytest.raises(RuntimeError, match=r"^Failing: input 1, Variable, has no array yet"):
        Failing().apply((Variable(full(1)), Variable()))


def test_backward_accumulate_adds_what_is_known():
    x, w = Variable(full(3)), Variable(full(4))
    function = MulAdd()
    function.apply((x, w, full(0)))
    known = Variable(full(10))
    gx, gw = function.backward_accumulate((0, 1), (Variable(full(1)),), (known, None))
    np.testing.assert_array_equal(gx.array, full(14))
    np.testing.assert_array_equal(gw.array, full(3))
    np.testing.assert_array_equal(known.array, full(10))


# Devices.


@pytest.mark.gpu
def test_inputs_on_different_devices_are_refused():
    x = Variable(cuda.to_gpu(full(1)))
    with pytest.raises(TypeError, match=r"^add: all inputs must be on one device, but are on"):
        x + full(1)


def test_fallback_is_one_value_also_when_copied():
    assert copy.deepcopy(mpchain.Fallback) is mpchain.Fallback
    assert pickle.loads(pickle.dumps(mpchain.Fallback)) is mpchain.Fallback
    assert repr(mpchain.Fallback) == "Fallback"

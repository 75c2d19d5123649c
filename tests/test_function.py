"""Tests old-style functions."""

import gc
import weakref

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.function import Function, FunctionAdapter
from mpchain.function_node import FunctionNode


class MulAdd(Function):
    def forward(self, inputs):
        x, y, z = inputs
        return (x * y + z,)

    def backward(self, inputs, grad_outputs):
        x, y, _ = inputs
        (gw,) = grad_outputs
        return y * gw, x * gw, gw


class SinCos(Function):
    """Computes sine and cosine, and records the arguments of backward."""

    def forward(self, inputs):
        self.retain_inputs(())
        self.retain_outputs((0, 1))
        (x,) = inputs
        return np.sin(x), np.cos(x)

    def backward(self, inputs, grad_outputs):
        self.given = inputs, grad_outputs
        sin, cos = self.output_data
        gsin, gcos = (0 if g is None else g for g in grad_outputs)
        return (cos * gsin - sin * gcos,)


def _of(function):
    """Returns a Function whose forward is x + 1 and whose backward is ``function``."""

    class Made(Function):
        def forward(self, inputs):
            return (inputs[0] + 1,)

        def backward(self, inputs, grad_outputs):
            return function(inputs, grad_outputs)

    return Made()


@pytest.fixture
def xyz(device):
    random = np.random.RandomState(0)
    send = mpchain.get_device(device).send
    return [Variable(send(random.randn(3, 2).astype(np.float32))) for _ in range(3)]


def test_the_guides_function(xyz):
    x, y, z = xyz
    w = MulAdd()(x, y, z)
    assert isinstance(w, Variable) and w.device == x.device
    w.grad = w.xp.full((3, 2), 2, np.float32)
    w.backward()
    host = mpchain.cuda.to_cpu
    np.testing.assert_array_equal(host(w.array), host(x.array) * host(y.array) + host(z.array))
    np.testing.assert_array_equal(host(x.grad), 2 * host(y.array))
    np.testing.assert_array_equal(host(y.grad), 2 * host(x.array))
    np.testing.assert_array_equal(host(z.grad), np.full((3, 2), 2))


def test_arrays_are_accepted_and_get_no_gradient():
    given = []
    x = Variable(np.ones(2))
    F.sum(_of(lambda inputs, gys: given.append(inputs) or gys)(x)).backward()
    assert given[0][0] is x.array
    y = MulAdd()(np.ones(2), x, np.ones(2))
    np.testing.assert_array_equal(y.array, [2, 2])
    assert y.creator_node.differentiable_inputs == (1,)


def test_several_outputs_come_as_a_tuple():
    x = Variable(np.array([0.5, 1.0]))
    outputs = SinCos()(x)
    assert type(outputs) is tuple and len(outputs) == 2
    F.sum(outputs[0] * outputs[1]).backward()
    np.testing.assert_allclose(x.grad, np.cos(2 * x.array), rtol=1e-12)


def test_backward_is_given_what_was_retained_and_the_gradients_that_arrived():
    x = Variable(np.array([0.5, 1.0]))
    function = SinCos()
    cos = function(x)[1]  # the other output is deleted, but its data is retained
    F.sum(cos).backward()
    assert function.given[0] == (None,)
    assert function.given[1][0] is None
    np.testing.assert_array_equal(function.given[1][1], [1, 1])
    np.testing.assert_allclose(x.grad, -np.sin(x.array), rtol=1e-12)


def test_some_inputs_are_retained():
    given = []

    class First(Function):
        def forward(self, inputs):
            self.retain_inputs((0,))
            return (inputs[0] * inputs[1],)

        def backward(self, inputs, grad_outputs):
            given.append(inputs)
            return None, inputs[0] * grad_outputs[0]

    x, y = Variable(np.array([2.0])), Variable(np.array([3.0]))
    First()(x, y).backward()
    assert given[0][0] is x.array and given[0][1] is None
    assert x.grad is None
    np.testing.assert_array_equal(y.grad, [2])


def test_state_of_the_function_lives_from_forward_to_backward():
    class Positive(Function):
        def forward(self, inputs):
            self.mask = inputs[0] > 0
            return (inputs[0] * self.mask,)

        def backward(self, inputs, grad_outputs):
            return (grad_outputs[0] * self.mask,)

    x = Variable(np.array([-1.0, 2.0]))
    F.sum(Positive()(x) * 3).backward()
    np.testing.assert_array_equal(x.grad, [0, 3])


def test_forms_for_one_device(device):
    calls = []

    class Forms(Function):
        def forward_cpu(self, inputs):
            calls.append("forward_cpu")
            return inputs

        def forward_gpu(self, inputs):
            calls.append("forward_gpu")
            return inputs

        def backward_cpu(self, inputs, grad_outputs):
            calls.append("backward_cpu")
            return grad_outputs

        def backward_gpu(self, inputs, grad_outputs):
            calls.append("backward_gpu")
            return grad_outputs

    x = Variable(mpchain.get_device(device).send(np.ones(1)))
    Forms()(x).backward()
    kind = "cpu" if device == "@numpy" else "gpu"
    assert calls == [f"forward_{kind}", f"backward_{kind}"]
    assert x.grad is not None


@pytest.mark.parametrize("form", ["forward_cpu", "forward_gpu"])
def test_a_form_that_is_not_defined(form):
    with pytest.raises(NotImplementedError, match=f"Function defines neither forward nor {form}"):
        getattr(Function(), form)((np.ones(1),))


def test_without_backward_no_gradient_flows():
    class Constant(Function):
        def forward(self, inputs):
            return (inputs[0] * 2,)

    x = Variable(np.ones(2))
    y = Constant()(x)
    F.sum(y + x).backward()
    np.testing.assert_array_equal(x.grad, [1, 1])
    assert Constant().backward_gpu((x.array, x.array), ()) == (None, None)


def test_zero_dimensional_results_may_be_scalars():
    x = Variable(np.array(3.0))
    y = _of(lambda inputs, gys: (gys[0] * np.float64(2),))(x)
    y.backward()
    assert isinstance(x.grad, np.ndarray) and x.grad == 2
    assert isinstance(y.array, np.ndarray)


def test_the_creator_is_the_function():
    x = Variable(np.ones(2))
    function = SinCos()
    sin, cos = function(x)
    assert sin.creator is function and cos.node.creator is function
    assert isinstance(sin.creator_node, FunctionAdapter) and sin.creator_node is function.node
    assert sin.creator_node.function is function
    assert function.label == sin.creator_node.label == "SinCos"
    assert tuple(function.inputs) == (x.node,)
    assert [reference() for reference in function.outputs] == [sin.node, cos.node]
    assert function.rank == 0 and (sin + cos).creator_node.rank == 1
    y = Variable(np.ones(2))
    y.set_creator(function)
    assert y.creator is function


def test_an_adapter_applies_its_function():
    x = Variable(np.ones(2))
    function = SinCos()
    sin, _ = FunctionAdapter(function).apply((x,))
    assert sin.creator is function and function.node is sin.creator_node
    node = SinCos().node
    assert node.apply((x,))[0].creator is node.function


def test_without_graph_nothing_is_kept():
    x = Variable(np.ones(2))
    function = MulAdd()
    with mpchain.no_backprop_mode():
        y = function(x, x, x)
        y = function(y, y, y)
    assert y.creator is None
    np.testing.assert_array_equal(y.array, [6, 6])
    with pytest.raises(
        RuntimeError, match=r"MulAdd\.output_data: the function has no outputs before"
    ):
        function.output_data


def test_the_graph_is_gone_with_its_last_reference():
    gc.disable()
    try:
        x, function = Variable(np.ones(2)), SinCos()
        function.label, function.node  # reading label creates a node that has not been applied yet
        kept = [weakref.ref(x.node), weakref.ref(function), weakref.ref(function.node)]
        y = F.sum(function(x)[0])
        y.backward(enable_double_backprop=True)
        assert all(reference() is not None for reference in kept)
        del function, y, x
        assert [reference() for reference in kept] == [None] * 3
    finally:
        gc.enable()


def test_unchaining():
    x = Variable(np.ones(2))
    function = SinCos()
    sin, cos = function(x)
    function.unchain()
    assert sin.creator is None and cos.creator is None


def test_hooks():
    calls = []

    class Hook:
        name = "noting"

        def __getattr__(self, event):
            return lambda *args: calls.append((event, *args))

    x = Variable(np.ones(1))
    function = MulAdd()
    function.add_hook(Hook())
    function.add_hook(Hook(), "other")
    assert list(function.local_function_hooks) == ["noting", "other"]
    function.delete_hook("other")
    y = function(x, x, x)
    y.backward()
    node = function.node
    assert [call[:2] for call in calls] == [
        ("added", node),
        ("added", node),
        ("deleted", node),
        ("forward_preprocess", node),
        ("forward_postprocess", node),
        ("backward_preprocess", node),
        ("backward_postprocess", node),
    ]


def test_the_place_of_the_call_is_known_in_debug_mode():
    x = Variable(np.ones(1))
    with mpchain.using_config("debug", True):
        function = _of(lambda inputs, gys: 1 / 0)
        y = function(x)
        callers = [frame.name for frame in function.stack]
        with pytest.raises(ZeroDivisionError) as info:
            y.backward()
    assert "test_the_place_of_the_call_is_known_in_debug_mode" in callers
    (note,) = info.value.__notes__
    assert "in the backward of Made, called at" in note
    assert "test_the_place_of_the_call_is_known_in_debug_mode" in note


def test_types_are_checked_by_the_function():
    seen = []

    class Checking(MulAdd):
        def check_type_forward(self, in_types):
            seen.append(in_types)

    assert FunctionAdapter(Checking()).check_type_forward("types") is None
    assert seen == ["types"]
    assert Function().check_type_forward(()) is None


@pytest.mark.parametrize(
    "backward, error, message",
    [
        (lambda xs, gys: gys[0], TypeError, "Made.backward must return a tuple, not ndarray"),
        (
            lambda xs, gys: gys * 2,
            ValueError,
            "Made.backward must return a gradient, or None, for each of its 1 inputs, "
            "but returned 2",
        ),
        (
            lambda xs, gys: (gys[0][:1],),
            ValueError,
            r"Made.backward: the gradient of input 0 must have the shape of the input: "
            r"gradient \(1,\), input \(2,\)",
        ),
    ],
)
@pytest.mark.parametrize("double", [False, True])
def test_wrong_gradients(backward, error, message, double):
    y = F.sum(_of(backward)(Variable(np.ones(2))))
    with pytest.raises(error, match=message):
        y.backward(enable_double_backprop=double)


def test_forward_must_return_a_tuple():
    class Wrong(Function):
        def forward(self, inputs):
            return inputs[0]

    with pytest.raises(TypeError, match=r"Wrong\.forward must return a tuple, not ndarray"):
        Wrong()(np.ones(2))


def test_the_second_order_is_refused():
    x, y = Variable(np.array([2.0])), Variable(np.array([3.0]))
    w = MulAdd()(x, y, x)
    z = w**2
    gx, gy = mpchain.grad([z], [x, y], enable_double_backprop=True)
    np.testing.assert_array_equal(gx.array, [2 * 8 * 4])
    np.testing.assert_array_equal(gy.array, [2 * 8 * 2])
    assert isinstance(gx.creator_node, FunctionNode)
    message = (
        'cannot twice-differentiate an old style Function "MulAdd": '
        "write it as a FunctionNode, whose backward takes and returns Variables"
    )
    for source in (x, y, w):
        with pytest.raises(RuntimeError, match=message):
            mpchain.grad([gx], [source])


def test_the_second_order_is_refused_where_no_input_is_retained():
    x = Variable(np.array([0.5]))
    (gx,) = mpchain.grad([SinCos()(x)[0]], [x], enable_double_backprop=True)
    np.testing.assert_allclose(gx.array, np.cos([0.5]))
    with pytest.raises(RuntimeError, match='old style Function "SinCos"'):
        gx.backward()


def test_no_gradient_at_all_with_graph():
    x = Variable(np.ones(2))
    y = _of(lambda inputs, gys: (None,))(x)
    assert mpchain.grad([y], [x], enable_double_backprop=True) == [None]


class Squared(Function):
    """Stores twice its input as an attribute, and retains its output in the graph."""

    def forward(self, inputs):
        self.retain_outputs((0,))
        self.factor = 2 * inputs[0]
        return (inputs[0] ** 2,)

    def backward(self, inputs, grad_outputs):
        np.testing.assert_array_equal(self.output_data[0], inputs[0] ** 2)
        return [self.factor * grad_outputs[0]]


def test_an_instance_is_called_several_times_in_one_graph():
    function = Squared()
    x, y = Variable(np.array([3.0])), Variable(np.array([5.0]))
    a, b, c = function(x), function(y), function(function(y))
    assert a.creator_node is not b.creator_node and function.output_data[0] is c.array
    assert function.inputs[0].creator is not None and c.creator is function
    F.sum(a + b + c).backward()
    np.testing.assert_array_equal(x.grad, [6.0])
    np.testing.assert_array_equal(y.grad, [10.0 + 4 * 5.0**3])


def test_an_instance_is_called_again_after_backward():
    function = Squared()
    x = Variable(np.array([3.0]))
    for _ in range(2):
        y = function(x)
        x.cleargrad()
        y.backward()
        np.testing.assert_array_equal(x.grad, [6.0])


def test_gradients_come_as_a_list_too():
    x = Variable(np.array([3.0]))
    y = _of(lambda inputs, gys: [4 * gys[0]])(x)
    y.backward()
    np.testing.assert_array_equal(x.grad, [4.0])

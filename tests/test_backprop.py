"""Tests which functions backpropagation visits, what it accumulates and keeps, and what it
refuses."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Parameter, Variable, backprop
from tests.probes import Doubled, Halves, doubled, full

# grad: arguments and results.


def test_grad_returns_a_list_and_changes_no_variable():
    x, w = Variable(full(3)), Variable(full(4))
    h = x * w
    y = h * h
    gradients = mpchain.grad([y], [h, x, w])
    assert isinstance(gradients, list)
    for g, expected in zip(gradients, (24, 96, 72), strict=True):
        assert isinstance(g, Variable) and g.creator is None
        np.testing.assert_array_equal(g.array, full(expected))
    assert all(v.grad is None for v in (x, w, h, y))


def test_grad_outputs_default_to_ones_one_by_one():
    x = Variable(full(3))
    a, b = x * 2, x * 5
    given = Variable(full(10))
    for grad_outputs, expected in [
        (None, 7),
        ([None, None], 7),
        ([given, None], 25),
        ((None, given), 52),
        ([full(10), full(1)], 25),
    ]:
        (g,) = mpchain.grad([a, b], [x], grad_outputs)
        np.testing.assert_array_equal(g.array, full(expected))


def test_grad_of_the_same_output_twice_counts_it_twice():
    x = Variable(full(3))
    y = x * 2
    np.testing.assert_array_equal(mpchain.grad([y, y], [x])[0].array, full(4))
    twice = mpchain.grad([y], [x, x])
    np.testing.assert_array_equal(twice[0].array, full(2))
    np.testing.assert_array_equal(twice[1].array, full(2))


def test_grad_inputs_are_added_and_not_changed():
    x, w, u = (Variable(full(v)) for v in (3, 4, 5))
    y = x * w
    known = [Variable(full(10)), None, Variable(full(20))]
    gradients = mpchain.grad([y], [x, w, u], grad_inputs=known)
    for g, expected in zip(gradients, (14, 3, 20), strict=True):
        np.testing.assert_array_equal(g.array, full(expected))
    np.testing.assert_array_equal(known[0].array, full(10))
    (g,) = mpchain.grad([y], [x], grad_inputs=[known[0]], enable_double_backprop=True)
    np.testing.assert_array_equal(mpchain.grad([g], [known[0], w])[1].array, full(1))


def test_set_grad_stores_the_results():
    x, u = Variable(full(3)), Variable(full(1), grad=full(9))
    h = x * x
    gradients = mpchain.grad([h * 5], [x, h, u], set_grad=True, enable_double_backprop=True)
    assert x.grad_var is gradients[0] and h.grad_var is gradients[1]
    assert gradients[2] is None and u.grad is None


def test_retain_grad_stores_the_gradients_on_the_way():
    x = Variable(full(3))
    h = x * x
    aside = x * 7
    y = h * aside
    mpchain.grad([y], [h], retain_grad=True)
    np.testing.assert_array_equal(y.grad, full(1))
    np.testing.assert_array_equal(h.grad, full(21))
    assert aside.grad is None and x.grad is None


def test_loss_scale_multiplies_the_initial_gradients():
    x = Variable(full(3))
    y = x * 2
    np.testing.assert_array_equal(mpchain.grad([y], [x], loss_scale=10)[0].array, full(20))
    (g,) = mpchain.grad([y], [x], [Variable(full(3))], loss_scale=10)
    np.testing.assert_array_equal(g.array, full(60))


def test_unreachable_inputs_have_no_gradient():
    x, u = Variable(full(3)), Variable(full(1))
    constant = Variable(full(2), requires_grad=False)
    y = x * constant
    after = y * 2
    assert mpchain.grad([y], [u, constant, after]) == [None, None, None]
    assert mpchain.grad([], [x]) == [None]
    assert mpchain.grad([y], []) == []
    assert mpchain.grad([constant], [x]) == [None]


def test_an_input_may_be_an_output():
    x = Variable(full(3))
    a = x * 2
    b = a * 3
    for outputs, inputs, expected in [
        ([a], [a], [1]),
        ([x], [x], [1]),
        ([a, b], [a, x], [4, 8]),
        ([x, b], [x], [7]),
        ([b, a, x], [b, a, x], [1, 4, 9]),
    ]:
        gradients = mpchain.grad(outputs, inputs)
        for g, value in zip(gradients, expected, strict=True):
            np.testing.assert_array_equal(g.array, full(value))


def test_only_functions_between_inputs_and_outputs_are_visited():
    x, w = Variable(full(3)), Variable(full(4))
    below, h = doubled(x)
    beside, side = doubled(w)
    between, m = doubled(h + side)
    above, y = doubled(m)
    mpchain.grad([m], [h])
    assert [f.n_calls for f in (below, beside, between, above)] == [0, 0, 1, 0]
    mpchain.grad([y], [x])
    assert [f.n_calls for f in (below, beside, between, above)] == [1, 0, 2, 1]
    mpchain.grad([y], [m])
    assert [f.n_calls for f in (below, beside, between, above)] == [1, 0, 2, 2]
    y.grad = full(1)
    y.backward()
    assert [f.n_calls for f in (below, beside, between, above)] == [2, 1, 3, 3]


def test_each_function_runs_once_however_many_paths_there_are():
    x = Variable(full(0.5))
    functions, h = [], x
    for _ in range(30):
        function, d = doubled(h)
        functions.append(function)
        h = d * 0.25 + d * 0.25
    h.grad = full(1)
    h.backward()
    assert [f.n_calls for f in functions] == [1] * 30
    np.testing.assert_allclose(x.grad, full(1))


def test_missing_gradients_of_outputs_are_none():
    function = Halves()
    x = Variable(full(3))
    a, b = function.apply((x,))
    np.testing.assert_array_equal(mpchain.grad([b], [x])[0].array, [0, 1])
    assert function.seen[0] is None
    np.testing.assert_array_equal(mpchain.grad([a * b], [x])[0].array, [3, 3])
    assert [type(g) for g in function.seen] == [Variable, Variable]
    (gb,) = mpchain.grad([a * b], [b])
    np.testing.assert_array_equal(gb.array, [3])


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda x, y: mpchain.grad(y, [x]), TypeError, r"^grad: outputs must be a list or tuple"),
        (lambda x, y: mpchain.grad([y], x), TypeError, r"^grad: inputs must be a list or tuple"),
        (
            lambda x, y: mpchain.grad([y], [full(1)]),
            TypeError,
            r"^grad: inputs\[0\] must be a Variable, not ndarray",
        ),
        (
            lambda x, y: mpchain.grad([x, None], [x]),
            TypeError,
            r"^grad: outputs\[1\] must be a Variable, not NoneType",
        ),
        (
            lambda x, y: mpchain.grad([y], [x], [Variable(full(1, (3,)))]),
            ValueError,
            r"^grad: grad_outputs\[0\] must have the shape .*gradient \(3,\), output \(2,\)",
        ),
        (
            lambda x, y: mpchain.backward(y),
            TypeError,
            r"^backward: outputs must be a list or tuple of Variables, not Variable",
        ),
        (
            lambda x, y: mpchain.backward([y], [None, None]),
            ValueError,
            r"^backward: grad_outputs and outputs must have the same length, not 2 and 1",
        ),
        (
            lambda x, y: mpchain.backward([y], [full(1, (3,))]),
            ValueError,
            r"^backward: grad_outputs\[0\] must have the shape",
        ),
        (
            lambda x, y: y.backward(),
            ValueError,
            r"^Variable.backward: y has more than one element \(shape \(2,\)\): set y.grad",
        ),
    ],
)
def test_wrong_arguments(call, error, message):
    x = Variable(full(1))
    with pytest.raises(error, match=message):
        call(x, x * 2)
    assert x.grad is None


@pytest.mark.parametrize("argument", ["grad_outputs", "grad_inputs"])
def test_wrong_lengths(argument):
    x = Variable(full(1))
    with pytest.raises(ValueError, match=f"^grad: .*{argument}"):
        mpchain.grad([x * 2], [x], **{argument: []})


# backward: accumulation, and what is kept.


def test_one_element_starts_from_one_of_its_dtype_and_shape():
    for shape in ((), (1,), (1, 1)):
        x = Variable(full(3, shape, np.float16))
        (x * 2).backward()
        assert x.grad.shape == shape and x.grad.dtype == np.float16
        np.testing.assert_array_equal(x.grad, full(2, shape))


def test_gradients_accumulate_in_leaves():
    x, w = Variable(full(3)), Parameter(full(4))
    for expected in (1, 2, 3):
        F.sum(x * w).backward()
        np.testing.assert_array_equal(x.grad, full(4 * expected))
        np.testing.assert_array_equal(w.grad, full(3 * expected))


def test_intermediate_gradients_are_not_kept_unless_asked():
    x = Variable(full(3))
    h = x * 2
    y = F.sum(h * h)
    y.backward()
    assert h.grad is None
    np.testing.assert_array_equal(x.grad, full(24))
    y.cleargrad()
    y.backward(retain_grad=True)
    np.testing.assert_array_equal(h.grad, full(12))
    np.testing.assert_array_equal(y.grad, 1)


def test_the_gradient_of_the_output_is_released_too():
    x = Variable(full(3))
    y = x * 2
    y.grad = full(1)
    y.backward()
    assert y.grad is None
    y.grad = full(1)
    y.backward(retain_grad=True)
    np.testing.assert_array_equal(y.grad, full(1))


def test_a_gradient_that_an_intermediate_variable_has_is_not_used():
    x = Variable(full(3))
    h = x * 2
    h.grad = full(100)
    F.sum(h * 3).backward()
    np.testing.assert_array_equal(x.grad, full(6))


def test_backward_twice_with_another_loss_scale():
    x = Variable(full(3, (1,)))
    y = x * 2
    for scale, expected in [(10, 20), (100, 200), (None, 2)]:
        x.cleargrad()
        y.backward(loss_scale=scale)
        np.testing.assert_array_equal(x.grad, [expected])


def test_loss_scale_leaves_a_gradient_that_was_set():
    x = Variable(full(3))
    y = x * 2
    y.grad = full(1)
    y.backward(loss_scale=10)
    np.testing.assert_array_equal(x.grad, full(2))


def test_backward_of_a_leaf():
    x = Variable(full(3, (1,)))
    x.backward()
    np.testing.assert_array_equal(x.grad, [1])
    x.grad = full(5, (1,))
    x.backward()
    np.testing.assert_array_equal(x.grad, [5])


def test_joint_backward():
    x = Variable(full(3))
    a = x * 2
    b = a * 3
    mpchain.backward([a, b], [Variable(full(1)), full(10)])
    np.testing.assert_array_equal(x.grad, full(62))
    x.cleargrad()
    a.grad, b.grad = full(1), full(10)
    mpchain.backward([a, b])
    np.testing.assert_array_equal(x.grad, full(62))


def test_joint_backward_takes_an_output_listed_twice_once_unless_given_two_gradients():
    x = Variable(full(3))
    y = x * 2
    y.grad = full(1)
    mpchain.backward([y, y])
    np.testing.assert_array_equal(x.grad, full(2))
    assert y.grad is None
    x.cleargrad()
    y.grad = full(7)
    mpchain.backward([y, y], [full(1), full(10)])
    np.testing.assert_array_equal(x.grad, full(22))
    np.testing.assert_array_equal(y.grad, full(7))


def test_joint_backward_never_fills_in_ones():
    x = Variable(full(3, (1,)))
    a, b = x * 2, x * 5
    mpchain.backward([a, b])
    assert x.grad is None
    mpchain.backward([a, b], [None, Variable(full(1, (1,)))])
    np.testing.assert_array_equal(x.grad, [5])
    with pytest.raises(TypeError, match=r"unexpected keyword"):
        mpchain.backward([a], retain_grad=True)


def test_joint_backward_through_functions_with_several_outputs():
    x = Variable(np.arange(4, dtype=np.float32))
    a, b = F.split_axis(x, 2, 0)
    mpchain.backward([a * a, b], [full(1), full(10)])
    np.testing.assert_array_equal(x.grad, [0, 2, 10, 10])


def test_unused_outputs_and_dead_ends():
    x, w = Variable(full(3)), Variable(full(4))
    h = x * 2
    h * w
    y = F.sum(h)
    y.backward()
    np.testing.assert_array_equal(x.grad, full(2))
    assert w.grad is None


def test_requires_grad_stops_the_walk():
    x, fixed = Variable(full(3)), Variable(full(4), requires_grad=False)
    function, h = doubled(fixed)
    F.sum(x * h).backward()
    np.testing.assert_array_equal(x.grad, full(8))
    assert fixed.grad is None and function.n_calls == 0


def test_a_leaf_that_is_gone_is_passed_over():
    y = F.sum(Variable(full(3)) * Variable(full(4)))
    y.backward()


def test_graph_of_the_gradient_only_when_asked():
    x = Variable(full(3))
    y = F.sum(x * x * x)
    y.backward()
    assert x.grad_var.creator is None
    x.cleargrad()
    y.backward(enable_double_backprop=True)
    gx = x.grad_var
    assert gx.creator is not None and gx.array is x.grad
    x.cleargrad()
    gx.grad = full(1)
    gx.backward()
    np.testing.assert_array_equal(x.grad, full(18))


def test_gradients_with_graphs_accumulate():
    x = Variable(full(3))
    for _ in range(2):
        F.sum(x * x).backward(enable_double_backprop=True)
    (ggx,) = mpchain.grad([x.grad_var], [x])
    np.testing.assert_array_equal(ggx.array, full(4))


def test_backprop_modes():
    x = Variable(full(3))
    with mpchain.no_backprop_mode():
        y = x * 2
        with mpchain.force_backprop_mode():
            z = F.sum(x * 2)
        z.backward()
    assert y.creator is None and y.requires_grad and z.creator is not None
    np.testing.assert_array_equal(x.grad, full(2))
    assert mpchain.config.enable_backprop


def test_the_mode_is_restored_when_a_derivative_fails():
    class Failing(Doubled):
        def backward(self, target_input_indexes, grad_outputs):
            raise ZeroDivisionError("by intent")

    (y,) = Failing().apply((Variable(full(3)),))
    with pytest.raises(ZeroDivisionError):
        F.sum(y).backward()
    assert mpchain.config.enable_backprop and "enable_backprop" not in vars(mpchain.config)


# Modes and graphs that a program could forget about without an error.


def _energy(x):
    return F.sum(x**3)


def test_grad_of_what_has_no_graph_names_the_remedy():
    x = Variable(full(2))
    with mpchain.no_backprop_mode():
        with pytest.raises(RuntimeError, match=r"^grad: outputs\[0\] has no graph.*force_backprop"):
            mpchain.grad([_energy(x)], [x])
        with mpchain.force_backprop_mode():
            np.testing.assert_array_equal(mpchain.grad([_energy(x)], [x])[0].array, full(12))


def test_grad_without_a_graph_of_a_graph_that_was_made_before():
    """Inputs that the outputs do not depend on have no gradient, whatever the mode is now."""
    x, w = Variable(full(2)), Variable(full(5))
    y = _energy(x)
    with mpchain.no_backprop_mode():
        gx, gw = mpchain.grad([y], [x, w])
        assert mpchain.grad([x], [x])[0].array.tolist() == [1, 1]
    assert gw is None
    np.testing.assert_array_equal(gx.array, full(12))


_LOSSES = {
    "the slope": lambda g, y: g,
    "a function of the slope": lambda g, y: g * g,
    "with more": lambda g, y: g + y,
    "deep within": lambda g, y: F.exp(F.tanh(-g) * 2) + y * y,
    "by another path": lambda g, y: F.concat([F.expand_dims(g, 0), F.expand_dims(y, 0)], 0),
}
_BACKPROPAGATE = {
    "Variable.backward": lambda loss, x: loss.backward(),
    "backward": lambda loss, x: mpchain.backward([loss], [full(1, ())]),
    "grad": lambda loss, x: mpchain.grad([loss], [x]),
}


@pytest.fixture
def nothing_marked(monkeypatch):
    monkeypatch.setattr(backprop.marked, "has_warned", False)
    monkeypatch.setattr(backprop.marked, "exist", False)
    backprop.marked.nodes.clear()


@pytest.mark.parametrize("make", _LOSSES.values(), ids=_LOSSES)
@pytest.mark.parametrize("called", _BACKPROPAGATE)
def test_a_loss_of_a_slope_without_its_graph_is_told_once(make, called, nothing_marked):
    x = Variable(full(2))

    def train(**options):
        y = x**3
        (g,) = mpchain.grad([y], [x], [Variable(full(1))], **options)
        _BACKPROPAGATE[called](F.sum(make(g, y)), x)

    for wanted in (True, False):  # the slope has a graph, or is an intended constant
        train(enable_double_backprop=wanted)
    message = f"^{called}: .*enable_double_backprop=True.*enable_double_backprop=False"
    with pytest.warns(UserWarning, match=message) as seen:
        train()
        train()
    assert len(seen) == 1 and seen[0].filename == __file__


def test_freed_slopes_are_looked_for_no_more(nothing_marked):
    x = Variable(full(2))
    mpchain.grad([x**3], [x], [Variable(full(1))])
    assert backprop.marked.exist
    F.sum(x * x).backward()
    assert not backprop.marked.exist


def test_slopes_for_formulas_of_second_derivatives_are_not_marked(nothing_marked):
    @mpchain.elementwise(lambda g, x: g * np.tanh(x) * x)
    def gain(x):
        return x * x

    x = Variable(full(2))
    (g,) = mpchain.grad([F.sum(gain(x))], [x], enable_double_backprop=True)
    mpchain.grad([F.sum(g)], [x], enable_double_backprop=True)
    assert not backprop.marked.exist


def test_slopes_beside_the_loss_need_no_graph(nothing_marked):
    x = Variable(full(2))
    y = x**3
    (g,) = mpchain.grad([y], [x], [Variable(full(1))])
    norm = F.sum(g * g)
    moved = x.array + 0.1 * g.array  # arrays are intended constants
    loss = F.sum(y * moved)
    loss.backward()
    assert norm.array == 288 and x.grad is not None

"""Tests hooks of functions, which may be any objects with FunctionHook's methods."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from tests.probes import Doubled, full


class Noting:
    name = "noting"

    def __init__(self):
        self.calls = []

    def added(self, function):
        self.calls.append(("added", function))

    def deleted(self, function):
        self.calls.append(("deleted", function))

    def forward_preprocess(self, function, in_data):
        self.calls.append(("forward_preprocess", function.label, in_data))

    def forward_postprocess(self, function, in_data):
        self.calls.append(("forward_postprocess", function.label, in_data))

    def backward_preprocess(self, function, in_data, out_grad):
        self.calls.append(("backward_preprocess", function.label, in_data, out_grad))

    def backward_postprocess(self, function, in_data, out_grad):
        self.calls.append(("backward_postprocess", function.label, in_data, out_grad))

    def steps(self):
        return [call[:2] for call in self.calls]


def _hooked(hook):
    return mpchain.using_config("function_hooks", {hook.name: hook})


@pytest.mark.parametrize("double", [False, True])
def test_global_hooks_see_every_forward_and_backward(double):
    x = Variable(full(3))
    hook = Noting()
    with _hooked(hook):
        h = F.exp(x)
        y = h * 2
        y.grad = full(1)
        y.backward()
    z = F.exp(x)
    F.sum(z).backward()
    names = ["exp", "multiply_by_constant"]
    forward = (
        [("forward_preprocess", n) for n in names],
        [("forward_postprocess", n) for n in names],
    )
    assert hook.steps()[:4] == [step for pair in zip(*forward) for step in pair]
    backward = hook.calls[4:]
    assert [call[:2] for call in backward] == [
        (f"backward_{step}", name)
        for name in reversed(names)
        for step in ("preprocess", "postprocess")
    ]
    (in_data,) = backward[0][2]
    assert in_data is h.array
    (out_grad,) = backward[2][3]
    assert isinstance(out_grad, np.ndarray)
    np.testing.assert_array_equal(out_grad, full(2))


def test_hooks_see_the_operations_of_a_recorded_backward():
    x = Variable(full(3))
    y = F.sum(F.exp(x))
    hook = Noting()
    with _hooked(hook):
        mpchain.grad([y], [x], enable_double_backprop=True)
    steps = hook.steps()
    assert ("backward_preprocess", "exp") in steps and ("backward_postprocess", "sum") in steps
    inside = steps[
        steps.index(("backward_preprocess", "exp")) : steps.index(("backward_postprocess", "exp"))
    ]
    assert any(step == "forward_preprocess" for step, _ in inside)
    assert all(isinstance(g, np.ndarray) for call in hook.calls[-1:] for g in call[3])


def test_hooks_see_users_functions_and_none_gradients():
    hook = Noting()
    with _hooked(hook):
        a, b = F.split_axis(Variable(full(3)), 2, 0)
        F.sum(b).backward()
    (gradients,) = [call[3] for call in hook.calls if call[:2] == ("backward_preprocess", "split")]
    assert gradients[0] is None
    np.testing.assert_array_equal(gradients[1], [1])
    assert a.grad is None


def test_local_hooks_see_one_function():
    hook = Noting()
    function = Doubled()
    function.add_hook(hook)
    other = Doubled()
    x = Variable(full(3))
    (y,) = function.apply((x,))
    (z,) = other.apply((y,))
    F.sum(z).backward()
    assert hook.calls[0] == ("added", function)
    assert hook.steps()[1:] == [
        (step, "Doubled")
        for step in (
            "forward_preprocess",
            "forward_postprocess",
            "backward_preprocess",
            "backward_postprocess",
        )
    ]
    assert hook.calls[1][2][0] is x.array
    assert list(function.local_function_hooks) == ["noting"] and not other.local_function_hooks
    function.delete_hook("noting")
    assert hook.calls[-1] == ("deleted", function) and not function.local_function_hooks
    n_calls = len(hook.calls)
    F.sum(z).backward()
    assert len(hook.calls) == n_calls


def test_local_hooks_have_names():
    function, hook = Doubled(), Noting()
    function.add_hook(hook)
    function.add_hook(hook, name="again")
    assert list(function.local_function_hooks) == ["noting", "again"]
    with pytest.raises(KeyError, match=r"Doubled.add_hook: the node already has a hook 'noting'"):
        function.add_hook(hook)
    with pytest.raises(KeyError, match=r"Doubled.delete_hook: the node has no hook 'absent'"):
        function.delete_hook("absent")


def test_a_hook_that_raises_stops_the_call():
    class Refusing(Noting):
        def forward_preprocess(self, function, in_data):
            raise PermissionError(function.label)

        def backward_preprocess(self, function, in_data, out_grad):
            raise PermissionError(function.label)

    x = Variable(full(3))
    y = F.sum(x)
    with _hooked(Refusing()):
        with pytest.raises(PermissionError, match="exp"):
            F.exp(x)
        with pytest.raises(PermissionError, match="sum"):
            y.backward()
    assert x.grad is None


@pytest.mark.parametrize(
    ("function", "label"),
    [(F.relu, "relu"), (F.leaky_relu, "leaky_relu"), (lambda x: F.linear(x, x), "linear")],
)
def test_with_hooks_the_same_code_computes(function, label, monkeypatch):
    """Functions with hooks run the same code as without, not the slower general path, so hooks
    measure true times."""
    x = Variable(np.random.RandomState(0).randn(3, 3))
    expected = function(x)
    hook = Noting()
    monkeypatch.setattr(mpchain.FunctionNode, "apply", None)
    with _hooked(hook):
        for _ in range(2):
            y = function(x)
    assert hook.steps() == [("forward_preprocess", label), ("forward_postprocess", label)] * 2
    assert hook.calls[0][2][0] is x.array
    np.testing.assert_array_equal(y.array, expected.array)
    y.grad = expected.grad = np.ones_like(y.array)
    y.backward()
    gradient = x.grad
    x.cleargrad()
    expected.backward()
    np.testing.assert_array_equal(gradient, x.grad)


def test_constants_are_known_to_hooks():
    class Slope(mpchain.FunctionHook):
        def forward_preprocess(self, function, in_data):
            seen.append(function.constants)

    seen = []
    with Slope():
        F.leaky_relu(np.zeros(2), slope=0.25)
    assert seen == [(0.25,)]


def test_errors_of_functions_with_hooks():
    messages = []
    for hooks in ({}, {"noting": Noting()}):
        with mpchain.using_config("function_hooks", hooks):
            with pytest.raises(mpchain.utils.type_check.InvalidType) as error:
                F.exp(np.arange(3))
            messages.append(str(error.value))
    assert messages[0] == messages[1]

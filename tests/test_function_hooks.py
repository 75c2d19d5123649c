"""Tests FunctionHook and the hooks that come with mpchain."""

import io
import re
import threading
import types

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.backends import cuda
from mpchain.function import Function
from mpchain.function_hook import FunctionHook, get_function_hooks
from mpchain.function_hooks import (
    CUDAProfileHook,
    CupyMemoryProfileHook,
    PrintHook,
    TimerHook,
)
from mpchain.function_hooks.report import BYTE_UNITS, print_table, summarize
from tests.probes import Doubled


class Noting(FunctionHook):
    name = "Noting"

    def __init__(self):
        self.steps = []

    def added(self, function):
        self.steps.append(("added", function))

    def deleted(self, function):
        self.steps.append(("deleted", function))

    def forward_postprocess(self, function, in_data):
        self.steps.append(("forward", function.label))

    def backward_postprocess(self, function, in_data, out_grad):
        self.steps.append(("backward", function.label))


class OldStyle(Function):
    def forward(self, inputs):
        return (inputs[0] * 2,)

    def backward(self, inputs, grad_outputs):
        return (grad_outputs[0] * 2,)


@pytest.fixture
def x():
    return Variable(np.array([1.0, 2.0]))


def test_a_hook_that_defines_nothing(x):
    with FunctionHook() as hook:
        F.sum(x).backward()
    assert hook.name == "FunctionHook"
    np.testing.assert_array_equal(x.grad, [1, 1])


def test_functions_of_every_kind_are_seen(x):
    with Noting() as hook:
        y = F.exp(OldStyle()(Doubled().apply((x,))[0]))
        a, _ = F.split_axis(y, 2, 0)
        F.sum(a).backward()
    names = ["Doubled", "OldStyle", "exp", "split", "sum"]
    assert hook.steps[1:6] == [("forward", name) for name in names]
    backward = [name for step, name in hook.steps if step == "backward"]
    assert backward == names[::-1]
    assert hook.steps[0] == ("added", None) and hook.steps[-1] == ("deleted", None)


def test_gradients_of_gradients_are_seen(x):
    y = F.sum(F.exp(x))
    with Noting() as hook:
        (gx,) = mpchain.grad([y], [x], enable_double_backprop=True)
        first = len(hook.steps)
        F.sum(gx).backward()
    assert ("forward", "multiply") in hook.steps[:first]
    assert ("backward", "multiply") in hook.steps[first:]


def test_hooks_end_with_their_block(x):
    with pytest.raises(ZeroDivisionError):
        with Noting() as hook:
            assert get_function_hooks() == {"Noting": hook}
            1 / 0
    assert get_function_hooks() == {}
    F.sum(x).backward()
    assert hook.steps == [("added", None), ("deleted", None)]


def test_several_hooks_in_any_order(x):
    first, second = Noting(), Noting()
    second.name = "second"
    with first:
        second.__enter__()
        F.exp(x)
    F.sum(x)
    second.__exit__(None, None, None)
    assert [s for s in first.steps if s[0] == "forward"] == [("forward", "exp")]
    assert [s for s in second.steps if s[0] == "forward"] == [
        ("forward", "exp"),
        ("forward", "sum"),
    ]
    assert get_function_hooks() == {}


def test_one_hook_of_a_name_at_a_time(x):
    hook = Noting()
    with hook:
        for other in (hook, Noting()):
            with pytest.raises(
                KeyError, match="hook Noting already exists and is active in this thread"
            ):
                with other:
                    pass
        F.exp(x)
    assert ("forward", "exp") in hook.steps and get_function_hooks() == {}


def test_a_hook_that_cannot_be_added_is_not_active():
    class Refusing(FunctionHook):
        def added(self, function):
            raise PermissionError

    with pytest.raises(PermissionError):
        Refusing().__enter__()
    assert get_function_hooks() == {}


def test_other_threads_are_not_seen(x):
    def work():
        F.tanh(x)
        with own:
            F.sqrt(x)

    hook, own = Noting(), Noting()  # the hooks have the same name, and each is active in one thread
    with hook:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        F.exp(x)
    assert [name for step, name in hook.steps if step == "forward"] == ["exp"]
    assert [name for step, name in own.steps if step == "forward"] == ["sqrt"]


def test_hooks_of_all_threads_stay_when_one_ends(x):
    everywhere = Noting()
    everywhere.name = "everywhere"
    hooks = {"everywhere": everywhere}
    with mpchain.using_config("function_hooks", hooks, mpchain.global_config):
        with Noting() as hook:
            F.exp(x)
        F.tanh(x)
        assert everywhere.steps == [("forward", "exp"), ("forward", "tanh")]
        assert ("forward", "exp") in hook.steps
        assert mpchain.global_config.function_hooks == {"everywhere": everywhere}


# TimerHook


def test_timer_counts_calls_by_label(x):
    with TimerHook() as hook:
        F.sum(F.exp(F.exp(x))).backward()
    names = [name for name, _ in hook.call_history]
    assert names == ["exp", "exp", "sum", "sum", "exp", "exp"]
    times = [seconds for _, seconds in hook.call_history]
    assert all(isinstance(t, float) and t > 0 for t in times)
    assert hook.total_time() == pytest.approx(sum(times))
    summary = hook.summary()
    assert list(summary) == ["exp", "sum"]
    assert summary["exp"]["occurrence"] == 4 and summary["sum"]["occurrence"] == 2
    assert summary["sum"]["elapsed_time"] == pytest.approx(times[2] + times[3])


def test_timer_of_one_function(x):
    function, hook = Doubled(), TimerHook()
    function.add_hook(hook)
    F.sum(function.apply((x,))[0]).backward()
    assert [name for name, _ in hook.call_history] == ["Doubled", "Doubled"]


def test_timer_goes_on_after_an_error(x):
    with TimerHook() as hook:
        with pytest.raises(Exception, match="reshape"):
            F.reshape(x, (3,))
        F.exp(x)
    assert [name for name, _ in hook.call_history] == ["exp"]


def _timed(*history):
    hook = TimerHook()
    hook.call_history = list(history)
    return hook


@pytest.mark.parametrize(
    "unit, long, short",
    [
        ("auto", "1.50sec", "0.00sec"),
        ("auto_foreach", "1.50sec", "25.00us"),
        ("ms", "1500.00ms", "0.03ms"),
        ("ns", "1500000000.00ns", "25000.00ns"),
    ],
)
def test_timer_report(unit, long, short, capsys):
    hook = _timed(("linear", 1.0), ("relu", 2.5e-5), ("linear", 0.5))
    hook.print_report(unit)
    out = io.StringIO()
    hook.print_report(unit=unit, file=out)
    lines = out.getvalue().splitlines()
    assert capsys.readouterr().out == out.getvalue()
    assert [line.split() for line in lines] == [
        ["FunctionName", "ElapsedTime", "Occurrence"],
        ["linear", long, "2"],
        ["relu", short, "1"],
    ]
    assert len({len(line) for line in lines}) == 1


def test_timer_report_of_nothing(capsys):
    TimerHook().print_report()
    assert capsys.readouterr().out == "FunctionName  ElapsedTime  Occurrence\n"


def test_an_unknown_unit():
    message = "print_report: unit must be one of sec, ms, us, ns, auto, auto_foreach, not 'minutes'"
    with pytest.raises(ValueError, match=message):
        TimerHook().print_report(unit="minutes")


@pytest.mark.gpu
def test_timer_on_a_gpu():
    x = Variable(cuda.cupy.ones(3))
    with TimerHook() as hook:
        F.sum(F.exp(x)).backward()
    assert len(hook.call_history) == 4 and hook.total_time() > 0


# PrintHook


def test_print_hook_shows_inputs_and_gradients(x, capsys):
    with PrintHook():
        y = F.exp(x)
    forward = capsys.readouterr().out
    assert forward.splitlines()[:2] == ["function\texp", "input data"]
    assert forward.count("- statistics: mean=1.5, std=0.5, min=1, max=2") == 1
    out = io.StringIO()
    y.grad = np.full(2, 7.0)
    with PrintHook(file=out):
        y.backward()
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["function\texp", "input data"]
    assert "- statistics: mean=7, std=0, min=7, max=7" in lines[lines.index("output gradient") :]


def test_print_hook_shows_what_is_gone(x):
    out = io.StringIO()
    y = F.sum(F.exp(x))
    with PrintHook(file=out):
        y.backward()
    assert out.getvalue().startswith("function\tsum\ninput data\n(removed)\noutput gradient\n")


def test_print_hooks_options(x):
    class Out(io.StringIO):
        n_flushed = 0

        def flush(self):
            self.n_flushed += 1

    out = Out()
    with PrintHook(sep=" ", end="|", file=out, flush=False):
        F.exp(x)
    assert out.getvalue().startswith("function\texp|input data|") and not out.n_flushed
    with PrintHook(file=out):
        F.exp(x)
    assert out.n_flushed


# Memory and profiler hooks


@pytest.mark.skipif("cuda.available")
@pytest.mark.parametrize("kind", [CupyMemoryProfileHook, CUDAProfileHook])
def test_gpu_hooks_without_a_gpu(kind):
    with pytest.raises(RuntimeError, match="a GPU is needed here, but CuPy"):
        kind()


class _PretendedHook:
    """Imitates ``cupy.cuda.MemoryHook`` for a memory pool that the test simulates."""

    active = []

    def __enter__(self):
        self.active.append(self)
        return self

    def __exit__(self, *exc_info):
        self.active.remove(self)


@pytest.fixture
def pretended_cupy(pretend_cupy):
    """Replaces the parts of CuPy that the hooks use, without a GPU."""
    ranges = []
    nvtx = types.SimpleNamespace(RangePush=ranges.append, RangePop=lambda: ranges.append("pop"))
    cupy = types.SimpleNamespace(
        cuda=types.SimpleNamespace(MemoryHook=_PretendedHook, nvtx=nvtx), ranges=ranges
    )
    return pretend_cupy(cupy)


class _Allocating(Doubled):
    """Allocates memory of the simulated pool in forward and in backward."""

    def forward(self, inputs):
        self._allocate(512, 1024)
        return super().forward(inputs)

    def backward(self, target_input_indexes, grad_outputs):
        self._allocate(2048, 0)
        return super().backward(target_input_indexes, grad_outputs)

    def _allocate(self, used, acquired):
        for hook in _PretendedHook.active:
            if acquired:
                hook.alloc_postprocess(device_id=0, mem_size=acquired, mem_ptr=1)
            hook.malloc_postprocess(device_id=0, size=used, mem_size=used, mem_ptr=1, pmem_id=1)


def test_memory_profile_counts_bytes_by_label(pretended_cupy, x):
    with CupyMemoryProfileHook() as hook:
        assert len(_PretendedHook.active) == 1
        y = _Allocating().apply((x,))[0]
        F.sum(y).backward()
    assert not _PretendedHook.active
    assert [call for call in hook.call_history if call[0] in ("_Allocating", "sum")] == [
        ("_Allocating", 512, 1024),
        ("sum", 0, 0),
        ("sum", 0, 0),
        ("_Allocating", 2048, 0),
    ]
    assert hook.total_used_bytes() == 2560 and hook.total_acquired_bytes() == 1024
    expected = {"used_bytes": 2560, "acquired_bytes": 1024, "occurrence": 2}
    assert hook.summary()["_Allocating"] == expected
    out = io.StringIO()
    hook.print_report(file=out)
    assert out.getvalue().splitlines()[1].split() == ["_Allocating", "2.50KB", "1.00KB", "2"]


def test_memory_profile_of_several_functions(pretended_cupy, x):
    hook = CupyMemoryProfileHook()
    functions = [_Allocating(), _Allocating()]
    for function in functions:
        function.add_hook(hook)
        function.apply((x,))
    assert len(_PretendedHook.active) == 1
    for function in functions:
        function.delete_hook(hook.name)
    assert not _PretendedHook.active
    assert hook.total_used_bytes() == 1024


def test_nvtx_ranges(pretended_cupy, x):
    with CUDAProfileHook():
        F.sum(x).backward()
    assert pretended_cupy.ranges == ["sum.forward", "pop", "sum.backward", "pop"]


def test_cupy_without_nvtx(pretended_cupy):
    del pretended_cupy.cuda.nvtx
    with pytest.raises(RuntimeError, match="CUDAProfileHook: this CuPy was built without NVTX"):
        CUDAProfileHook()


@pytest.mark.gpu
def test_memory_profile_and_ranges_on_a_gpu():
    x = Variable(cuda.cupy.ones((256, 256), np.float32))
    with CupyMemoryProfileHook() as hook, CUDAProfileHook():
        F.sum(F.exp(x)).backward()
    assert hook.summary()["exp"]["used_bytes"] >= 256 * 256 * 4


def test_tables():
    summary = summarize([("a", 1, 2.0), ("b", 3, 4.0), ("a", 5, 6.0)], ("n", "m"))
    assert summary == {
        "a": {"n": 6, "m": 8.0, "occurrence": 2},
        "b": {"n": 3, "m": 4.0, "occurrence": 1},
    }
    out = io.StringIO()
    print_table(summary, "Name", {"n": "N", "m": "M"}, BYTE_UNITS, "B", out)
    assert re.split(r"\n *", out.getvalue().strip()) == [
        "Name      N      M  Occurrence",
        "a  6.00B  8.00B           2",
        "b  3.00B  4.00B           1",
    ]

"""Tests that the choice of a kernel is stored for exactly the facts on which it may depend."""

import numpy as np
import pytest

import mpchain
from mpchain import kernels
from mpchain.kernels import operation as operation_module
from mpchain.kernels import thresholds
from mpchain.kernels.cpu import onednn_library
from mpchain.kernels.operation import Operation
from tests.kernels.test_kernels import CASES, _arguments

pytestmark = pytest.mark.slow


@pytest.fixture
def total():
    """Returns an operation with a kernel for few elements; its attribute ``asked`` lists the
    queries."""

    @Operation.given("x that is a vector", lambda x, scale=1: x.ndim == 1)
    def total(x, scale=1):
        return "reference"

    total.asked = []

    def refuse(x, scale=1):
        total.asked.append((x.shape, x.strides, x.dtype, scale))
        return None if x.size < thresholds.few_rows.stop else "large"

    @total.kernel("numpy_cpu", refuse, ())
    def total_of_few(x, scale=1):
        return "few"

    return total


def test_equal_calls_ask_once(total):
    x = np.ones(3)
    assert [total(x), total(x + 1), total(x, 1), total(x, 1)] == ["few"] * 4
    assert len(total.asked) == 2  # there is one query without a scale, and one with it


@pytest.mark.parametrize(
    "args",
    [
        (np.ones(4),),
        (np.ones(3, np.float32),),
        (np.ones(3, ">f8"),),
        (np.ones(6)[::2],),
        (np.ones(3)[::-1],),
        (np.ones(3), 2),
        (np.ones(3), 1),
        (np.ones(3), 1.0),
        (np.ones(3), True),
    ],
)
def test_other_calls_ask_again(total, args):
    for before in ((np.ones(3),), (np.ones(3), np.float64(1)), (np.ones(3), 3)):
        total(*before)
    n = len(total.asked)
    total(*args)
    assert len(total.asked) == n + 1


def test_a_call_that_breaks_the_contract_after_one_that_keeps_it(total):
    assert [total(np.ones(3)), total(np.ones((3, 1))), total(np.ones(3))] == [
        "few",
        "reference",
        "few",
    ]


def test_other_kinds_of_arrays_are_asked_each_time(total):
    class Own(np.ndarray):
        pass

    x = np.ones(3).view(Own)
    assert [total(x), total(x)] == ["few", "few"]
    # The list has no hash.
    assert [total(np.ones(3), []), total(np.ones(3), [])] == ["few", "few"]
    assert len(total.asked) == 4


def test_numbers_threads_and_kernels_forget(total):
    x = np.ones(60)
    assert total(x) == "reference"
    with thresholds.using(few_rows=range(100)):
        assert total(x) == "few"
    assert total(x) == "reference"
    n = len(total.asked)
    thresholds.forget()
    total(x)
    assert len(total.asked) == n + 1
    total.kernel("onednn", None, ())(lambda x, scale=1: "new")
    assert total(x) == "new"


def test_another_number_of_threads_forgets(total):
    library = onednn_library.load()
    if isinstance(library, str):
        pytest.skip(library)
    total(np.ones(3))
    library.threads = library.threads
    total(np.ones(3))
    assert len(total.asked) == 2


def test_the_configuration_is_asked_each_time(total):
    x = np.ones(3)
    assert total(x) == "few"
    with mpchain.using_config("kernels", ("reference",)):
        assert total(x) == "reference"
    assert total(x) == "few"


def test_a_plan_is_made_once_for_equal_layouts(total):
    planned = []

    def plan(x, scale=1):
        planned.append(x.shape)
        return (lambda *args: "planned") if len(x) > 2 else None

    total.kernel("blas", None, (), plan)(lambda x, scale=1: "usual")
    x = np.ones(3)
    assert [total(x), total(x + 1), total(x[:2]), total(x[:2])] == ["planned"] * 2 + ["usual"] * 2
    assert planned == [(3,), (2,)]
    assert total.select(x).compute(x) == "usual"
    with mpchain.using_config("kernels", ("blas",)):
        assert total(x) == "usual"


def test_no_more_choices_than_the_most(total, monkeypatch):
    monkeypatch.setattr(operation_module, "MOST", 5)
    for n in range(12):
        total(np.ones(n))
        assert len(total._chosen) <= 5
    assert total(np.ones(11)) == "few"


class _Closed(np.ndarray):
    """An array whose values must not be read."""

    def _refuse(self, *args, **kwargs):
        raise AssertionError("a choice that depends on values")

    __array_ufunc__ = __array_function__ = __getitem__ = __iter__ = _refuse
    __bool__ = __float__ = __int__ = __index__ = item = tolist = tobytes = _refuse
    min = max = any = all = sum = __eq__ = __ne__ = _refuse
    __hash__ = None


@pytest.mark.parametrize("operation", CASES)
def test_no_choice_looks_at_values(operation):
    op = kernels.operations[operation]
    for name in CASES[operation]:
        for dtype in (np.float32, np.float64):
            args = _arguments(operation, name, dtype)
            closed = [x.view(_Closed) if isinstance(x, np.ndarray) else x for x in args]
            op.select(*closed)
            for kernel in op.kernels[:-1]:
                kernel.refuse(*closed)

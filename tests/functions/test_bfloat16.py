"""Tests every function in bfloat16: values and gradients are those of float32, rounded."""

import importlib
import pathlib

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from tests.functions.table import inputs_of, on

BFLOAT16 = mpchain.mixed_bf16.dtype
# Numbers have 8 significant bits; functions that call several other functions round several times.
TOLERANCE = 2.0**-6
# Some gradients of these functions are small differences of rounded numbers.
LONG = ["multi_head_attention"]
CASTS = ["table-cast"]  # the row of cast converts to float32


def _rows():
    """Yields the rows of the tables in this folder's test files that are checked in float16."""
    for path in sorted(pathlib.Path(__file__).parent.glob("test_*.py")):
        if path.stem != pathlib.Path(__file__).stem and "\nTABLE = " in path.read_text():
            table = importlib.import_module(f"tests.functions.{path.stem}").TABLE
            for case in table:
                if np.float16 in case.dtypes:
                    name = f"{path.stem.removeprefix('test_')}-{case.name}".replace(" ", "_")
                    yield pytest.param(name, case, id=name)


def _computed(case, arrays, device):
    """Returns the outputs, and the gradients of the inputs."""
    send = mpchain.get_device(device).send
    xs = [Variable(send(x)) for x in arrays]
    ys = on(device, case.function)(*xs)
    ys = tuple(ys) if isinstance(ys, (tuple, list)) else (ys,)
    values = [mpchain.cuda.to_cpu(y.array) for y in ys]
    if case.orders == 0:
        return values, []
    random = np.random.RandomState(1)
    for y in ys:
        weight = np.asarray(random.uniform(0.5, 1.5, y.shape), BFLOAT16)
        y.grad = send(np.asarray(weight, y.dtype))
    mpchain.backward(ys)
    return values, [mpchain.cuda.to_cpu(x.grad) for x in xs]


@pytest.mark.parametrize("name, case", list(_rows()))
def test_as_float32_rounded(name, case, device):
    narrow = [np.asarray(x, BFLOAT16) for x in inputs_of(case)]
    np.random.seed(0)
    found = _computed(case, narrow, device)
    np.random.seed(0)
    expected = _computed(case, [x.astype(np.float32) for x in narrow], device)
    tolerance = 2.0**-4 if any(part in name for part in LONG) else TOLERANCE
    for ours, theirs in zip(found, expected, strict=True):
        for y, z in zip(ours, theirs, strict=True):
            converts = z.dtype != np.float32 or (name in CASTS and theirs is expected[0])
            assert y.dtype == (z.dtype if converts else BFLOAT16)
            z = z.astype(np.float64)
            scale = tolerance * max(1.0, *np.abs(z).ravel(), 0)
            np.testing.assert_allclose(y.astype(np.float64), z, tolerance, scale)


def test_sums_are_single():
    """In bfloat16, 256 + 1 equals 256."""
    n = 3000
    x, b = np.ones((n, 3), BFLOAT16), Variable(np.zeros(3, BFLOAT16))
    expected = [float(np.asarray(n, BFLOAT16))] * 3
    assert F.sum(x, 0).array.tolist() == expected and F.mean(x, 0).array.tolist() == [1, 1, 1]
    for y in (F.linear(x, np.ones((3, 3), BFLOAT16), b), F.bias(x, b), Variable(x) + b):
        b.cleargrad()
        y.grad = np.ones_like(y.array)
        y.backward()
        assert b.grad.dtype == BFLOAT16 and b.grad.tolist() == expected
    loss = F.softmax_cross_entropy(x, np.zeros(n, np.int32))
    np.testing.assert_allclose(float(loss.array), np.log(3), rtol=2.0**-8)


def test_products_are_single():
    x = np.full((1, 3000), 1, BFLOAT16)
    for y in (F.matmul(x, x.T), F.linear(x, x), F.einsum("ij,kj->ik", x, x)):
        assert y.dtype == BFLOAT16 and y.array.item() == np.asarray(3000, BFLOAT16)


@pytest.mark.parametrize("number", [2, 2.5, True, np.float32(2.5), np.asarray(2.5, BFLOAT16)[()]])
def test_numbers_do_not_widen(number):
    x = Variable(np.ones(3, BFLOAT16))
    for y in (x * number, number - x, x / number, number**x, x**number, F.add(x, number)):
        assert y.dtype == BFLOAT16
    assert (x * number).array.tolist() == [float(number)] * 3


@pytest.mark.parametrize("other", [np.float16, np.int32, np.float32, np.float64])
def test_other_dtypes_promote_as_with_float32(other):
    y = F.add(np.ones(3, BFLOAT16), np.ones(3, other))
    assert y.dtype == np.result_type(np.float32, other)
    x = Variable(np.ones(3, BFLOAT16))
    assert (x * np.ones(3, other)).dtype == BFLOAT16  # arrays do not widen Variables


def test_cast_by_name():
    x = Variable(np.array([1.0, 1 + 2**-9, 3e38], np.float32))
    y = F.cast(x, "bfloat16")
    assert y.dtype == BFLOAT16 and y.array[:2].tolist() == [1, 1] and np.isfinite(y.array).all()
    assert F.cast(y, BFLOAT16) is y
    y.grad = y.array
    y.backward()
    assert x.grad.dtype == np.float32
    assert F.cast(y, "f").array.dtype == np.float32


def test_gradients_of_gradients():
    x = Variable(np.array([0.5, -1.0], BFLOAT16))
    (gx,) = mpchain.grad([F.sum(x**3)], [x], enable_double_backprop=True)
    (ggx,) = mpchain.grad([F.sum(gx * gx)], [x])
    assert gx.dtype == ggx.dtype == BFLOAT16
    np.testing.assert_allclose(ggx.array.astype("f"), [36 * 0.5**3, -36], 2.0**-7)


def test_views_are_views():
    x = np.zeros((2, 3), BFLOAT16)
    assert np.shares_memory(F.reshape(x, (3, 2)).array, x)
    assert np.shares_memory(F.transpose(x).array, x)


def test_what_numpy_calls_structured_is_no_number():
    x = np.zeros(2, [("a", "f4")])
    with pytest.raises(
        mpchain.utils.type_check.InvalidType, match=r"^exp: inputs must be floating"
    ):
        F.exp(x)


def test_debug_mode_finds_nan():
    x = np.array([np.nan], BFLOAT16)
    with mpchain.using_config("debug", True), pytest.raises(RuntimeError, match="NaN in the forw"):
        F.relu(x)

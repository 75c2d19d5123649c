"""Tests concat_examples, to_device and converters."""

import pickle

import numpy as np
import pytest

import mpchain
from mpchain.backends import cuda
from mpchain.dataset import Converter, concat_examples, converter, to_device


def check(result, expected, dtype):
    assert isinstance(result, np.ndarray)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64, bool])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (0, 2)])
def test_arrays(shape, dtype):
    batch = [np.random.randint(0, 5, shape).astype(dtype) for _ in range(4)]
    batch = [np.asarray(array) for array in batch]
    check(concat_examples(batch), np.array(batch), dtype)


def test_arrays_that_are_not_contiguous():
    batch = [np.arange(6.0).reshape(2, 3).T, np.arange(12.0).reshape(3, 4)[:, ::2]]
    check(concat_examples(batch), [[[0, 3], [1, 4], [2, 5]], [[0, 2], [4, 6], [8, 10]]], float)


@pytest.mark.parametrize(
    ("batch", "dtype"),
    [
        ([1, 2, 3], int),
        ([1.5, 2.0], float),
        ([True, False], bool),
        ([np.float32(1), np.float32(2)], np.float32),
        ([np.int32(1)], np.int32),
        ([[1, 2], [3, 4]], int),
        (np.arange(6, dtype=np.int16).reshape(3, 2), np.int16),
    ],
)
def test_scalars_and_lists(batch, dtype):
    check(concat_examples(batch), np.array(list(batch)), dtype)


def test_tuples():
    x = np.random.rand(3, 2).astype(np.float32)
    result = concat_examples([(x[0], 1), (x[1], 2), (x[2], 3)])
    assert isinstance(result, tuple)
    check(result[0], x, np.float32)
    check(result[1], [1, 2, 3], int)


def test_dicts():
    result = concat_examples([{"x": np.zeros(2), "t": 1}, {"t": 2, "x": np.ones(2)}])
    assert list(result) == ["x", "t"]
    check(result["x"], [[0, 0], [1, 1]], float)
    check(result["t"], [1, 2], int)


def test_variables():
    batch = [mpchain.Variable(np.array([1.0, 2.0])), mpchain.Variable(np.array([3.0, 4.0]))]
    check(concat_examples(batch), [[1, 2], [3, 4]], float)


def test_padding_fills_up_the_end_of_each_axis():
    batch = [np.ones((1, 3), np.float32), np.ones((2, 1), np.float32)]
    expected = [[[1, 1, 1], [-1, -1, -1]], [[1, -1, -1], [1, -1, -1]]]
    check(concat_examples(batch, padding=-1), expected, np.float32)


def test_padding_of_scalars_and_lists():
    check(concat_examples([1, 2], padding=0), [1, 2], int)
    check(concat_examples([[1, 2], [3]], padding=0), [[1, 2], [3, 0]], int)


def test_one_padding_for_each_element():
    batch = [(np.array([1, 2]), [1.0], 7), (np.array([3]), [2.0, 3.0], 8)]
    x, y, t = concat_examples(batch, padding=(-1, 0.5, None))
    check(x, [[1, 2], [3, -1]], int)
    check(y, [[1, 0.5], [2, 3]], float)
    check(t, [7, 8], int)
    batch = [{"x": np.array([1, 2]), "t": 7}, {"x": np.array([3]), "t": 8}]
    result = concat_examples(batch, padding={"x": 9, "t": None})
    check(result["x"], [[1, 2], [3, 9]], int)
    check(result["t"], [7, 8], int)


@pytest.mark.parametrize(
    ("batch", "padding", "message"),
    [
        ([], None, "batch must have at least one"),
        (
            [np.zeros(2), np.zeros(3)],
            None,
            r"must have one shape, but the shapes are \(2,\), \(3,\)",
        ),
        ([np.zeros(2), np.zeros((2, 2))], 0, "same number of axes, but the numbers are 1, 2"),
        ([(1, 2), (3,)], None, "tuples of one length, but the lengths are 2, 1"),
        ([(1, 2), (3, 4)], (0,), "one value for each element, but the lengths are 2, 1"),
        ([{"x": 1}, {"y": 1}], None, r"same keys, but the keys are \['x'\], \['y'\]"),
        ([{"x": 1}, {"x": 1}], {"y": 0}, "one value for each key"),
        ([[1, 2], [3]], None, "cannot be stacked"),
        ([None, 1], None, "examples of type NoneType, int cannot be stacked"),
        ([(1, 2), 3], None, "one kind, not int, tuple"),
        ([{"x": 1}, 2], None, "one kind, not dict, int"),
        ([(np.zeros(2), 1), ([3.0, 4.0], 2)], None, "one kind, not list, ndarray"),
        ([{"x": np.zeros(1)}, {"x": 3}], None, "one kind, not int, ndarray"),
        ([mpchain.Variable(np.zeros(2)), np.zeros(2)], None, "one kind, not Variable, ndarray"),
    ],
)
def test_batches_that_make_no_arrays(batch, padding, message):
    with pytest.raises(ValueError, match=f"concat_examples: .*{message}"):
        concat_examples(batch, padding=padding)


def test_device_none_leaves_arrays_where_they_are():
    x = np.zeros(2)
    assert to_device(None, x) is x
    assert to_device(-1, x) is x
    assert to_device("@numpy", (x, None))[0] is x


def test_device_specifier_that_means_nothing():
    with pytest.raises(ValueError, match="device_spec must be"):
        concat_examples([np.zeros(2)], device="@abacus")


@pytest.mark.gpu
@pytest.mark.parametrize("spec", [0, "@cupy:0"])
def test_to_gpu_and_back(spec):
    batch = [(np.array([1.0, 2.0], np.float32), 1), (np.array([3.0, 4.0], np.float32), 2)]
    x, t = concat_examples(batch, device=spec)
    assert cuda.is_gpu_array(x)
    assert cuda.is_gpu_array(t)
    stacked = concat_examples(list(x), padding=0)
    assert cuda.is_gpu_array(stacked)
    check(concat_examples(list(stacked), device=-1), [[1, 2], [3, 4]], np.float32)


def test_converter_decorator():
    @converter()
    def convert(batch, device):
        """Doubles."""
        return [2 * example for example in batch], device

    assert isinstance(convert, Converter)
    assert convert.__doc__ == "Doubles."
    assert convert([1, 2], "@numpy") == ([2, 4], mpchain.backend.CpuDevice())
    assert convert([1, 2]) == ([2, 4], None)
    assert isinstance(concat_examples, Converter)


def test_a_converter_class_must_convert():
    with pytest.raises(TypeError, match="abstract"):
        Converter()


def test_converters_are_pickled_by_name():
    assert pickle.loads(pickle.dumps(concat_examples)) is concat_examples

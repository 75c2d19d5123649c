"""Tests NumPy's BLAS on one thread, besides oneDNN's threads."""

import threading
import types

import numpy as np
import pytest

from mpchain.kernels import thresholds
from mpchain.kernels.cpu import blas, onednn
from mpchain.kernels.reference import product
from tests.kernels.needs import needs_onednn


@pytest.fixture
def numbers(monkeypatch):
    """Returns the list of numbers of threads: 4, and those that were set instead of OpenBLAS's."""
    numbers = [4]
    monkeypatch.setattr(blas, "_openblas", lambda: (lambda: numbers[-1], numbers.append))
    return numbers


def test_the_last_that_leaves_restores_the_number_of_threads(numbers):
    with blas.one_thread:
        inside = threading.Event(), threading.Event()

        def enter():
            with blas.one_thread:
                inside[0].set()
                inside[1].wait()

        thread = threading.Thread(target=enter)
        thread.start()
        inside[0].wait()
    assert numbers == [4, 1]
    inside[1].set()
    thread.join()
    assert numbers == [4, 1, 4]


def test_an_error_restores_it_too(numbers):
    with pytest.raises(KeyError), blas.one_thread:
        raise KeyError
    assert numbers == [4, 1, 4]


@pytest.mark.parametrize("threads, size", [(1, 1), (2, 1), (2, 1 << 18)])
def test_large_matrices_of_stacks_are_multiplied_on_one_thread(
    threads, size, numbers, with_onednn, load_onednn
):
    load_onednn(types.SimpleNamespace(threads=threads))
    a, b = np.ones((3, 4, 5)), np.ones((2, 1, 5, 6))
    with thresholds.using(shared=4 * 5 * 6 - 1 if size == 1 else size):
        np.testing.assert_array_equal(product(a, b), np.full((2, 3, 4, 6), 5.0))
    assert numbers == ([4, 1, 4] if threads > 1 and size == 1 else [4])


@needs_onednn
@pytest.mark.parametrize(
    "case, is_taken",
    [
        ("rows", True),
        ("columns", True),
        ("heads", True),
        ("written", True),
        ("repeated", False),
        ("double", False),
        ("thin", False),
        ("other stacks", False),
        ("gaps", False),
        ("written to columns", False),
    ],
)
def test_stacks_that_onednn_multiplies(case, is_taken, onednn_threads, calls_of):
    random = np.random.RandomState(0)

    def make(*shape):
        return random.randint(-3, 4, shape).astype("f")

    a, b, out = make(2, 3, 9, 11), make(2, 3, 11, 10), None
    if case == "columns":
        a, b = make(2, 3, 11, 9).swapaxes(2, 3), make(2, 3, 10, 11).swapaxes(2, 3)
    elif case == "heads":
        a, b = make(2, 9, 3, 11).transpose(0, 2, 1, 3), make(2, 10, 3, 11).transpose(0, 2, 3, 1)
    elif case == "written":
        out = np.full((2, 3, 9, 10), np.nan, "f")
    elif case == "written to columns":
        out = np.full((2, 3, 10, 9), np.nan, "f").swapaxes(2, 3)
    elif case == "repeated":
        a = np.broadcast_to(make(2, 1, 9, 11), a.shape)
    elif case == "double":
        a = a.astype(float)
    elif case == "thin":
        b = make(2, 3, 11, 7)
    elif case == "other stacks":
        a = make(3, 9, 11)
    elif case == "gaps":
        a = make(2, 3, 9, 22)[..., ::2]
    onednn_threads(2)
    calls = calls_of(onednn, "matmul")
    with thresholds.using(shared=0):
        y = product(a, b, out)
        assert is_taken == ("product: onednn: runs" in product.explain(a, b, out))
    np.testing.assert_array_equal(y, a.astype(int) @ b.astype(int))
    assert len(calls) == is_taken
    assert out is None or y is out


def test_the_functions_are_numpys():
    get, set_ = blas._openblas()
    before = get()
    set_(1)
    assert get() == 1
    set_(before)
    assert get() == before


def test_matrices_that_repeat_elements_are_copied_for_blas():
    a, b = np.full((1, 300), 0.1, "f"), np.random.rand(300, 5).astype("f")
    repeated = np.broadcast_to(a[:, :1], a.shape)
    assert product.select(repeated, b).library == "numpy_cpu"
    np.testing.assert_array_equal(product(repeated, b), np.matmul(a, b))
    np.testing.assert_array_equal(product(b.T, repeated.T), np.matmul(b.T, a.T.copy()))

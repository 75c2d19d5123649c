"""NumPy's BLAS on one thread, beside oneDNN's."""

import threading

import numpy as np
import pytest

from mpchain.kernels import blas, onednn


@pytest.fixture
def numbers(monkeypatch):
    """The numbers of threads that were set in place of OpenBLAS's."""
    numbers = [4]
    monkeypatch.setattr(blas, "_openblas", lambda: (lambda: numbers[-1], numbers.append))
    return numbers


def test_the_last_that_leaves_restores_the_number_of_threads(numbers):
    with blas._one_thread:
        inside = threading.Event(), threading.Event()

        def enter():
            with blas._one_thread:
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
    with pytest.raises(KeyError), blas._one_thread:
        raise KeyError
    assert numbers == [4, 1, 4]


@pytest.mark.parametrize("is_shared", [True, False])
def test_large_matrices_of_stacks_are_multiplied_on_one_thread(is_shared, numbers, monkeypatch):
    asked = []
    monkeypatch.setattr(onednn, "is_shared", lambda work: asked.append(work) or is_shared)
    a, b = np.ones((3, 4, 5)), np.ones((2, 1, 5, 6))
    np.testing.assert_array_equal(blas.multiply_stacks(a, b), np.full((2, 3, 4, 6), 5.0))
    assert asked == [4 * 5 * 6]
    assert numbers == ([4, 1, 4] if is_shared else [4])


def test_the_functions_are_numpys():
    get, set_ = blas._openblas()
    before = get()
    set_(1)
    assert get() == 1
    set_(before)
    assert get() == before

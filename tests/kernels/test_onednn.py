"""Products of matrices that oneDNN is prepared for."""

import numpy as np
import pytest

from mpchain.kernels import onednn


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    if onednn.why_absent():
        pytest.skip(onednn.why_absent())
    monkeypatch.setattr(onednn._library(), "threads", 1)


@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (3, 4, 5), (1, 7, 2), (6, 1, 4), (33, 65, 1)])
@pytest.mark.parametrize("turns", ["", "a", "b", "ab"])
def test_a_prepared_product_reads_what_the_arrays_have_when_it_is_called(m, k, n, turns):
    random = np.random.RandomState(0)
    a = np.zeros((k, m), "f").T if "a" in turns else np.zeros((m, k), "f")
    b = np.zeros((n, k), "f").T if "b" in turns else np.zeros((k, n), "f")
    y = np.full((m, n), np.nan, "f")
    function, arguments = onednn.prepared_product(a, b, y)
    for _ in range(2):
        a[...], b[...] = random.randn(m, k), random.randn(k, n)
        function(*arguments)
        np.testing.assert_allclose(y, a @ b, rtol=1e-4, atol=1e-5)


def test_a_product_is_written_into_a_part_of_an_array():
    a, b, y = np.ones((2, 3), "f"), np.ones((3, 4), "f"), np.zeros((2, 9), "f")
    function, arguments = onednn.prepared_product(a, b, y[:, 2:6])
    function(*arguments)
    assert y.sum() == y[:, 2:6].sum() == 24


@pytest.mark.parametrize(
    "a, b, y",
    [
        (np.ones((2, 3)), np.ones((3, 4)), np.ones((2, 4))),
        (np.ones((2, 6), "f")[:, ::2], np.ones((3, 4), "f"), np.ones((2, 4), "f")),
        (np.ones((2, 3), "f"), np.ones((3, 4), "f"), np.ones((4, 2), "f").T),
        (np.ones((0, 3), "f"), np.ones((3, 4), "f"), np.ones((0, 4), "f")),
        (np.ones((1, 2, 3), "f"), np.ones((3, 4), "f"), np.ones((1, 2, 4), "f")),
    ],
    ids=["double", "gaps", "columns", "empty", "stack"],
)
def test_other_arrays_are_not_taken(a, b, y):
    assert onednn.prepared_product(a, b, y) is None

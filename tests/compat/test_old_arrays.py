"""Tests arrays with rows of unequal lengths, and copies that NumPy makes only if necessary."""

import types

import numpy as np
import pytest

from mpchain import compat
from mpchain.compat import old_arrays, removed_names

ROWS = [[0, 1], [2], [3, 4, 5], [6]]
TELLS = pytest.warns(np.exceptions.VisibleDeprecationWarning, match="dtype=object")


@pytest.mark.parametrize("name", old_arrays.MAKING)
def test_rows_become_objects(name):
    with TELLS as told:
        found = getattr(np, name)(ROWS)
    assert found.dtype == object and found.shape == (4,) and found.tolist() == ROWS
    assert [warning.filename for warning in told] == [__file__]


@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        ([np.ones(2), np.ones(3)], (2,)),
        ([np.ones((3, 2)), np.ones((4, 2))], (2,)),
        ([1, [2, 3]], (2,)),
        ([[[1, 2], [3]], [[4], [5]]], (2, 2)),
        ([(1, "a"), (2,)], (2,)),
    ],
)
def test_shapes(rows, shape):
    with TELLS:
        assert np.array(rows).shape == shape
    with TELLS:
        assert np.array(rows, None, ndmin=3).shape == (1,) * (3 - len(shape)) + shape


def test_random_choices_and_permutations():
    # NumPy 1.23.5 draws the same numbers.
    with TELLS:
        permuted = np.random.RandomState(3).permutation(ROWS)
    assert permuted.tolist() == [ROWS[3], ROWS[1], ROWS[0], ROWS[2]]
    with TELLS:
        assert np.random.RandomState(3).choice(ROWS, 2).tolist() == [ROWS[2], ROWS[0]]


@pytest.mark.parametrize(
    ("rows", "arguments", "message"),
    [
        (ROWS, (float,), "inhomogeneous"),
        (ROWS, ("f",), "inhomogeneous"),
        ([np.ones((2, 3)), np.ones((2, 4))], (), "could not broadcast"),
        (["a"], (float,), "could not convert"),
    ],
)
def test_what_numpy_refused_before_is_refused(rows, arguments, message):
    with pytest.raises(ValueError, match=message):
        np.array(rows, *arguments)


def test_copies_are_made_where_they_have_to_be():
    x = np.arange(3)
    assert np.array(x, copy=False) is x
    assert np.array([0, 1, 2], copy=False).tolist() == [0, 1, 2]
    assert np.array(x, np.float32, copy=False).dtype == np.float32
    with TELLS:
        assert np.array(ROWS, copy=False).dtype == object


@pytest.mark.parametrize("package", ["mpchain.functions", "pandas.core", "scipy"])
def test_packages_made_for_numpy_2_get_its_errors(package):
    module = types.ModuleType(package)
    text = "import numpy as np\ndef make(*x, **y): return np.array(*x, **y)\n"
    exec(text + "def share(x, y): return np.may_share_memory(x, y)", vars(module))
    for call in (lambda: module.make(ROWS), lambda: module.share(np.ones(2), ROWS)):
        with pytest.raises(ValueError, match="inhomogeneous"):
            call()
    with pytest.raises(ValueError, match="avoid copy"):
        module.make([1], copy=False)


def test_the_place_that_is_told_is_outside_of_numpy():
    with TELLS as told:
        np.testing.assert_array_equal(ROWS, ROWS)
    assert {warning.filename for warning in told} == {__file__}
    code = compile("np.array(rows)", "nowhere.py", "exec")
    with TELLS as told:
        exec(code, {"np": np, "rows": ROWS, "__name__": "numpy.asked"})
    assert {warning.filename for warning in told} == {__file__}


def test_it_can_be_turned_off(monkeypatch):
    compat.uninstall()
    monkeypatch.setenv(removed_names.VARIABLE, "0")
    compat.install()
    for make in (np.array, np.asarray, np.random.RandomState(0).permutation):
        with pytest.raises(ValueError, match="inhomogeneous"):
            make(ROWS)


def test_uninstalled_numpy_is_as_before():
    compat.uninstall()
    with pytest.raises(ValueError, match="inhomogeneous"):
        np.array(ROWS)

"""Tests names that NumPy and Python have removed, while compat is installed."""

import collections
import importlib.metadata

import numpy as np
import pytest

from mpchain import compat
from mpchain.compat import old_arrays, removed_names


def test_types_and_numbers():
    assert (np.int, np.float, np.object, np.complex_) == (int, float, object, np.complex128)
    assert np.array([1.5]).astype(np.float).dtype == np.float64
    assert np.Inf == np.inf and np.isnan(np.NaN)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("product", ([2, 3],), 6),
        ("cumproduct", ([2, 3],), [2, 6]),
        ("sometrue", ([0, 1],), True),
        ("alltrue", ([0, 1],), False),
        ("asscalar", (np.array([2.5]),), 2.5),
        ("asfarray", ([1, 2],), [1.0, 2.0]),
        ("in1d", ([1, 2], [2]), [False, True]),
        ("msort", ([3, 1],), [1, 3]),
        ("trapz", ([1.0, 3.0],), 2.0),
        ("round_", (2.567, 1), 2.6),
        ("find_common_type", ([np.float32], [np.int64]), np.float64),
        ("alen", ([1, 2],), 2),
    ],
)
def test_functions(name, arguments, expected):
    if name == "trapz" and "trapz" not in removed_names.added():
        pytest.skip("needs a NumPy that has removed the name")
    found = getattr(np, name)(*arguments)
    assert found == expected if name == "find_common_type" else np.array_equal(found, expected)


def test_names_that_numpy_has_are_left_alone():
    compat.uninstall()
    before = dict(vars(np))
    compat.install()
    changed = {name for name in before if vars(np)[name] is not before[name]}
    assert changed == {*removed_names._STACKING, *old_arrays.MAKING, "may_share_memory"}
    assert "bool" not in removed_names.added() and np.bool is np.bool_


def test_abstract_collections():
    assert collections.Iterable is collections.abc.Iterable
    compat.uninstall()
    assert not hasattr(collections, "Iterable")


def test_it_can_be_turned_off(monkeypatch):
    compat.uninstall()
    monkeypatch.setenv(removed_names.VARIABLE, "0")
    compat.install()
    assert removed_names.added() == []
    assert not hasattr(np, "asscalar")


def test_stacking_takes_generators():
    assert np.hstack(np.ones(n) for n in (1, 2)).shape == (3,)
    assert np.stack([np.ones(2), np.ones(2)], axis=1).shape == (2, 2)
    compat.uninstall()
    with pytest.raises(TypeError, match="sequence"):
        np.hstack(np.ones(n) for n in (1, 2))


def test_it_is_said_once(capsys):
    compat.uninstall()
    compat.install()
    compat.install()
    assert capsys.readouterr().err.count("MPCHAIN_COMPAT_NUMPY=0") == 1


@pytest.mark.parametrize(("version", "times"), [("2.3.5", 0), ("2.4.0", 1), ("2.4.6", 1)])
def test_a_numpy_that_refuses_arrays_as_numbers_is_told(version, times, capsys, monkeypatch):
    compat.uninstall()
    monkeypatch.setattr(np, "__version__", version)
    compat.install()
    assert capsys.readouterr().err.count("pip install 'mpchain[compat]'") == times


def test_the_extra_brings_a_numpy_that_takes_them():
    wanted = [line for line in importlib.metadata.requires("mpchain") if '"compat"' in line]
    assert [line.partition(";")[0].strip() for line in wanted] == ["numpy<2.4"]

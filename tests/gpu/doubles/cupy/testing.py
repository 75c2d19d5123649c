"""Compares arrays of any device."""

import numpy as _np

from cupy._functions import asnumpy as _asnumpy


def assert_allclose(actual, desired, rtol=1e-7, atol=0, err_msg="", verbose=True):
    """Raises AssertionError unless the values are close."""
    _np.testing.assert_allclose(_asnumpy(actual), _asnumpy(desired), rtol, atol, True, err_msg)


def assert_array_equal(x, y, err_msg="", verbose=True, strides_check=False):
    """Raises AssertionError unless the values are equal."""
    _np.testing.assert_array_equal(_asnumpy(x), _asnumpy(y), err_msg)

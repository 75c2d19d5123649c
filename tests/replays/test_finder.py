"""Tests the search for the place where the first non-finite number is computed."""

import warnings

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain.replays.finder import Finder

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def _find(compute, *, target=None, is_finite=False):
    with Finder(target=target) as finder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compute()
    return finder.finding(is_finite)


def test_forward():
    def compute():
        x = mpchain.Variable(np.array([[1.0, 4.0], [9.0, -1.0], [0.0, 1.0]]))
        y = F.sqrt(x)  # here
        F.exp(F.log(y))

    finding = _find(compute)
    assert (finding.what, finding.rows, finding.n_rows, finding.is_nan) == ("sqrt", [1], 3, True)
    assert "test_finder.py" in str(finding.place) and "in compute: y = F.sqrt(x)  # here" in str(
        finding.place
    )


def test_what_functions_get():
    x = np.ones((3, 2))
    x[2, 1] = np.nan
    finding = _find(lambda: F.exp(F.reshape(x, (2, 3))))
    assert finding.what == "argument 0 of reshape, which no function computed"
    assert finding.rows == [2]


def test_infinite_numbers_that_do_no_harm():
    mask, nothing = np.array([[True, False]]), np.full((1, 2), -np.inf)
    masked = lambda: F.softmax(F.where(mask, np.ones((1, 2)), nothing))
    assert _find(masked, is_finite=True) is None
    assert not _find(masked, is_finite=False).is_nan
    assert _find(lambda: F.log(np.zeros(2)), is_finite=False).what == "log"


def test_backward():
    """The derivative of a square root at 0 is infinite, and 0 times that is NaN."""
    x = mpchain.Variable(np.array([4.0, 0.0]))

    def compute():
        y = F.sqrt(x * 1.0)  # here
        F.sum(y * np.array([1.0, 0.0])).backward()

    finding = _find(compute, is_finite=True)
    assert finding.what == "the derivative of sqrt" and "# here" in str(finding.place)
    assert finding.rows == [1]


def test_gradients_of_parameters():
    model = L.Linear(2, 1)
    model.W.array[:] = 0

    def compute():
        F.sum(F.sqrt(model.W)).backward()

    finding = _find(compute, target=model, is_finite=True)
    assert finding.what == "the derivative of sqrt" and finding.place.function == "compute"
    model.cleargrads()
    assert _find(lambda: F.sum(model(np.ones((3, 2), "f"))).backward(), target=model) is None


def test_a_parameter_is_named():
    model = L.Linear(2, 1)
    model.b.array[:] = np.nan
    finding = _find(lambda: model(np.ones((3, 2), "f")), target=model)
    assert finding.what == "the parameter /b"

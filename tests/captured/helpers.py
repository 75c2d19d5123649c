"""Compares captured functions with the same functions when they run eagerly."""

import contextlib
import warnings

import numpy as np
import pytest

import mpchain
from mpchain import serializers
from mpchain.captured.results import arrays_of, flatten


def arrays(i, n=6):
    """Returns arrays of numbers and labels, which differ for each ``i``."""
    random = np.random.RandomState(i)
    return random.randn(n, 5).astype("f"), random.randint(0, 3, n).astype("i")


def same_first(i):
    """Returns arguments that are equal in calls 0 to 3, and differ in each later call."""
    return arrays(max(i - 3, 0))


def state_of(model):
    saved = {}
    if model is not None:
        model.serialize(serializers.DictionarySerializer(saved))
    return [value.copy() for _, value in sorted(saved.items()) if value is not None]


def run(make, calls, captured, between=None):
    """Calls the function that ``make`` returns, alone or with a model; returns all results, the
    final state and gradients, and the reason after each call."""
    np.random.seed(0)
    function, *models = make()
    model = models[0] if models else None
    step = mpchain.capture(function) if captured else function
    seen, reasons = [], []
    for i, arguments in enumerate(calls):
        if between is not None:
            between(i, model)
        result = step(*[x.copy() if isinstance(x, np.ndarray) else x for x in arguments])
        structure, held = flatten(result)
        plain = [x for x in held if not isinstance(x, (np.ndarray, mpchain.Variable))]
        seen.append((structure, plain, [x.copy() for x in arrays_of(result)]))
        reasons.append(getattr(step, "reason", None))
    grads = [] if model is None else [p.grad for _, p in sorted(model.namedparams())]
    return seen, state_of(model), grads, reasons


def check(make, calls=None, between=None, reason=None, replayed=True, rtol=1e-5):
    """Checks that a captured function returns the same results and leaves the same state as the
    eager function, and that it is either replayed or gives a reason.

    Args:
        make: returns the function, and a model or whatever else the function changes.
        calls: the arguments of each call.
        between: called before each call, with the number of the call and the model.
        reason: a part of the reason against replays.
        replayed: False if the function may give any reason.
        rtol: the relative tolerance of results, states and gradients.
    """
    calls = [arrays(i) for i in range(7)] if calls is None else calls
    expected = run(make, calls, False, between)
    warned = pytest.warns(UserWarning, match=reason) if reason else contextlib.nullcontext()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if not replayed:
            warnings.filterwarnings("ignore", message="capture")
        with warned:
            found = run(make, calls, True, between)
    for i, (a, b) in enumerate(zip(expected[0], found[0], strict=True)):
        assert a[:2] == b[:2], i
        for x, y in zip(a[2], b[2], strict=True):
            np.testing.assert_allclose(y, x, rtol=rtol, atol=1e-6, err_msg=f"call {i}")
    for a, b in zip(expected[1:3], found[1:3]):
        for x, y in zip(a, b, strict=True):
            assert (x is None) == (y is None)
            if x is not None:
                np.testing.assert_allclose(y, x, rtol=rtol, atol=1e-6)
    if replayed and reason is None:
        assert found[3][-1] is None, found[3]
    return found[3]

"""Reproducible random numbers for tests."""

import contextlib
import inspect
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.testing.parameterized import Bundle, classes_of

_seeds = []  # generators of seeds; the last one belongs to the innermost fix_random
_SEED = 100


@contextlib.contextmanager
def _fixed():
    """Context manager: seeds Python's and NumPy's generators; restores their states on exit."""
    states = random.getstate(), np.random.get_state()
    fixed = os.environ.get("CHAINER_TEST_RANDOM_NONDETERMINISTIC", "0") == "0"
    seed = _SEED if fixed else None
    random.seed(seed)
    np.random.seed(seed)
    _seeds.append(np.random.RandomState(seed))
    try:
        yield
    finally:
        _seeds.pop()
        random.setstate(states[0])
        np.random.set_state(states[1])


def generate_seed() -> int:
    """Returns a seed; inside :func:`fix_random`, the sequence of seeds is always the same.

    Example:
        >>> @testing.fix_random()
        ... def test_seed():
        ...     return testing.generate_seed()
        >>> test_seed() == test_seed()
        True
    """
    if not _seeds:
        raise RuntimeError("generate_seed: call this function only within fix_random")
    return int(_seeds[-1].randint(0x7FFFFFFF))


def fix_random(
    *, setup_method: str = "setUp", teardown_method: str = "tearDown"
) -> Callable[[Any], Any]:
    """Decorator of a test method or class: random numbers are the same in every run.

    The environment variable ``CHAINER_TEST_RANDOM_NONDETERMINISTIC=1`` turns this off.

    Args:
        setup_method, teardown_method: for a class, the names of the methods, without arguments,
            that run before and after each test.

    Example:
        >>> @testing.fix_random()
        ... def test_random():
        ...     return np.random.rand()
        >>> test_random() == test_random()
        True
    """

    def decorate(test):
        if not (inspect.isclass(test) or isinstance(test, Bundle)):
            return _fixed()(test)
        for cls in classes_of(test):
            _fix_class(cls, setup_method, teardown_method)
        return test

    return decorate


def _fix_class(cls, setup_method, teardown_method):
    for name in (setup_method, teardown_method):
        if not hasattr(cls, name):
            raise TypeError(
                f"fix_random: {cls.__name__} has no method {name}; "
                "pass setup_method and teardown_method"
            )
    old_setup, old_teardown = getattr(cls, setup_method), getattr(cls, teardown_method)

    def setup(self):
        with contextlib.ExitStack() as stack:
            stack.enter_context(_fixed())
            old_setup(self)
            self._fixed_random = stack.pop_all()

    def teardown(self):
        with self._fixed_random:
            old_teardown(self)

    setattr(cls, setup_method, setup)
    setattr(cls, teardown_method, teardown)

"""Repeats tests whose results depend on random numbers or on the timing of threads."""

import functools
import unittest
from collections.abc import Callable


def repeat_with_success_at_least(times: int, min_success: int) -> Callable[[Callable], Callable]:
    """Decorator: runs a test method up to ``times`` times; ``min_success`` runs must pass.

    The runs stop as soon as the outcome is certain. Between two runs of a
    :class:`unittest.TestCase`, ``tearDown`` and ``setUp`` are called.

    Raises:
        Exception: the first failure, if too many runs failed.

    Example:
        >>> @repeat_with_success_at_least(times=3, min_success=2)
        ... def test_mean(self):
        ...     assert abs(np.random.randn(100).mean()) < 0.2
    """
    if not times >= min_success >= 0:
        raise ValueError(
            "repeat_with_success_at_least: min_success must be between 0 and times, "
            f"but times={times}, min_success={min_success}"
        )

    def decorate(test):
        @functools.wraps(test)
        def repeated(self, *args, **kwargs):
            failures = []
            for i in range(times):
                if i - len(failures) >= min_success:
                    return
                if i > 0 and isinstance(self, unittest.TestCase):
                    self.tearDown()
                    self.setUp()
                try:
                    test(self, *args, **kwargs)
                except unittest.SkipTest:
                    raise
                except Exception as error:
                    failures.append(error)
                    if times - len(failures) < min_success:
                        error = failures[0]
                        error.add_note(
                            f"({len(failures)} of {i + 1} runs failed; "
                            f"{min_success} of {times} must pass)"
                        )
                        raise error

        return repeated

    return decorate


def repeat(times: int) -> Callable[[Callable], Callable]:
    """Decorator: runs a test method ``times`` times; all runs must pass.

    Example:
        >>> @testing.condition.repeat(3)
        ... def test_random(self):
        ...     assert 0 <= np.random.rand() < 1
    """
    return repeat_with_success_at_least(times, times)


def retry(times: int) -> Callable[[Callable], Callable]:
    """Decorator: runs a test method up to ``times`` times, until it passes once.

    Example:
        >>> @testing.condition.retry(3)
        ... def test_mean(self):
        ...     assert abs(np.random.randn(100).mean()) < 0.2
    """
    return repeat_with_success_at_least(times, 1)

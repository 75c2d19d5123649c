"""Tests that are run several times, for what is random or races."""

import functools
import unittest


def repeat_with_success_at_least(times, min_success):
    """Decorator: runs a test method up to ``times`` times; ``min_success`` of them must pass.

    It ends as soon as that is certain to happen, or not to. Between two runs of a
    :class:`unittest.TestCase`, ``tearDown`` and ``setUp`` are called.

    Raises:
        AssertionError: the first failure, if there are too many.
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


def repeat(times):
    """Decorator: runs a test method ``times`` times; all must pass."""
    return repeat_with_success_at_least(times, times)


def retry(times):
    """Decorator: runs a test method up to ``times`` times, until it passes once."""
    return repeat_with_success_at_least(times, 1)

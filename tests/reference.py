"""PyTorch, with which many tests compare: ``from tests.reference import torch``.

Where it is not installed (it is the extra ``reference``), a stand-in takes its place: tables may
name, call and derive from what it has, and the test that calls it is skipped.
"""

import os

import pytest

try:
    import torch
except ImportError:

    class _Missing:
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return self

        def __call__(self, *args, **kwargs):
            if "PYTEST_CURRENT_TEST" in os.environ:
                pytest.skip("PyTorch is the reference: pip install -e '.[reference]'")
            return self

        def __instancecheck__(self, instance):
            return False

        def __mro_entries__(self, bases):
            return (_Missing,)

        apply = __call__  # Classes that derive from torch.autograd.Function call it like this.

    torch = _Missing()

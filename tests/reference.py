"""Imports PyTorch, the reference of many tests: ``from tests.reference import torch``.

Without PyTorch (the extra ``reference``), a stand-in replaces it: tables can refer to its names,
call them and derive classes from them, and a test that calls a name is skipped.
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

        apply = __call__  # classes that derive from torch.autograd.Function call apply

    torch = _Missing()

"""Marks of tests that need a library of the extra ``cpu``, which the extra ``test`` installs."""

import pytest

from mpchain.kernels.cpu import onednn_library
from mpchain.kernels.cpu.compiler import load_numba

needs_numba = pytest.mark.skipif(load_numba() is None, reason="needs numba")
needs_onednn = pytest.mark.skipif(
    onednn_library.why_absent() is not None, reason=f"{onednn_library.why_absent()}"
)

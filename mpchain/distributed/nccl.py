"""CuPy's functions and constants for NCCL: ``get_unique_id``, ``NcclCommunicator``, ...

They are looked up on first use. Without CuPy, the look-up raises an error that is both an
AttributeError (so that ``hasattr`` returns False) and a RuntimeError, and says what to install.
"""

from typing import Any

from mpchain.backends import cuda


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(cuda.cupy.cuda.nccl, name)

"""NCCL's functions and constants, which are CuPy's: ``get_unique_id``, ``NcclCommunicator``, ...

They are looked up when first used. Without CuPy that raises an error, which is both an
AttributeError (such that ``hasattr`` returns False) and a RuntimeError, and says what to install.
"""

from typing import Any

from mpchain.backends import cuda


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(cuda.cupy.cuda.nccl, name)

"""Small tools that several rooms need."""

import importlib
from typing import Any

from mpchain.utils.arrays import force_array, force_type, size_of_shape, sum_to
from mpchain.utils.conv import get_conv_outsize, get_deconv_outsize
from mpchain.utils.notices import enable_final, experimental, final, nondeterministic, tempdir
from mpchain.utils.walker_alias import WalkerAlias

_SPARSE = ("CooMatrix", "get_order", "to_coo")


def __getattr__(name: str) -> Any:
    # Sparse matrices hold Variables, and Variables stand on other tools that are here.
    if name in _SPARSE:
        return getattr(importlib.import_module("mpchain.utils.sparse"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

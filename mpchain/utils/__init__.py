"""Small tools that several rooms need."""

import importlib

from mpchain.utils.conv import get_conv_outsize, get_deconv_outsize

_SPARSE = ("CooMatrix", "get_order", "to_coo")


def __getattr__(name):
    # Sparse matrices hold Variables, and Variables stand on other tools that are here.
    if name in _SPARSE:
        return getattr(importlib.import_module("mpchain.utils.sparse"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

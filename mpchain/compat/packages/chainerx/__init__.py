"""mpchain instead of chainerx; see ``python -m mpchain.compat``."""

import importlib
import sys

from mpchain import compat

del sys.modules[__name__]
compat.install()
importlib.import_module("chainerx")

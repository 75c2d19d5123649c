"""mpchain in the place of chainerx; see ``python -m mpchain.compat``."""

import sys

from mpchain import compat

del sys.modules[__name__]
compat.install()
import chainerx  # noqa: E402, F401

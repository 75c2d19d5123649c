"""mpchain in the place of chainermn; see ``python -m mpchain.compat``."""

import sys

from mpchain import compat

del sys.modules[__name__]
compat.install()
import chainermn  # noqa: E402, F401

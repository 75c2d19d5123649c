"""mpchain in the place of chainer; see ``python -m mpchain.compat``."""

import sys

from mpchain import compat

del sys.modules[__name__]
compat.install()
import chainer  # noqa: E402, F401

"""``scipy.special`` on the imitated device."""

import scipy.special as _special
from cupy._functions import finder as _finder

__getattr__ = _finder("cupyx.scipy.special", _special)

"""``numpy.fft`` on the imitated device."""

import numpy as _np

from cupy._functions import finder as _finder

__getattr__ = _finder("cupy.fft", _np.fft)

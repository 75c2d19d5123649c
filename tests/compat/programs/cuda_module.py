"""Uses ``chainer.cuda`` as a module."""

import chainer.cuda as cuda
import numpy as np
from chainer import cuda as same
from chainer.backends.cuda import to_cpu

assert cuda.get_array_module(np.ones(2)) is np
with cuda.get_device_from_array(np.ones(2)):
    x = to_cpu(np.arange(4.0))
assert hasattr(cuda.cupy, "ElementwiseKernel") or not cuda.available  # CuPy may be without a GPU
assert same.to_cpu is cuda.to_cpu
memoized = cuda.memoize()(lambda n: n + 1)
print(x.sum(), memoized(2))

"""Computes losses whose arguments broadcast, or have different dtypes."""

import itertools

import chainer.functions as F
import numpy as np

x = np.linspace(-1, 1, 12).reshape(4, 3)
mean, ln_var = x[0], x[:, :1]
losses = [
    F.gaussian_nll(x, mean, ln_var),
    F.gaussian_nll(x > 0, mean, ln_var, reduce="mean"),
    F.bernoulli_nll((x > 0).astype("i"), mean),
    F.gaussian_kl_divergence(mean, ln_var),
    F.sum(F.broadcast(x * 2)),
]
dtypes = [
    F.gaussian_nll(*[x.astype(dtype) for dtype in group]).dtype.char
    for group in itertools.product("efd", repeat=3)
]
print("".join(dtypes), *["%.5f" % loss.array for loss in losses])

"""Dropout and other noise for training."""

from typing import Any

import numpy as np

from mpchain import backend, kernels, observers, random
from mpchain.backends import cuda
from mpchain.backends.cuda import is_gpu_array
from mpchain.backends.dtypes import is_floating
from mpchain.configuration import config
from mpchain.functions.activation import softmax
from mpchain.functions.array import reshape
from mpchain.functions.connection import linear
from mpchain.functions.contraction import matmul
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.declaring.precision import differ, mixed
from mpchain.functions.mathematics import exp, where
from mpchain.kernels.cpu.channels_last import is_only_last, reordered
from mpchain.kernels.cpu.mersenne import GlobalMasks
from mpchain.observers import current
from mpchain.typing import Array, Input
from mpchain.utils.arrays import converted
from mpchain.utils.type_check import check
from mpchain.variable import Parameter, Variable, as_array, as_variable


def dropout(
    x: Input, ratio: float = 0.5, *, mask: Array | None = None, return_mask: bool = False
) -> Variable | Any:
    """Sets random elements to zero and multiplies all other elements by 1 / (1 - ratio).

    If ``config.train`` is False, returns ``x``.

    Args:
        x: Variable or array of any shape, floating point.
        ratio: the probability of zeroing an element, at least 0 and below 1.
        mask: array of the shape of ``x``: the factors on the elements; None draws random factors.
        return_mask: whether to return the factors too (None if ``config.train`` is False).

    Returns:
        Variable of the shape of ``x``; with ``return_mask``, a pair of this Variable and the mask.

    Raises:
        InvalidType: ``x`` is not floating point, or ``mask`` does not have the shape of ``x``.
        ValueError: the ratio is out of range.

    Example:
        >>> y, mask = F.dropout(np.ones(1000), 0.25, return_mask=True)
        >>> np.unique(mask).round(2)
        array([0.  , 1.33])

    See G. Hinton et al., Improving neural networks by preventing co-adaptation of feature
    detectors, 2012.
    """
    check_ratio("dropout", ratio)
    x = as_variable(x)
    check(is_floating(x.dtype), "dropout", "x must be floating point", x=x)
    if not config.train:
        return (x, None) if return_mask else x
    counters = _counters(x) if mask is None and not return_mask and _is_fused(x) else None
    if counters is not None:
        return _drop(x, counters, ratio) if ratio else x
    if mask is None:
        mask = dropout_mask(x, ratio)
    check(mask.shape == x.shape, "dropout", "mask must have the shape of x", x=x, mask=mask)
    y = x * mask
    return (y, mask) if return_mask else y


def add_dropout(h: Input, x: Input, ratio: float = 0.5) -> Variable:
    """Returns ``h + dropout(x, ratio)``, a Variable. On GPUs, in training, one kernel can compute
    the result if ``h`` and ``x`` have the same shape and dtype.

    Args:
        h, x: Variables or arrays, floating point, that broadcast.
        ratio: see :func:`dropout`.

    Example:
        >>> with mpchain.using_config("train", False):
        ...     F.noise.add_dropout(np.ones(2), np.ones(2)).array
        array([2., 2.])
    """
    check_ratio("add_dropout", ratio)
    h, x = as_variable(h), as_variable(x)
    alike = h.shape == x.shape and h.dtype == x.dtype and is_floating(x.dtype)
    counters = _counters(x) if config.train and alike and _is_fused(x) else None
    if counters is not None:
        return _add_dropped(h, x, counters, ratio) if ratio else h + x
    return h + dropout(x, ratio)


# On GPUs, dropout is one kernel that draws its own random numbers; backward draws the same numbers
# again.


def draws(x: Variable) -> Any:
    """Returns :func:`mpchain.random.source` for noise on ``x``; all ranks share the noise if ``x``
    is a parameter.

    Example:
        >>> draws(Variable(np.ones(2))) is np.random
        True
    """
    return random.source(x.xp, isinstance(x, Parameter))


def _counters(x):
    return random.counters(x.xp, x.shape, isinstance(x, Parameter))


def _is_fused(x):
    return is_gpu_array(x.array) and current.recorder is None


@differentiable(lambda g, counters, ratio: _drop.on(g, counters, ratio))
def _drop(x, counters, ratio):
    return kernels.drop(x, None, counters, ratio)


@differentiable(lambda g: g, lambda g, counters, ratio: _drop.on(g, counters, ratio))
def _add_dropped(h, x, counters, ratio):
    return kernels.drop(x, h, counters, ratio)


class Masks:
    """An object that recorders treat as a random generator, so that replays draw new masks.

    Example:
        >>> from mpchain.functions.noise import Masks
        >>> from mpchain.random import SampleGenerator
        >>> with SampleGenerator((1, 2), step=7, first=4, n=2).in_use():
        ...     Masks().kept(np, (2, 3), np.dtype("f"), 0.0)
        array([[1., 1., 1.],
               [1., 1., 1.]], dtype=float32)
    """

    def mask(self, xp, shape, dtype, ratio, shared):
        counters = random.counters(xp, shape, shared)
        if counters is None:
            keep = random.source(xp, shared).random_sample(shape) >= ratio
            return _factors(keep, dtype, ratio)
        return kernels.drop(xp.ones(shape, dtype), None, counters, ratio)

    def kept(self, xp, shape, dtype, ratio):
        """Returns 1 for elements that are kept and 0 for others."""
        counters = random.counters(xp, shape)
        if counters is None:
            return (random.source(xp).random_sample(shape) >= ratio).astype(dtype)
        of_shape = xp.broadcast_to(xp.empty(1, dtype), shape)
        return kernels.draw_kept(of_shape, counters, ratio)

    def seed(self, xp):
        """Returns rows that begin with a seed and an offset; a library draws by them."""
        text = "words = i == 0 ? seed : 0"
        kernel = cuda.elementwise("int64 seed", "int64 words", text, "mpchain_seed")
        return kernel(np.int64(random.library_seed(xp)), xp.empty((2, 2), np.int64))


_global_masks = GlobalMasks()


def dropout_mask(x: Input, ratio: float) -> Array:
    """Draws the factors of :func:`dropout`: an array of the shape and dtype of ``x``.

    Example:
        >>> dropout_mask(Variable(np.ones((2, 3))), 0.5).shape
        (2, 3)
    """
    check_ratio("dropout", ratio)
    xp = backend.get_array_module(x)
    shared = isinstance(x, Parameter)
    if xp is not np:
        return observers.draws(Masks()).mask(xp, x.shape, x.dtype, ratio, shared)
    if random.is_by_sample():
        keep = random.source(xp, shared).random_sample(x.shape) >= ratio
        mask = _factors(keep, x.dtype, ratio)
    else:
        mask = observers.draws(_global_masks).factors(x.shape, x.dtype, ratio)
    # NumPy is slow on arrays of different memory layouts
    return reordered(mask) if is_only_last(as_array(x)) else mask


def _factors(keep, dtype, ratio):
    return keep.astype(dtype) * dtype.type(1 / (1 - ratio))


def check_ratio(name: str, ratio: float) -> None:
    """Raises :class:`ValueError` unless a ratio is at least 0 and below 1.

    Example:
        >>> check_ratio("dropout", 0.5)
    """
    if not 0 <= ratio < 1:
        raise ValueError(f"{name}: ratio must be at least 0 and below 1, but is {ratio}")


def gaussian(
    mean: Input, ln_var: Input, *, eps: Array | None = None, return_eps: bool = False
) -> Variable | Any:
    """Differentiable samples of normal distributions: mean + exp(ln_var / 2) eps.

    Args:
        mean, ln_var: Variables or arrays of the same shape, floating point: means, and logarithms
            of the variances.
        eps: array of this shape; None draws samples of the standard normal distribution.
        return_eps: whether to return ``eps`` too.

    Returns:
        Variable of the shape of ``mean``; with ``return_eps``, a pair of this Variable and the
        array ``eps``.

    Raises:
        InvalidType: the shapes differ, or ``mean`` or ``ln_var`` is not floating point.

    Example:
        >>> F.gaussian(np.array([1.0]), np.array([0.0]), eps=np.array([2.0])).array
        array([3.])

    See D. P. Kingma and M. Welling, Auto-encoding variational Bayes, ICLR 2014.
    """
    mean, ln_var = as_variable(mean), as_variable(ln_var)
    fits = mean.shape == ln_var.shape and is_floating(mean.dtype, ln_var.dtype)
    rule = "mean and ln_var must have the same shape and be floating point"
    check(fits, "gaussian", rule, mean=mean, ln_var=ln_var)
    if eps is None:
        eps = draws(mean).standard_normal(mean.shape)
        eps = converted(mean.xp, eps, ln_var.dtype)
    fits = eps.shape == mean.shape
    check(fits, "gaussian", "eps must have the shape of mean", eps=eps, mean=mean)
    y = mean + exp(ln_var * 0.5) * as_array(eps)
    return (y, eps) if return_eps else y


def gumbel_softmax(log_pi: Input, tau: float = 0.1, axis: int = 1) -> Variable:
    """Differentiable approximate samples of categorical distributions (Gumbel-softmax).

    The result is softmax((log_pi + g) / tau) with noise g of the standard Gumbel distribution. The
    result approaches one-hot vectors as ``tau`` approaches zero.

    Args:
        log_pi: Variable or array, floating point: log-probabilities of the categories, which may be
            unnormalized.
        tau: the temperature, positive.
        axis: the axis of the categories.

    Returns:
        Variable of the shape and dtype of ``log_pi``.

    Raises:
        InvalidType: ``log_pi`` lacks the axis or is not floating point.
        ValueError: ``tau`` is not positive.

    Example:
        >>> F.gumbel_softmax(np.log([[0.2, 0.3, 0.5]])).array.sum().round(2).item()
        1.0

    See E. Jang et al., Categorical reparameterization with Gumbel-softmax, ICLR 2017.
    """
    log_pi = as_variable(log_pi)
    name, known = "gumbel_softmax", -log_pi.ndim <= axis < log_pi.ndim
    check(is_floating(log_pi.dtype), name, "log_pi must be floating point", log_pi=log_pi)
    check(known, name, "axis must be an axis of log_pi", log_pi=log_pi, axis=axis)
    if tau <= 0:
        raise ValueError(f"gumbel_softmax: tau must be positive, but is {tau}")
    noise = draws(log_pi).gumbel(size=log_pi.shape)
    noise = converted(log_pi.xp, noise, log_pi.dtype)
    return softmax((log_pi + noise) / tau, axis)


def simplified_dropconnect(
    x: Input,
    W: Input,
    b: Input | None = None,
    ratio: float = 0.5,
    train: bool = True,
    mask: Array | None = None,
    use_batchwise_mask: bool = True,
) -> Variable:
    """Linear map in which random weights are zero and all other weights are multiplied by 1 / (1 -
    ratio).

    Args:
        x: Variable or array (N, ...), floating point; the axes after the first are flattened to
            size I.
        W: Variable or array (O, I).
        b: Variable or array (O,), or None.
        ratio: the probability of zeroing a weight, at least 0 and below 1.
        train: whether to zero and scale weights.
        mask: array (N, O, I) or (O, I), of bool or numbers: the weights to keep; None chooses them
            at random if ``train`` is True. A given mask is applied even if ``train`` is False.
        use_batchwise_mask: whether to draw a mask for each sample; if False, all samples share a
            mask.

    Returns:
        Variable (N, O).

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.
        ValueError: the ratio is out of range.

    Example:
        >>> F.simplified_dropconnect(np.ones((2, 3)), np.ones((4, 3)), ratio=0.25).shape
        (2, 4)

    See L. Wan et al., Regularization of neural networks using DropConnect, ICML 2013. The
    simplification omits the Gaussian inference of the mean.
    """
    name = "simplified_dropconnect"
    check_ratio(name, ratio)
    x, W = as_variable(x), as_variable(W)
    check(W.ndim == 2 and x.ndim >= 2, name, "x must be (N, ...) and W (O, I)", x=x, W=W)
    if x.ndim > 2:
        x = reshape(x, (len(x), x.size // len(x) if len(x) else W.shape[1]))
    floating = is_floating(x.dtype, W.dtype)
    rule = "x and W must be floating point, W with as many columns as x has features"
    check(floating and x.shape[1] == W.shape[1], name, rule, x=x, W=W)
    if differ(x, W, b):
        options = {"ratio": ratio, "train": train, "mask": mask}
        options["use_batchwise_mask"] = use_batchwise_mask
        return mixed(name, simplified_dropconnect, {"x": x}, {"W": W, "b": b}, **options)
    if mask is None and train:
        shape = (len(x), *W.shape) if use_batchwise_mask else W.shape
        mask = random.source(x.xp, not use_batchwise_mask).random_sample(shape) >= ratio
    if mask is not None:
        fits = mask.shape in (W.shape, (len(x), *W.shape))
        check(fits, name, "mask must be (N, O, I) or (O, I)", mask=mask, x=x, W=W)
        W = W * (mask.astype(W.dtype) * W.dtype.type(1 / (1 - ratio) if train else 1))
    if W.ndim == 2:
        return linear(x, W, b)
    fits = b is None or b.shape == W.shape[1:2]
    check(fits, name, "b must have one element per output", b=b, W=W)
    y = reshape(matmul(W, reshape(x, (*x.shape, 1))), W.shape[:2])
    return y if b is None else y + b


def zoneout(h: Input, x: Input, ratio: float = 0.5) -> Variable:
    """Keeps random elements of the previous state and takes all other elements from the next state.

    If ``config.train`` is False, returns ``x``.

    Args:
        h: Variable or array of any shape, floating point: the previous state.
        x: Variable or array of that shape: the next state.
        ratio: the probability of keeping an element of ``h``, from 0 to 1.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: the shapes differ, or an argument is not floating point.
        ValueError: the ratio is out of range.

    Example:
        >>> F.zoneout(np.zeros(1000), np.ones(1000), 0.25).shape
        (1000,)

    See D. Krueger et al., Zoneout: regularizing RNNs by randomly preserving hidden activations,
    ICLR 2017.
    """
    if not 0 <= ratio <= 1:
        raise ValueError(f"zoneout: ratio must be from 0 to 1, but is {ratio}")
    h, x = as_variable(h), as_variable(x)
    fits = h.shape == x.shape and is_floating(h.dtype, x.dtype)
    check(fits, "zoneout", "h and x must have the same shape and be floating point", h=h, x=x)
    if not config.train:
        return x
    uniform = draws(x).random_sample(x.shape)
    return where(uniform < ratio, h, x)

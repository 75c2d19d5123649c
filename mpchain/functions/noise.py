"""Noise injected in training."""

from mpchain import backend, random
from mpchain.configuration import config
from mpchain.functions.activation import softmax
from mpchain.functions.array import reshape
from mpchain.functions.connection import linear
from mpchain.functions.contraction import matmul
from mpchain.functions.mathematics import exp, where
from mpchain.functions.precision import differ, mixed
from mpchain.utils.type_check import check
from mpchain.variable import as_array, as_variable


def dropout(x, ratio=0.5, *, mask=None, return_mask=False):
    """Zeroes elements at random and scales the others by 1 / (1 - ratio), in training.

    Where ``config.train`` is False, the result is ``x``.

    Args:
        x: Variable or array of any shape, floating point.
        ratio (float): the probability of an element to be zeroed, at least 0 and below 1.
        mask: array of the shape of ``x``, the factors to use instead of random ones.
        return_mask (bool): return the factors too (None where nothing is dropped).

    Returns:
        Variable of the shape of ``x``; with ``return_mask``, that and the mask.

    Raises:
        ValueError: the ratio is out of range.

    See G. Hinton et al., Improving neural networks by preventing co-adaptation of feature
    detectors, 2012.
    """
    _check_ratio("dropout", ratio)
    x = as_variable(x)
    check(x.dtype.kind == "f", "dropout", "x must be floating point", x=x)
    if not config.train:
        return (x, None) if return_mask else x
    if mask is None:
        mask = dropout_mask(x, ratio)
    check(mask.shape == x.shape, "dropout", "mask must have the shape of x", x=x, mask=mask)
    y = x * mask
    return (y, mask) if return_mask else y


def dropout_mask(x, ratio, steps=None):
    """Draws the factors of :func:`dropout`: an array of the shape and dtype of ``x``.

    Args:
        steps: see :func:`mpchain.random.source`.
    """
    _check_ratio("dropout", ratio)
    draws = random.source(backend.get_array_module(x), steps)
    keep = draws.random_sample(x.shape) >= ratio
    return keep.astype(x.dtype) * x.dtype.type(1 / (1 - ratio))


def dropout_of_steps(x, ratio, steps):
    """As :func:`dropout`, of an array that joins time steps, see :func:`mpchain.random.source`."""
    mask = dropout_mask(x, ratio, steps) if config.train else None
    return dropout(x, ratio, mask=mask)


def _check_ratio(name, ratio):
    if not 0 <= ratio < 1:
        raise ValueError(f"{name}: ratio must be at least 0 and below 1, but is {ratio}")


def gaussian(mean, ln_var, *, eps=None, return_eps=False):
    """Draws from normal distributions, differentiably: mean + exp(ln_var / 2) eps.

    Args:
        mean, ln_var: Variables or arrays of one shape, floating point: means, and logarithms of
            the variances.
        eps: array of that shape, to use instead of values drawn from the standard distribution.
        return_eps (bool): return these values too.

    Returns:
        Variable of the shape of ``mean``; with ``return_eps``, that and the array ``eps``.

    Raises:
        InvalidType: the shapes differ.

    See D. P. Kingma and M. Welling, Auto-encoding variational Bayes, ICLR 2014.
    """
    mean, ln_var = as_variable(mean), as_variable(ln_var)
    fits = mean.shape == ln_var.shape and mean.dtype.kind == ln_var.dtype.kind == "f"
    rule = "mean and ln_var must have one shape and be floating point"
    check(fits, "gaussian", rule, mean=mean, ln_var=ln_var)
    if eps is None:
        xp = backend.get_array_module(mean)
        eps = random.source(xp).standard_normal(mean.shape)
        eps = xp.asarray(eps, ln_var.dtype)
    check(
        eps.shape == mean.shape, "gaussian", "eps must have the shape of mean", eps=eps, mean=mean
    )
    y = mean + exp(ln_var * 0.5) * as_array(eps)
    return (y, eps) if return_eps else y


def gumbel_softmax(log_pi, tau=0.1, axis=1):
    """Draws from categorical distributions, nearly and differentiably: softmax((log_pi + g) / tau).

    The noise g is drawn from the standard Gumbel distribution; as ``tau`` falls, the result comes
    closer to one-hot vectors.

    Args:
        log_pi: Variable or array, floating point: log-probabilities of the categories, which may be
            unnormalized.
        tau (float): the temperature, positive.
        axis (int): the axis of the categories.

    Returns:
        Variable of the shape and dtype of ``log_pi``.

    Raises:
        InvalidType: ``log_pi`` lacks the axis or is not floating point.
        ValueError: ``tau`` is not positive.

    See E. Jang et al., Categorical reparameterization with Gumbel-softmax, ICLR 2017.
    """
    log_pi = as_variable(log_pi)
    check(
        log_pi.dtype.kind == "f", "gumbel_softmax", "log_pi must be floating point", log_pi=log_pi
    )
    known = -log_pi.ndim <= axis < log_pi.ndim
    check(known, "gumbel_softmax", "axis must be one of log_pi", log_pi=log_pi, axis=axis)
    if tau <= 0:
        raise ValueError(f"gumbel_softmax: tau must be positive, but is {tau}")
    xp = backend.get_array_module(log_pi)
    noise = xp.asarray(random.source(xp).gumbel(size=log_pi.shape), log_pi.dtype)
    return softmax((log_pi + noise) / tau, axis)


def simplified_dropconnect(x, W, b=None, ratio=0.5, train=True, mask=None, use_batchwise_mask=True):
    """A linear map whose weights are zeroed at random, and the others scaled by 1 / (1 - ratio).

    Args:
        x: Variable or array (N, ...), floating point; the axes after the first are flattened to
            size I.
        W: Variable or array (O, I).
        b: Variable or array (O,), or None.
        ratio (float): the probability of a weight to be zeroed, at least 0 and below 1.
        train (bool): whether to zero and to scale.
        mask: array (N, O, I) or (O, I), of bool or numbers: the weights to keep, instead of random
            ones; it is applied whether ``train`` or not.
        use_batchwise_mask (bool): zero other weights for each sample.

    Returns:
        Variable (N, O).

    Raises:
        InvalidType: shapes do not fit.
        ValueError: the ratio is out of range.

    See L. Wan et al., Regularization of neural networks using DropConnect, ICML 2013. Simplified,
    it has no Gaussian inference of the mean.
    """
    name = "simplified_dropconnect"
    _check_ratio(name, ratio)
    x, W = as_variable(x), as_variable(W)
    check(W.ndim == 2 and x.ndim >= 2, name, "x must be (N, ...) and W (O, I)", x=x, W=W)
    if x.ndim > 2:
        x = reshape(x, (len(x), x.size // len(x) if len(x) else W.shape[1]))
    floating = x.dtype.kind == W.dtype.kind == "f"
    rule = "x and W must be floating point, W with as many columns as x has features"
    check(floating and x.shape[1] == W.shape[1], name, rule, x=x, W=W)
    if differ(x, W, b):
        options = {"ratio": ratio, "train": train, "mask": mask}
        options["use_batchwise_mask"] = use_batchwise_mask
        return mixed(name, simplified_dropconnect, {"x": x}, {"W": W, "b": b}, **options)
    if mask is None and train:
        shape = (len(x), *W.shape) if use_batchwise_mask else W.shape
        mask = random.source(backend.get_array_module(x)).random_sample(shape) >= ratio
    if mask is not None:
        fits = mask.shape in (W.shape, (len(x), *W.shape))
        check(fits, name, "mask must be (N, O, I) or (O, I)", mask=mask, x=x, W=W)
        W = W * (mask.astype(W.dtype) * W.dtype.type(1 / (1 - ratio) if train else 1))
    if W.ndim == 2:
        return linear(x, W, b)
    check(
        b is None or b.shape == W.shape[1:2], name, "b must have one element per output", b=b, W=W
    )
    y = reshape(matmul(W, reshape(x, (*x.shape, 1))), W.shape[:2])
    return y if b is None else y + b


def zoneout(h, x, ratio=0.5):
    """Keeps elements of a state at random, and takes the others from its successor, in training.

    Where ``config.train`` is False, the result is ``x``.

    Args:
        h: Variable or array of any shape, floating point: the state before.
        x: Variable or array of that shape: the state after.
        ratio (float): the probability of an element of ``h`` to be kept, from 0 to 1.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: the shapes differ.
        ValueError: the ratio is out of range.

    See D. Krueger et al., Zoneout: regularizing RNNs by randomly preserving hidden activations,
    ICLR 2017.
    """
    if not 0 <= ratio <= 1:
        raise ValueError(f"zoneout: ratio must be from 0 to 1, but is {ratio}")
    h, x = as_variable(h), as_variable(x)
    fits = h.shape == x.shape and h.dtype.kind == x.dtype.kind == "f"
    check(fits, "zoneout", "h and x must have one shape and be floating point", h=h, x=x)
    if not config.train:
        return x
    uniform = random.source(backend.get_array_module(x)).random_sample(x.shape)
    return where(uniform < ratio, h, x)

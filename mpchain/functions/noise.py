"""Noise injected in training."""

from mpchain import backend
from mpchain.configuration import config
from mpchain.utils.type_check import check
from mpchain.variable import as_variable


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
    if not 0 <= ratio < 1:
        raise ValueError(f"dropout: ratio must be at least 0 and below 1, but is {ratio}")
    x = as_variable(x)
    check(x.dtype.kind == "f", "dropout", "x must be floating point", x=x)
    if not config.train:
        return (x, None) if return_mask else x
    if mask is None:
        xp = backend.get_array_module(x)
        keep = xp.random.random_sample(x.shape) >= ratio
        mask = keep.astype(x.dtype) * x.dtype.type(1 / (1 - ratio))
    check(mask.shape == x.shape, "dropout", "mask must have the shape of x", x=x, mask=mask)
    y = x * mask
    return (y, mask) if return_mask else y

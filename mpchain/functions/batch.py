"""Sums and means over the whole batch of all ranks, for losses that programs define.

A loss is usually the mean over the samples. A multi-node optimizer weights the loss of each rank by
its number of samples, which is exact for a mean over the samples, and for the losses of
:mod:`mpchain.functions`. Other losses, such as a mean over other elements, a quotient of sums or
the root of a mean, need the functions of this module: their results cover the whole batch, are the
same on all ranks, and, but for counts, are differentiable to every order. In one process, the
functions compute plain means and sums.

All ranks that have samples must call these functions in the same order. The loss may depend on the
results in any way: a loss that is the same on all ranks counts once.

If a loss function calls :func:`mpchain.grad` with a result of this module as the output, the
gradient is the derivative of the sum of the outputs of all ranks, as for all collectives. Divide
such an output, which is the same on all ranks, by ``comm.size`` before the call.

Example:
    A masked mean, a mean over the atoms of molecules of different sizes, and the root of a mean::

        loss = mpchain.batch_mean((y - t) ** 2, weights=mask)

        errors = F.concat([F.sum((f - g) ** 2, axis=1) for f, g in zip(forces, truth)], axis=0)
        loss = mpchain.batch_mean(errors)

        loss = F.sqrt(mpchain.batch_mean((y - t) ** 2))
"""

from typing import Any

import numpy as np

from mpchain import functions as F
from mpchain.backends.dtypes import is_half
from mpchain.functions import counting
from mpchain.typing import Axes, Input
from mpchain.variable import Variable, as_array, as_variable


def batch_sum(x: Input, axis: Axes = None) -> Variable:
    """Returns the sum over axes, and over the whole batch.

    Args:
        x: Variable or array, floating point, of this rank's samples.
        axis: the axes to sum over; None means all axes. With (), the arrays of the ranks are added
            without a sum over axes.

    Returns:
        Variable, the same on all ranks. Its gradient must be computed within the update.

    Raises:
        RuntimeError: the optimizer processes the batch in micro-batches (``accumulation``,
            ``no_sync``, ``reproducible=True``), so that the whole batch is never available at once.

    Example:
        >>> y, t = np.array([0.5, 1.0, 0.0]), np.array([1.0, 1.0, 0.0])
        >>> both = mpchain.batch_sum(y * t)
        >>> 1 - 2 * both / (mpchain.batch_sum(y) + mpchain.batch_sum(t))  # the Dice loss
        variable(0.14285714)
    """
    total = F.sum(x, axis) if axis != () else as_variable(x)
    return total if counting.current.counts is None else counting.current.counts.sum(total)


def batch_count(n: object) -> Any:
    """Returns the sum of a number over all ranks; the sum has no gradient.

    Unlike the other functions of this module, this function also works if a batch is processed in
    micro-batches, except within ``no_sync``.

    Args:
        n: this rank's number, such as its count of positive samples: an int, float or scalar array.

    Returns:
        The sum, the same on all ranks; in one process and outside of updates, ``n`` itself.

    Example:
        >>> mpchain.batch_count(3)
        3
    """
    counts = counting.current.counts
    return n if counts is None else counting.remembering(lambda: counts.count(n))


def batch_mean(x: Input, weights: Input | None = None) -> Variable:
    """Returns the mean of all elements of the whole batch.

    In an evaluator, which each rank runs at its own pace, the result is the mean of the rank's own
    batch. Report this mean unchanged: evaluators weight the mean by its number of elements, or by
    the sum of its ``weights``, so that the evaluators' result is exact. A training log uses the
    plain mean over iterations.

    Args:
        x: Variable or array, floating point, of this rank's samples.
        weights: Variable or array that broadcasts to ``x``, such as a mask; None weights all
            elements equally.

    Returns:
        Variable: a scalar, in an update the same on all ranks. Its gradient must be computed within
        the update.

    Raises:
        RuntimeError: see :func:`batch_sum`.

    Example:
        >>> mpchain.batch_mean(np.array([1.0, 2.0, 6.0]), weights=np.array([1.0, 1.0, 0.0]))
        variable(1.5)
    """
    if weights is not None:
        weights = F.cast(weights, x.dtype)
    if is_half(x.dtype):
        mean = batch_mean(F.cast(x, np.float32), weights)
        return counting.note_as(mean, F.cast(mean, x.dtype))
    if counting.current.counts is None:
        mean = F.average(x, weights=weights)
        return mean if weights is not None else counting.note(mean, x.size)
    if weights is None:
        return batch_sum(x) / x.dtype.type(batch_count(x.size))
    weights = F.broadcast_to(weights, x.shape)
    if weights.requires_grad:
        return batch_sum(x * weights) / batch_sum(weights)
    total = as_array(F.sum(weights))
    return batch_sum(x * weights) / batch_count(total).astype(x.dtype)

"""A sampler of discrete distributions that takes constant time per sample."""

from collections.abc import Sequence
from operator import getitem
from typing import Any, Self

import numpy as np

from mpchain import random
from mpchain.backend import get_device, get_device_from_array
from mpchain.backends.device import Device
from mpchain.device_resident import Transferable
from mpchain.observers import one_call
from mpchain.typing import Array, DeviceLike, Sizes


class WalkerAlias(Transferable):
    """Draws indices with given probabilities by Walker's alias method.

    The method draws an index uniformly. With a probability that depends on the index, the index is
    replaced by its alias.

    Args:
        probs: sequence of the non-negative weights of the indices, whose sum need not be one.

    Raises:
        ValueError: ``probs`` is empty, a weight is negative or not finite, or all weights are zero.

    See A. J. Walker, An efficient method for generating discrete random variables with general
    distributions, 1977; the table is built with M. D. Vose's method of 1991.

    Example:
        >>> sampler = mpchain.utils.WalkerAlias([1.0, 0.0, 3.0])
        >>> np.unique(sampler.sample(1000))
        array([0, 2], dtype=int32)
    """

    def __init__(self, probs: Array | Sequence[float]):
        weights = np.array(probs, np.float64)
        usable = weights.ndim == 1 and np.isfinite(weights).all() and (weights >= 0).all()
        if not usable or not weights.sum() > 0:
            raise ValueError(
                "WalkerAlias: probs must be a vector of finite, non-negative numbers of positive "
                f"sum, but is {probs!r}"
            )
        shares = weights / weights.sum() * len(weights)
        aliases = np.arange(len(shares), dtype=np.int32)
        small = [i for i, share in enumerate(shares) if share < 1]
        large = [i for i, share in enumerate(shares) if share >= 1]
        while small and large:
            i, j = small.pop(), large[-1]
            aliases[i] = j
            shares[j] -= 1 - shares[i]
            if shares[j] < 1:
                small.append(large.pop())
        # Without rounding errors, the remaining entries would have exactly the share one.
        shares[small + large] = 1
        self._shares, self._aliases = shares, aliases

    def to_device(self, device: DeviceLike) -> Self:
        """Moves the table to a device, on which samples are then drawn; returns the sampler
        itself."""
        device = get_device(device)
        self._shares, self._aliases = device.send(self._shares), device.send(self._aliases)
        return self

    @property
    def device(self) -> Device:
        """The device on which samples are drawn."""
        return get_device_from_array(self._shares)

    @property
    def xp(self) -> Any:
        """The array module of the device."""
        return self.device.xp

    def sample(self, shape: Sizes) -> Array:
        """Draws samples.

        Args:
            shape: the shape of the result.

        Returns:
            array of int32: the drawn indices.
        """
        xp, n = self.xp, len(self._shares)
        index = random.source(xp).randint(0, n, shape).astype(np.int32)
        kept = random.source(xp).random_sample(shape) < one_call(getitem, self._shares, index)
        return xp.where(kept, index, one_call(getitem, self._aliases, index))

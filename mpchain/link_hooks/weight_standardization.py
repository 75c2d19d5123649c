"""Weight standardization."""

from mpchain.functions.reduction import mean
from mpchain.link_hooks.weight_hook import WeightHook


class WeightStandardization(WeightHook):
    """Lets a link compute with its weight standardized: (W - mean) / sqrt(var + eps).

    Mean and variance are over all axes but the first. Add it by :meth:`Link.add_hook`.

    Args:
        eps (float): added to the variance.
        weight_name (str): the weight's attribute in the link.
        name (str): of the hook, if not ``'WeightStandardization'``.

    Raises:
        ValueError: the link has no such weight.

    Example:
        >>> layer = L.Convolution2D(3, 8, ksize=3).add_hook(WeightStandardization())

    See S. Qiao et al., Weight standardization, 2019.
    """

    name = "WeightStandardization"

    def __init__(self, *, eps=1e-5, weight_name="W", name=None):
        super().__init__(weight_name, name)
        self.eps = eps

    def replacement(self, link, weight):
        axes = tuple(range(1, weight.ndim))
        centered = weight - mean(weight, axes, keepdims=True)
        variance = mean(centered * centered, axes, keepdims=True)
        return centered * (variance + self.eps) ** -0.5

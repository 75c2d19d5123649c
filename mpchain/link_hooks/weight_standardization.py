"""The link hook for weight standardization."""

from mpchain.functions.reduction import mean
from mpchain.link import Link
from mpchain.link_hooks.weight_hook import WeightHook
from mpchain.variable import Parameter, Variable


class WeightStandardization(WeightHook):
    """Standardizes the weight of a link during calls: (W - mean) / sqrt(var + eps).

    The mean and the variance are over all axes except the first. Add the hook with
    :meth:`Link.add_hook`.

    Args:
        eps: added to the variance.
        weight_name: the attribute of the weight in the link.
        name: name of the hook; None means ``'WeightStandardization'``.

    Raises:
        ValueError: the link has no such weight.

    Example:
        >>> layer = L.Convolution2D(3, 8, ksize=3).add_hook(WeightStandardization())

    See S. Qiao et al., Weight standardization, 2019.
    """

    name = "WeightStandardization"

    def __init__(
        self, *, eps: float = 1e-5, weight_name: str = "W", name: str | None = None
    ) -> None:
        super().__init__(weight_name, name)
        self.eps = eps

    def replacement(self, link: Link, weight: Parameter) -> Variable:
        axes = tuple(range(1, weight.ndim))
        centered = weight - mean(weight, axes, keepdims=True)
        variance = mean(centered * centered, axes, keepdims=True)
        return centered * (variance + self.eps) ** -0.5

"""Links that inject noise in training."""

from mpchain import functions as F
from mpchain.link import Link
from mpchain.links.connection import Linear


def _check_ratio(link, ratio):
    if not 0 <= ratio < 1:
        raise ValueError(
            f"{type(link).__name__}: ratio must be at least 0 and below 1, but is {ratio}"
        )


class Dropout(Link):
    """Dropout of :func:`mpchain.functions.dropout` as a layer, for a :class:`Sequential`.

    Args:
        ratio (float): the probability of an element to be zeroed in training.

    Raises:
        ValueError: ``ratio`` is out of range.
    """

    _printable = ("ratio",)

    def __init__(self, ratio=0.5):
        super().__init__()
        _check_ratio(self, ratio)
        self.ratio = ratio

    def forward(self, x):
        """Zeroes elements of a Variable or array x at random, if ``config.train`` is set."""
        return F.dropout(x, self.ratio)


class SimplifiedDropconnect(Linear):
    """Affine map of :func:`mpchain.functions.simplified_dropconnect` with its parameters.

    Args:
        in_size (int): number of input features; None leaves it to the first input.
        out_size (int): number of output features.
        ratio (float): the probability of a weight to be zeroed in training.
        nobias, initialW, initial_bias: see :class:`Linear`.

    Attributes:
        W (Parameter): weights (out_size, in_size).
        b (Parameter): bias (out_size,), or None.

    Raises:
        ValueError: ``ratio`` is out of range.
    """

    def __init__(
        self, in_size, out_size, ratio=0.5, nobias=False, initialW=None, initial_bias=None
    ):
        super().__init__(in_size, out_size, nobias, initialW, initial_bias)
        _check_ratio(self, ratio)
        self.ratio = ratio

    @classmethod
    def from_params(cls, W, b=None, nobias=False, ratio=0.5):
        """As of :class:`Linear`, with the ratio."""
        link = super().from_params(W, b, nobias)
        link.ratio = ratio
        return link

    @property
    def printable_specs(self):
        yield from super().printable_specs
        yield "ratio", self.ratio

    def forward(self, x, train=True, mask=None, use_batchwise_mask=True):
        """Applies the map.

        Args:
            x: Variable or array (N, ...).
            train, mask, use_batchwise_mask: see the function.

        Returns:
            Variable (N, out_size).
        """
        self.initialize_for(x)
        options = self.ratio, train, mask, use_batchwise_mask
        return F.simplified_dropconnect(x, self.W, self.b, *options)

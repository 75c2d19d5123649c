"""Links that inject noise in training."""

from collections.abc import Iterable
from typing import Any, Self

from mpchain import functions as F
from mpchain.link import Link
from mpchain.links.connection import Linear
from mpchain.typing import Array, InitialValue, Input
from mpchain.variable import Variable


def _check_ratio(link, ratio):
    if not 0 <= ratio < 1:
        raise ValueError(
            f"{type(link).__name__}: ratio must be at least 0 and below 1, but is {ratio}"
        )


class Dropout(Link):
    """Dropout as a layer of a :class:`Sequential`: :func:`mpchain.functions.dropout`.

        >>> layer = L.Dropout(0.5)
        >>> with mpchain.using_config("train", False):
        ...     layer(np.ones(3)).array
        array([1., 1., 1.])

    Args:
        ratio: probability of zeroing an element in training.

    Raises:
        ValueError: ``ratio`` is out of range.
    """

    _printable = ("ratio",)

    def __init__(self, ratio: float = 0.5) -> None:
        super().__init__()
        _check_ratio(self, ratio)
        self.ratio = ratio

    def forward(self, x: Input) -> Variable:
        """Applies dropout to x, of any shape, if ``config.train`` is True; the result has the shape
        of x."""
        return F.dropout(x, self.ratio)


class SimplifiedDropconnect(Linear):
    """Affine map with random weights set to zero: :func:`mpchain.functions.simplified_dropconnect`.

        >>> L.SimplifiedDropconnect(3, 2, ratio=0.2)(np.ones((5, 3), np.float32)).shape
        (5, 2)

    Args:
        in_size: number of input features; None infers it from the first input.
        out_size: number of output features.
        ratio: probability of zeroing a weight, unless a call has ``train=False``.
        nobias, initialW, initial_bias: see :class:`Linear`.

    Attributes:
        W (Parameter): weights (out_size, in_size).
        b (Parameter): bias (out_size,), or None.

    Raises:
        ValueError: ``ratio`` is out of range.
    """

    def __init__(
        self,
        in_size: int | None,
        out_size: int,
        ratio: float = 0.5,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
    ) -> None:
        super().__init__(in_size, out_size, nobias, initialW, initial_bias)
        _check_ratio(self, ratio)
        self.ratio = ratio

    @classmethod
    def from_params(
        cls, W: Input, b: Input | None = None, nobias: bool = False, ratio: float = 0.5
    ) -> Self:
        """Makes the link from arrays or Variables W (O, I) and b (O,), or without bias."""
        link = super().from_params(W, b, nobias)
        link.ratio = ratio
        return link

    @property
    def printable_specs(self) -> Iterable[tuple[str, Any]]:
        yield from super().printable_specs
        yield "ratio", self.ratio

    def forward(
        self,
        x: Input,
        train: bool = True,
        mask: Array | None = None,
        use_batchwise_mask: bool = True,
    ) -> Variable:
        """Applies the map.

        Args:
            x: Variable or array (N, ...).
            train, mask, use_batchwise_mask: arguments of
                :func:`mpchain.functions.simplified_dropconnect`.

        Returns:
            Variable (N, out_size).
        """
        self.initialize_for(x)
        options = self.ratio, train, mask, use_batchwise_mask
        return F.simplified_dropconnect(x, self.W, self.b, *options)

"""The link that looks up rows of a table."""

from collections.abc import Iterable
from typing import Any, Self

from mpchain import functions as F
from mpchain.initializers import Normal, get_initializer
from mpchain.link import Link
from mpchain.links.parameters import check_sizes
from mpchain.typing import InitialValue, Input
from mpchain.variable import Parameter, Variable, as_array


class EmbedID(Link):
    """Look-up table of vectors for identifiers: :func:`mpchain.functions.embed_id`.

        >>> L.EmbedID(1000, 16)(np.array([[3, 0], [999, 3]])).shape
        (2, 2, 16)

    Args:
        in_size: number of identifiers.
        out_size: size of the vectors.
        initialW: initializer, number or array (in_size, out_size); None means Normal(1).
        ignore_label: an identifier whose vector is zero, or None.

    Attributes:
        W (Parameter): the vectors (in_size, out_size).
    """

    def __init__(
        self,
        in_size: int,
        out_size: int,
        initialW: InitialValue = None,
        ignore_label: int | None = None,
    ) -> None:
        super().__init__()
        check_sizes(self, in_size=in_size, out_size=out_size)
        self.ignore_label = ignore_label
        with self.init_scope():
            initialW = Normal(1.0) if initialW is None else get_initializer(initialW)
            self.W = Parameter(initialW, (in_size, out_size))

    @classmethod
    def from_params(cls, W: Input, ignore_label: int | None = None) -> Self:
        """Makes the link from the vectors: an array or Variable W (in_size, out_size)."""
        W = as_array(W)
        in_size, out_size = W.shape
        return cls(in_size, out_size, W, ignore_label)

    @property
    def printable_specs(self) -> Iterable[tuple[str, Any]]:
        names = ("in_size", "out_size", "ignore_label")
        return zip(names, (*self.W.shape, self.ignore_label))

    def forward(self, x: Input) -> Variable:
        """Looks up the vectors of a Variable or array of integers x; returns a Variable (*x.shape,
        out_size)."""
        return F.embed_id(x, self.W, self.ignore_label)

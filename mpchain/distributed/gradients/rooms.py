"""The memory of buckets of gradients."""

import operator
import sys
from collections.abc import Iterable

from mpchain.typing import Array
from mpchain.utils.flat_layout import FlatLayout
from mpchain.variable import Parameter

own_grad = operator.attrgetter("_grad")
"""Returns a parameter's gradient, but None for one that has become a Variable."""


class Room:
    """The memory of a bucket.

    Args:
        values: flat array.
        layout: the places of the gradients.

    Attributes:
        values: as given.
        views: the gradients by name, parts of ``values`` in the shapes of the parameters.

    Example:
        >>> layout = FlatLayout(np.float32)
        >>> layout.append("/W", (2, 3))
        >>> Room(np.zeros(6, np.float32), layout).views["/W"].shape
        (2, 3)
    """

    def __init__(self, values: Array, layout: FlatLayout):
        self.values = values
        self.views = layout.views(values)

    def is_held(self, params: Iterable[Parameter] = ()) -> bool:
        """Returns whether anything but the ``grad`` of these parameters, which come in the order of
        ``views``, refers to a part of the memory."""
        # Each array is referred to by its attribute or dict and by getrefcount's argument, and
        # ``values`` by all arrays that are parts of it, also by parts of the views. A gradient that
        # has become a Variable may be held as such, and counts as held.
        views = self.views.values()
        n_own = 2 * len(views) + sum(map(operator.is_, map(own_grad, params), views))
        return (
            sys.getrefcount(self.values) > 2 + len(views)
            or sum(map(sys.getrefcount, views)) > n_own
        )

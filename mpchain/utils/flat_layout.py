"""Layouts of named arrays of the same dtype that are concatenated in a flat array."""

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from mpchain import backend
from mpchain.typing import Array, DTypeLike


class FlatLayout:
    """The positions of named arrays in one flat array of NumPy or CuPy.

    Args:
        dtype: the dtype of the arrays. The flat array may have another dtype.

    Attributes:
        dtype: the dtype of the arrays.
        slices: the slice of each array by name, in the order of the flat array.
        size: the number of elements of the flat array.

    Example:
        >>> layout = FlatLayout(np.float32)
        >>> layout.append("W", (2, 2)), layout.append("b", (2,))
        (None, None)
        >>> flat = layout.fill(np.empty(6), {"W": np.ones((2, 2)), "b": None}, factor=0.5)
        >>> flat, layout.views(flat)["W"].shape
        (array([0.5, 0.5, 0.5, 0.5, 0. , 0. ]), (2, 2))
    """

    def __init__(self, dtype: DTypeLike):
        self.dtype = np.dtype(dtype)
        self.slices: dict[Any, slice] = {}
        self.size = 0
        self._shapes: dict[Any, tuple[int, ...]] = {}

    def append(self, name: Hashable, shape: tuple[int, ...]) -> None:
        """Appends an array with the given name and shape to the layout."""
        stop = self.size + math.prod(shape)
        self.slices[name], self._shapes[name] = slice(self.size, stop), shape
        self.size = stop

    def aligned(self, n: int) -> "FlatLayout":
        """Returns a layout of the same arrays that begins with all arrays whose size is a multiple
        of ``n``, so that each of these arrays begins at a multiple of ``n``.

        Example:
            >>> layout = FlatLayout(np.float32)
            >>> layout.append("b", (10,)), layout.append("W", (8, 10))
            (None, None)
            >>> layout.aligned(8).slices
            {'W': slice(0, 80, None), 'b': slice(80, 90, None)}
        """
        layout = FlatLayout(self.dtype)
        for name, shape in sorted(self._shapes.items(), key=lambda x: math.prod(x[1]) % n != 0):
            layout.append(name, shape)
        return layout

    def renamed(self, names: Mapping[Hashable, Hashable]) -> "FlatLayout":
        """Returns a layout of the same size with only some of the arrays, at the same positions;
        ``names`` maps the current names of these arrays to new names."""
        layout = FlatLayout(self.dtype)
        layout.size = self.size
        layout.slices = {new: self.slices[name] for name, new in names.items()}
        layout._shapes = {new: self._shapes[name] for name, new in names.items()}
        return layout

    def views(self, flat: Array) -> dict[Any, Array]:
        """Returns the parts of a flat array by name, in the shapes of the named arrays."""
        return {name: flat[self.slices[name]].reshape(s) for name, s in self._shapes.items()}

    def fill(self, flat: Array, arrays: Mapping[Any, Array | None], factor: float = 1) -> Array:
        """Copies arrays, times ``factor``, to their slices of ``flat``; None becomes zeros.

        Returns:
            ``flat``
        """
        for name, view in self.views(flat).items():
            put(view, arrays[name], factor)
        return flat

    def part(self, rank: int, size: int) -> dict[Any, slice]:
        """Divides the flat array into ``size`` parts of equal length; the last part may extend
        beyond the end.

        Returns:
            A dict from each name to the slice of the flattened array that lies in part ``rank``.
        """
        length = -(-self.size // size)
        ends = rank * length, (rank + 1) * length
        return {
            name: slice(*(min(max(end, s.start), s.stop) - s.start for end in ends))
            for name, s in self.slices.items()
        }


def layouts(
    arrays: Iterable[tuple[Any, Any]], n_bytes: float = math.inf, n_first: float | None = None
) -> list[FlatLayout]:
    """Returns layouts of arrays or parameters in flat arrays, each for arrays of one dtype.

    Args:
        arrays: pairs of a name and an object with a shape and a dtype, in the order of the result.
        n_bytes: a layout that has reached this size gets no more arrays.
        n_first: the size from which the first layout gets no more arrays; None means ``n_bytes``.

    Example:
        >>> arrays = {"a": np.zeros(3), "b": np.zeros(2, np.float32), "c": np.zeros(1)}
        >>> [[*layout.slices] for layout in layouts(arrays.items())]
        [['a', 'c'], ['b']]
    """
    made, with_room = [], {}
    for name, array in arrays:
        layout = with_room.get(array.dtype)
        most = n_first if n_first is not None and made and layout is made[0] else n_bytes
        if layout is None or layout.size * layout.dtype.itemsize >= most:
            layout = with_room[array.dtype] = FlatLayout(array.dtype)
            made.append(layout)
        layout.append(name, array.shape)
    return made


def put(view: Array, array: Array | None, factor: float = 1) -> None:
    """Overwrites ``view`` with ``array`` times ``factor``, or with zeros if ``array`` is None.

    Example:
        >>> view = np.zeros(2, np.float32)
        >>> put(view, np.ones(2), 3)
        >>> view
        array([3., 3.], dtype=float32)
    """
    if array is None or factor == 1:
        view[...] = 0 if array is None else array
    else:
        xp = backend.get_array_module(view)
        xp.multiply(array, view.dtype.type(factor), out=view)

"""Names of the types that signatures use.

CuPy's arrays have the interface of NumPy's, and CuPy may be absent, so ``Array`` stands for both.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

import numpy as np
from numpy.typing import DTypeLike as _DTypeLike

if TYPE_CHECKING:
    from mpchain.backends.device import Device
    from mpchain.initializers.initializer import Initializer
    from mpchain.variable import Variable

DTypeLike: TypeAlias = _DTypeLike | None
"""Values that :class:`numpy.dtype` accepts; None usually means the configured dtype."""

Array: TypeAlias = np.ndarray[Any, Any]
"""A NumPy or CuPy array."""

Arrays: TypeAlias = tuple[Array | None, ...]
"""The inputs, outputs or gradients of a function; None stands for a missing array."""

Input: TypeAlias = Union["Variable", Array]
"""An argument of a function: a Variable or an array."""

Output: TypeAlias = Input
"""The result of the body of a declared function; the function itself returns a Variable."""

Axes: TypeAlias = int | tuple[int, ...] | None
"""The axes of a reduction; None means all axes."""

Sizes: TypeAlias = int | Sequence[int]
"""A number for each spatial axis, or one number for all of them."""

InitialValue: TypeAlias = Union["Initializer", Callable[[Array], None], Array, float, None]
"""The initial values of a parameter; None means the default of the link or function."""

DeviceLike: TypeAlias = Union["Device", str, int]
"""A device, or a specifier of a device that :func:`mpchain.get_device` accepts."""


class Dataset(Protocol):
    """An object with a length whose examples are accessed by integer indices: a dataset, an array
    or a list."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...

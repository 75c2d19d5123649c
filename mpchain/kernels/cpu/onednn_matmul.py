"""Products of matrices, and of stacks of matrices, by oneDNN's matmul primitive.

For one product, oneDNN also has the function ``dnnl_sgemm``. It takes less time to call and is as
fast, except for x W^T where x has many rows (see :mod:`mpchain.kernels.cpu.onednn`).
"""

import ctypes
from collections.abc import Callable

import numpy as np

from mpchain.backends.host_memory import address
from mpchain.kernels import thresholds
from mpchain.kernels.cpu.onednn_library import BFLOAT16, FLOAT32, Objects, load
from mpchain.typing import Array

_SRC, _DST, _WEIGHTS, _BIAS = 1, 17, 33, 41
_OF_WEIGHTS, _ALIGNED = 131, 64  # these are the number of a query and an alignment in bytes


class _Product(Objects):
    """The primitive for products of matrices, or stacks, of given shapes, strides in bytes, and
    element sizes.

    Elements of two bytes are bfloat16, and are summed in single precision.
    """

    def __init__(self, shapes, strides, sizes, has_bias, is_sum):
        super().__init__(load())
        a, b, y = (
            self.describe(shape, [step // n for step in steps], BFLOAT16 if n == 2 else FLOAT32)
            for shape, steps, n in zip(shapes, strides, sizes)
        )
        n_columns = shapes[2][-1]
        bias = self.describe((1, n_columns), (n_columns, 1)) if has_bias else None
        attributes = self._adding() if is_sum else None
        name = "dnnl_matmul_primitive_desc_create"
        descriptor = self.make(name, self.onednn.engine, a, b, bias, y, attributes)
        self.primitive = self.make("dnnl_primitive_create", descriptor)
        self.kinds = (_SRC, _WEIGHTS, _DST, _BIAS)[: 3 + has_bias]
        self.described = (a, b, y, bias)[: 3 + has_bias]
        self.memories = self.memories_of()
        self.steps = [(self.primitive, self.arguments(zip(self.kinds, self.memories)))]

    def _adding(self):
        """Returns the attributes of a primitive that adds its result to its output array."""
        c, check = self.onednn.c, self.onednn.check
        after = self.make("dnnl_post_ops_create")
        one, kept = ctypes.c_float(1), ctypes.c_int(0)
        status = c.dnnl_post_ops_append_sum(after, one, kept, ctypes.c_int(FLOAT32))
        check("dnnl_post_ops_append_sum", status)
        attributes = self.make("dnnl_primitive_attr_create")
        status = c.dnnl_primitive_attr_set_post_ops(attributes, after)
        check("dnnl_primitive_attr_set_post_ops", status)
        return attributes

    def memories_of(self, *arrays):
        """Returns memory objects for the arguments of the primitive, which point to arrays if these
        are given."""
        places = map(address, arrays) if arrays else (None for _ in self.described)
        create, engine = "dnnl_memory_create", self.onednn.engine
        return [self.make(create, d, engine, place) for d, place in zip(self.described, places)]

    def __call__(self, *arrays):
        set_place = self.onednn.c.dnnl_memory_set_data_handle
        with self.onednn.lock:
            for memory, array in zip(self.memories, arrays):
                set_place(memory, address(array))
            self.onednn.run(self.steps)


_product = thresholds.remembered(maxsize=1024)(_Product)


def matmul(a: Array, b: Array, y: Array, bias: Array | None = None, is_sum: bool = False) -> None:
    """Writes the product of two matrices or two stacks to ``y``, or adds the product to ``y``.

    Args:
        a, b, y: arrays (n, k), (k, m) and (n, m) of single precision, or stacks of such arrays with
            equal length, not empty. The elements of each row are adjacent; in ``a`` and ``b``, the
            elements of each column may be adjacent instead. ``a`` and ``b`` may be bfloat16; then
            ``y`` may be bfloat16 too, and is rounded.
        bias: an array (m,) that is added to each row.
        is_sum: whether to add the product to ``y``.

    Example:
        >>> y = np.empty((5, 2, 4), np.float32)
        >>> if not isinstance(load(), str):
        ...     matmul(np.ones((5, 2, 3), np.float32), np.ones((5, 3, 4), np.float32), y)
    """
    shapes, strides = (a.shape, b.shape, y.shape), (a.strides, b.strides, y.strides)
    sizes = a.itemsize, b.itemsize, y.itemsize
    product = _product(shapes, strides, sizes, bias is not None, is_sum)
    if bias is None:
        product(a, b, y)
    else:
        product(a, b, y, np.ascontiguousarray(bias))


class _Prepared(_Product):
    """A product of matrices whose addresses do not change. A call without arguments computes the
    product."""

    def __init__(self, a, b, y):
        shapes, strides = (a.shape, b.shape, y.shape), (a.strides, b.strides, y.strides)
        super().__init__(shapes, strides, (4, 4, 4), has_bias=False, is_sum=False)
        self.arrays = a, b, y
        memories = self.memories_of(*self.arrays)
        self.steps = [(self.primitive, self.arguments(zip(self.kinds, memories)))]

    def __call__(self):
        self.onednn.run(self.steps)


def prepared_matmul(a: Array, b: Array, y: Array) -> Callable[[], None]:
    """Returns a function that writes the product of two matrices to ``y``; see :func:`matmul`.

    Example:
        >>> a, b, y = np.ones((3, 2, 2), np.float32)
        >>> multiply = None if isinstance(load(), str) else prepared_matmul(a, b, y)
    """
    return _Prepared(a, b, y)


class _Packing(Objects):
    """The primitives that multiply matrices (n, k) by one matrix (k, m), which is rearranged once.

    ``strides`` are the strides of the matrix (k, m), in bytes.
    """

    def __init__(self, n, shape, strides):
        super().__init__(load())
        onednn, (k, m) = self.onednn, shape
        given = self.describe(shape, [step // 4 for step in strides])
        a, y = self.describe((n, k), (k, 1)), self.describe((n, m), (m, 1))
        name = "dnnl_matmul_primitive_desc_create"
        descriptor = self.make(name, onednn.engine, a, self.describe(shape), None, y, None)
        self.primitive = self.make("dnnl_primitive_create", descriptor)
        chosen = onednn.c.dnnl_primitive_desc_query_md(descriptor, _OF_WEIGHTS, 0)
        chosen = ctypes.c_void_p(chosen)
        name, engine = "dnnl_reorder_primitive_desc_create", onednn.engine
        reorder = self.make(name, given, engine, chosen, engine, None)
        self.reorder = self.make("dnnl_primitive_create", reorder)
        self.n_bytes = onednn.c.dnnl_memory_desc_get_size(chosen)
        self.described = given, chosen, a, y


class _Packed(Objects):
    """Multiplies matrices by one rearranged matrix. A call gets a matrix (n, k) and the array for
    the result."""

    def __init__(self, packing, b):
        super().__init__(load())
        self.packing, self.buffer = packing, np.empty(packing.n_bytes + _ALIGNED, np.uint8)
        start = ctypes.c_void_p(-(-self.buffer.ctypes.data // _ALIGNED) * _ALIGNED)
        places = address(b), start, None, None
        create, engine = "dnnl_memory_create", self.onednn.engine
        given, packed, *self.memories = [
            self.make(create, d, engine, place) for d, place in zip(packing.described, places)
        ]
        arguments = self.arguments(zip((_SRC, _DST), (given, packed)))
        self.onednn.run([(packing.reorder, arguments)])
        a, y = self.memories
        arguments = self.arguments(zip((_SRC, _WEIGHTS, _DST), (a, packed, y)))
        self.steps = [(packing.primitive, arguments)]

    def __call__(self, a, y):
        set_place = self.onednn.c.dnnl_memory_set_data_handle
        for memory, array in zip(self.memories, (a, y)):
            set_place(memory, address(array))
        self.onednn.run(self.steps)


_packing = thresholds.remembered(maxsize=256)(_Packing)


def packed_matmul(b: Array, n: int) -> Callable[[Array, Array], None]:
    """Returns a function that writes the product of a matrix and ``b`` to another matrix.

    The function uses a copy of ``b`` in a layout of the library, which makes many products faster.

    Args:
        b: array (k, m) of single precision, not empty, whose rows or columns have no gaps.
        n: the number of rows of the function's arguments: contiguous arrays (n, k) and (n, m).

    Example:
        >>> a, b, y = np.ones((3, 2, 2), np.float32)
        >>> multiply = None if isinstance(load(), str) else packed_matmul(b, 2)
    """
    return _Packed(_packing(n, b.shape, b.strides), b)

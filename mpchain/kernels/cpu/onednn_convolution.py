"""Convolutions by oneDNN's primitives, and the memory layouts that these primitives need.

With one and two spatial axes, the primitives read and write arrays with channels last (see
:mod:`mpchain.kernels.cpu.channels_last`), so that consecutive layers rearrange only filters. With
three axes, oneDNN chooses blocked layouts, while arguments and results are plain. A call runs up to
two reorders of inputs, the convolution, and one reorder of the output. The primitives are made once
for each geometry. The constants below come from oneDNN's headers.
"""

import ctypes
import math

import numpy as np

from mpchain.backends.host_memory import address
from mpchain.kernels import thresholds
from mpchain.kernels.cpu.channels_last import as_last, as_plain, empty, is_last, result_last
from mpchain.kernels.cpu.onednn_library import Objects, dims, load
from mpchain.kernels.window import Window
from mpchain.typing import Array

_FORWARD_TRAINING, _DIRECT = 64, 1
_SRC, _DST, _WEIGHTS, _BIAS = 1, 17, 33, 41
_DIFF_SRC, _DIFF_DST, _DIFF_WEIGHTS = 129, 145, 161
_QUERIES = {_SRC: 129, _DIFF_SRC: 130, _WEIGHTS: 131, _DIFF_WEIGHTS: 132, _DST: 133, _DIFF_DST: 134}
_SIDE_BY_SIDE = (1, 2)  # with these numbers of spatial axes, arrays have channels last

# For each operation, these are oneDNN's names of the two operands, in the order of our kernels. The
# last name is the name of the result.
_KINDS = {
    "output": (_SRC, _WEIGHTS, _DST),
    "input": (_DIFF_DST, _WEIGHTS, _DIFF_SRC),
    "filter": (_SRC, _DIFF_DST, _DIFF_WEIGHTS),
}
_NAMES = {_SRC: "x", _DIFF_SRC: "x", _WEIGHTS: "W", _DIFF_WEIGHTS: "W", _DST: "y", _DIFF_DST: "y"}


class _Convolution(Objects):
    """A convolution, or one of its adjoints, of one geometry. A call with the operands computes the
    result.

    Args:
        operation: ``'output'``, ``'input'`` or ``'filter'``: the array that is computed from the
            other two.
        shapes: the shapes of x, W and y, and of the bias if there is one.
        window: the geometry.
        last: the names, among "x" and "y", of the arrays that have channels last.
    """

    def __init__(self, operation, shapes, window, last):
        super().__init__(load())
        self.shapes, self.last = shapes, last
        work = math.prod(shapes["y"]) * math.prod(shapes["W"][-1 - len(window.ksize) :])
        self.threads = self.onednn.threads if work >= thresholds.convolution_threads else 1
        with self.onednn.limited_to(self.threads):
            self._prepare(operation, window)

    def _prepare(self, operation, window):
        descriptor = self._descriptor(operation, window)
        primitive = self.make("dnnl_primitive_create", descriptor)
        kinds = _KINDS[operation]
        # These are the memory objects of our arrays, and the memory objects in the arena with their
        # offsets.
        self.ours, self.blocked = [], []
        # These are the number of bytes that the convolution needs in the arena, and the arena's
        # address in the last call.
        self.size, self.arena = 0, None
        used = {kind: self._argument(descriptor, kind) for kind in kinds}
        memories = {kind: memory for kind, (memory, _) in used.items()}
        if "b" in self.shapes:
            described = self._describe("b")
            memories[_BIAS] = self.make("dnnl_memory_create", described, self.onednn.engine, None)
            self.ours.insert(2, memories[_BIAS])
        first, second, result = (reorder for _, reorder in used.values())
        steps = first, second, (primitive, self.arguments(memories.items())), result
        self.steps = [step for step in steps if step is not None]
        names = [_NAMES[kind] for kind in kinds]
        self.are_last = [name in self.last for name in names]
        self.result_shape = self.shapes[names[2]]

    def _describe(self, name, is_last=False):
        shape = self.shapes[name]
        return self.describe(shape, _strides(shape, is_last or name in self.last))

    def _descriptor(self, operation, window):
        W = self.describe(self.shapes["W"])
        if len(window.ksize) in _SIDE_BY_SIDE:
            x, y = (self._describe(name, is_last=True) for name in "xy")
        else:
            x, y = (self.describe(self.shapes[name]) for name in "xy")
        spans = [(k - 1) * d + 1 for k, d in zip(window.ksize, window.dilate)]
        axes = zip(window.out_size, window.stride, spans, window.in_size, window.pad)
        # cover_all needs extra padding, because oneDNN ignores elements after the last full window.
        ends = [max((o - 1) * s + span - size - p, p) for o, s, span, size, p in axes]
        dilates = [d - 1 for d in window.dilate]
        b = self._describe("b") if "b" in self.shapes else None
        geometry = [dims(sizes) for sizes in (window.stride, dilates, window.pad, ends)]
        engine, direct = self.onednn.engine, ctypes.c_int(_DIRECT)
        forward = self.make(
            "dnnl_convolution_forward_primitive_desc_create",
            *(engine, ctypes.c_int(_FORWARD_TRAINING), direct, x, W, b, y, *geometry, None),
        )
        if operation == "output":
            return forward
        if operation == "input":
            name = "dnnl_convolution_backward_data_primitive_desc_create"
            return self.make(name, engine, direct, x, W, y, *geometry, forward, None)
        name = "dnnl_convolution_backward_weights_primitive_desc_create"
        return self.make(name, engine, direct, x, W, None, y, *geometry, forward, None)

    def _argument(self, descriptor, kind):
        """Returns the memory object that the primitive uses; if its layout differs from our array's
        layout, prepares a reorder."""
        c, engine = self.onednn.c, self.onednn.engine
        given = self._describe(_NAMES[kind])
        chosen = ctypes.c_void_p(c.dnnl_primitive_desc_query_md(descriptor, _QUERIES[kind], 0))
        ours = self.make("dnnl_memory_create", given, engine, None)
        self.ours.append(ours)
        if c.dnnl_memory_desc_equal(given, chosen):
            return ours, None
        theirs = self.make("dnnl_memory_create", chosen, engine, None)
        self.blocked.append((theirs, self.size))
        self.size += -(-c.dnnl_memory_desc_get_size(chosen) // 64) * 64
        pair, described = (ours, theirs), (given, engine, chosen, engine)
        if kind in (_DST, _DIFF_SRC, _DIFF_WEIGHTS):
            pair, described = (theirs, ours), (chosen, engine, given, engine)
        reorder = self.make("dnnl_reorder_primitive_desc_create", *described, None)
        primitive = self.make("dnnl_primitive_create", reorder)
        return theirs, (primitive, self.arguments(zip((_SRC, _DST), pair)))

    def __call__(self, *operands, out):
        of_first, of_second, of_result = self.are_last
        y = (result_last if of_result else empty)(self.result_shape, np.float32, out=out)
        are_last = of_first, of_second, False  # the bias needs no reorder
        arrays = [(as_last if last else as_plain)(x) for x, last in zip(operands, are_last)]
        onednn = self.onednn
        with onednn.lock:
            for memory, array in zip(self.ours, (*arrays, y)):
                onednn.c.dnnl_memory_set_data_handle(memory, address(array))
            if self.blocked and self.arena != onednn.arena(self.size):
                self._place(onednn.begin)
            # in the usual case, the number of threads has not changed
            if onednn.openmp.omp_get_max_threads() == self.threads:
                onednn.run(self.steps)
            else:
                with onednn.limited_to(self.threads):
                    onednn.run(self.steps)
        return y

    def _place(self, begin):
        """Moves the memory objects of the arena to a new address."""
        for memory, start in self.blocked:
            pointer = ctypes.c_void_p(begin + start)
            self.onednn.c.dnnl_memory_set_data_handle(memory, pointer)
        self.arena = begin


def _strides(shape, is_last):
    """Returns the strides of an array, plain or with channels last, in elements."""
    if is_last:
        n, channels, *size = shape
        first, *steps, _ = _strides((n, *size, channels), False)
        return [first, 1, *steps]
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


@thresholds.remembered(maxsize=512)
def _convolution(operation, x_shape, W_shape, y_shape, window, last, has_bias=False):
    groups = window.groups
    if groups > 1:  # oneDNN's filters have a separate axis for groups
        W_shape = (groups, W_shape[0] // groups, *W_shape[1:])
    shapes = {"x": x_shape, "W": W_shape, "y": y_shape}
    if has_bias:
        shapes["b"] = y_shape[1:2]
    return _Convolution(operation, shapes, window, last)


def _last(window, **arrays):
    """Returns the names of those arrays that get channels last; a result is given by its shape.

    An array that has gaps needs a copy, which gets channels last if it has enough channels.
    """
    if len(window.ksize) not in _SIDE_BY_SIDE:
        return ""
    least = thresholds.channels_last
    return "".join(
        name
        for name, x in arrays.items()
        if (
            x[1] >= least
            if isinstance(x, tuple)
            else is_last(x) or (x.shape[1] >= least and not x.flags.c_contiguous)
        )
    )


def output(
    x: Array, W: Array, window: Window, b: Array | None = None, *, out: Array | None = None
) -> Array:
    """Returns y = x * W, plus ``b`` if it is given, for arrays of single precision.

    Example:
        >>> x, window = np.ones((1, 1, 3), "f"), Window((1,), (1,), (0,), (1,), 1, (3,), (3,))
        >>> y = None if isinstance(load(), str) else output(x, x[:, :, :1], window)
    """
    y_shape = (x.shape[0], W.shape[0], *window.out_size)
    last = _last(window, x=x, y=y_shape)
    call = _convolution("output", x.shape, W.shape, y_shape, window, last, b is not None)
    return call(x, W, out=out) if b is None else call(x, W, b, out=out)


def input(y: Array, W: Array, window: Window, out: Array | None = None) -> Array:
    """Returns the adjoint of x -> x * W, for arrays of single precision.

    Example:
        >>> y, window = np.ones((1, 1, 3), "f"), Window((1,), (1,), (0,), (1,), 1, (3,), (3,))
        >>> x = None if isinstance(load(), str) else input(y, y[:, :, :1], window)
    """
    x_shape = (y.shape[0], W.shape[1] * window.groups, *window.in_size)
    last = _last(window, x=x_shape, y=y)
    return _convolution("input", x_shape, W.shape, y.shape, window, last)(y, W, out=out)


def filter(x: Array, y: Array, window: Window, out: Array | None = None) -> Array:
    """Returns the adjoint of W -> x * W, for arrays of single precision.

    Example:
        >>> x, window = np.ones((1, 1, 3), "f"), Window((1,), (1,), (0,), (1,), 1, (3,), (3,))
        >>> W = None if isinstance(load(), str) else filter(x, x, window)
    """
    W_shape = (y.shape[1], x.shape[1] // window.groups, *window.ksize)
    last = _last(window, x=x, y=y)
    W = _convolution("filter", x.shape, W_shape, y.shape, window, last)(x, y, out=out)
    return W if W.shape == W_shape else W.reshape(W_shape)

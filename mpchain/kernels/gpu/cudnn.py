"""Convolutions and products on GPUs by NVIDIA's cuDNN, which are described as graphs of its front
end.

The wheels are ``nvidia-cudnn-frontend`` and ``nvidia-cudnn-cu13``. A graph describes operations on
tensors; cuDNN plans their execution for one GPU, or reports that it cannot. Plans are cached by the
shapes, strides and dtypes of the arrays, by the GPU, and by what the configuration permits:

* ``use_cudnn = "never"``: cuDNN is not used;
* ``cudnn_deterministic``: only plans that give the same bits in each call are used;
* ``use_cudnn_tensor_core``: by default, tensor cores multiply half precision, and single precision
  in convolutions, where factors are rounded to ten bits (TF32); with ``"always"``, they multiply
  single precision in products too; with ``"never"``, they are not used;
* ``kernels`` with ``"cudnn_python"``: engines of the front end itself are used too; they declare no
  numerical notes, so the two settings above do not apply to them;
* ``kernels`` with ``"cudnn_dropout"``: cuDNN's generator draws the dropout of attention even where
  draws belong to samples;
* ``mpchain.cuda.set_max_workspace_size``: the maximum memory for a call, not counting copies of its
  arrays in the order of axes that the plan needs.

Kernels of other files compute the operations that cuDNN refuses.
"""

import functools
import importlib
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from mpchain.backends import cuda
from mpchain.configuration import config
from mpchain.kernels import reference
from mpchain.kernels.operation import explain_by
from mpchain.kernels.window import Window
from mpchain.observers import current
from mpchain.typing import Array

_TYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE"}
DTYPES = tuple(_TYPES)
"""The names of the dtypes that cuDNN supports."""
_KINDS = _TYPES | {"int64": "INT64"}
_SIZES = {"float32": 4, "float64": 8, "int64": 8}
ALIGNMENT = 16
"""The alignment, in bytes, of the arrays for which plans are made."""
PYTHON_ENGINES = "cudnn_python"
"""The name in ``config.kernels`` that lets the front end use its own engines."""
_FIRST_PYTHON_ENGINE = 10_000
"""The smallest number of the front end's own engines; smaller numbers are engines of cuDNN."""
MOST_PLANS = 1024
"""The number of plans that are kept; the least recently used plans are dropped and made again."""


class Tensor(NamedTuple):
    """A graph's description of an array.

    Attributes:
        shape: the shape of the array.
        strides: the distance between elements along each axis, in elements.
        dtype: the name of the dtype.

    Example:
        >>> Tensor((2, 3), (3, 1), "float32").n_bytes
        24
    """

    shape: tuple
    strides: tuple
    dtype: str

    @property
    def n_bytes(self) -> int:
        """The size of the array in bytes."""
        return math.prod(self.shape) * _SIZES.get(self.dtype, 2)


class Request(NamedTuple):
    """A computation to plan: a function that adds the computation to a graph, the arrays, and
    further arguments.

    Attributes:
        add: a function of library, graph, tensors and arguments, which returns the tensors of the
            results.
        reads: the arrays that are read.
        writes: the arrays that are written.
        arguments: further arguments.
        n_scalars: the number of further tensors that are scalars in the host's memory.
        n_extra: the number of workspace bytes that do not count toward the limit.
    """

    add: Callable
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    arguments: tuple = ()
    n_scalars: int = 0
    n_extra: int = 0


@functools.cache
def load_library() -> Any:
    """Returns the front end's module, or the reason why it cannot be used (str)."""
    try:
        cudnn: Any = importlib.import_module("cudnn")
        cudnn.destroy_handle(cudnn.create_handle())
    except ImportError as error:
        return f"cuDNN is not installed ({error}): pip install 'mpchain[gpu]'"
    except Exception as error:  # a broken installation can raise any type of error
        return f"cuDNN cannot be used: {error}"
    return cudnn


def why_absent() -> str | None:
    """Returns the reason why the library cannot be used; None if it can be used.

    Example:
        >>> reason = why_absent()  # such as 'cuDNN is not installed ...'
    """
    library = load_library()
    return library if isinstance(library, str) else None


class _Handles(threading.local):
    """The handles of a thread, by GPU id. Each thread has handles of its own, because two threads
    must not use a handle at the same time."""

    def __init__(self):
        self.of = {}

    def get(self, device_id):
        if device_id not in self.of:
            with cuda.get_device_from_id(device_id):
                self.of[device_id] = load_library().create_handle()
        return self.of[device_id]


_handles = _Handles()


def make_graph(library: ModuleType, request: Request, **where: Any) -> Any:
    """Returns a graph without plans; its tensors are numbered from 1 in the order of the arrays.

    Args:
        library: the front end's module.
        request: the computation of the graph.
        where: ``handle``, or ``device_property`` for a GPU that is not installed.

    Example:
        >>> graph = make_graph(cudnn, request, handle=handle)  # doctest: +SKIP
    """
    types = library.data_type
    tensors = [*request.reads, *request.writes]
    wide = types.DOUBLE if any(x.dtype == "float64" for x in tensors) else types.FLOAT
    kinds = [getattr(types, _KINDS[x.dtype]) for x in tensors]
    graph = library.pygraph(
        io_data_type=kinds[0], intermediate_data_type=wide, compute_data_type=wide, **where
    )
    reads = [
        graph.tensor(dim=list(x.shape), stride=list(x.strides), data_type=kind, uid=uid)
        for uid, (x, kind) in enumerate(zip(request.reads, kinds), 1)
    ]
    one = {"dim": [1] * 4, "stride": [1] * 4, "data_type": types.FLOAT, "is_pass_by_value": True}
    numbers = range(len(kinds) + 1, len(kinds) + request.n_scalars + 1)
    reads += [graph.tensor(**one, uid=uid) for uid in numbers]
    made = request.add(library, graph, *reads, *request.arguments)
    n = len(request.reads)
    for uid, y, x, kind in zip(itertools.count(n + 1), made, request.writes, kinds[n:]):
        y.set_output(True).set_data_type(kind).set_uid(uid)
        y.set_dim(list(x.shape)).set_stride(list(x.strides))
    graph.validate()
    graph.build_operation_graph()
    return graph


def make_plan(
    library: ModuleType,
    graph: Any,
    avoided: Sequence[str],
    n_bytes: int,
    takes_python: bool = False,
) -> str:
    """Chooses the plan of a graph with cuDNN's heuristics, and returns the plan's name.

    Args:
        library: the front end's module.
        graph: a graph from :func:`make_graph`.
        avoided: names of numerical notes; plans that have one of them are skipped.
        n_bytes: the maximum size of the workspace.
        takes_python: whether the plan may be one of the front end's own engines, written in Python.
            These engines declare no notes, so it is unknown whether a note in ``avoided`` applies
            to them.

    Raises:
        library.cudnnGraphNotSupportedError, RuntimeError: cuDNN has no plan for the graph.

    Example:
        >>> make_plan(cudnn, graph, ["NONDETERMINISTIC"], 1 << 23)  # doctest: +SKIP
    """
    graph.create_execution_plans([library.heur_mode.A, library.heur_mode.FALLBACK])
    # before version 1.32, the front end has no engines of its own
    plans = getattr(graph, "plans", [])
    of_python = [i for i, plan in enumerate(plans) if plan.engine_id >= _FIRST_PYTHON_ENGINE]
    if of_python and not takes_python:
        names = {graph.get_plan_name_at_index(i).partition("[")[0] for i in of_python}
        graph.deselect_engines(sorted(names))
    graph.deselect_numeric_notes([getattr(library.numerical_note, name) for name in avoided])
    graph.deselect_workspace_greater_than(n_bytes)
    graph.check_support()
    graph.build_plans()
    engine = getattr(graph, "selected_engine", None)
    if engine is not None and not takes_python:
        raise RuntimeError(f"the front end takes {engine.name}, which declares no numerical notes")
    return graph.get_plan_name_at_index(getattr(graph, "_plan_index", 0))


class _Plan:
    """A graph with its plan, ready to be run.

    Attributes:
        name: cuDNN's name of the plan.
        n_bytes: the size of the workspace.
    """

    def __init__(self, library, request, avoided, n_bytes, device_id, takes_python):
        handle = _handles.get(device_id)
        self._library, self._device_id = library, device_id
        self._graph = make_graph(library, request, handle=handle)
        self.name = make_plan(library, self._graph, avoided, n_bytes, takes_python)
        self.n_bytes = self._graph.get_workspace_size()

    def __call__(self, *arrays, scalars=()):
        xp = cuda.get_array_module(arrays[0])
        handle = _handles.get(self._device_id)
        self._library.set_stream(handle, xp.cuda.get_current_stream().ptr)
        workspace = xp.empty(self.n_bytes, "u1") if self.n_bytes else None
        numbers = [np.array(value, np.float32) for value in scalars]
        addresses = [*(x.data.ptr for x in arrays), *(x.ctypes.data for x in numbers)]
        pointers = dict(enumerate(addresses, 1))
        self._graph.execute(pointers, workspace.data.ptr if workspace is not None else 0, handle)
        if current.graph is not None:
            # The captured graph launches the plan's kernels even after the cache has dropped the
            # plan, so the graph keeps the plan alive.
            current.graph.keep(self)


def avoided_notes(dtype: str, is_convolution: bool = False) -> tuple[str, ...]:
    """Returns the numerical notes that plans of a dtype must not have, according to the
    configuration.

    Plans that sum half precision in half precision are always excluded.

    Args:
        dtype: the dtype of the arrays.
        is_convolution: whether the plan computes a convolution or a gradient of a convolution.

    Example:
        >>> with mpchain.using_config("cudnn_deterministic", True):
        ...     avoided_notes("float16")
        ('REDUCED_PRECISION_REDUCTION', 'NONDETERMINISTIC')
    """
    wanted = config.use_cudnn_tensor_core
    is_usual = dtype.endswith("float16") or (is_convolution and dtype == "float32")
    names = ["REDUCED_PRECISION_REDUCTION"]
    if config.cudnn_deterministic:
        names.append("NONDETERMINISTIC")
    if not (wanted == "always" or (wanted == "auto" and is_usual)):
        names += ["TENSOR_CORE", "DOWN_CONVERT_INPUTS"]
    return tuple(names)


@functools.lru_cache(maxsize=MOST_PLANS)
def cached_plan(
    request: Request, avoided: Any, n_bytes: int, device_id: int, takes_python: bool
) -> Any:
    """Returns the plan of a request, or the reason why there is none (str)."""
    library = load_library()
    try:
        return _Plan(library, request, avoided, n_bytes, device_id, takes_python)
    except (library.cudnnGraphNotSupportedError, RuntimeError, TypeError, ValueError) as error:
        return f"cuDNN has no plan: {str(error).strip().splitlines()[0]}"


def plan_of(request: Request, device: Any) -> Any:
    """Returns the plan of a request for a GPU, or the reason why there is none (str).

    Example:
        >>> plan_of(request, x.device)(x, W, y)  # doctest: +SKIP
    """
    limit = cuda.get_max_workspace_size() + request.n_extra
    is_convolution = request.add in (_add_convolution, _add_with_bias)
    avoided = avoided_notes(request.reads[0].dtype, is_convolution)
    plan = cached_plan(request, avoided, limit, device.id, PYTHON_ENGINES in (config.kernels or ()))
    if not isinstance(plan, str):
        explain_by(f"plan {plan.name}")
    return plan


def refusal(*arrays: Array) -> str | None:
    """Returns the reason why cuDNN refuses arrays for any operation; None if there is no such
    reason.

    Example:
        >>> with mpchain.using_config("use_cudnn", "never"):
        ...     refusal(np.ones(3))
        "config.use_cudnn is 'never'"
    """
    if config.use_cudnn == "never":
        return "config.use_cudnn is 'never'"
    names = {x.dtype.name for x in arrays}
    if len(names) > 1 or not names <= _TYPES.keys():
        return "not arrays of half, single or double precision, and one dtype"
    if not all(x.size for x in arrays):
        return "an array without elements"
    return why_absent()


def unasked() -> str | None:
    """Returns the reason why our own kernels, which are as fast, compute an operation instead of
    cuDNN; None if cuDNN computes the operation.

    Example:
        >>> unasked()
        'config.kernels does not name cudnn: other kernels need no time to be compiled'
    """
    if "cudnn" not in (config.kernels or ()):
        return "config.kernels does not name cudnn: other kernels need no time to be compiled"
    return None


# The memory layout of arrays (N, C, ...) is in this order, or has the channels last.


def packed(shape: tuple, channels_last: bool = False) -> tuple:
    """Returns the strides of an array without gaps, in elements.

    Example:
        >>> packed((2, 3, 5)), packed((2, 3, 5), True)
        ((15, 5, 1), (15, 1, 3))
    """
    order = [*range(len(shape))]
    if channels_last:
        order.append(order.pop(1))
    strides, n = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = n
        n *= shape[axis]
    return tuple(strides)


def _is_packed(x, channels_last):
    strides = zip(x.shape, x.strides, packed(x.shape, channels_last))
    return all(n == 1 or stride == x.itemsize * right for n, stride, right in strides)


def _are_channels_last(*arrays):
    """Returns whether a plan should use channels last, because arrays have this layout or because
    tensor cores need it.

    Without this layout, cuDNN would copy half-precision arrays to channels last, and the result
    back, in each call.
    """
    if all(_is_packed(x, True) for x in arrays):
        return True
    x = arrays[0]
    takes_cores = x.dtype.name.endswith("float16") and config.use_cudnn_tensor_core != "never"
    return takes_cores and x.ndim == 4


def fit(x: "cuda.GpuArray", channels_last: bool = False) -> Array:
    """Returns an array that a plan accepts: ``x`` itself, or a copy if ``x`` has gaps or is
    misaligned.

    Example:
        >>> fit(x[:, ::2]).flags.c_contiguous  # doctest: +SKIP
        True
    """
    if x.data.ptr % ALIGNMENT == 0 and _is_packed(x, channels_last):
        return x
    xp = cuda.get_array_module(x)
    copy = _empty(xp, x.shape, x.dtype, channels_last)
    copy[...] = x
    return copy


def _empty(xp, shape, dtype, channels_last):
    if not channels_last or all(n == 1 for n in shape[2:]):
        return xp.empty(shape, dtype)
    return xp.moveaxis(xp.empty((shape[0], *shape[2:], shape[1]), dtype), -1, 1)


# The functions below compute convolutions.


def _add_convolution(library, graph, first, second, open_slot, window):
    """Adds a convolution, or one of its adjoints, to the graph, whose tensors have the axes of the
    window."""
    axes = zip(*window[:4], window.in_size, window.out_size)
    # cover_all needs extra padding, because cuDNN ignores elements after the last full window.
    ends = [max((o - 1) * s + (k - 1) * d + 1 - n - p, p) for k, s, p, d, n, o in axes]
    geometry = {
        "pre_padding": list(window.pad),
        "post_padding": ends,
        "stride": list(window.stride),
        "dilation": list(window.dilate),
    }
    if open_slot == "output":
        return [graph.conv_fprop(image=first, weight=second, **geometry)]
    if open_slot == "input":
        return [graph.conv_dgrad(loss=first, filter=second, **geometry)]
    return [graph.conv_wgrad(image=first, loss=second, **geometry)]


def _add_with_bias(library, graph, x, W, b, open_slot, window):
    """Adds a convolution and the addition of its bias, which one kernel computes, to the graph."""
    (y,) = _add_convolution(library, graph, x, W, open_slot, window)
    return [graph.bias(input=y, bias=b)]


def _with_two_axes(window, tensors):
    """Adds a second axis to windows on one axis, because cuDNN has no 1-D convolutions."""
    if len(window.ksize) > 1:
        return window, tensors
    first = dict(ksize=1, stride=1, pad=0, dilate=1, in_size=1, out_size=1)
    window = window._replace(**{k: (n, *getattr(window, k)) for k, n in first.items()})
    return window, tuple(
        Tensor((*x.shape[:2], 1, x.shape[2]), (*x.strides[:2], x.strides[1], x.strides[2]), x.dtype)
        for x in tensors
    )


def convolution_request(
    open_slot: str,
    first: tuple,
    second: tuple,
    dtype: str,
    window: Window,
    channels_last: bool,
    has_bias: bool = False,
) -> Request:
    """Returns the request for a convolution, or one of its adjoints.

    Args:
        open_slot: ``'output'``, ``'input'`` or ``'filter'``.
        first, second: shapes of the operands, in the order of the kernels.
        dtype: the name of the dtype.
        window: the geometry.
        channels_last: the layout of all arrays.
        has_bias: whether a bias is added to the output.

    Example:
        >>> window = Window((3,), (1,), (0,), (1,), 1, (5,), (3,))
        >>> convolution_request("output", (2, 4, 5), (6, 4, 3), "float32", window, False).writes
        (Tensor(shape=(2, 6, 1, 3), strides=(18, 3, 3, 1), dtype='float32'),)
    """
    result = _result_shape(open_slot, first, second, window)
    biases = [(1, result[1], *[1] * len(window.ksize))] if has_bias else []
    shapes = first, second, *biases, result
    tensors = tuple(Tensor(shape, packed(shape, channels_last), dtype) for shape in shapes)
    window, tensors = _with_two_axes(window, tensors)
    # Tensor cores need channels last, so arrays in the other layout are copied into the workspace.
    n_extra = sum(x.n_bytes for x in tensors)
    add = _add_with_bias if has_bias else _add_convolution
    return Request(add, tensors[:-1], tensors[-1:], (open_slot, window), n_extra=n_extra)


def _result_shape(open_slot, first, second, window):
    if open_slot == "output":
        return first[0], second[0], *window.out_size
    if open_slot == "input":
        return first[0], second[1] * window.groups, *window.in_size
    return second[1], first[1] // window.groups, *window.ksize


_request = functools.lru_cache(maxsize=MOST_PLANS)(convolution_request)


def _request_of(open_slot, first, second, window, biases):
    last, has_bias = _are_channels_last(first, second), bool(biases)
    geometry = first.shape, second.shape, first.dtype.name, window, last, has_bias
    return _request(open_slot, *geometry), last


def _refuse_convolution(open_slot, first, second, window, *biases):
    if (reason := refusal(first, second, *biases)) is not None:
        return reason
    if len(window.ksize) > 3:
        return "more than three spatial axes"
    plan = plan_of(_request_of(open_slot, first, second, window, biases)[0], first.device)
    return plan if isinstance(plan, str) else None


def _convolution(open_slot, first, second, window, *biases):
    request, last = _request_of(open_slot, first, second, window, biases)
    shape = _result_shape(open_slot, first.shape, second.shape, window)
    y = _empty(cuda.get_array_module(first), shape, first.dtype, last)
    biases = [fit(b.reshape(1, -1, *[1] * (first.ndim - 2)), last) for b in biases]
    plan_of(request, first.device)(fit(first, last), fit(second, last), *biases, y)
    return y


@reference.convolution_output.kernel(
    "cudnn", functools.partial(_refuse_convolution, "output"), _TYPES
)
def convolution_output(x: Array, W: Array, window: Window) -> Array:
    """See :func:`mpchain.kernels.reference.convolution_output`."""
    return _convolution("output", x, W, window)


def _refuse_with_bias(x, W, b, window):
    return _refuse_convolution("output", x, W, window, b)


@reference.convolution_with_bias.kernel("cudnn", _refuse_with_bias, DTYPES)
def convolution_with_bias(x: Array, W: Array, b: Array, window: Window) -> Array:
    """See :func:`mpchain.kernels.reference.convolution_with_bias`."""
    return _convolution("output", x, W, window, b)


@reference.convolution_input.kernel(
    "cudnn", functools.partial(_refuse_convolution, "input"), _TYPES
)
def convolution_input(y: Array, W: Array, window: Window) -> Array:
    """See :func:`mpchain.kernels.reference.convolution_input`."""
    return _convolution("input", y, W, window)


@reference.convolution_filter.kernel(
    "cudnn", functools.partial(_refuse_convolution, "filter"), _TYPES
)
def convolution_filter(x: Array, y: Array, window: Window) -> Array:
    """See :func:`mpchain.kernels.reference.convolution_filter`."""
    return _convolution("filter", x, y, window)


# cuDNN's kernels that compute a matrix product and add a bias are used if ``config.kernels`` names
# cuDNN. cuDNN compiles a kernel for each shape, which takes seconds, and uses only tensor cores, so
# that single precision has a plan only with ``config.use_cudnn_tensor_core = "always"``.


def _add_linear(library, graph, x, W, b=None):
    y = graph.matmul(A=x, B=W)
    return [y if b is None else graph.bias(input=y, bias=b)]


@functools.lru_cache(maxsize=1024)
def linear_request(n: int, n_in: int, n_out: int, dtype: str, has_bias: bool) -> Request:
    """Returns the request for y = x W^T + b, where all arrays are matrices (1, rows, columns).

    Example:
        >>> linear_request(8, 3, 5, "float16", True).reads[1]
        Tensor(shape=(1, 3, 5), strides=(15, 1, 3), dtype='float16')
    """
    x, y, b = (Tensor(s, packed(s), dtype) for s in ((1, n, n_in), (1, n, n_out), (1, 1, n_out)))
    # this tensor is the transpose of W
    W = Tensor((1, n_in, n_out), (n_in * n_out, 1, n_in), dtype)
    return Request(_add_linear, (x, W, b) if has_bias else (x, W), (y,))


def _linear_plan(x, W, b):
    request = linear_request(*x.shape, W.shape[0], x.dtype.name, b is not None)
    return plan_of(request, x.device)


def _refuse_linear(x, W, b):
    arrays = (x, W) if b is None else (x, W, b)
    if (reason := unasked() or refusal(*arrays)) is not None:
        return reason
    plan = _linear_plan(x, W, b)
    return plan if isinstance(plan, str) else None


@reference.linear.kernel("cudnn", _refuse_linear, DTYPES)
def linear(x: Array, W: Array, b: Array | None) -> Array:
    """See :func:`mpchain.kernels.reference.linear`."""
    y = cuda.get_array_module(x).empty((x.shape[0], W.shape[0]), x.dtype)
    _linear_plan(x, W, b)(fit(x), fit(W), *([] if b is None else [fit(b)]), y)
    return y


def why_no_plan() -> str | None:
    """Returns the reason why cuDNN has no plans for convolutions on the current GPU; None if cuDNN
    has plans.

    Example:
        >>> reason = why_no_plan()  # such as 'cuDNN is not installed ...'
    """
    if (reason := why_absent()) is not None:
        return reason
    window = Window((3, 3), (1, 1), (1, 1), (1, 1), 1, (8, 8), (8, 8))
    request = convolution_request("output", (2, 8, 8, 8), (8, 8, 3, 3), "float32", window, False)
    plan = plan_of(request, cuda.Device())
    return plan if isinstance(plan, str) else None

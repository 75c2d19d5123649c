"""Stand-ins for features of Chainer that programs call but mpchain does not need."""

import contextlib
import functools
import operator
import os
import subprocess
import unittest
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from mpchain import datasets, functions, optimizer_hooks
from mpchain.backends import cuda
from mpchain.compat.attributes import warn
from mpchain.configuration import config
from mpchain.dataset import convert
from mpchain.distributed.functions import communication
from mpchain.function_node import FunctionNode
from mpchain.testing import random as testing_random
from mpchain.testing.helper import with_requires
from mpchain.training.output_files import find_files
from mpchain.typing import Array, Input
from mpchain.utils.type_check import InvalidType
from mpchain.variable import Variable

DummyDeviceType = cuda.DummyDevice
DummyDevice = DummyDeviceType()
cached_property = functools.cached_property


class mdarray:
    """Stands in for iDeep's arrays; it has no instances."""


def no_chainerx() -> bool:
    """Returns False: mpchain has no ChainerX."""
    return False


class ndarray:
    """Stands in for ChainerX's arrays; it has no instances."""


def is_ideep_available() -> bool:
    return False


def check_ideep_available() -> None:
    raise RuntimeError("iDeep is not available: mpchain uses oneDNN on CPUs by itself")


def inputs_all_ready(inputs: object, supported_ndim: object = (2, 4)) -> bool:
    return False


def should_use_ideep(level: str) -> bool:
    return False


def set_console_cursor_position(x: int, y: int) -> None:
    """Moves the cursor by columns and lines.

    Chainer has this function and ``erase_console`` only on Windows, where copies of its PrintReport
    call them.
    """
    moves = [f"\033[{abs(n)}{signs[n > 0]}" for n, signs in ((x, "DC"), (y, "AB")) if n]
    print(*moves, sep="", end="", flush=True)


def erase_console(x: int, y: int, mode: int = 0) -> None:
    """Moves the cursor, then erases the console after it (0), before it (1), or entirely (2)."""
    set_console_cursor_position(x, y)
    print(f"\033[{mode}J", end="", flush=True)


def static_graph(*args: Any, **kwargs: Any) -> Any:
    """Decorator of ``forward`` methods; mpchain runs them unchanged."""
    return args[0] if args and callable(args[0]) else lambda function: function


def static_code(*args: Any, **kwargs: Any) -> Any:
    """Decorator of functions with side effects; see :func:`static_graph`."""
    return static_graph(*args, **kwargs)


def static_forward_optimizations(func: FunctionNode, inputs: Sequence[Array]) -> Any:
    return func.forward(inputs)


def check() -> None:
    """Checks nothing, because pyproject.toml lists mpchain's requirements."""


def get_device(*args: Any) -> Any:
    """Returns the CUDA device of the first argument that is a device ID, a device or an array."""
    warn("get_device", "get_device_from_id or get_device_from_array")
    return cuda.get_device(*args)


def _deprecated(name):
    base = getattr(optimizer_hooks, name)

    def __init__(self, *args, **kwargs):
        warn(f"chainer.optimizer.{name}", f"chainer.optimizer_hooks.{name}")
        base.__init__(self, *args, **kwargs)

    return type(name, (base,), {"__init__": __init__, "__doc__": base.__doc__})


GradientClipping = _deprecated("GradientClipping")
GradientHardClipping = _deprecated("GradientHardClipping")
GradientNoise = _deprecated("GradientNoise")
Lasso = _deprecated("Lasso")
WeightDecay = _deprecated("WeightDecay")


def _with_n_fold(function):
    @functools.wraps(function)
    def split(dataset, n_folds=None, *args, **kwargs):
        if "n_fold" in kwargs:
            warn(f"{function.__name__}: n_fold", "n_folds")
            n_folds = kwargs.pop("n_fold")
        return function(dataset, n_folds, *args, **kwargs)

    return split


get_cross_validation_datasets = _with_n_fold(datasets.get_cross_validation_datasets)
get_cross_validation_datasets_random = _with_n_fold(datasets.get_cross_validation_datasets_random)


# The functions below handle arrays.


def as_mat(x: Input) -> Any:
    """Returns x as a matrix with one row for each example."""
    return x if x.ndim == 2 else x.reshape(len(x), -1)


def as_vec(x: Any) -> Any:
    return x if x.ndim == 1 else x.ravel()


def empty_like(x: object) -> Any:
    return cuda.get_array_module(x).empty_like(x)


def _check_arrays_forward_compatible(arrays: Any, label: Any = None) -> None:
    if len({cuda.get_array_module(x) for x in arrays if x is not None}) > 1:
        raise TypeError(f"{label or 'function'}: arrays of NumPy and CuPy are mixed")


def get_raw_shape(arr_or_var: Input) -> tuple[int, ...]:
    return arr_or_var.shape


def get_semantic_shape(arr_or_var: Input, *, assumed_layout: None = None) -> tuple[int, ...]:
    return arr_or_var.shape


def _pair(x: Any) -> Any:
    return x if hasattr(x, "__getitem__") else (x, x)


def _concat_arrays(arrays: Any, padding: Any) -> Any:
    return convert.concat_examples(list(arrays), padding=padding)


_concat_arrays_with_padding = _concat_arrays


def _call_converter(converter: Any, batch: Any, device: Any) -> Any:
    return converter(batch, device)


def _read_image_as_array(path: Any, dtype: Any) -> Any:
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image, dtype=dtype)


# The functions below stand in for Chainer's mathematical functions.


def _log_softmax(x: Any, axis: int = 1) -> Any:
    return functions.log_softmax(x, axis=axis).array


def _lstm(x: Any, h: Any, c: Any, w: Sequence[Input], b: Sequence[Input]) -> Any:
    """Computes a step of an LSTM with the weights of ``F.n_step_lstm``; returns ``h`` and ``c``."""
    h, c = functions.expand_dims(h, 0), functions.expand_dims(c, 0)
    h, c, _ = functions.n_step_lstm(1, 0.0, h, c, [w], [b], [x])
    return h[0], c[0]


def _gru(x: Any, h: Any, c: Any, w: Sequence[Input], b: Sequence[Input]) -> Any:
    """Computes a step of a GRU with the weights of ``F.n_step_gru``; returns ``h`` and None."""
    h, _ = functions.n_step_gru(1, 0.0, functions.expand_dims(h, 0), [w], [b], [x])
    return h[0], None


def _check_ndim(in_type: Any, lower: int = 1, upper: int = 2) -> None:
    if not lower <= in_type.ndim <= upper:
        raise InvalidType(f"{lower} <= ndim <= {upper}", f"ndim = {in_type.ndim}")


def fbeta_score(
    y: Input, t: Input, label_num: int | None = None, beta: float = 1.0, ignore_label: int = -1
) -> Any:
    """Returns the F-beta score of each label; see ``F.classification_summary``."""
    return functions.classification_summary(y, t, label_num, beta, ignore_label)[2]


def n_step_lstm_base(
    n_layers: int,
    dropout_ratio: float,
    hx: Input,
    cx: Input,
    ws: Sequence[Sequence[Input]],
    bs: Sequence[Sequence[Input]],
    xs: Sequence[Input],
    use_bi_direction: bool,
) -> Any:
    """Calls :func:`mpchain.functions.n_step_lstm` or ``n_step_bilstm``."""
    function = functions.n_step_bilstm if use_bi_direction else functions.n_step_lstm
    return function(n_layers, dropout_ratio, hx, cx, ws, bs, xs)


def n_step_gru_base(
    n_layers: int,
    dropout_ratio: float,
    hx: Input,
    ws: Sequence[Sequence[Input]],
    bs: Sequence[Sequence[Input]],
    xs: Sequence[Input],
    use_bi_direction: bool,
) -> Any:
    """Calls :func:`mpchain.functions.n_step_gru` or ``n_step_bigru``."""
    function = functions.n_step_bigru if use_bi_direction else functions.n_step_gru
    return function(n_layers, dropout_ratio, hx, ws, bs, xs)


def n_step_rnn_base(
    n_layers: int,
    dropout_ratio: float,
    hx: Input,
    ws: Sequence[Sequence[Input]],
    bs: Sequence[Sequence[Input]],
    xs: Sequence[Input],
    activation: str,
    use_bi_direction: bool,
) -> Any:
    """Calls :func:`mpchain.functions.n_step_rnn` or ``n_step_birnn``."""
    function = functions.n_step_birnn if use_bi_direction else functions.n_step_rnn
    return function(n_layers, dropout_ratio, hx, ws, bs, xs, activation)


def det(a: Input) -> Variable:
    """Returns the determinant; drops trailing axes of size 1, which Chainer accepts."""
    return functions.det(a.reshape(a.shape[:2]) if set(a.shape[2:]) == {1} else a)


def batch_matmul(a: Input, b: Input, transa: bool = False, transb: bool = False) -> Variable:
    warn("batch_matmul", "matmul")
    return functions.batch_matmul(a, b, transa, transb)


def _global_average_pooling_2d(x: Any) -> Variable:
    """Returns the means (N, C) of images (N, C, H, W)."""
    return functions.average(x, axis=(2, 3))


def _matmul(
    a: Any, b: Any, transa: bool = False, transb: bool = False, transout: bool = False
) -> Any:
    """Returns the product of arrays, or its transpose."""
    y = functions.matmul(a, b, transa, transb).array
    return y.swapaxes(-1, -2) if transout else y


def _get_check_index(trans: bool, right: bool, row_idx: int = 0, col_idx: int = 1) -> int:
    """Returns the axis of a matrix that a matrix product sums over."""
    return row_idx if trans != right else col_idx


def _get_nccl_data_type(dtype: Any) -> int:
    """Returns the number in ``nccl.h`` that stands for a dtype."""
    numbers = {"float16": 6, "float32": 7, "float64": 8}
    name = np.dtype(dtype).name
    if name not in numbers:
        raise RuntimeError(f"Unexpected data type:{name}")
    return numbers[name]


def _parse_replica_sets(replica_sets: Any, size: int) -> list[set[int]]:
    """Returns the sets of ranks that each save one snapshot; all other ranks form one more set."""
    sets = [{s} if isinstance(s, int) else set(s) for s in replica_sets]
    rest = set(range(size)).difference(*sets)
    return [*sets, rest] if rest else sets


def _find_latest_snapshot(fmt: str, path: str) -> str | None:
    """Returns the name of the newest snapshot in a folder, or None if the folder has none."""
    files = find_files(path, fmt)
    return os.path.basename(max(files, key=os.path.getmtime)) if files else None


def pseudo_connect(delegate_variable: Variable | None, *actual_variables: Any) -> Any:
    """Returns a tuple even for a single variable, as ChainerMN does."""
    ys = communication.pseudo_connect(delegate_variable, *actual_variables)
    return ys if isinstance(ys, tuple) else (ys,)


def install_variable_get_item() -> None:
    """Does nothing: variables can be indexed already."""


install_variable_arithmetics = install_variable_get_item
mul, sub, neg = operator.mul, operator.sub, operator.neg
div, floordiv, pow = operator.truediv, operator.floordiv, operator.pow


def rsub(self: Variable, rhs: Input | float) -> Variable:
    left: Any = rhs
    return left - self


def rdiv(self: Variable, rhs: Input | float) -> Variable:
    left: Any = rhs
    return left / self


def rfloordiv(self: Variable, rhs: Input | float) -> Variable:
    left: Any = rhs
    return left // self


def rpow(self: Variable, rhs: Input | float) -> Variable:
    left: Any = rhs
    return left**self


def rmatmul(self: Variable, rhs: Input | float) -> Variable:
    left: Any = rhs
    return left @ self


def argsort_list_descent(xs: Sequence[Input]) -> Any:
    """Returns the order of the lengths of ``xs``, longest first."""
    return np.argsort([-len(x) for x in xs], kind="stable").astype("i")


def permutate_list(xs: Sequence[Input], indices: Sequence[int], inv: bool) -> list[Any]:
    return [xs[i] for i in (np.argsort(indices) if inv else indices)]


def l2normalize(xp: ModuleType, v: Array, eps: float) -> Any:
    return v / (xp.linalg.norm(v) + eps)


def update_approximate_vectors(
    weight_matrix: Array, u: Array, n_power_iteration: int, eps: float
) -> tuple[Any, Any]:
    """Returns the approximate singular vectors (u, v) after some power iterations."""
    xp = cuda.get_array_module(weight_matrix)
    v = u
    for _ in range(n_power_iteration):
        v = l2normalize(xp, u @ weight_matrix, eps)
        u = l2normalize(xp, weight_matrix @ v, eps)
    return u, v


def calculate_max_singular_value(weight_matrix: Array, u: Array, v: Array) -> Variable:
    return functions.matmul(functions.matmul(u, weight_matrix), v)


# The classes and functions below concern variables, links and checks.


class FunctionSet:
    """Stands in for a container of Chainer 1; making one raises an error with advice."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "FunctionSet was removed in Chainer 2: derive from chainer.Chain, and assign the links "
            "within `with self.init_scope():`"
        )


def variable_repr(var: object) -> str:
    return repr(var)


def variable_str(var: object) -> str:
    return str(var)


def _argname(in_types: Any, names: Any) -> None:
    """Gives names to the types of a function's inputs, for messages of type checks."""
    if len(in_types) != len(names):
        raise InvalidType(
            f"{len(names)} argument(s)", f"{len(in_types)} argument(s)", "wrong number"
        )
    for in_type, name in zip(in_types, names):
        in_type.name = name


def _get_link_hooks() -> dict[str, Any]:
    return config.link_hooks


def in_light_mode() -> bool:
    return False


@contextlib.contextmanager
def get_function_check_context(f: object) -> Any:
    yield


@dataclass(repr=False)
class _ForwardPreprocessCallbackArgs:
    """Arguments of a link hook before a link's forward method."""

    link: Any
    forward_name: str
    args: tuple
    kwargs: dict

    def __repr__(self):
        return (
            f"<{type(self).__name__} link={self.link!r} forward_name={self.forward_name!r} "
            f"args=<{len(self.args)} args> kwargs=<{len(self.kwargs)} kwargs>>"
        )


@dataclass(repr=False)
class _ForwardPostprocessCallbackArgs(_ForwardPreprocessCallbackArgs):
    """Arguments of a link hook after a link's forward method."""

    out: Any


class _DummyContext(contextlib.nullcontext):
    """A context manager that does nothing."""


_dummy_context = _DummyContext()


# The code below stands in for chainer.testing, and must work without pytest.


def get_error() -> None:
    """Returns None, because no error prevents tests from running."""


def check_available() -> None:
    """Does nothing, because tests can always run."""


def is_available() -> bool:
    return True


_fixed = []


def do_setup(deterministic: bool = True) -> None:
    """Seeds the generators until :func:`do_teardown`, if ``deterministic``."""
    _fixed.append(contextlib.ExitStack())
    if deterministic:
        _fixed[-1].enter_context(testing_random._fixed())


def do_teardown() -> None:
    _fixed.pop().close()


class QuietTestRunner:
    """Runs a test suite without printing."""

    def run(self, suite: unittest.TestSuite) -> unittest.TestResult:
        result = unittest.TestResult()
        suite(result)
        return result


def _skip(reason):
    import pytest

    pytest.skip(reason)


def skipif(condition: bool) -> None:
    if condition:
        _skip("the condition holds")


def skipif_requires_satisfied(*requirements: str) -> None:
    try:
        with_requires(*requirements)(lambda: None)()
    except unittest.SkipTest:
        return
    _skip(f"these are met: {requirements}")


def skipif_not_enough_cuda_devices(device_count: int) -> None:
    if cuda.device_count() < device_count:
        _skip(f"fewer than {device_count} GPUs")


def is_return_code_zero(args: list[str]) -> bool:
    """Returns whether a command ends successfully."""
    try:
        return subprocess.run(args, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def is_graphviz_available() -> bool:
    return is_return_code_zero(["dot", "-V"])

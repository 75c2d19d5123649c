"""Tests that every kernel that mpchain writes compiles for today's GPUs without a warning."""

import contextlib
import functools
import inspect
import itertools
import sys
import types

import numpy as np
import pytest

from mpchain import config, kernels, observers, optimizers
from mpchain.backends import cuda
from mpchain.backends.dtypes import as_dtype
from mpchain.captured import cuda_graph
from mpchain.formulas import writer
from mpchain.formulas.symbol import UntraceableError
from mpchain.formulas.writer import fused_kernel
from mpchain.functions import recurrent
from mpchain.functions.declaring.declaration import (
    Declaration,
    differentiate,
    parameters_of,
    registry,
)
from mpchain.kernels.gpu import (
    cuda_channels,
    cuda_losses,
    cuda_random,
    cuda_reductions,
    cuda_rows,
    cuda_steps,
    cuda_wide,
    cuda_windows,
    loss_scale,
)
from mpchain.kernels.gpu.cuda_wide import WideKernel
from mpchain.optimizer import GradientMethod
from mpchain.testing.kernel_cases import CASES
from tests.gpu import nvrtc

pytestmark = pytest.mark.skipif(nvrtc.load() is None, reason=nvrtc.REASON)

ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]
C_TYPES = {"float32": "float", "float64": "double", "float16": "float16", "bfloat16": "bfloat16"}
# NumPy has no bfloat16: kernels for bfloat16 have the text of kernels for float16 with another
# type.
IN_NUMPY = {dtype: dtype.removeprefix("b") for dtype in C_TYPES}
_HEADERS = "#include <cupy/float16.cuh>\n#include <cupy/bfloat16.cuh>\ntypedef {} T;\n"
# CuPy writes this text for contiguous arrays.
_ELEMENTWISE = """
#line 1 "{name}"
extern "C" __global__ void {name}({parameters}, CIndexer<1, true> _ind) {{
  CUPY_FOR(i, _ind.size()) {{
    _ind.set(i);
{elements}
{operation};
  }}
}}
"""


def _declarations(order):
    """Yields mpchain's elementwise functions, and the functions that are their derivatives."""
    found = [d for d in registry.values() if d.is_own and d.is_elementwise]
    for _ in range(order):
        yield from found
        found = [d for declaration in found for d in _derivatives(declaration)]


def _derivatives(declaration):
    for formula in filter(None, declaration.derivatives):
        n_arrays = declaration.elementwise_arrays(formula)
        try:
            derivatives = n_arrays and differentiate(formula, parameters_of(formula), n_arrays)
        except UntraceableError:
            continue
        if derivatives:
            derived = Declaration(formula, derivatives, is_elementwise=True)
            derived.name = f"{declaration.name}_derivative"
            yield derived


@functools.cache
def _elementwise_kernels():
    """Returns {texts of the parameters, the results and the operation: number of arrays}."""
    written = {}

    def record(in_params, out_params, operation, name, **options):
        written[in_params, out_params, operation] = n_arrays
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "elementwise", record)
        # Without the flag for GPUs, the writer writes other texts of the same formulas.
        patch.setattr(writer, "_on_gpu", None)
        for declaration in _declarations(2):
            n_arrays = len(declaration.array_names)
            fused_kernel(declaration.name, declaration.body)
            for formula in filter(None, declaration.derivatives):
                names = inspect.signature(formula).parameters
                n_arrays = sum(name not in declaration.constant_names for name in names)
                fused_kernel(declaration.name, formula)
        patch.setattr(cuda, "is_gpu_array", lambda x: True)
        patch.setitem(sys.modules, "cupy", np)
        for n_writes, n_forgets in ((1, 1), (2, 2), (1, 3)):
            x = np.zeros(1)
            parts = [x] * n_forgets, [(x, x)] * n_writes, [x] * n_forgets, x
            for formula, gradients in ((recurrent._cell, []), (recurrent._cell_gradients, [x, x])):
                n_arrays = 2 * n_forgets + 2 * n_writes + 1 + len(gradients)
                with pytest.raises(TypeError):  # there is no kernel to call
                    formula(*gradients, *parts)
    return written


def _elementwise_text(kind):
    parts = [_HEADERS.format(kind)]
    kernels = _elementwise_kernels().items()
    for i, ((in_params, out_params, operation), n_arrays) in enumerate(kernels):
        names, outs = ([w.split()[1] for w in t.split(", ")] for t in (in_params, out_params))
        arrays, numbers = names[:n_arrays], names[n_arrays:]
        parameters = [f"const CArray<T, 1, true, true> _raw_{name}" for name in arrays]
        parameters += [f"const T {name}" for name in numbers]
        parameters += [f"CArray<T, 1, true, true> _raw_{out}" for out in outs]
        elements = [f"const T &{name} = _raw_{name}[_ind.get()];" for name in arrays]
        elements += [f"T &{out} = _raw_{out}[_ind.get()];" for out in outs]
        parts.append(
            _ELEMENTWISE.format(
                name=f"kernel_{i}",
                parameters=", ".join(parameters),
                elements="\n".join(elements),
                operation=operation,
            )
        )
    return "".join(parts)


def _rules():
    """Yields the name and a rule of each optimizer with an elementwise step, ready for the step."""
    for name in optimizers.__all__ if hasattr(optimizers, "__all__") else dir(optimizers):
        optimizer = getattr(optimizers, name)
        if isinstance(optimizer, type) and issubclass(optimizer, GradientMethod):
            rule = optimizer().create_update_rule()
            if rule.is_elementwise:
                rule.t = 2
                yield name, rule


@contextlib.contextmanager
def _replayed(graph):
    """Context manager: records kernels for replays of a graph, or runs them if ``graph`` is
    None."""
    observers.current.graph = graph
    try:
        yield
    finally:
        observers.current.graph = None


def _step(rule, dtypes):
    """Returns the arguments of a step with more arrays than fit into one kernel."""
    *written, grads = ([np.zeros(2, dtype)] * 4096 for dtype in dtypes)
    return rule.step, written, grads, lambda n_left_out=0: rule.scalars()


def _text_of(function, *arguments):
    """Returns the text of the first kernel that a function runs."""

    class Made(Exception):
        pass

    def raw(text, *options):
        raise Made(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "raw", raw)
        patch.setattr(cuda_steps, "_argument_bytes", lambda: 32764)
        patch.setattr(cuda, "cupy", np, raising=False)
        with pytest.raises(Made) as made:
            function(*arguments)
    return made.value.args[0]


def _check(text, architecture, *options):
    log, size = nvrtc.compile_text(text, architecture, options)
    assert log == "" and size > 0, f"{log[:4000]}\n{text if len(text) < 4000 else ''}"


def test_every_function_has_a_kernel_or_none():
    kernels = _elementwise_kernels()
    assert len(kernels) > 250
    assert any("tanh" in operation for _, _, operation in kernels)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", C_TYPES)
def test_elementwise_kernels(dtype, architecture):
    _check(_elementwise_text(C_TYPES[dtype]), architecture)


@pytest.mark.nightly
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("c_dtype", C_TYPES)
def test_steps_of_optimizers(c_dtype, architecture):
    found, dtype = 0, IN_NUMPY[c_dtype]
    guard = cuda_steps.Guard(None, None, 0, 3)
    graph = types.SimpleNamespace(numbers_of=lambda describe: None)
    for _, rule in _rules():
        state = np.promote_types(dtype, np.float32)
        dtypes = [dtype, *[state] * len(rule.states), dtype]
        for of_graph, of_guard in itertools.product((None, graph), (None, guard)):
            with _replayed(of_graph), cuda_steps.guarded(of_guard):
                text = _text_of(cuda_steps.take_steps, *_step(rule, dtypes))
            _check(text.replace(dtype, c_dtype), architecture, "--fmad=false")
        found += 1
    assert found >= 12


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_steps_on_float32_copies(dtype, architecture):
    single, half = np.dtype(np.float32), as_dtype(dtype)
    rule = dict(_rules())["Adam"]
    for of_grads, inverse in itertools.product((single, half), (None, 0.5)):
        arguments = _step(rule, [single] * (1 + len(rule.states)) + [of_grads])
        halves = [np.zeros(2, half)] * len(arguments[2])
        text = _text_of(cuda_steps.take_steps, *arguments, halves, inverse)
        _check(text, architecture, "--fmad=false")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("factor", [2.0, np.ones((), "f")], ids=["number", "array"])
def test_steps_that_take_a_factor_out_of_gradients(factor, architecture, monkeypatch):
    monkeypatch.setattr(cuda, "is_gpu_array", lambda x: isinstance(x, np.ndarray))
    single, half = np.dtype(np.float32), np.dtype(np.float16)
    rule = dict(_rules())["Adam"]
    step = _step(rule, [single] * (1 + len(rule.states)) + [half])
    halves = [np.zeros(2, half)] * len(step[2])
    guard = cuda_steps.Guard(None, None, 0, 3)
    for of_guard in (None, guard):
        with cuda_steps.guarded(of_guard):
            text = _text_of(cuda_steps.take_steps, *step, halves, factor)
        assert "x_g *= inverse;" in text
        _check(text, architecture, "--fmad=false")
    text = _text_of(cuda_steps.multiply_all, [np.zeros(2, "f")], factor)
    _check(text, architecture, "--fmad=false")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dynamic_loss_scale(architecture):
    _check(loss_scale._TEXT, architecture)
    for dtype in ("float16", "float32", "float64"):
        text = _text_of(cuda_steps.find_not_finite, [("x", np.zeros(2, dtype))])
        _check(text, architecture, "--fmad=false")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_kernel_that_brings_numbers_to_captured_steps(architecture):
    _check(cuda_graph._STORE, architecture)


def test_a_warning_and_an_error_are_found():
    log, _ = nvrtc.compile_text('extern "C" __global__ void f() { int unused = 1; }', "sm_90")
    assert "never referenced" in log
    log, size = nvrtc.compile_text("void f() { undeclared(); }", "sm_90")
    assert "undeclared" in log and size == 0


def _own_kernels(dtype):
    """Returns the calls that make the kernels of operations for arrays of a dtype."""
    made = {}

    def record(*arguments, **options):
        made[arguments] = options
        return lambda *arrays, **launch: arrays[0]

    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(cuda, "elementwise", record)
        patch.setattr(cuda, "raw", record)
        patch.setattr(cuda, "is_gpu_array", lambda x: isinstance(x, np.ndarray))
        patch.setattr(cuda_wide, "is_aligned", lambda x: x.flags.aligned)
        patch.setitem(sys.modules, "cupy", np)
        patch.setattr(cuda_windows, "product", np.matmul)
        patch.setattr(config, "cudnn_deterministic", True)
        caches = cuda_rows._joining, cuda_reductions._compiled, cuda_windows._kernel
        for module in (*caches, cuda_channels._compiled):
            patch.setattr(inspect.getmodule(module), module.__name__, module.__wrapped__)
        for operation, cases in CASES.items():
            for kernel in kernels.operations[operation].kernels:
                if kernel.library.startswith("cuda"):
                    for make in cases.values():
                        arguments = _as(dtype, make())
                        if kernel.refuse(*arguments) is None:
                            kernel.compute(*arguments)
                            if kernel.library == "cuda_windows":
                                kernel.compute(*map(_with_channels_last, arguments))
        for n_classes in (3, 8):  # The first kernel has narrow loads, the second wide ones.
            x, t = np.zeros((2, n_classes), dtype), np.zeros(2, np.int32)
            y, kept = cuda_losses.cross_entropy(x, t, 0, None, -1, "mean")
            cuda_losses.cross_entropy_gradient(y, x, kept)
        # Sums are divided into two parts, as for few long sums.
        patch.setattr(cuda_reductions, "_parts", lambda **shape: 2)
        for name in ("batch_normalization", "batch_normalization_gradient"):
            for kernel in kernels.operations[name].kernels:
                if kernel.library == "cuda_reductions":
                    kernel.compute(*_as(dtype, CASES[name]["images"]()))
        cuda_losses.cross_entropy(x, t, 0, None, -1, "mean")
        cuda_reductions.sum_columns(x, 0, False)
        cuda_random._random_words(t, t, 1, 0, 0, 0, 0)
        cuda_reductions.follow_statistics([x, x], [x, x], 0.9, 1)
    return made


def _with_channels_last(x):
    if not isinstance(x, np.ndarray) or x.ndim < 3:
        return x
    return np.moveaxis(np.moveaxis(x, 1, -1).copy(), -1, 1)


def _as(dtype, arguments):
    return [
        x.astype(dtype) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x
        for x in arguments
    ]


_NUMBERS = {"int32": "int", "int64": "long long"}
_NUMBERS |= {"uint32": "unsigned int", "uint64": "unsigned long long"}


def _with_types(in_params, out_params, operation, name, dtype):
    """Returns an elementwise kernel as CuPy writes it for contiguous arrays, all of one dtype."""
    types = {**_NUMBERS, "P": "int", "L": "int", "W": "double" if dtype == "float64" else "float"}
    parameters, elements = [], []
    n_ins = len(in_params.split(", "))
    for k, text in enumerate(f"{in_params}, {out_params}".split(", ")):
        *raw, kind, parameter = text.split()
        c_type = types.get(kind, "T")
        if kind in _NUMBERS and not raw and k < n_ins:
            parameters.append(f"const {c_type} {parameter}")
        elif raw:
            constant = "const " if k < n_ins else ""
            parameters.append(f"{constant}CArray<{c_type}, 1, true, true> {parameter}")
        else:
            constant = "const " if k < n_ins else ""
            parameters.append(f"CArray<{c_type}, 1, true, true> _raw_{parameter}")
            elements.append(f"{constant}{c_type} &{parameter} = _raw_{parameter}[_ind.get()];")
    aliases = "".join(f"typedef {types.get(letter, 'T')} {letter};\n" for letter in "WGBRPL")
    return (
        _HEADERS.format(C_TYPES[dtype])
        + aliases
        + _ELEMENTWISE.format(
            name=name,
            parameters=", ".join(parameters),
            elements="\n".join(elements),
            operation=operation,
        )
    )


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_functions_with_wide_loads(dtype, architecture):
    for (in_params, out_params, operation), n_arrays in _elementwise_kernels().items():
        ins, outs = ([w.split()[1] for w in t.split(", ")] for t in (in_params, out_params))
        kernel = WideKernel(ins, outs, operation, "mpchain_kernel")
        are_arrays = tuple(i < n_arrays for i in range(len(ins)))
        _check(kernel.text(np.dtype(dtype).char, are_arrays), architecture)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", C_TYPES)
def test_kernels_of_operations(dtype, architecture):
    import cupy

    made = _own_kernels(IN_NUMPY[dtype])
    assert len(made) >= 20
    for arguments in made:
        if len(arguments) == 2:
            _check(arguments[0].replace(IN_NUMPY[dtype], dtype), architecture)
        else:
            # CuPy refuses some names of parameters.
            cupy.ElementwiseKernel(*arguments)
            _check(_with_types(*arguments, dtype), architecture)

"""Optimizer steps on GPUs: one kernel for the arrays of many parameters.

The kernel is CUDA C, written from the trace of the step's body. It computes the same bits as NumPy,
as it joins no product with a sum.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpchain.backends import cuda
from mpchain.formulas.symbol import Symbol, in_order, operation_in_c, trace_step
from mpchain.recording import current
from mpchain.typing import Array

_THREADS, _ELEMENTS = 256, 4096  # of a block
_C_TYPES = {"e": "float16", "f": "float", "d": "double"}
_TEXT = """{headers}struct Arrays {{
{pointers}
  long long size[{capacity}];
  int first_block[{capacity}];
  int n;
}};
extern "C" __global__ void mpchain_step(const Arrays arrays{numbers}) {{
  int k = 0;  // the arrays that this block works on
  for (int end = arrays.n; end - k > 1;) {{
    int middle = (k + end) / 2;
    if (arrays.first_block[middle] <= (int)blockIdx.x) k = middle; else end = middle;
  }}
  long long i = (blockIdx.x - arrays.first_block[k]) * {elements}LL;
  long long end = i + {elements}LL < arrays.size[k] ? i + {elements}LL : arrays.size[k];
  for (i += threadIdx.x; i < end; i += blockDim.x) {{
{body}
  }}
}}
"""


def take_steps(
    step: Callable,
    written: Sequence[Sequence[Array]],
    grads: Sequence[Array],
    scalars: Callable[[], dict],
) -> bool:
    """Takes a step for parameters on the current GPU, by one kernel where their sizes fit into one.

    Args:
        step: as in :func:`mpchain.kernels.steps.take_step`.
        written: the parameters; then, for each state of the step, those of the parameters. The
            arrays of one list have one dtype; those of a parameter have one shape.
        grads: the gradients, of one dtype.
        scalars: returns numbers that ``step`` takes. Before each replay of a captured step it is
            asked again.

    Returns:
        Whether it did: some steps cannot be written as a kernel, and some arrays are not
        contiguous.

    Example:
        >>> take_steps(step, [params, momenta], grads, lambda: {"lr": 0.1})  # doctest: +SKIP
        True
    """
    lists = [*written, grads]
    dtypes = [arrays[0].dtype for arrays in lists]
    if any(dtype.char not in _C_TYPES for dtype in dtypes):
        return False
    grads = [g if g.flags.c_contiguous else g.copy("C") for g in grads]
    if not all(array.flags.c_contiguous for arrays in written for array in arrays):
        return False
    computed = np.result_type(np.float32, *dtypes)
    describe = functools.partial(_body, step, len(written), scalars, dtypes)
    try:
        body, constants = describe()
    except Exception:  # it needs arrays; what else is wrong with it shows when it gets them
        return False
    names = [*(f"a{i}" for i in range(len(written))), "g"]
    numbers: list[Any] = [computed.type(x) for x in constants]
    declared = [f"T c{i}" for i in range(len(constants))]
    if current.graph is not None:  # in which they would stay as they are
        numbers = [current.graph.numbers_of(describe)]
        declared, body = _reading_numbers(body, len(constants))
    places = [i for i, grad in enumerate(grads) if grad.size]
    most = (_argument_bytes() - 8 * len(numbers) - 8) // (8 * len(lists) + 12)
    for start in range(0, len(places), most):
        portion = places[start : start + most]
        capacity = min(most, max(32, 1 << (len(portion) - 1).bit_length()))  # few kernels
        kernel = cuda.raw(
            _text(names, dtypes, capacity, body, _C_TYPES[computed.char], declared),
            "mpchain_step",
            ("--fmad=false",),
        )
        arrays = [[part[i] for i in portion] for part in [*written, grads]]
        table, n_blocks = _table(names, arrays, capacity)
        kernel((n_blocks,), (_THREADS,), (table, *numbers))
    return True


def _argument_bytes():
    """Returns how many bytes of arguments a kernel takes."""
    runtime = cuda.cupy.cuda.runtime
    is_recent = min(runtime.runtimeGetVersion(), runtime.driverGetVersion()) >= 12010
    return 32764 if is_recent else 4096


def _body(step, n_written, scalars, dtypes):
    """Returns the statements for an element, and the numbers that they need."""
    names, constants = [f"a{i}" for i in range(n_written)], []
    results = trace_step(step, names, scalars())

    def text_of(operand):
        if isinstance(operand, Symbol):
            return operand.name
        constants.append(operand)
        return f"c{len(constants) - 1}"

    lines = [f"T x_{name} = (T)arrays.{name}[k][i];" for name in (*names, "g")]
    lines += [operation_in_c(s, map(text_of, s.operands)) for s in in_order(*results)]
    for name, result, dtype in zip(names, results, dtypes[:-1], strict=True):
        lines.append(f"arrays.{name}[k][i] = ({_C_TYPES[dtype.char]}){text_of(result)};")
    return "\n".join("    " + line for line in lines), constants


def _reading_numbers(body, n):
    """Returns the parameters and the statements of a kernel that finds its numbers in memory."""
    lines = [f"    const T c{i} = (T)numbers[{i}];" for i in range(n)]
    return ["const double* numbers"], "\n".join([*lines, body])


def _text(names, dtypes, capacity, body, kind, numbers):
    pointers = [
        f"  {'const ' if name == 'g' else ''}{_C_TYPES[dtype.char]}* {name}[{capacity}];"
        for name, dtype in zip(names, dtypes, strict=True)
    ]
    headers = "#include <cupy/float16.cuh>\n" if any(d.char == "e" for d in dtypes) else ""
    return _TEXT.format(
        headers=f"{headers}typedef {kind} T;\n",
        pointers="\n".join(pointers),
        capacity=capacity,
        numbers="".join(f", {number}" for number in numbers),
        elements=_ELEMENTS,
        body=body,
    )


def _table(names, arrays, capacity):
    """Returns the first argument of the kernel, and the number of its blocks."""
    fields: list[Any] = [(name, np.uint64, capacity) for name in names]
    fields += [("size", np.int64, capacity), ("first_block", np.int32, capacity), ("n", np.int32)]
    table = np.zeros(1, np.dtype(fields, align=True))
    row, n = table[0], len(arrays[0])
    for name, part in zip(names, arrays, strict=True):
        row[name][:n] = [array.data.ptr for array in part]
    sizes = np.array([array.size for array in arrays[0]], np.int64)
    ends = np.cumsum(-(-sizes // _ELEMENTS))
    row["size"][:n], row["first_block"][1:n], row["n"] = sizes, ends[:-1], n
    return table, int(ends[-1])
